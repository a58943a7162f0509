// Properties of the protection of stored state: opd_detection_unit with its state memory, controller and mode registers, from
// any stored state of one operator in which at most one bit of its memory word and one bit of its mode register were flipped.
// The next sample or command of the operator must find that, fall back as docs/controller.md says, and repair both.
//
// There is no reset: clock 0 has the state as it was stored and flipped, and the operator is read; in clock 1 it is judged;
// from clock 2 on everything is sound again. All states and all flips are covered, so three clocks are all of it.
module upset_props #(
  localparam int unsigned WordWidth = 1 + 16 + 20 + 17  // parity, history, control, baseline
) (
  input logic                           clk_i,
  input opd_reg_pkg::cfg_t              cfg_i,
  input opd_pkg::learning_rate_change_t learning_rate_change_i,
  input logic                           queue_empty_i,
  input opd_pkg::completion_t           queue_head_i,
  input logic                           command_pending_i,
  input opd_pkg::command_t              command_i,
  input logic                           written_i,       // the operator had a sample or command since reset
  input opd_pkg::op_state_t             stored_i,        // then: its state
  input logic [WordWidth+1:0]           word_flip_i,     // the two `written` bits, parity, state
  input logic [2:0]                     register_flip_i  // parity, mode
);

  localparam int unsigned NumOps = 2;     // operator 0 is watched
  localparam logic [1:0]  Read   = 2'd0;  // state of the detection unit

  logic                    sample_valid, judged, lost, mode_write, mode_corrupt, upset, command_done;
  opd_pkg::completion_t    sample;
  opd_pkg::flags_t         flags;
  logic [7:0]              risk;
  opd_pkg::control_state_t control_state, control_state_next;
  opd_reg_pkg::mode_e      register_mode, old_mode, new_mode, vector_mode;
  logic                    op;

  opd_detection_unit #(.NumOps(NumOps), .ForecastEngine(1), .PublishedEngine(0)) dut (
    .clk_i, .rst_ni(1'b1), .cfg_i, .learning_rate_change_i, .queue_empty_i, .queue_head_i, .queue_pop_o(),
    .command_pending_i, .command_i, .command_done_o(command_done), .command_state_o(), .sample_valid_o(sample_valid),
    .sample_o(sample), .flags_o(flags), .risk_o(risk), .judged_o(judged), .lost_o(lost), .control_state_o(control_state),
    .control_state_i(control_state_next), .op_o(op), .mode_i(register_mode), .mode_corrupt_i(mode_corrupt),
    .mode_write_o(mode_write), .old_mode_o(old_mode), .new_mode_o(new_mode), .upset_o(upset)
  );
  opd_downshift_controller u_downshift_controller (
    .clk_i, .rst_ni(1'b1), .cfg_i, .valid_i(judged), .step_i(sample.descriptor.step[7:0]), .risk_i(risk), .flags_i(flags),
    .lost_i(lost), .state_i(control_state), .state_o(control_state_next), .cause_o()
  );
  opd_mode_registers #(.NumOps(NumOps)) u_mode_registers (
    .clk_i, .rst_ni(1'b1), .write_i(mode_write), .op_i(op), .mode_i(new_mode), .mode_o(register_mode),
    .corrupt_o(mode_corrupt), .vector_op_i(16'd0), .vector_mode_o(vector_mode)
  );

  // Before the flips.
  opd_pkg::op_state_t   state;
  logic [WordWidth-2:0] bits;
  logic                 word_bad, register_bad;
  assign state        = written_i ? stored_i : '0;
  assign bits         = {stored_i.history, stored_i.control, stored_i.forecast};
  // What an operator that was never written has in memory means nothing: only its `written` bits can go wrong.
  assign word_bad     = word_flip_i[WordWidth+1:WordWidth] != '0 || (written_i && word_flip_i != '0);
  assign register_bad = register_flip_i != '0;

  // The table of docs/controller.md, "Upsets".
  opd_pkg::op_state_t found;
  always_comb begin
    found = state;
    if (word_bad) begin
      found              = '0;
      found.control.mode = register_bad ? opd_reg_pkg::ModeSafe : state.control.mode;
    end
  end

  // What lies in memory and register.
  logic [WordWidth-1:0] word;
  logic [1:0]           written;
  logic [2:0]           mode_register;
  assign word          = dut.u_state_memory.word_q[0];
  assign written       = dut.u_state_memory.written_q[0];
  assign mode_register = u_mode_registers.register_q[0];

  logic [1:0]               clock_q = '0;  // 3: later
  opd_pkg::op_state_t       expected_q;
  logic                     word_bad_q, register_bad_q;
  opd_pkg::command_t        command_q;
  opd_reg_pkg::mode_e       new_mode_q;
  always_ff @(posedge clk_i) begin
    if (clock_q != 2'd3) clock_q <= clock_q + 2'd1;
    expected_q     <= found;
    word_bad_q     <= word_bad;
    register_bad_q <= register_bad;
    command_q      <= command_i;
    new_mode_q     <= new_mode;
  end

  always_comb begin
    assume (cfg_i.baseline_shift >= 4'd1 && cfg_i.baseline_shift <= 4'd8);  // its range, docs/registers.md
    assume (!command_pending_i || (command_i.op < 16'(NumOps) && command_i.mode <= opd_reg_pkg::ModeSafe));
    assume (clock_q == 2'd0 || !command_done || (command_pending_i && command_i.op == command_q.op && command_i.command == command_q.command));
    if (clock_q == 2'd0) begin
      assume ($onehot0(word_flip_i) && $onehot0(register_flip_i));
      assume (stored_i.control.mode <= opd_reg_pkg::ModeSafe && stored_i.published == '0);
      assume (word == ({^bits, bits} ^ word_flip_i[WordWidth-1:0]));
      assume (written == ({2{written_i}} ^ word_flip_i[WordWidth+1:WordWidth]));
      assume (mode_register == ({^state.control.mode, state.control.mode} ^ register_flip_i));
      assume (dut.state_q == Read && dut.clock_q == '0);
      assume (command_pending_i ? command_i.op == 16'd0 : !queue_empty_i && queue_head_i.descriptor.op == 16'd0);
      assume (queue_head_i.descriptor.format <= 3'd4);
      VectorUnitIsSafe: assert (vector_mode == (register_bad ? opd_reg_pkg::ModeSafe : state.control.mode));
    end
    if (clock_q == 2'd1) begin
      StateByTable:  assert (dut.found == expected_q);
      ModeByTable:   assert (old_mode == expected_q.control.mode);
      UpsetIffFlip:  assert (upset == (word_bad_q || register_bad_q));
      LostIffWord:   assert (lost == word_bad_q);
      WritesAfresh:  assert (mode_write && op == 1'b0);
      if (sample_valid) begin
        FlagOfTheSample: assert (flags.upset == upset);
      end
    end
    if (clock_q == 2'd2) begin
      WordIsSound:          assert (written == 2'b11 && ^word == 1'b0);
      RegisterIsSound:      assert (mode_register == {^new_mode_q, new_mode_q});
      CopyIsTheRegister:    assert (word[36:35] == mode_register[1:0]);
      VectorUnitReadsMode:  assert (vector_mode == new_mode_q);
    end
  end

endmodule : upset_props
