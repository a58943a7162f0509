// A property that is always false. If a run of this module survives, assertions are switched off.
`include "opd_assert.svh"

module canary (
  input logic clk_i,
  input logic rst_ni
);
  `OPD_ASSERT(AlwaysFalse_A, 1'b1, 1'b0)
endmodule : canary
