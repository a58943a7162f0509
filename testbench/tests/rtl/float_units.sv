// The three binary32 units side by side, for float_test.
module float_units (
  input  logic [31:0] a_i,
  input  logic [31:0] b_i,
  output logic [31:0] sum_o,
  output logic [31:0] product_o,
  output logic        greater_o
);

  opd_fp32_add u_add (.valid_i(1'b1), .a_i, .b_i, .sum_o);
  opd_fp32_mul u_mul (.valid_i(1'b1), .a_i, .b_i, .product_o);
  opd_fp32_greater u_greater (.valid_i(1'b1), .a_i, .b_i, .greater_o);

endmodule : float_units
