// IEEE 754 binary32 comparison a > b.
//
// Magnitudes sort like their bits; two negative numbers sort the other way round.
//
//   latency      : 0 clocks
//   NaN          : 0
//   +0 against -0: equal, 0
//   rule         : docs/numerics.md, "Binary32 arithmetic"
module opd_fp32_greater (
  input  logic [31:0] a_i,
  input  logic [31:0] b_i,
  output logic        greater_o
);

  logic nan, both_zero;

  assign nan       = a_i[30:0] > 31'h7F80_0000 || b_i[30:0] > 31'h7F80_0000;
  assign both_zero = a_i[30:0] == '0 && b_i[30:0] == '0;

  always_comb begin
    unique case ({a_i[31], b_i[31]})
      2'b00:   greater_o = a_i[30:0] > b_i[30:0];
      2'b01:   greater_o = 1'b1;
      2'b10:   greater_o = 1'b0;
      default: greater_o = a_i[30:0] < b_i[30:0];
    endcase
    if (nan || both_zero) greater_o = 1'b0;
  end

endmodule : opd_fp32_greater
