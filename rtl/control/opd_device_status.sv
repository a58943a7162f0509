// Status of the device as a whole: operators per mode and the hints that follow from them, the last
// clean step, and the count of upsets.
//
//   latency   : every output changes at the edge of the sample or command that changes it
//   hints     : from the two counts and the configuration alone; hint_changed_o tells, in the clock
//               before the edge, that the change of a mode changes one
//   last step : a step ends when a sample of another step is recorded, also of an earlier one
//   counts    : saturate; a count that an upset left one too low stays at 0
//   rule      : docs/controller.md, "Events and hints", "Upsets"
`include "opd_assert.svh"

module opd_device_status (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  opd_reg_pkg::cfg_t  cfg_i,
  input  logic               sample_valid_i,       // a sample is recorded at this edge
  input  logic [31:0]        sample_step_i,
  input  logic               sample_nonfinite_i,
  input  logic               mode_change_valid_i,  // a sample or command writes a mode at this edge
  input  opd_reg_pkg::mode_e old_mode_i,
  input  opd_reg_pkg::mode_e new_mode_i,
  input  logic               upset_i,              // a corrupt word was found
  input  logic               clear_i,              // upset_count_o counts anew, from this edge
  output opd_pkg::hints_t    hints_o,
  output logic               hint_changed_o,
  output logic [16:0]        stable_ops_o,
  output logic [16:0]        safe_ops_o,
  output logic [31:0]        last_clean_step_o,    // 0 while not valid
  output logic               last_clean_valid_o,
  output logic [31:0]        upset_count_o         // saturating
);

  // ---- Operators per mode, and hints
  logic [16:0] stable_ops_d, stable_ops_q, safe_ops_d, safe_ops_q;

  // The count of the operators in `mode` after one went from `from` to `to`.
  function automatic logic [16:0] count_after(logic [16:0] count, opd_reg_pkg::mode_e mode,
                                              opd_reg_pkg::mode_e from, opd_reg_pkg::mode_e to);
    if (from == mode && to != mode && count != '0) return count - 17'd1;
    if (from != mode && to == mode)                return count + 17'd1;
    return count;
  endfunction

  function automatic opd_pkg::hints_t hints(logic not_fast, logic safe);
    return '{
      loss_scale_shift:     not_fast ? cfg_i.hint_loss_scale_shift : 8'sd0,
      clip_shift:           not_fast ? cfg_i.hint_clip_shift : 8'sd0,
      learning_rate_factor: safe ? cfg_i.hint_learning_rate_factor : 17'd65536
    };
  endfunction

  always_comb begin
    stable_ops_d   = stable_ops_q;
    safe_ops_d     = safe_ops_q;
    hint_changed_o = 1'b0;
    if (mode_change_valid_i) begin
      stable_ops_d = count_after(stable_ops_q, opd_reg_pkg::ModeStable, old_mode_i, new_mode_i);
      safe_ops_d   = count_after(safe_ops_q, opd_reg_pkg::ModeSafe, old_mode_i, new_mode_i);
      hint_changed_o = hints(stable_ops_d != '0 || safe_ops_d != '0, safe_ops_d != '0) != hints_o;
    end
  end

  assign hints_o      = hints(stable_ops_q != '0 || safe_ops_q != '0, safe_ops_q != '0);
  assign stable_ops_o = stable_ops_q;
  assign safe_ops_o   = safe_ops_q;

  // ---- Last clean step
  logic        running_q;  // a sample of running_step_q was recorded
  logic [31:0] running_step_q;
  logic        running_clean_q;
  logic        last_clean_valid_q;
  logic [31:0] last_clean_step_q;
  logic        same_step;

  assign same_step          = running_q && sample_step_i == running_step_q;
  assign last_clean_step_o  = last_clean_step_q;
  assign last_clean_valid_o = last_clean_valid_q;

  // ---- Upsets
  logic [31:0] upset_count_q;
  assign upset_count_o = upset_count_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      stable_ops_q       <= '0;
      safe_ops_q         <= '0;
      running_q          <= 1'b0;
      running_step_q     <= '0;
      running_clean_q    <= 1'b0;
      last_clean_valid_q <= 1'b0;
      last_clean_step_q  <= '0;
      upset_count_q      <= '0;
    end else begin
      if (mode_change_valid_i) begin
        stable_ops_q <= stable_ops_d;
        safe_ops_q   <= safe_ops_d;
      end
      if (sample_valid_i) begin
        running_q       <= 1'b1;
        running_step_q  <= sample_step_i;
        running_clean_q <= !sample_nonfinite_i && (!same_step || running_clean_q);
        if (!same_step && running_clean_q) begin
          last_clean_valid_q <= 1'b1;
          last_clean_step_q  <= running_step_q;
        end
      end
      if (clear_i)                             upset_count_q <= 32'(upset_i);
      else if (upset_i && upset_count_q != '1) upset_count_q <= upset_count_q + 32'd1;
    end
  end

  `OPD_ASSERT(ModesAreLegal_A, mode_change_valid_i,
      old_mode_i <= opd_reg_pkg::ModeSafe && new_mode_i <= opd_reg_pkg::ModeSafe)
  `OPD_ASSERT(NoHintWhileAllAreFast_A, mode_change_valid_i && {stable_ops_q, safe_ops_q} == '0,
      hints_o.loss_scale_shift == '0 && hints_o.clip_shift == '0 &&
      hints_o.learning_rate_factor == 17'd65536)

endmodule : opd_device_status
