// Properties of the whole device around the downshift controller, on the ports of opd_top (the last block excepted): the
// records of one operator, which the solver chooses, the mode port and what reaches the event queue, against docs/controller.md.
// The device is the smallest that has everything but the published engine, which changes no rule here; its operators, beats
// and statistics are free. opd_registers is cut away and its outputs are free: any configuration, commands at any time.
module controller_props #(
  parameter int unsigned NumOps        = 3,  // not a power of two
  parameter int unsigned DatapathWidth = 32
) (
  input logic                       clk_i,
  input logic                       rst_ni,
  input logic                       beat_valid_i,
  input opd_pkg::descriptor_t       beat_descriptor_i,
  input logic                       beat_last_i,
  input logic [DatapathWidth/8-1:0] beat_lane_en_i,
  input logic [DatapathWidth-1:0]   beat_data_i,
  input logic                       stat_valid_i,
  input opd_pkg::descriptor_t       stat_descriptor_i,
  input opd_pkg::summary_t          stat_summary_i,
  input logic [15:0]                mode_op_i,  // any operator
  input logic [15:0]                watched_i   // the operator, constant
);

  localparam logic [7:0] Fast = 8'd0, Stable = 8'd1, Safe = 8'd2;
  localparam logic [7:0] None = 8'd0, Risk = 8'd1, Nonfinite = 8'd2, Recovered = 8'd3, SafeExpired = 8'd4,
                         Escalate = 8'd5;

  logic [1:0]  mode;
  logic        record_valid;
  logic [31:0] record_step;
  logic [15:0] record_op, record_flags;
  logic [7:0]  record_format, record_mode, record_risk, record_cause;

  opd_top #(
    .NumOps(NumOps), .DatapathWidth(DatapathWidth), .NumStreams(1), .QueueDepth(2), .CounterWidth(2), .EventDepth(1),
    .ForecastEngine(1), .PublishedEngine(0)
  ) dut (
    .clk_i, .rst_ni, .beat_valid_i, .beat_stream_i(8'd0), .beat_op_i(beat_descriptor_i.op),
    .beat_format_i(beat_descriptor_i.format), .beat_step_i(beat_descriptor_i.step),
    .beat_scale_log2_i(beat_descriptor_i.scale_log2), .beat_last_i, .beat_lane_en_i, .beat_data_i,
    .stat_valid_i, .stat_ready_o(), .stat_op_i(stat_descriptor_i.op), .stat_format_i(stat_descriptor_i.format),
    .stat_step_i(stat_descriptor_i.step), .stat_scale_log2_i(stat_descriptor_i.scale_log2),
    .stat_max_mag_i(32'(stat_summary_i.max_mag)), .stat_element_count_i(stat_summary_i.element_count),
    .stat_nonfinite_count_i(stat_summary_i.nonfinite_count), .stat_first_nonfinite_i(stat_summary_i.first_nonfinite),
    .stat_saturated_count_i(stat_summary_i.saturated_count), .stat_subnormal_count_i(stat_summary_i.subnormal_count),
    .stat_zero_count_i(stat_summary_i.zero_count), .mode_op_i, .mode_o(mode),
    .record_valid_o(record_valid), .record_seq_o(), .record_step_o(record_step), .record_op_o(record_op),
    .record_format_o(record_format), .record_mode_o(record_mode), .record_max_mag_o(), .record_nonfinite_count_o(),
    .record_first_nonfinite_o(), .record_saturated_count_o(), .record_flags_o(record_flags),
    .record_risk_o(record_risk), .record_cause_o(record_cause), .record_element_count_o(),
    .record_subnormal_count_o(), .record_zero_count_o(),
    .queue_level_o(), .queue_high_water_o(), .unseen_count_o(),
    .apb_psel_i(1'b0), .apb_penable_i(1'b0), .apb_pwrite_i(1'b0), .apb_paddr_i('0), .apb_pwdata_i('0), .apb_pstrb_i('0),
    .apb_pready_o(), .apb_prdata_o(), .apb_pslverr_o(), .irq_o()
  );

  // Free: the outputs of the registers.
  opd_reg_pkg::cfg_t cfg;
  opd_pkg::command_t command;
  logic              command_pending, command_done;
  assign cfg             = dut.cfg;
  assign command         = dut.command;
  assign command_pending = dut.command_pending;
  assign command_done    = dut.command_done;

  // What the records and commands of the watched operator said so far. The step counts are sums of elapsed steps since the
  // mode was entered or the count was last broken, never saturated.
  logic [7:0]  mode_q, last_step_q;
  logic        locked_q, disabled_q;
  logic [15:0] quiet_sum_q, safe_sum_q;

  logic              completes, commanded, judged, nonfinite, quiet;
  logic signed [7:0] difference;
  logic [15:0]       elapsed, quiet_sum, safe_sum;
  logic [7:0]        mode_d, cause_d;
  logic [7:0]        weights [8];

  always_comb begin
    completes  = record_valid && record_op == watched_i;
    commanded  = command_done && command.op == watched_i;
    judged     = cfg.control_enable && !disabled_q;
    nonfinite  = record_flags[5];
    weights    = '{cfg.weight_z, cfg.weight_d2, cfg.weight_forecast, cfg.weight_critical, cfg.weight_jump, cfg.weight_nonfinite,
                   cfg.weight_saturated, cfg.weight_warmup};
    quiet      = 1'b1;
    for (int i = 0; i < 8; i++) begin
      if (record_flags[i] && weights[i] != '0) quiet = 1'b0;
    end
    difference = signed'(record_step[7:0] - last_step_q);
    elapsed    = difference < 0 ? 16'd0 : 16'(difference);
    quiet_sum  = quiet ? quiet_sum_q + elapsed : 16'd0;
    safe_sum   = safe_sum_q + elapsed;

    // The table of docs/controller.md.
    mode_d  = mode_q;
    cause_d = None;
    if (!judged) begin
      cause_d = None;
    end else if (locked_q) begin
      if (mode_q == Safe && nonfinite) cause_d = Escalate;
    end else case (mode_q)
      Fast: begin
        if (nonfinite)                              {mode_d, cause_d} = {Stable, Nonfinite};
        else if (record_risk >= cfg.risk_stable)    {mode_d, cause_d} = {Stable, Risk};
      end
      Stable: begin
        if (nonfinite)                              {mode_d, cause_d} = {Safe, Nonfinite};
        else if (record_risk >= cfg.risk_safe)      {mode_d, cause_d} = {Safe, Risk};
        else if (quiet && quiet_sum >= 16'(cfg.quiet_steps)) {mode_d, cause_d} = {Fast, Recovered};
      end
      default: begin
        if (nonfinite)                              {mode_d, cause_d} = {Safe, Escalate};
        else if (safe_sum >= 16'(cfg.safe_steps))   {mode_d, cause_d} = {Stable, SafeExpired};
      end
    endcase
  end

  logic counts_quiet, counts_safe;  // the sample leaves the sum standing
  assign counts_quiet = !locked_q && mode_q == Stable && record_mode == Stable;
  assign counts_safe  = !locked_q && mode_q == Safe && record_mode == Safe && !nonfinite;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      mode_q      <= Fast;
      locked_q    <= 1'b0;
      disabled_q  <= 1'b0;
      last_step_q <= '0;
      quiet_sum_q <= '0;
      safe_sum_q  <= '0;
    end else if (completes && judged) begin
      mode_q      <= record_mode;
      last_step_q <= record_step[7:0];
      quiet_sum_q <= counts_quiet ? quiet_sum : 16'd0;
      safe_sum_q  <= counts_safe ? safe_sum : 16'd0;
    end else if (commanded && (command.command == opd_reg_pkg::CommandClear || command.command == opd_reg_pkg::CommandSet)) begin
      quiet_sum_q <= '0;
      safe_sum_q  <= '0;
      if (command.command == opd_reg_pkg::CommandClear) begin
        mode_q      <= Fast;
        locked_q    <= 1'b0;
        disabled_q  <= 1'b0;
        last_step_q <= '0;
      end else begin
        mode_q     <= 8'(command.mode);
        locked_q   <= command.locked;
        disabled_q <= command.disabled;
      end
    end
  end

  logic [7:0]        in_force;  // mode that the last record or command of the watched operator announced
  logic [1:0]        mode_before;
  logic [15:0]       mode_op_q, watched_q;
  opd_reg_pkg::cfg_t cfg_q;
  opd_pkg::command_t command_q;
  logic              command_pending_q, command_done_q;
  logic              event_push_q;
  opd_pkg::event_t   event_q;
  logic              first_cycle = 1'b1, reset_q = 1'b1;
  assign in_force = completes ? record_mode : mode_q;

  always_ff @(posedge clk_i) begin
    first_cycle       <= 1'b0;
    reset_q           <= !rst_ni;
    mode_before       <= mode;
    mode_op_q         <= mode_op_i;
    watched_q         <= watched_i;
    cfg_q             <= cfg;
    command_q         <= command;
    command_pending_q <= command_pending;
    command_done_q    <= command_done;
    event_push_q      <= dut.event_push;
    event_q           <= dut.new_event;
  end

  // Inductive strengthening: the state that the records do not show yet. In WRITE, `sample` is about to become a record.
  localparam logic [1:0] Read = 2'd0, Compute = 2'd1, Write = 2'd2, Command = 2'd3;  // states of the detection unit
  localparam int unsigned WordWidth = 1 + 16 + 20 + 17;              // parity, history, control, baseline

  logic [WordWidth-1:0]    word [NumOps];
  logic [1:0]              written [NumOps], register_mode [NumOps];
  logic [NumOps-1:0]       sound;  // parity, and the copy of the mode is the register's
  opd_pkg::control_state_t stored, announced;
  opd_pkg::completion_t    second;  // entry behind the head of the queue
  logic [1:0]              w, state;
  logic [16:0]             stable_ops, safe_ops;

  assign w      = 2'(watched_i);
  assign state  = dut.u_detection_unit.state_q;
  assign second = dut.u_op_queue.entry_q[!dut.u_op_queue.read_ptr_q];
  for (genvar i = 0; i < NumOps; i++) begin : gen_operator
    logic [1:0] copy;
    assign word[i]          = dut.u_detection_unit.u_state_memory.word_q[i];
    assign written[i]       = dut.u_detection_unit.u_state_memory.written_q[i];
    assign register_mode[i] = dut.u_mode_registers.register_q[i].mode;
    assign copy             = written[i] == 2'b11 ? word[i][36:35] : 2'd0;
    assign sound[i]         = written[i][0] == written[i][1] && (written[i] == 2'b00 || ^word[i] == 1'b0) &&
                              ^dut.u_mode_registers.register_q[i] == 1'b0 && copy == register_mode[i] && copy <= 2'd2;
  end
  assign stored = written[w] == 2'b11 ? word[w][36:17] : '0;

  always_comb begin
    announced = '{mode: opd_reg_pkg::mode_e'(in_force[1:0]), locked: locked_q, disabled: disabled_q,
                  timer: mode_q == Stable ? 8'(quiet_sum_q) : mode_q == Safe ? 8'(safe_sum_q) : 8'd0, last_step: last_step_q};
    if (completes && judged) begin
      announced.timer     = counts_quiet ? 8'(quiet_sum) : counts_safe ? 8'(safe_sum) : 8'd0;
      announced.last_step = record_step[7:0];
    end
    {stable_ops, safe_ops} = '0;
    for (int i = 0; i < NumOps; i++) begin
      stable_ops = stable_ops + 17'(register_mode[i] == 2'd1);
      safe_ops   = safe_ops + 17'(register_mode[i] == 2'd2);
    end
  end

  always_comb begin
    assume (!first_cycle || !rst_ni);
    assume (watched_i < 16'(NumOps) && (first_cycle || watched_i == watched_q));
    assume (first_cycle || cfg == cfg_q);
    assume (cfg.baseline_shift >= 4'd1 && cfg.baseline_shift <= 4'd8);  // its range, docs/registers.md
    // A command names an operator and a mode, and stands until it is done (registers_props); OP_SETTING may change.
    assume (!command_pending || (command.op < 16'(NumOps) && command.mode <= opd_reg_pkg::ModeSafe));
    assume (first_cycle || reset_q || !command_pending_q || command_done_q || (command_pending && command.op == command_q.op && command.command == command_q.command));
    if (!first_cycle && rst_ni) begin
      ModePortIsLegal: assert (mode <= 2'd2);
      if (mode_op_i >= 16'(NumOps)) begin
        UnknownOperatorReadsFast: assert (mode == 2'd0);
      end
      if (mode_op_i == watched_i) begin
        ModePortIsModeInForce: assert (8'(mode) == in_force);
      end
      if (!reset_q && mode_op_i == mode_op_q && mode != mode_before) begin
        ModeChangesOnlyByRecordOrCommand:
          assert ((record_valid && record_op == mode_op_i) || (command_done_q && command_q.op == mode_op_i));
      end
      if (record_valid) begin
        RecordIsOfAnOperator: assert (record_op < 16'(NumOps) && record_format <= 8'd4);
        RecordModeIsLegal:    assert (record_mode <= Safe);
        NoUpsetWithoutAFlip:  assert (!record_flags[9]);
        EventIffWorthOne:     assert (event_push_q == (record_cause != None));
        if (event_push_q) begin
          EventIsTheRecord: assert (event_q.step == record_step && event_q.op == record_op && 8'(event_q.new_mode) == record_mode &&
              8'(event_q.cause) == record_cause && event_q.flags == record_flags && event_q.risk == record_risk);
        end
      end else begin
        NoEventWithoutARecord: assert (!event_push_q);
      end
      if (completes) begin
        NeverSafeToFast:     assert (!(mode_q == Safe && record_mode == Fast));
        NeverFastToSafe:     assert (!(mode_q == Fast && record_mode == Safe));
        ModeByTable:         assert (record_mode == mode_d);
        CauseByTable:        assert (record_cause == cause_d);
        if (!judged) begin
          DisabledIsNotJudged: assert (record_flags == '0 && record_risk == '0);
        end
        if (judged && counts_safe) begin
          SafeEndsInTime: assert (safe_sum < 16'(cfg.safe_steps));
        end
        if (mode_q == Stable && record_mode == Fast) begin
          RecoveredOnlyAfterQuietSteps: assert (quiet && quiet_sum >= 16'(cfg.quiet_steps));
        end
        if (event_push_q) begin
          EventHasOldMode: assert (8'(event_q.old_mode) == mode_q);
        end
      end
      OpsAreCounted: assert (dut.status.stable_ops == stable_ops && dut.status.safe_ops == safe_ops);
      // Inductive strengthening.
      ModelInRange: assert (mode_q <= Safe && quiet_sum_q < 16'd256 && safe_sum_q < 16'd256);
      OneAtATime:   assert (!(record_valid && state != Read) && state != Compute && dut.u_detection_unit.clock_q == '0);
      StoredIsSound: assert (sound == '1);
      StateIsAnnounced: assert (stored == announced);
      if (state != Read) begin
        WordWasRead: assert (dut.u_detection_unit.u_state_memory.read_written_q == written[dut.op] &&
            (written[dut.op] == 2'b00 || WordWidth'(dut.u_detection_unit.u_state_memory.read_q) == word[dut.op]));
        OperatorIsLegal: assert (32'(dut.op) < NumOps);
      end
      if (state == Command) begin
        CommandWasPending: assert (command_pending_q && !command_done_q && !reset_q);
      end
      if (state == Write) begin
        SampleIsLegal: assert (dut.sample.descriptor.op < 16'(NumOps) && dut.sample.descriptor.format <= 3'd4);
      end
      QueueLevel: assert (dut.queue_level_o <= 8'd2 && dut.queue_high_water_o >= dut.queue_level_o &&
          dut.u_op_queue.write_ptr_q == (dut.u_op_queue.read_ptr_q ^ dut.queue_level_o[0]));
      EventLevel: assert (dut.status.event_level <= 8'd1 && dut.status.event_high_water >= dut.status.event_level &&
          dut.u_event_queue.read_ptr_q == '0 && dut.u_event_queue.write_ptr_q == '0);
      if (dut.queue_level_o != '0) begin
        HeadIsLegal: assert (dut.queue_head.descriptor.op < 16'(NumOps) && dut.queue_head.descriptor.format <= 3'd4);
      end
      if (dut.queue_level_o == 8'd2) begin
        SecondIsLegal: assert (second.descriptor.op < 16'(NumOps) && second.descriptor.format <= 3'd4);
      end
    end
  end

endmodule : controller_props
