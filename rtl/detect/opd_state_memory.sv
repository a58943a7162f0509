// State of every operator: one single-ported memory, one word per operator.
//
// The memory itself has no reset (it may be an SRAM macro); one valid bit per operator has, and a
// word that was not written since reset reads as 0.
//
//   latency    : read data after the edge that samples read_i, held until the next read
//   throughput : one read or one write per clock, never both
//   rule       : docs/architecture.md, "The device"
`include "opd_assert.svh"

module opd_state_memory #(
  parameter  int unsigned NumOps  = 256,                               // words, 1..65536
  localparam int unsigned OpWidth = NumOps > 1 ? $clog2(NumOps) : 1  // derived
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               read_i,
  input  logic               write_i,
  input  logic [OpWidth-1:0] op_i,     // 0..NumOps-1
  input  opd_pkg::op_state_t state_i,  // written
  output opd_pkg::op_state_t state_o   // read
);

  opd_pkg::op_state_t word_q [NumOps];
  opd_pkg::op_state_t read_q;
  logic               written_q [NumOps];
  logic               read_written_q;

  always_ff @(posedge clk_i) begin
    if (write_i)     word_q[op_i] <= state_i;
    else if (read_i) read_q <= word_q[op_i];
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      written_q      <= '{default: 1'b0};
      read_written_q <= 1'b0;
    end else begin
      if (write_i) written_q[op_i] <= 1'b1;
      if (read_i)  read_written_q <= written_q[op_i];
    end
  end

  assign state_o = read_written_q ? read_q : '0;

  `OPD_ASSERT(OnePort_A, read_i, !write_i)
  `OPD_ASSERT(OpIsLegal_A, read_i || write_i, 32'(op_i) < NumOps)

endmodule : opd_state_memory
