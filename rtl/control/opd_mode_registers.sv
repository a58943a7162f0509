// Precision-mode register of every operator, with parity: one write port, one port for the detection
// unit and one for the vector unit.
//
// The detection unit keeps its own copy of the mode in the state memory and reads here only to compare,
// or when that copy is lost. The vector unit is safe at any time: it never obeys a corrupt register.
//
//   latency          : reads 0 clocks, write 1 clock
//   operator >= NumOps: vector_mode_o = FAST
//   corrupt register : vector_mode_o = SAFE, corrupt_o = 1; mode_o is then not to be used
//   after reset      : FAST
//   rule             : docs/architecture.md, "Pins"; docs/controller.md, "Upsets"
`include "opd_assert.svh"

module opd_mode_registers #(
  parameter  int unsigned NumOps  = 256,                             // registers, 1..65536
  localparam int unsigned OpWidth = NumOps > 1 ? $clog2(NumOps) : 1  // derived
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               write_i,
  input  logic [OpWidth-1:0] op_i,          // 0..NumOps-1, of the detection unit
  input  opd_reg_pkg::mode_e mode_i,        // written
  output opd_reg_pkg::mode_e mode_o,        // of op_i
  output logic               corrupt_o,     // of op_i
  input  logic [15:0]        vector_op_i,   // of the vector unit
  output opd_reg_pkg::mode_e vector_mode_o
);

  // The parity bit makes the number of ones even.
  typedef struct packed {
    logic               parity;
    opd_reg_pkg::mode_e mode;
  } register_t;

  register_t register_q [NumOps];
  register_t vector_register;

  // No single flip makes mode 3 with right parity, but two do.
  function automatic logic corrupt(register_t value);
    return ^value != 1'b0 || value.mode > opd_reg_pkg::ModeSafe;
  endfunction

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      register_q <= '{default: register_t'('0)};
    end else if (write_i) begin
      register_q[op_i] <= '{parity: ^mode_i, mode: mode_i};
    end
  end

  assign mode_o          = register_q[op_i].mode;
  assign corrupt_o       = corrupt(register_q[op_i]);
  assign vector_register = register_q[vector_op_i[OpWidth-1:0]];

  always_comb begin
    vector_mode_o = opd_reg_pkg::ModeFast;
    if (32'(vector_op_i) < NumOps) begin
      vector_mode_o = corrupt(vector_register) ? opd_reg_pkg::ModeSafe : vector_register.mode;
    end
  end

  `OPD_ASSERT(WritesLegalMode_A, write_i,
      32'(op_i) < NumOps && mode_i <= opd_reg_pkg::ModeSafe)

endmodule : opd_mode_registers
