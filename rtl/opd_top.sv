// opd: on-chip overflow-precursor detector. Watches the outputs of a vector unit, forecasts
// overflow per operator, and drives the precision-mode registers that the vector unit obeys.
//
//   beats -> tap -+
//                 +-> intake -> op queue -> detection unit -> downshift controller -> mode registers
//   statistics ---+                                                              +--> record
//
//   latency    : 4 clocks from the edge that samples the last beat to the first edge that samples
//                the record and the new mode; 3 from an accepted statistic
//   throughput : 1 beat per clock, never stalls; 1 completion per 2 clocks behind the queue
//   overload   : completions that find the queue full are counted in unseen_count_o
//   illegal op or format: counted in unseen_count_o; mode_o of an illegal op is FAST
//   rule       : docs/architecture.md, docs/numerics.md, docs/controller.md
`include "opd_assert.svh"

module opd_top #(
  parameter int unsigned NumOps        = 256,  // operators with state, 1..65536
  parameter int unsigned DatapathWidth = 512,  // bits per beat, 32..512, a multiple of 32
  parameter int unsigned NumStreams    = 4,    // interleaved operators, 1..256
  parameter int unsigned QueueDepth    = 8,    // completions that may wait, 1..255
  parameter int unsigned CounterWidth  = 32    // bits of the tap's counters, 2..32
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,                    // asynchronous
  input  opd_reg_pkg::cfg_t          cfg_i,                     // constant while ops are in flight

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
  input  logic [31:0]                stat_max_mag_i,            // bit 31 is ignored
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
  output logic [31:0]                unseen_count_o
);

  `OPD_ASSERT_PARAM(ops_fit_port, NumOps >= 1 && NumOps <= 65536)

  localparam int unsigned OpWidth = NumOps > 1 ? $clog2(NumOps) : 1;

  logic                          tap_valid;
  opd_pkg::descriptor_t          beat_descriptor, tap_descriptor, stat_descriptor;
  opd_pkg::summary_t             tap_summary, stat_summary;
  logic                          completion_valid, completion_legal;
  opd_pkg::completion_t          completion, queue_head;
  logic                          queue_empty, queue_full, queue_pop;
  logic                          sample_valid;
  logic [OpWidth-1:0]            sample_op;
  opd_pkg::completion_t          sample;
  opd_pkg::flags_t               flags;
  logic [7:0]                    risk;
  opd_pkg::control_state_t       control_state, control_state_next;
  opd_reg_pkg::mode_e            mode, mode_next, vector_mode;
  opd_reg_pkg::cause_e           cause;
  logic                          record_valid_q;
  opd_pkg::record_t              record_q;
  logic                          unused_sign;

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
    .queue_has_room_i  (!queue_full),
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
    .head_o        (queue_head),
    .empty_o       (queue_empty),
    .full_o        (queue_full),
    .level_o       (queue_level_o),
    .high_water_o  (queue_high_water_o),
    .unseen_count_o
  );

  opd_detection_unit #(
    .NumOps(NumOps)
  ) u_detection_unit (
    .clk_i,
    .rst_ni,
    .cfg_i,
    .queue_empty_i  (queue_empty),
    .queue_head_i   (queue_head),
    .queue_pop_o    (queue_pop),
    .sample_valid_o (sample_valid),
    .sample_op_o    (sample_op),
    .sample_o       (sample),
    .flags_o        (flags),
    .risk_o         (risk),
    .control_state_o(control_state),
    .control_state_i(control_state_next)
  );

  opd_downshift_controller u_downshift_controller (
    .clk_i,
    .rst_ni,
    .cfg_i,
    .valid_i(sample_valid),
    .step_i (sample.descriptor.step[7:0]),
    .risk_i (risk),
    .flags_i(flags),
    .mode_i (mode),
    .state_i(control_state),
    .mode_o (mode_next),
    .state_o(control_state_next),
    .cause_o(cause)
  );

  opd_mode_registers #(
    .NumOps(NumOps)
  ) u_mode_registers (
    .clk_i,
    .rst_ni,
    .write_i      (sample_valid),
    .op_i         (sample_op),
    .mode_i       (mode_next),
    .mode_o       (mode),
    .vector_op_i  (mode_op_i),
    .vector_mode_o(vector_mode)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) record_valid_q <= 1'b0;
    else         record_valid_q <= sample_valid;
  end

  always_ff @(posedge clk_i) begin
    if (sample_valid) begin
      record_q <= '{completion: sample, mode: mode_next, flags: flags, risk: risk, cause: cause};
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
