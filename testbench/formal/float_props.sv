// Properties of the binary32 units of the published engine: the comparison in full, and what IEEE 754 says of sums and
// products whatever the operands. Their values are compared with the processor's by simulation.
module float_props (
  input logic        clk_i,
  input logic        rst_ni,
  input logic [31:0] a_i,
  input logic [31:0] b_i
);

  localparam logic [31:0] Nan = 32'h7FC0_0000, One = 32'h3F80_0000;

  logic [31:0] sum, sum_zero, difference, product, product_swapped, product_one;
  logic        greater;

  opd_fp32_greater u_greater (.valid_i(1'b1), .a_i, .b_i, .greater_o(greater));
  opd_fp32_add u_sum (.valid_i(1'b1), .a_i, .b_i, .sum_o(sum));
  opd_fp32_add u_sum_zero (.valid_i(1'b1), .a_i, .b_i({b_i[31], 31'd0}), .sum_o(sum_zero));
  opd_fp32_add u_difference (.valid_i(1'b1), .a_i, .b_i({!a_i[31], a_i[30:0]}), .sum_o(difference));
  opd_fp32_mul u_product (.valid_i(1'b1), .a_i, .b_i, .product_o(product));
  opd_fp32_mul u_product_swapped (.valid_i(1'b1), .a_i(b_i), .b_i(a_i), .product_o(product_swapped));
  opd_fp32_mul u_product_one (.valid_i(1'b1), .a_i, .b_i({b_i[31], One[30:0]}), .product_o(product_one));

  function automatic logic is_nan(logic [31:0] value);
    return value[30:0] > 31'h7F80_0000;
  endfunction
  function automatic logic is_zero(logic [31:0] value);
    return value[30:0] == '0;
  endfunction
  // A number as an integer that sorts alike; both zeros are 0.
  function automatic logic signed [32:0] order(logic [31:0] value);
    return value[31] ? -33'($signed({2'b00, value[30:0]})) : 33'($signed({2'b00, value[30:0]}));
  endfunction

  logic invalid_sum, invalid_product, sign;
  assign invalid_sum     = is_nan(a_i) || is_nan(b_i) || (a_i[30:0] == 31'h7F80_0000 && b_i == {!a_i[31], a_i[30:0]});
  assign invalid_product = is_nan(a_i) || is_nan(b_i) || (a_i[30:0] == 31'h7F80_0000 && is_zero(b_i)) ||
                           (b_i[30:0] == 31'h7F80_0000 && is_zero(a_i));
  assign sign            = a_i[31] ^ b_i[31];

  logic first_cycle = 1'b1;
  always_ff @(posedge clk_i) first_cycle <= 1'b0;

  always_comb begin
    assume (!first_cycle || !rst_ni);
    GreaterIsTheOrder: assert (greater == (!is_nan(a_i) && !is_nan(b_i) && order(a_i) > order(b_i)));

    SumIsNanIffInvalid:    assert (is_nan(sum) == invalid_sum && (!invalid_sum || sum == Nan));
    if (!is_nan(a_i)) begin
      ZeroAddsNothing: assert (sum_zero == (is_zero(a_i) ? {a_i[31] & b_i[31], 31'd0} : a_i));
    end
    if (a_i[30:0] < 31'h7F80_0000) begin
      CancelsToPlusZero: assert (difference == '0);
    end
    if (!invalid_sum && !is_zero(sum)) begin
      SumHasSignOfTheLarger: assert (sum[31] == (a_i[30:0] >= b_i[30:0] ? a_i[31] : b_i[31]));
    end
    if (!invalid_sum && a_i[31] == b_i[31]) begin
      SumOfLikeSignsIsNotSmaller: assert (sum[30:0] >= a_i[30:0] && sum[30:0] >= b_i[30:0]);
    end
    if (!invalid_sum && a_i[31] != b_i[31] && a_i[30:0] < 31'h7F80_0000 && b_i[30:0] < 31'h7F80_0000) begin
      DifferenceIsNotLarger: assert (sum[30:0] <= (a_i[30:0] >= b_i[30:0] ? a_i[30:0] : b_i[30:0]));
    end

    ProductCommutes:        assert (product == product_swapped);
    ProductIsNanIffInvalid: assert (is_nan(product) == invalid_product && (!invalid_product || product == Nan));
    if (!invalid_product) begin
      ProductHasXorOfSigns: assert (product[31] == sign);
    end
    if (!is_nan(a_i)) begin
      OneChangesNothing: assert (product_one == {sign, a_i[30:0]});
    end
  end

endmodule : float_props
