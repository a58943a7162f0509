// IEEE 754 binary32 product, round to nearest, ties to even.
//
// The product of two 24-bit significands is exact. 25 zeros above it give room for results that
// are subnormal: normalisation shifts to the left only, and stops early.
//
//   latency      : 0 clocks; the product is 0 unless valid_i
//   NaN, 0 * Inf : 0x7FC00000
//   rule         : docs/numerics.md, "Binary32 arithmetic"
module opd_fp32_mul (
  input  logic        valid_i,
  input  logic [31:0] a_i,
  input  logic [31:0] b_i,
  output logic [31:0] product_o
);

  localparam int unsigned Room  = 25;  // significand and half bit of the smallest result
  localparam int unsigned Width = Room + 48;

  logic [7:0]        exponent_a, exponent_b;  // of a subnormal number: 1
  logic signed [9:0] exponent;                // of a one in the top bit, -99..407
  logic [47:0]       exact;
  logic [30:0]       magnitude;

  always_comb begin
    exponent_a = '0;
    exponent_b = '0;
    exponent   = '0;
    exact      = '0;
    if (valid_i) begin
      exponent_a = a_i[30:23] == '0 ? 8'd1 : a_i[30:23];
      exponent_b = b_i[30:23] == '0 ? 8'd1 : b_i[30:23];
      exponent   = 10'({2'b00, exponent_a}) + 10'({2'b00, exponent_b}) + 10'(Room) - 10'sd126;
      exact      = 48'({a_i[30:23] != '0, a_i[22:0]}) * 48'({b_i[30:23] != '0, b_i[22:0]});
    end
  end

  opd_fp32_round #(.Width(Width)) u_round (
    .valid_i,
    .exponent_i   (exponent),
    .significand_i({Room'(0), exact}),
    .magnitude_o  (magnitude)
  );

  always_comb begin
    product_o = '0;
    if (valid_i) begin
      product_o = {a_i[31] != b_i[31], magnitude};
      if (a_i[30:23] == '1 || b_i[30:23] == '1) begin
        if (a_i[30:0] > 31'h7F80_0000 || b_i[30:0] > 31'h7F80_0000 ||
            a_i[30:0] == '0 || b_i[30:0] == '0) begin
          product_o = 32'h7FC0_0000;
        end else begin
          product_o[30:0] = 31'h7F80_0000;
        end
      end
    end
  end

endmodule : opd_fp32_mul
