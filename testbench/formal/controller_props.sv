// Properties of the whole device around the downshift controller, on the ports of opd_top alone (the last block
// excepted): the records of one operator, which the solver chooses, and the mode port, against docs/controller.md.
// The device is the smallest that has everything; its operators, beats, statistics and configuration are free.
module controller_props #(
  parameter int unsigned NumOps        = 3,  // not a power of two
  parameter int unsigned DatapathWidth = 32
) (
  input logic                       clk_i,
  input logic                       rst_ni,
  input opd_reg_pkg::cfg_t          cfg_i,  // constant
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
    .NumOps(NumOps), .DatapathWidth(DatapathWidth), .NumStreams(1), .QueueDepth(2), .CounterWidth(2)
  ) dut (
    .clk_i, .rst_ni, .cfg_i, .beat_valid_i, .beat_stream_i(8'd0), .beat_op_i(beat_descriptor_i.op),
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
    .queue_level_o(), .queue_high_water_o(), .unseen_count_o()
  );

  // What the records of the watched operator said so far. The step counts are sums of elapsed steps since the mode was
  // entered or the count was last broken, never saturated.
  logic [7:0]  mode_q, last_step_q;
  logic [15:0] quiet_sum_q, safe_sum_q;

  logic              completes, nonfinite, quiet;
  logic signed [7:0] difference;
  logic [15:0]       elapsed, quiet_sum, safe_sum;
  logic [7:0]        mode_d, cause_d;

  always_comb begin
    completes  = record_valid && record_op == watched_i;
    nonfinite  = record_flags[5];
    quiet      = record_flags[6:0] == '0;  // all but WARMUP
    difference = signed'(record_step[7:0] - last_step_q);
    elapsed    = difference < 0 ? 16'd0 : 16'(difference);
    quiet_sum  = quiet ? quiet_sum_q + elapsed : 16'd0;
    safe_sum   = safe_sum_q + elapsed;

    // The table of docs/controller.md.
    mode_d  = mode_q;
    cause_d = None;
    case (mode_q)
      Fast: begin
        if (nonfinite)                              {mode_d, cause_d} = {Stable, Nonfinite};
        else if (record_risk >= cfg_i.risk_stable)  {mode_d, cause_d} = {Stable, Risk};
      end
      Stable: begin
        if (nonfinite)                              {mode_d, cause_d} = {Safe, Nonfinite};
        else if (record_risk >= cfg_i.risk_safe)    {mode_d, cause_d} = {Safe, Risk};
        else if (quiet && quiet_sum >= 16'(cfg_i.quiet_steps)) {mode_d, cause_d} = {Fast, Recovered};
      end
      default: begin
        if (nonfinite)                              {mode_d, cause_d} = {Safe, Escalate};
        else if (safe_sum >= 16'(cfg_i.safe_steps)) {mode_d, cause_d} = {Stable, SafeExpired};
      end
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      mode_q      <= Fast;
      last_step_q <= '0;
      quiet_sum_q <= '0;
      safe_sum_q  <= '0;
    end else if (completes) begin
      mode_q      <= record_mode;
      last_step_q <= record_step[7:0];
      quiet_sum_q <= mode_q == Stable && record_mode == Stable ? quiet_sum : 16'd0;
      safe_sum_q  <= mode_q == Safe && record_mode == Safe && !nonfinite ? safe_sum : 16'd0;
    end
  end

  logic [7:0]        in_force;  // mode that the last record of the watched operator announced
  logic [1:0]        mode_before;
  logic [15:0]       mode_op_q, watched_q;
  opd_reg_pkg::cfg_t cfg_q;
  logic              first_cycle = 1'b1, reset_q = 1'b1;
  assign in_force = completes ? record_mode : mode_q;

  always_ff @(posedge clk_i) begin
    first_cycle <= 1'b0;
    reset_q     <= !rst_ni;
    mode_before <= mode;
    mode_op_q   <= mode_op_i;
    watched_q   <= watched_i;
    cfg_q       <= cfg_i;
  end

  // Inductive strengthening: the state that the records do not show yet. In WRITE, `sample` is about to become a record.
  opd_pkg::control_state_t stored, announced;
  opd_pkg::completion_t    second;  // entry behind the head of the queue
  logic                    writing;
  logic [1:0]              w;  // index of the watched operator
  assign w         = 2'(watched_i);
  assign second    = dut.u_op_queue.entry_q[!dut.u_op_queue.read_ptr_q];
  assign writing   = dut.u_detection_unit.sample_valid_o;
  assign stored    = dut.u_detection_unit.u_state_memory.written_q[w]
                   ? dut.u_detection_unit.u_state_memory.word_q[w].control : '0;
  assign announced = completes
      ? '{timer: record_mode == Stable && mode_q == Stable ? 8'(quiet_sum) :
                 record_mode == Safe && mode_q == Safe && !nonfinite ? 8'(safe_sum) : 8'd0,
          last_step: record_step[7:0]}
      : '{timer: mode_q == Stable ? 8'(quiet_sum_q) : mode_q == Safe ? 8'(safe_sum_q) : 8'd0, last_step: last_step_q};

  always_comb begin
    assume (!first_cycle || !rst_ni);
    assume (watched_i < 16'(NumOps) && (first_cycle || watched_i == watched_q));
    assume (first_cycle || cfg_i == cfg_q);
    assume (cfg_i.baseline_shift >= 4'd1 && cfg_i.baseline_shift <= 4'd8);  // its range, docs/registers.md
    if (!first_cycle && rst_ni) begin
      ModePortIsLegal: assert (mode <= 2'd2);
      if (mode_op_i >= 16'(NumOps)) begin
        UnknownOperatorReadsFast: assert (mode == 2'd0);
      end
      if (mode_op_i == watched_i) begin
        ModePortIsModeInForce: assert (8'(mode) == in_force);
      end
      if (!reset_q && mode_op_i == mode_op_q && mode != mode_before) begin
        ModeChangesOnlyByRecord: assert (record_valid && record_op == mode_op_i);
      end
      if (record_valid) begin
        RecordIsOfAnOperator: assert (record_op < 16'(NumOps) && record_format <= 8'd4);
        RecordModeIsLegal:    assert (record_mode <= Safe);
      end
      if (completes) begin
        NeverSafeToFast:     assert (!(mode_q == Safe && record_mode == Fast));
        NeverFastToSafe:     assert (!(mode_q == Fast && record_mode == Safe));
        ModeByTable:         assert (record_mode == mode_d);
        CauseByTable:        assert (record_cause == cause_d);
        if (mode_q == Safe && record_mode == Safe && !nonfinite) begin
          SafeEndsInTime: assert (safe_sum < 16'(cfg_i.safe_steps));
        end
        if (mode_q == Stable && record_mode == Fast) begin
          RecoveredOnlyAfterQuietSteps: assert (quiet && quiet_sum >= 16'(cfg_i.quiet_steps));
        end
      end
      // Inductive strengthening.
      ModelInRange: assert (mode_q <= Safe && quiet_sum_q < 16'd256 && safe_sum_q < 16'd256);
      OneAtATime:   assert (!(record_valid && writing));
      RegisterHoldsMode: assert (8'(dut.u_mode_registers.mode_q[w]) == in_force);
      StateHoldsTimer:   assert (stored == announced);
      if (writing) begin
        SampleIsLegal: assert (dut.sample.descriptor.op < 16'(NumOps) && dut.sample.descriptor.format <= 3'd4);
        if (dut.sample.descriptor.op == watched_i) begin
          StateWasRead: assert (dut.control_state == stored);
        end
      end
      QueueLevel: assert (dut.queue_level_o <= 8'd2 && dut.queue_high_water_o >= dut.queue_level_o &&
          dut.u_op_queue.write_ptr_q == (dut.u_op_queue.read_ptr_q ^ dut.queue_level_o[0]));
      if (dut.queue_level_o != '0) begin
        HeadIsLegal: assert (dut.queue_head.descriptor.op < 16'(NumOps) && dut.queue_head.descriptor.format <= 3'd4);
      end
      if (dut.queue_level_o == 8'd2) begin
        SecondIsLegal: assert (second.descriptor.op < 16'(NumOps) && second.descriptor.format <= 3'd4);
      end
      RegistersAreLegal: assert (dut.u_mode_registers.mode_q[0] <= 2'd2 && dut.u_mode_registers.mode_q[1] <= 2'd2 &&
                                 dut.u_mode_registers.mode_q[2] <= 2'd2);
    end
  end

endmodule : controller_props
