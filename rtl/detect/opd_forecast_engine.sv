// Forecast engine: next state and flags of one operator from one sample.
//
// Compares the log2 code of the sample with a moving average of its predecessors (deviation) and
// with the limit of the format (headroom). A non-finite sample never enters the average.
//
//   latency     : 0 clocks, combinational; outputs are 0 unless valid_i
//   not usable  : all zeros or no element: only WARMUP and SATURATED can be raised
//   first sample: seeds the average; the deviation is 0
//   rule        : docs/numerics.md, "Forecast engine"
`include "opd_assert.svh"

module opd_forecast_engine (
  input  logic                                 clk_i,      // for the assertions only
  input  logic                                 rst_ni,     // for the assertions only
  input  opd_reg_pkg::cfg_t                    cfg_i,
  input  logic                                 valid_i,
  input  logic [2:0]                           format_i,   // legal
  input  logic signed [7:0]                    scale_log2_i,
  input  logic signed [opd_pkg::CodeWidth-1:0] code_i,     // x of the largest magnitude
  input  logic                                 nonfinite_i,  // nonfinite_count > 0
  input  logic                                 nonzero_i,    // max_mag > 0
  input  logic                                 saturated_i,  // saturated_count > 0
  input  opd_pkg::forecast_state_t             state_i,    // before the sample
  output opd_pkg::forecast_state_t             state_o,    // after the sample
  output opd_pkg::flags_t                      flags_o
);

  logic               usable;
  logic signed [13:0] limit;
  logic signed [14:0] headroom;       // limit - x, 1/32 bit
  logic signed [14:0] code_unscaled;  // xb = x - 32*scale_log2, 1/32 bit
  logic signed [16:0] target;         // 4*xb, 1/128 bit
  logic signed [17:0] deviation;      // 4*xb - m, 1/128 bit
  logic signed [18:0] rounding;       // 2^(shift-1)
  logic signed [18:0] correction;     // deviation / 2^shift, rounds half up
  logic signed [20:0] projection;     // deviation * 2^forecast_shift
  logic [7:0]         next_run;

  function automatic logic [7:0] increment(logic [7:0] count);
    return count == '1 ? count : count + 8'd1;
  endfunction

  always_comb begin
    usable        = 1'b0;
    limit         = '0;
    headroom      = '0;
    code_unscaled = '0;
    target        = '0;
    deviation     = '0;
    rounding      = '0;
    correction    = '0;
    projection    = '0;
    next_run      = '0;
    state_o       = '0;
    flags_o       = '0;

    // A concatenation is unsigned and makes what it is compared with unsigned: $signed where a sign matters.
    if (valid_i) begin
      usable = !nonfinite_i && nonzero_i;
      unique case (format_i)
        opd_reg_pkg::FormatFp16: limit = cfg_i.limit_fp16;
        opd_reg_pkg::FormatBf16: limit = cfg_i.limit_bf16;
        opd_reg_pkg::FormatE4m3: limit = cfg_i.limit_e4m3;
        opd_reg_pkg::FormatE5m2: limit = cfg_i.limit_e5m2;
        default:                 limit = cfg_i.limit_fp32;
      endcase
      headroom      = 15'(limit) - 15'(code_i);
      code_unscaled = 15'(code_i) - 15'($signed({scale_log2_i, 5'b0}));
      target        = {code_unscaled, 2'b00};  // same width: the bits are the value
      if (state_i.age != '0) deviation = 18'(target) - 18'(state_i.baseline);
      rounding      = (19'sd1 << cfg_i.baseline_shift) >>> 1;
      correction    = (19'(deviation) + rounding) >>> cfg_i.baseline_shift;
      projection    = 21'(deviation) <<< cfg_i.forecast_shift;
      next_run      = increment(state_i.nonfinite_run);

      state_o = state_i;
      if (usable) begin
        // The new average lies between the old one and the target: 17 bits hold it.
        state_o.baseline = state_i.age == '0 ? target : 17'(19'(state_i.baseline) + correction);
        state_o.age      = increment(state_i.age);
      end
      if (!nonfinite_i) begin
        state_o.nonfinite_run = '0;
      end else begin
        state_o.nonfinite_run = next_run;
        if (cfg_i.baseline_reseed_run != '0 && next_run >= cfg_i.baseline_reseed_run) begin
          state_o.age = '0;
        end
      end

      flags_o.forecast = usable &&
          headroom < 15'($signed({1'b0, cfg_i.forecast_headroom})) &&
          projection > 21'($signed({headroom, 2'b00}));
      flags_o.critical = usable &&
          headroom <= 15'($signed({1'b0, cfg_i.critical_headroom}));
      flags_o.jump     = usable &&
          state_i.age >= cfg_i.jump_min_samples &&
          deviation > 18'($signed({1'b0, cfg_i.jump_threshold, 2'b00}));
      flags_o.nonfinite = nonfinite_i;
      flags_o.saturated = saturated_i;
      flags_o.warmup    = state_i.age < cfg_i.baseline_warmup_samples;
    end
  end

  `OPD_ASSERT(FormatIsLegal_A, valid_i, 32'(format_i) < opd_pkg::NumFormats)
  `OPD_ASSERT(BaselineShiftIsLegal_A, valid_i,
      cfg_i.baseline_shift >= 4'd1 && cfg_i.baseline_shift <= 4'd8)
  `OPD_ASSERT(BaselineNeverOvershoots_A, valid_i && usable && state_i.age != '0,
      (target >= state_i.baseline)
          ? (state_o.baseline >= state_i.baseline && state_o.baseline <= target)
          : (state_o.baseline <= state_i.baseline && state_o.baseline >= target))
  `OPD_ASSERT(NonfiniteFreezesBaseline_A, valid_i && nonfinite_i,
      state_o.baseline == state_i.baseline)

endmodule : opd_forecast_engine
