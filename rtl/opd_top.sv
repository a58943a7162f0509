// opd: on-chip overflow-precursor detector. Watches the outputs of a vector unit, forecasts
// overflow per operator, and drives the precision-mode registers that the vector unit obeys.
//
//   beats -> tap -+
//                 +-> intake -> op queue -> detection unit -> downshift controller -> mode registers
//   statistics ---+                              |                     +--> record
//   APB4 <-> registers <-------------------------+--> event queue, device status
//
//   latency    : 12 clocks from the edge that samples the last beat to the first edge that samples the
//                record and the new mode, 11 from an accepted statistic; 4 and 3 without the
//                published engine
//   throughput : 1 beat per clock, never stalls; behind the queue 1 completion per 10 clocks, per 2
//                without the published engine
//   overload   : completions that find the queue full are counted in unseen_count_o
//   illegal op or format: counted in unseen_count_o; mode_o of an illegal op is FAST
//   rule       : docs/architecture.md, docs/numerics.md, docs/controller.md
`include "opd_assert.svh"

module opd_top #(
  parameter int unsigned NumOps          = 256,  // operators with state, 1..65536
  parameter int unsigned DatapathWidth   = 512,  // bits per beat, 32..512, a multiple of 32
  parameter int unsigned NumStreams      = 4,    // interleaved operators, 1..256
  parameter int unsigned QueueDepth      = 8,    // completions that may wait, 1..255
  parameter int unsigned CounterWidth    = 32,   // bits of the tap's counters, 2..32
  parameter int unsigned EventDepth      = 16,   // events that may wait for software, 1..255
  parameter int unsigned ForecastEngine  = 1,    // 1 = present
  parameter int unsigned PublishedEngine = 1     // 1 = present; one of the two must be
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,                    // asynchronous

  // Vector-unit write-back
  input  logic                       beat_valid_i,
  input  logic [7:0]                 beat_stream_i,             // 0..NumStreams-1
  input  logic [15:0]                beat_op_i,                 // 0..NumOps-1
  input  logic [2:0]                 beat_format_i,             // format_e
  input  logic [31:0]                beat_step_i,
  input  logic signed [7:0]          beat_scale_log2_i,
  input  logic                       beat_last_i,
  input  logic [DatapathWidth/8-1:0] beat_lane_en_i,            // bit k = element k takes part
  input  logic [DatapathWidth-1:0]   beat_data_i,               // element k at [k*w +: w]

  // Sideband
  input  logic                       stat_valid_i,
  output logic                       stat_ready_o,
  input  logic [15:0]                stat_op_i,
  input  logic [2:0]                 stat_format_i,
  input  logic [31:0]                stat_step_i,
  input  logic signed [7:0]          stat_scale_log2_i,
  input  logic [31:0]                stat_max_mag_i,            // the format's bits count
  input  logic [31:0]                stat_element_count_i,
  input  logic [31:0]                stat_nonfinite_count_i,
  input  logic [31:0]                stat_first_nonfinite_i,    // 0xFFFFFFFF = none
  input  logic [31:0]                stat_saturated_count_i,
  input  logic [31:0]                stat_subnormal_count_i,
  input  logic [31:0]                stat_zero_count_i,

  // Mode read port, combinational
  input  logic [15:0]                mode_op_i,
  output logic [1:0]                 mode_o,                    // mode_e

  // Record: valid for one clock per detected completion
  output logic                       record_valid_o,
  output logic [31:0]                record_seq_o,
  output logic [31:0]                record_step_o,
  output logic [15:0]                record_op_o,
  output logic [7:0]                 record_format_o,           // format_e
  output logic [7:0]                 record_mode_o,             // mode_e, for the next execution
  output logic [31:0]                record_max_mag_o,
  output logic [31:0]                record_nonfinite_count_o,
  output logic [31:0]                record_first_nonfinite_o,  // 0xFFFFFFFF = none
  output logic [31:0]                record_saturated_count_o,
  output logic [15:0]                record_flags_o,
  output logic [7:0]                 record_risk_o,
  output logic [7:0]                 record_cause_o,            // cause_e
  output logic [31:0]                record_element_count_o,
  output logic [31:0]                record_subnormal_count_o,
  output logic [31:0]                record_zero_count_o,

  // Status
  output logic [7:0]                 queue_level_o,
  output logic [7:0]                 queue_high_water_o,
  output logic [31:0]                unseen_count_o,

  // Registers (docs/registers.md)
  input  logic                       apb_psel_i,
  input  logic                       apb_penable_i,
  input  logic                       apb_pwrite_i,
  input  logic [11:0]                apb_paddr_i,               // bytes
  input  logic [31:0]                apb_pwdata_i,
  input  logic [3:0]                 apb_pstrb_i,
  output logic                       apb_pready_o,
  output logic [31:0]                apb_prdata_o,
  output logic                       apb_pslverr_o,
  output logic                       irq_o
);

  `OPD_ASSERT_PARAM(ops_fit_port, NumOps >= 1 && NumOps <= 65536)

  localparam int unsigned OpWidth       = NumOps > 1 ? $clog2(NumOps) : 1;
  localparam int unsigned SidebandLevel = QueueDepth > 1 ? QueueDepth / 2 : 1;  // below it: ready

  opd_reg_pkg::cfg_t              cfg;
  opd_pkg::learning_rate_change_t learning_rate_change;
  logic                           clear_counters;
  logic                           tap_valid;
  opd_pkg::descriptor_t           beat_descriptor, tap_descriptor, stat_descriptor;
  opd_pkg::summary_t              tap_summary, stat_summary;
  logic                           completion_valid, completion_legal;
  opd_pkg::completion_t           completion, queue_head;
  logic                           queue_empty, queue_pop, unseen;
  logic                           command_pending, command_done;
  opd_pkg::command_t              command;
  opd_pkg::op_state_t             command_state;
  logic                           sample_valid, judged, lost, upset;
  opd_pkg::completion_t           sample;
  opd_pkg::flags_t                flags;
  logic [7:0]                     risk;
  opd_pkg::control_state_t        control_state, control_state_next;
  opd_reg_pkg::cause_e            cause;
  logic [OpWidth-1:0]             op;
  opd_reg_pkg::mode_e             register_mode, old_mode, new_mode, vector_mode;
  logic                           register_corrupt, mode_write;
  logic                           event_push, event_pop, event_lost, hint_changed;
  opd_pkg::event_t                new_event;
  opd_pkg::status_t               status;
  opd_pkg::interrupts_t           interrupts;
  logic                           record_valid_q;
  opd_pkg::record_t               record_q;
  logic                           unused_sign;

  assign beat_descriptor = '{
    op: beat_op_i, format: beat_format_i, step: beat_step_i, scale_log2: beat_scale_log2_i
  };
  assign stat_descriptor = '{
    op: stat_op_i, format: stat_format_i, step: stat_step_i, scale_log2: stat_scale_log2_i
  };
  assign stat_summary = '{
    max_mag: stat_max_mag_i[30:0],
    element_count: stat_element_count_i,
    nonfinite_count: stat_nonfinite_count_i,
    first_nonfinite: stat_first_nonfinite_i,
    saturated_count: stat_saturated_count_i,
    subnormal_count: stat_subnormal_count_i,
    zero_count: stat_zero_count_i
  };
  assign unused_sign = stat_max_mag_i[31];

  opd_tap #(
    .DatapathWidth(DatapathWidth),
    .NumStreams   (NumStreams),
    .CounterWidth (CounterWidth)
  ) u_tap (
    .clk_i,
    .rst_ni,
    .beat_valid_i,
    .beat_stream_i,
    .beat_descriptor_i (beat_descriptor),
    .beat_last_i,
    .beat_lane_en_i,
    .beat_data_i,
    .completion_valid_o(tap_valid),
    .descriptor_o      (tap_descriptor),
    .summary_o         (tap_summary)
  );

  opd_intake #(
    .NumOps      (NumOps),
    .CounterWidth(CounterWidth)
  ) u_intake (
    .clk_i,
    .rst_ni,
    .tap_valid_i       (tap_valid),
    .tap_descriptor_i  (tap_descriptor),
    .tap_summary_i     (tap_summary),
    .stat_valid_i,
    .stat_ready_o,
    .stat_descriptor_i (stat_descriptor),
    .stat_summary_i    (stat_summary),
    .queue_has_room_i  (32'(queue_level_o) < SidebandLevel),
    .completion_valid_o(completion_valid),
    .completion_legal_o(completion_legal),
    .completion_o      (completion)
  );

  opd_op_queue #(
    .QueueDepth(QueueDepth)
  ) u_op_queue (
    .clk_i,
    .rst_ni,
    .push_valid_i  (completion_valid),
    .push_legal_i  (completion_legal),
    .push_i        (completion),
    .pop_i         (queue_pop),
    .clear_i       (clear_counters),
    .head_o        (queue_head),
    .empty_o       (queue_empty),
    .level_o       (queue_level_o),
    .high_water_o  (queue_high_water_o),
    .unseen_o      (unseen),
    .unseen_count_o
  );

  opd_detection_unit #(
    .NumOps         (NumOps),
    .ForecastEngine (ForecastEngine),
    .PublishedEngine(PublishedEngine)
  ) u_detection_unit (
    .clk_i,
    .rst_ni,
    .cfg_i                 (cfg),
    .learning_rate_change_i(learning_rate_change),
    .queue_empty_i         (queue_empty),
    .queue_head_i          (queue_head),
    .queue_pop_o           (queue_pop),
    .command_pending_i     (command_pending),
    .command_i             (command),
    .command_done_o        (command_done),
    .command_state_o       (command_state),
    .sample_valid_o        (sample_valid),
    .sample_o              (sample),
    .flags_o               (flags),
    .risk_o                (risk),
    .judged_o              (judged),
    .lost_o                (lost),
    .control_state_o       (control_state),
    .control_state_i       (control_state_next),
    .op_o                  (op),
    .mode_i                (register_mode),
    .mode_corrupt_i        (register_corrupt),
    .mode_write_o          (mode_write),
    .old_mode_o            (old_mode),
    .new_mode_o            (new_mode),
    .upset_o               (upset)
  );

  opd_downshift_controller u_downshift_controller (
    .clk_i,
    .rst_ni,
    .cfg_i  (cfg),
    .valid_i(judged),
    .step_i (sample.descriptor.step[7:0]),
    .risk_i (risk),
    .flags_i(flags),
    .lost_i (lost),
    .state_i(control_state),
    .state_o(control_state_next),
    .cause_o(cause)
  );

  opd_mode_registers #(
    .NumOps(NumOps)
  ) u_mode_registers (
    .clk_i,
    .rst_ni,
    .write_i      (mode_write),
    .op_i         (op),
    .mode_i       (new_mode),
    .mode_o       (register_mode),
    .corrupt_o    (register_corrupt),
    .vector_op_i  (mode_op_i),
    .vector_mode_o(vector_mode)
  );

  // A mode change, an escalation or a repair is worth an event.
  assign event_push = sample_valid && (cause != opd_reg_pkg::CauseNone || upset);
  assign new_event  = '{
    step: sample.descriptor.step, op: sample.descriptor.op, old_mode: old_mode, new_mode: new_mode,
    cause: cause, flags: 16'(flags), risk: risk
  };

  opd_event_queue #(
    .EventDepth(EventDepth)
  ) u_event_queue (
    .clk_i,
    .rst_ni,
    .push_i      (event_push),
    .event_i     (new_event),
    .pop_i       (event_pop),
    .clear_i     (clear_counters),
    .head_o      (status.event_head),
    .level_o     (status.event_level),
    .high_water_o(status.event_high_water),
    .lost_count_o(status.events_lost),
    .lost_o      (event_lost)
  );

  opd_device_status u_device_status (
    .clk_i,
    .rst_ni,
    .cfg_i              (cfg),
    .sample_valid_i     (sample_valid),
    .sample_step_i      (sample.descriptor.step),
    .sample_nonfinite_i (sample.summary.nonfinite_count != '0),
    .mode_change_valid_i(mode_write),
    .old_mode_i         (old_mode),
    .new_mode_i         (new_mode),
    .upset_i            (upset),
    .clear_i            (clear_counters),
    .hints_o            (status.hints),
    .hint_changed_o     (hint_changed),
    .stable_ops_o       (status.stable_ops),
    .safe_ops_o         (status.safe_ops),
    .last_clean_step_o  (status.last_clean_step),
    .last_clean_valid_o (status.last_clean_valid),
    .upset_count_o      (status.upset_count)
  );

  assign status.queue_level      = queue_level_o;
  assign status.queue_high_water = queue_high_water_o;
  assign status.unseen_count     = unseen_count_o;

  assign interrupts = '{
    upset:        upset,
    escalate:     sample_valid && cause == opd_reg_pkg::CauseEscalate,
    hint:         hint_changed,
    unseen:       unseen,
    event_lost:   event_lost,
    event_queued: event_push && !event_lost
  };

  opd_registers #(
    .NumOps         (NumOps),
    .DatapathWidth  (DatapathWidth),
    .NumStreams     (NumStreams),
    .QueueDepth     (QueueDepth),
    .CounterWidth   (CounterWidth),
    .EventDepth     (EventDepth),
    .ForecastEngine (ForecastEngine),
    .PublishedEngine(PublishedEngine)
  ) u_registers (
    .clk_i,
    .rst_ni,
    .apb_psel_i,
    .apb_penable_i,
    .apb_pwrite_i,
    .apb_paddr_i,
    .apb_pwdata_i,
    .apb_pstrb_i,
    .apb_pready_o,
    .apb_prdata_o,
    .apb_pslverr_o,
    .cfg_o                 (cfg),
    .learning_rate_change_o(learning_rate_change),
    .clear_counters_o      (clear_counters),
    .event_pop_o           (event_pop),
    .command_pending_o     (command_pending),
    .command_o             (command),
    .command_done_i        (command_done),
    .command_state_i       (command_state),
    .status_i              (status),
    .interrupts_i          (interrupts),
    .irq_o
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) record_valid_q <= 1'b0;
    else         record_valid_q <= sample_valid;
  end

  always_ff @(posedge clk_i) begin
    if (sample_valid) begin
      record_q <= '{completion: sample, mode: new_mode, flags: flags, risk: risk, cause: cause};
    end
  end

  assign mode_o                   = vector_mode;
  assign record_valid_o           = record_valid_q;
  assign record_seq_o             = record_q.completion.seq;
  assign record_step_o            = record_q.completion.descriptor.step;
  assign record_op_o              = record_q.completion.descriptor.op;
  assign record_format_o          = 8'(record_q.completion.descriptor.format);
  assign record_mode_o            = 8'(record_q.mode);
  assign record_max_mag_o         = 32'(record_q.completion.summary.max_mag);
  assign record_nonfinite_count_o = record_q.completion.summary.nonfinite_count;
  assign record_first_nonfinite_o = record_q.completion.summary.first_nonfinite;
  assign record_saturated_count_o = record_q.completion.summary.saturated_count;
  assign record_flags_o           = 16'(record_q.flags);
  assign record_risk_o            = record_q.risk;
  assign record_cause_o           = 8'(record_q.cause);
  assign record_element_count_o   = record_q.completion.summary.element_count;
  assign record_subnormal_count_o = record_q.completion.summary.subnormal_count;
  assign record_zero_count_o      = record_q.completion.summary.zero_count;

endmodule : opd_top
