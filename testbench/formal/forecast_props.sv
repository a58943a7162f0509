// Properties of opd_forecast_engine with the state of one operator fed back, against a model in 64-bit integers.
module forecast_props (
  input logic                                 clk_i,
  input logic                                 rst_ni,
  input opd_reg_pkg::cfg_t                    cfg_i,
  input logic                                 valid_i,
  input logic [2:0]                           format_i,
  input logic signed [7:0]                    scale_log2_i,
  input logic signed [opd_pkg::CodeWidth-1:0] code_i,
  input logic                                 nonfinite_i,
  input logic                                 nonzero_i,
  input logic                                 saturated_i
);

  opd_pkg::forecast_state_t state_q, state;
  opd_pkg::flags_t          flags;

  opd_forecast_engine dut (
    .clk_i, .rst_ni, .cfg_i, .valid_i, .format_i, .scale_log2_i, .code_i, .nonfinite_i, .nonzero_i, .saturated_i,
    .state_i(state_q), .state_o(state), .flags_o(flags)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni)      state_q <= '0;
    else if (valid_i) state_q <= state;
  end

  // docs/numerics.md, "Forecast engine", word for word.
  longint x, xb, m, d, h, limit, step, new_m;
  int     age, run, new_age, new_run;
  logic   usable, forecast, critical, jump;

  always_comb begin
    case (format_i)
      3'd0:    limit = 64'($signed(cfg_i.limit_fp16));
      3'd1:    limit = 64'($signed(cfg_i.limit_bf16));
      3'd2:    limit = 64'($signed(cfg_i.limit_e4m3));
      3'd3:    limit = 64'($signed(cfg_i.limit_e5m2));
      default: limit = 64'($signed(cfg_i.limit_fp32));
    endcase
    x      = 64'(code_i);
    m      = 64'($signed(state_q.baseline));
    age    = 32'(state_q.age);
    run    = 32'(state_q.nonfinite_run);
    usable = !nonfinite_i && nonzero_i;

    xb       = x - 64'sd32 * 64'(scale_log2_i);
    d        = age == 0 ? 64'sd0 : 64'sd4 * xb - m;
    h        = limit - x;
    forecast = h < $signed(64'(cfg_i.forecast_headroom)) && (d <<< cfg_i.forecast_shift) > 64'sd4 * h;
    critical = h <= $signed(64'(cfg_i.critical_headroom));
    jump     = age >= 32'(cfg_i.jump_min_samples) && d > 64'sd4 * $signed(64'(cfg_i.jump_threshold));
    step     = (d + (64'sd1 <<< (cfg_i.baseline_shift - 4'd1))) >>> cfg_i.baseline_shift;

    new_m   = m;
    new_age = age;
    new_run = 0;
    if (nonfinite_i) begin
      new_run = run < 255 ? run + 1 : 255;
      if (cfg_i.baseline_reseed_run != '0 && new_run >= 32'(cfg_i.baseline_reseed_run)) new_age = 0;
    end else if (usable) begin
      new_m   = age == 0 ? 64'sd4 * xb : m + step;
      new_age = age < 255 ? age + 1 : 255;
    end
  end

  logic first_cycle = 1'b1;
  always_ff @(posedge clk_i) first_cycle <= 1'b0;

  always_comb begin
    assume (!first_cycle || !rst_ni);
    assume (format_i <= 3'd4);
    assume (cfg_i.baseline_shift >= 4'd1 && cfg_i.baseline_shift <= 4'd8);  // its range, docs/registers.md
    if (!first_cycle && rst_ni) begin
      if (valid_i) begin
        Baseline:     assert (64'($signed(state.baseline)) == new_m);
        Age:          assert (32'(state.age) == new_age);
        NonfiniteRun: assert (32'(state.nonfinite_run) == new_run);
        Forecast:     assert (flags.forecast == (usable && forecast));
        Critical:     assert (flags.critical == (usable && critical));
        Jump:         assert (flags.jump == (usable && jump));
        Nonfinite:    assert (flags.nonfinite == nonfinite_i);
        Saturated:    assert (flags.saturated == saturated_i);
        Warmup:       assert (flags.warmup == (age < 32'(cfg_i.baseline_warmup_samples)));
        Unused:       assert (!flags.z && !flags.d2);
        if (!usable) begin
          UnusableFreezesBaseline: assert (state.baseline == state_q.baseline);
        end
        if (usable && age != 0) begin
          // Towards the target 4*xb, never past it.
          BaselineBetweenOldAndTarget: assert (64'sd4 * xb >= m ? m <= new_m && new_m <= 64'sd4 * xb
                                                                : m >= new_m && new_m >= 64'sd4 * xb);
        end
      end else begin
        NoSampleNoFlag: assert (flags == '0);
      end
    end
  end

endmodule : forecast_props
