// Forecast engine: next state and flags of one operator from one sample.
//
// Compares the log2 code of the sample with a moving average of its predecessors (deviation) and
// with the limit of the format (headroom). A non-finite sample never enters the average.
//
//   latency     : 0 clocks, combinational; outputs are 0 unless valid_i
//   not usable  : state as it is, no flag
//   first sample: seeds the average; the deviation is 0
//   rule        : docs/numerics.md, "Forecast engine"
`include "opd_assert.svh"

module opd_forecast_engine (
  input  logic                                 clk_i,      // for the assertions only
  input  logic                                 rst_ni,     // for the assertions only
  input  opd_reg_pkg::cfg_t                    cfg_i,
  input  logic                                 valid_i,
  input  logic                                 usable_i,         // finite and not all zeros
  input  logic                                 desensitised_i,   // after a learning-rate change
  input  logic [2:0]                           format_i,         // legal
  input  logic signed [7:0]                    scale_log2_i,
  input  logic signed [opd_pkg::CodeWidth-1:0] code_i,           // x of the largest magnitude
  input  logic [7:0]                           age_i,            // before the sample
  input  opd_pkg::forecast_state_t             state_i,          // before the sample
  output opd_pkg::forecast_state_t             state_o,          // after the sample
  output logic                                 forecast_o,
  output logic                                 critical_o,
  output logic                                 jump_o
);

  logic signed [13:0] limit;
  logic signed [14:0] headroom;        // limit - x, 1/32 bit
  logic signed [14:0] code_unscaled;   // xb = x - 32*scale_log2, 1/32 bit
  logic signed [16:0] target;          // 4*xb, 1/128 bit
  logic signed [17:0] deviation;       // d = 4*xb - m, 1/128 bit
  logic signed [18:0] rounding;        // 2^(shift-1)
  logic signed [18:0] correction;      // deviation / 2^shift, rounds half up
  logic signed [18:0] allowed;         // lag: 128*max_lag, 1/128 bit
  logic               lags;            // m + correction is further than that below the target
  logic [1:0]         shift;           // s: FORECAST.SHIFT, or that of the 8-bit formats
  logic signed [20:0] projection;      // d * 2^s
  logic signed [20:0] distance;        // 4*h * 2^n, 1/128 bit
  logic [10:0]        jump_threshold;  // j, 1/32 bit
  logic signed [14:0] forecast_below;  // headroom below which FORECAST and JUMP may be raised,
  logic signed [14:0] jump_below;      // 1/32 bit; an operand under a loss scale has its own

  always_comb begin
    limit          = '0;
    headroom       = '0;
    code_unscaled  = '0;
    target         = '0;
    deviation      = '0;
    rounding       = '0;
    correction     = '0;
    allowed        = '0;
    lags           = 1'b0;
    shift          = '0;
    projection     = '0;
    distance       = '0;
    jump_threshold = '0;
    forecast_below = '0;
    jump_below     = '0;
    state_o        = '0;
    forecast_o     = 1'b0;
    critical_o     = 1'b0;
    jump_o         = 1'b0;

    // A concatenation is unsigned and makes what it is compared with unsigned: $signed where a sign matters.
    if (valid_i) begin
      state_o = state_i;
      shift   = cfg_i.forecast_shift;
      unique case (format_i)
        opd_reg_pkg::FormatFp16: limit = cfg_i.limit_fp16;
        opd_reg_pkg::FormatBf16: limit = cfg_i.limit_bf16;
        opd_reg_pkg::FormatE4m3: begin
          limit = cfg_i.limit_e4m3;
          shift = cfg_i.forecast_shift_fp8;
        end
        opd_reg_pkg::FormatE5m2: begin
          limit = cfg_i.limit_e5m2;
          shift = cfg_i.forecast_shift_fp8;
        end
        default:                 limit = cfg_i.limit_fp32;
      endcase
      headroom       = 15'(limit) - 15'(code_i);
      code_unscaled  = 15'(code_i) - 15'($signed({scale_log2_i, 5'b0}));
      target         = {code_unscaled, 2'b00};  // same width: the bits are the value
      if (age_i != '0) deviation = 18'(target) - 18'(state_i.baseline);
      rounding       = (19'sd1 << cfg_i.baseline_shift) >>> 1;
      correction     = (19'(deviation) + rounding) >>> cfg_i.baseline_shift;
      allowed        = 19'($signed({1'b0, cfg_i.baseline_max_lag, 7'b0}));
      lags           = cfg_i.baseline_max_lag != '0 && 19'(deviation) - allowed > correction;
      projection     = 21'(deviation) <<< shift;
      distance       = 21'($signed({headroom, 2'b00}));
      jump_threshold = 11'(cfg_i.jump_threshold);
      if (scale_log2_i == '0) begin
        forecast_below = 15'(cfg_i.forecast_headroom);
        jump_below     = 15'(cfg_i.jump_headroom);
      end else begin
        forecast_below = 15'(cfg_i.forecast_headroom_scaled);
        jump_below     = 15'(cfg_i.jump_headroom_scaled);
      end
      if (desensitised_i) begin
        distance       = distance <<< cfg_i.desensitise_horizon;
        jump_threshold = jump_threshold + 11'(cfg_i.desensitise_jump);
      end

      if (usable_i) begin
        // The new average lies between the old one and the target: 17 bits hold it.
        if (age_i == '0) state_o.baseline = target;
        else if (lags) state_o.baseline = target - 17'(allowed);
        else state_o.baseline = 17'(19'(state_i.baseline) + correction);
        forecast_o = headroom < forecast_below && projection > distance;
        critical_o = headroom <= 15'($signed({1'b0, cfg_i.critical_headroom}));
        jump_o     = headroom < jump_below && age_i >= cfg_i.jump_min_samples &&
                     deviation > 18'($signed({1'b0, jump_threshold, 2'b00}));
      end
    end
  end

  `OPD_ASSERT(FormatIsLegal_A, valid_i, 32'(format_i) < opd_pkg::NumFormats)
  `OPD_ASSERT(BaselineShiftIsLegal_A, valid_i,
      cfg_i.baseline_shift >= 4'd1 && cfg_i.baseline_shift <= 4'd8)
  `OPD_ASSERT(BaselineNeverOvershoots_A, valid_i && usable_i && age_i != '0,
      (target >= state_i.baseline)
          ? (state_o.baseline >= state_i.baseline && state_o.baseline <= target)
          : (state_o.baseline <= state_i.baseline && state_o.baseline >= target))
  `OPD_ASSERT(BaselineIsNearTheSample_A, valid_i && usable_i && cfg_i.baseline_max_lag != '0,
      19'(target) - 19'(state_o.baseline) <= allowed)
  `OPD_ASSERT(UnusableFreezesBaseline_A, valid_i && !usable_i,
      state_o.baseline == state_i.baseline)

endmodule : opd_forecast_engine
