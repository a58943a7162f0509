// Precision-mode register of every operator: one write port, one port for the controller and one
// for the vector unit.
//
//   latency          : reads 0 clocks, write 1 clock
//   operator >= NumOps: vector_mode_o = FAST
//   after reset      : FAST
//   rule             : docs/architecture.md, "Pins"
`include "opd_assert.svh"

module opd_mode_registers #(
  parameter  int unsigned NumOps  = 256,                             // registers, 1..65536
  localparam int unsigned OpWidth = NumOps > 1 ? $clog2(NumOps) : 1  // derived
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               write_i,
  input  logic [OpWidth-1:0] op_i,           // 0..NumOps-1, of the controller
  input  opd_reg_pkg::mode_e mode_i,         // written
  output opd_reg_pkg::mode_e mode_o,         // of op_i
  input  logic [15:0]        vector_op_i,    // of the vector unit
  output opd_reg_pkg::mode_e vector_mode_o
);

  opd_reg_pkg::mode_e mode_q [NumOps];

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      mode_q <= '{default: opd_reg_pkg::ModeFast};
    end else if (write_i) begin
      mode_q[op_i] <= mode_i;
    end
  end

  assign mode_o        = mode_q[op_i];
  assign vector_mode_o = 32'(vector_op_i) < NumOps ? mode_q[vector_op_i[OpWidth-1:0]]
                                                   : opd_reg_pkg::ModeFast;

  `OPD_ASSERT(WritesLegalMode_A, write_i,
      32'(op_i) < NumOps && mode_i <= opd_reg_pkg::ModeSafe)

endmodule : opd_mode_registers
