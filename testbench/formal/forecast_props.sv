// Properties of opd_history and opd_forecast_engine with the state of one operator fed back, against a model in 64-bit
// integers.
module forecast_props (
  input logic                                 clk_i,
  input logic                                 rst_ni,
  input opd_reg_pkg::cfg_t                    cfg_i,
  input logic                                 valid_i,
  input logic                                 desensitised_i,
  input logic [2:0]                           format_i,
  input logic signed [7:0]                    scale_log2_i,
  input logic signed [opd_pkg::CodeWidth-1:0] code_i,
  input logic                                 nonfinite_i,
  input logic                                 nonzero_i
);

  opd_pkg::history_t        history_q, history;
  opd_pkg::forecast_state_t state_q, state;
  logic                     usable, warmup_flag, forecast_flag, critical_flag, jump_flag;
  assign usable = !nonfinite_i && nonzero_i;

  opd_history u_history (
    .clk_i, .rst_ni, .cfg_i, .valid_i, .nonfinite_i, .usable_i(usable),
    .state_i(history_q), .state_o(history), .warmup_o(warmup_flag)
  );
  opd_forecast_engine dut (
    .clk_i, .rst_ni, .cfg_i, .valid_i, .usable_i(usable), .desensitised_i, .format_i, .scale_log2_i, .code_i,
    .age_i(history_q.age), .state_i(state_q), .state_o(state),
    .forecast_o(forecast_flag), .critical_o(critical_flag), .jump_o(jump_flag)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      history_q <= '0;
      state_q   <= '0;
    end else if (valid_i) begin
      history_q <= history;
      state_q   <= state;
    end
  end

  // docs/numerics.md, "Samples" and "Forecast engine", word for word.
  longint x, xb, m, d, h, j, n, hf, hj, lag, limit, step, new_m;
  int     age, run, new_age, new_run;
  logic [1:0] s;
  logic   forecast, critical, jump;

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
    age    = 32'(history_q.age);
    run    = 32'(history_q.nonfinite_run);

    xb       = x - 64'sd32 * 64'(scale_log2_i);
    d        = age == 0 ? 64'sd0 : 64'sd4 * xb - m;
    h        = limit - x;
    j        = $signed(64'(cfg_i.jump_threshold)) + (desensitised_i ? $signed(64'(cfg_i.desensitise_jump)) : 64'sd0);
    n        = desensitised_i ? $signed(64'(cfg_i.desensitise_horizon)) : 64'sd0;
    hf       = scale_log2_i != 8'sd0 ? $signed(64'(cfg_i.forecast_headroom_scaled)) : $signed(64'(cfg_i.forecast_headroom));
    hj       = scale_log2_i != 8'sd0 ? $signed(64'(cfg_i.jump_headroom_scaled)) : $signed(64'(cfg_i.jump_headroom));
    s        = format_i == 3'd2 || format_i == 3'd3 ? cfg_i.forecast_shift_fp8 : cfg_i.forecast_shift;
    forecast = h < hf && (d <<< s) > ((64'sd4 * h) <<< n);
    critical = h <= $signed(64'(cfg_i.critical_headroom));
    jump     = h < hj && age >= 32'(cfg_i.jump_min_samples) && d > 64'sd4 * j;
    lag      = $signed(64'(cfg_i.baseline_max_lag));
    step     = (d + (64'sd1 <<< (cfg_i.baseline_shift - 4'd1))) >>> cfg_i.baseline_shift;

    new_m   = m;
    new_age = age;
    new_run = 0;
    if (nonfinite_i) begin
      new_run = run < 255 ? run + 1 : 255;
      if (cfg_i.baseline_reseed_run != '0 && new_run >= 32'(cfg_i.baseline_reseed_run)) new_age = 0;
    end else if (usable) begin
      new_m   = age == 0 ? 64'sd4 * xb : m + step;
      if (age != 0 && lag != 0 && new_m < 64'sd4 * xb - 64'sd128 * lag) new_m = 64'sd4 * xb - 64'sd128 * lag;
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
        Age:          assert (32'(history.age) == new_age);
        NonfiniteRun: assert (32'(history.nonfinite_run) == new_run);
        Forecast:     assert (forecast_flag == (usable && forecast));
        Critical:     assert (critical_flag == (usable && critical));
        Jump:         assert (jump_flag == (usable && jump));
        Warmup:       assert (warmup_flag == (age < 32'(cfg_i.baseline_warmup_samples)));
        if (!usable) begin
          UnusableFreezesBaseline: assert (state.baseline == state_q.baseline);
        end
        if (usable && age != 0) begin
          // Towards the target 4*xb, never past it.
          BaselineBetweenOldAndTarget: assert (64'sd4 * xb >= m ? m <= new_m && new_m <= 64'sd4 * xb
                                                                : m >= new_m && new_m >= 64'sd4 * xb);
        end
        if (usable && lag != 0) begin
          BaselineWithinItsLag: assert (64'($signed(state.baseline)) >= 64'sd4 * xb - 64'sd128 * lag);
        end
      end else begin
        NoSampleNoFlag: assert (!forecast_flag && !critical_flag && !jump_flag && !warmup_flag);
      end
    end
  end

endmodule : forecast_props
