// IEEE 754 binary32 comparison a > b.
//
// Magnitudes sort like their bits; two negative numbers sort the other way round.
//
//   latency      : 0 clocks; the result is 0 unless valid_i
//   NaN          : 0
//   +0 against -0: equal, 0
//   rule         : docs/numerics.md, "Binary32 arithmetic"
module opd_fp32_greater (
  input  logic        valid_i,
  input  logic [31:0] a_i,
  input  logic [31:0] b_i,
  output logic        greater_o
);

  always_comb begin
    greater_o = 1'b0;
    // A NaN or two zeros: never greater.
    if (valid_i && a_i[30:0] <= 31'h7F80_0000 && b_i[30:0] <= 31'h7F80_0000 &&
        (a_i[30:0] != '0 || b_i[30:0] != '0)) begin
      unique case ({a_i[31], b_i[31]})
        2'b00:   greater_o = a_i[30:0] > b_i[30:0];
        2'b01:   greater_o = 1'b1;
        2'b10:   greater_o = 1'b0;
        default: greater_o = a_i[30:0] < b_i[30:0];
      endcase
    end
  end

endmodule : opd_fp32_greater
