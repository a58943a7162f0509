// Properties of opd_downshift_controller with the state of one operator fed back: every row of the table of
// docs/controller.md, under any flags, weights, risk and configuration. Software may set mode, lock and timer in any clock.
module decision_props (
  input logic                    clk_i,
  input logic                    rst_ni,
  input opd_reg_pkg::cfg_t       cfg_i,
  input logic                    valid_i,
  input logic [7:0]              step_i,
  input logic [7:0]              risk_i,
  input opd_pkg::flags_t         flags_i,
  input logic                    lost_i,
  input logic                    set_i,       // in a clock without a sample
  input opd_pkg::control_state_t set_state_i
);

  localparam logic [1:0] Fast = 2'd0, Stable = 2'd1, Safe = 2'd2;
  localparam logic [2:0] None = 3'd0, Risk = 3'd1, Nonfinite = 3'd2, Recovered = 3'd3, SafeExpired = 3'd4, Escalate = 3'd5;

  opd_pkg::control_state_t before_q, after;
  opd_reg_pkg::cause_e     cause;

  opd_downshift_controller dut (
    .clk_i, .rst_ni, .cfg_i, .valid_i, .step_i, .risk_i, .flags_i, .lost_i,
    .state_i(before_q), .state_o(after), .cause_o(cause)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni)      before_q <= '0;
    else if (valid_i) before_q <= after;
    else if (set_i)   before_q <= set_state_i;
  end

  // docs/controller.md, in words of its own: plain integers, flags as a list.
  int         elapsed, advanced, timer;
  logic       nonfinite, quiet;
  logic [1:0] mode;
  logic [2:0] why;
  logic [7:0] weights [8];

  always_comb begin
    weights = '{cfg_i.weight_z, cfg_i.weight_d2, cfg_i.weight_forecast, cfg_i.weight_critical, cfg_i.weight_jump,
                cfg_i.weight_nonfinite, cfg_i.weight_saturated, cfg_i.weight_warmup};
    quiet = !(flags_i[8] && weights[0] != '0);
    for (int i = 0; i < 8; i++) begin
      if (flags_i[i] && weights[i] != '0) quiet = 1'b0;
    end
    nonfinite = flags_i[5];

    elapsed = 32'($signed(8'(step_i - before_q.last_step)));
    if (elapsed < 0 || lost_i) elapsed = 0;
    advanced = 32'(before_q.timer) + elapsed > 255 ? 255 : 32'(before_q.timer) + elapsed;

    {mode, why} = {before_q.mode, None};
    timer       = 0;
    if (before_q.locked) begin
      if (before_q.mode == Safe && nonfinite) why = Escalate;
    end else if (before_q.mode == Fast) begin
      if (nonfinite)                                                   {mode, why} = {Stable, Nonfinite};
      else if (risk_i >= cfg_i.risk_stable)                            {mode, why} = {Stable, Risk};
    end else if (before_q.mode == Stable) begin
      if (nonfinite)                                                   {mode, why} = {Safe, Nonfinite};
      else if (risk_i >= cfg_i.risk_safe)                              {mode, why} = {Safe, Risk};
      else if (quiet && advanced >= 32'(cfg_i.quiet_steps))            {mode, why} = {Fast, Recovered};
      else if (quiet)                                                  timer = advanced;
    end else begin
      if (nonfinite)                                                   why = Escalate;
      else if (advanced >= 32'(cfg_i.safe_steps))                      {mode, why} = {Stable, SafeExpired};
      else                                                             timer = advanced;
    end
  end

  logic first_cycle = 1'b1;
  always_ff @(posedge clk_i) first_cycle <= 1'b0;

  always_comb begin
    assume (!first_cycle || !rst_ni);
    assume (!set_i || set_state_i.mode <= Safe);
    if (!first_cycle && rst_ni) begin
      ModeIsLegal: assert (before_q.mode <= Safe);
      if (valid_i) begin
        ModeByTable:        assert (after.mode == mode);
        CauseByTable:       assert (cause == why);
        TimerByTable:       assert (32'(after.timer) == timer);
        LastStepIsKept:     assert (after.last_step == step_i);
        LockAndDisableStay: assert (after.locked == before_q.locked && after.disabled == before_q.disabled);
        NeverSafeToFast:    assert (!(before_q.mode == Safe && after.mode == Fast));
        NeverFastToSafe:    assert (!(before_q.mode == Fast && after.mode == Safe));
        if (before_q.mode == Safe && !before_q.locked && !nonfinite && after.mode == Safe) begin
          SafeEndsInTime: assert (after.timer < cfg_i.safe_steps);
        end
      end else begin
        NoSampleNoChange: assert (after == before_q && cause == None);
      end
    end
  end

endmodule : decision_props
