// Detection unit: takes one completion from the queue every 2 clocks and scores it.
//
// READ pops the head of the queue and reads the operator's state; WRITE computes flags, risk and
// new state and writes it. One memory port serves both. The controller is outside: it
// gets the sample in WRITE and returns its part of the state in the same clock.
//
//   latency    : popped at edge k, scored before and written at edge k + 1
//   throughput : 1 completion per 2 clocks
//   empty queue: stays in READ, sample_valid_o = 0
//   rule       : docs/architecture.md, "Timing contract"
`include "opd_assert.svh"

module opd_detection_unit #(
  parameter  int unsigned NumOps  = 256,                             // operators, 1..65536
  localparam int unsigned OpWidth = NumOps > 1 ? $clog2(NumOps) : 1  // derived
) (
  input  logic                          clk_i,
  input  logic                          rst_ni,
  input  opd_reg_pkg::cfg_t             cfg_i,
  // Queue
  input  logic                          queue_empty_i,
  input  opd_pkg::completion_t          queue_head_i,
  output logic                          queue_pop_o,
  // Scored sample, in WRITE
  output logic                          sample_valid_o,
  output logic [OpWidth-1:0]            sample_op_o,
  output opd_pkg::completion_t          sample_o,
  output opd_pkg::flags_t               flags_o,
  output logic [7:0]                    risk_o,
  // Controller
  output opd_pkg::control_state_t       control_state_o,  // before the sample
  input  opd_pkg::control_state_t       control_state_i   // after the sample
);

  typedef enum logic {StRead, StWrite} state_e;

  state_e                               state_d, state_q;
  opd_pkg::completion_t                 sample_q;
  logic signed [opd_pkg::CodeWidth-1:0] code, code_q;  // log2 code of the sample
  opd_pkg::op_state_t                   op_state_d, op_state_q;
  logic [OpWidth-1:0]                   op;

  always_comb begin
    state_d        = state_q;
    queue_pop_o    = 1'b0;
    sample_valid_o = 1'b0;
    unique case (state_q)
      // StRead: wait for a completion; pop it and read the state of its operator.
      StRead: if (!queue_empty_i) begin
        queue_pop_o = 1'b1;
        state_d     = StWrite;
      end
      // StWrite: everything is known; write at the next edge.
      StWrite: begin
        sample_valid_o = 1'b1;
        state_d        = StRead;
      end
      default: state_d = StRead;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) state_q <= StRead;
    else         state_q <= state_d;
  end

  always_ff @(posedge clk_i) begin
    if (queue_pop_o) begin
      sample_q <= queue_head_i;
      code_q   <= code;
    end
  end

  // The logarithm is taken on the way out of the queue, which halves the path in WRITE.
  opd_log2_code u_log2_code (
    .format_i (queue_head_i.descriptor.format),
    .max_mag_i(queue_head_i.summary.max_mag),
    .code_o   (code)
  );

  assign op = queue_pop_o ? queue_head_i.descriptor.op[OpWidth-1:0]
                          : sample_q.descriptor.op[OpWidth-1:0];

  opd_state_memory #(.NumOps(NumOps)) u_state_memory (
    .clk_i,
    .rst_ni,
    .read_i (queue_pop_o),
    .write_i(sample_valid_o),
    .op_i   (op),
    .state_i(op_state_d),
    .state_o(op_state_q)
  );

  opd_forecast_engine u_forecast_engine (
    .clk_i,
    .rst_ni,
    .cfg_i,
    .valid_i     (sample_valid_o),
    .format_i    (sample_q.descriptor.format),
    .scale_log2_i(sample_q.descriptor.scale_log2),
    .code_i      (code_q),
    .nonfinite_i (sample_q.summary.nonfinite_count != '0),
    .nonzero_i   (sample_q.summary.max_mag != '0),
    .saturated_i (sample_q.summary.saturated_count != '0),
    .state_i     (op_state_q.forecast),
    .state_o     (op_state_d.forecast),
    .flags_o
  );

  opd_risk u_risk (
    .cfg_i,
    .flags_i(flags_o),
    .risk_o
  );

  assign op_state_d.control = control_state_i;
  assign control_state_o    = op_state_q.control;
  assign sample_op_o        = sample_q.descriptor.op[OpWidth-1:0];
  assign sample_o           = sample_q;

  `OPD_ASSERT(OpIsLegal_A, sample_valid_o, 32'(sample_q.descriptor.op) < NumOps)

endmodule : opd_detection_unit
