// Downshift controller: next mode of one operator from the risk of its sample.
//
//        risk >= risk_stable or non-finite     risk >= risk_safe or non-finite
//   FAST --------------------------> STABLE --------------------------> SAFE, non-finite: ESCALATE
//        <-------------------------         <-------------------------
//             quiet_steps quiet steps               safe_steps steps
//
// One completion moves a mode by one arrow at most, and there is no arrow from SAFE to FAST. A locked
// operator moves along none.
//
//   latency   : 0 clocks, combinational; outputs repeat the inputs unless valid_i
//   not judged: valid_i = 0 (operator disabled, or the whole device)
//   rule      : docs/controller.md
`include "opd_assert.svh"

module opd_downshift_controller (
  input  logic                          clk_i,    // for the assertions only
  input  logic                          rst_ni,   // for the assertions only
  input  opd_reg_pkg::cfg_t             cfg_i,
  input  logic                          valid_i,
  input  logic [7:0]                    step_i,   // low byte of the training step
  input  logic [7:0]                    risk_i,
  input  opd_pkg::flags_t               flags_i,
  input  logic                          lost_i,   // the state was lost: no step has elapsed
  input  opd_pkg::control_state_t       state_i,  // before the sample
  output opd_pkg::control_state_t       state_o,  // after the sample
  output opd_reg_pkg::cause_e           cause_o
);

  logic       nonfinite, quiet;
  logic [7:0] difference;  // step - last step mod 256, a signed byte
  logic [7:0] elapsed;     // negative counts as 0
  logic [8:0] sum;
  logic [7:0] advanced;    // timer + elapsed, saturating

  always_comb begin
    nonfinite  = 1'b0;
    quiet      = 1'b0;
    difference = '0;
    elapsed    = '0;
    sum        = '0;
    advanced   = '0;
    state_o    = state_i;
    cause_o    = opd_reg_pkg::CauseNone;

    if (valid_i) begin
      nonfinite  = flags_i.nonfinite;
      // A flag of weight 0 takes part in nothing; while Z does, z must be below half its threshold.
      quiet      = !(flags_i.z && cfg_i.weight_z != '0) &&
                   !(flags_i.z_half && cfg_i.weight_z != '0) &&
                   !(flags_i.d2 && cfg_i.weight_d2 != '0) &&
                   !(flags_i.forecast && cfg_i.weight_forecast != '0) &&
                   !(flags_i.critical && cfg_i.weight_critical != '0) &&
                   !(flags_i.jump && cfg_i.weight_jump != '0) &&
                   !(flags_i.nonfinite && cfg_i.weight_nonfinite != '0) &&
                   !(flags_i.saturated && cfg_i.weight_saturated != '0) &&
                   !(flags_i.warmup && cfg_i.weight_warmup != '0);
      difference = step_i - state_i.last_step;
      elapsed    = difference[7] || lost_i ? 8'd0 : difference;
      sum        = 9'(state_i.timer) + 9'(elapsed);
      advanced   = sum[8] ? 8'd255 : sum[7:0];

      state_o.timer     = '0;
      state_o.last_step = step_i;
      if (state_i.locked) begin
        // The mode is software's; that a rescue failed is still worth telling.
        if (nonfinite && state_i.mode == opd_reg_pkg::ModeSafe) begin
          cause_o = opd_reg_pkg::CauseEscalate;
        end
      end else begin
        unique case (state_i.mode)
          // FAST: the timer rests.
          opd_reg_pkg::ModeFast: begin
            if (nonfinite) begin
              state_o.mode = opd_reg_pkg::ModeStable;
              cause_o      = opd_reg_pkg::CauseNonfinite;
            end else if (risk_i >= cfg_i.risk_stable) begin
              state_o.mode = opd_reg_pkg::ModeStable;
              cause_o      = opd_reg_pkg::CauseRisk;
            end
          end
          // STABLE: the timer counts quiet steps in a row.
          opd_reg_pkg::ModeStable: begin
            if (nonfinite) begin
              state_o.mode = opd_reg_pkg::ModeSafe;
              cause_o      = opd_reg_pkg::CauseNonfinite;
            end else if (risk_i >= cfg_i.risk_safe) begin
              state_o.mode = opd_reg_pkg::ModeSafe;
              cause_o      = opd_reg_pkg::CauseRisk;
            end else if (quiet && advanced >= cfg_i.quiet_steps) begin
              state_o.mode = opd_reg_pkg::ModeFast;
              cause_o      = opd_reg_pkg::CauseRecovered;
            end else if (quiet) begin
              state_o.timer = advanced;
            end
          end
          // SAFE: the timer counts steps, quiet or not, since the last non-finite sample.
          opd_reg_pkg::ModeSafe: begin
            if (nonfinite) begin
              cause_o = opd_reg_pkg::CauseEscalate;
            end else if (advanced >= cfg_i.safe_steps) begin
              state_o.mode = opd_reg_pkg::ModeStable;
              cause_o      = opd_reg_pkg::CauseSafeExpired;
            end else begin
              state_o.timer = advanced;
            end
          end
          default: state_o.mode = opd_reg_pkg::ModeFast;
        endcase
      end
    end
  end

  `OPD_ASSERT(ModeIsLegal_A, valid_i, state_i.mode <= opd_reg_pkg::ModeSafe)
  `OPD_ASSERT(OneArrowAtMost_A, valid_i,
      !(state_i.mode == opd_reg_pkg::ModeFast && state_o.mode == opd_reg_pkg::ModeSafe) &&
      !(state_i.mode == opd_reg_pkg::ModeSafe && state_o.mode == opd_reg_pkg::ModeFast))
  `OPD_ASSERT(NonfiniteNeverEndsFast_A, valid_i && nonfinite && !state_i.locked,
      state_o.mode != opd_reg_pkg::ModeFast)
  `OPD_ASSERT(LockedModeStays_A, valid_i && state_i.locked, state_o.mode == state_i.mode)
  `OPD_ASSERT(ModeChangeHasCause_A, state_o.mode != state_i.mode,
      cause_o != opd_reg_pkg::CauseNone)

endmodule : opd_downshift_controller
