// One lane of the yardstick: a * b + c, rounded once. a and b are FP16; c and the result have AccExp exponent and
// AccMan significand bits (5, 10: FP16; 8, 23: FP32, as matrix units accumulate).
//
// IEEE 754 fused multiply-add, round to nearest, ties to even, with subnormals; every NaN result is the quiet one without
// payload. The exact product and the addend meet in one frame: the addend starts above the product and is shifted down to
// its place. One normalising shift, which stops at the smallest exponent, serves normal and subnormal results.
//
//   latency    : 2 clocks, registers behind the alignment and behind the rounding
//   throughput : 1 per clock
module fp16_multiply_add #(
  parameter  int unsigned AccExp   = 5,                   // exponent bits of addend and result, 5..8
  parameter  int unsigned AccMan   = 10,                  // significand bits of addend and result, 10..23
  localparam int unsigned AccWidth = 1 + AccExp + AccMan  // derived
) (
  input  logic                clk_i,
  input  logic [15:0]         a_i,
  input  logic [15:0]         b_i,
  input  logic [AccWidth-1:0] c_i,
  output logic [AccWidth-1:0] result_o  // of the operands that the edge before the last one sampled
);

  localparam int unsigned Precision = AccMan + 1;
  localparam int unsigned Below     = Precision + 2;         // frame bits below the product
  localparam int unsigned Frame     = Precision + 2 + 22 + Below;  // addend, two bits, product, bits below
  localparam int unsigned SumWidth  = Frame + 1;
  localparam int          Bias      = 2 ** (AccExp - 1) - 1;

  localparam logic [AccWidth-1:0] Infinity = AccWidth'((2 ** AccExp - 1) << AccMan);
  localparam logic [AccWidth-1:0] QuietNan = Infinity | AccWidth'(1 << (AccMan - 1));

  typedef logic signed [10:0] exponent_t;

  // The special result, when there is one, and the sign of an Inf.
  typedef struct packed {
    logic nan;
    logic infinite;
    logic sign;
  } special_t;

  // Stage 1: decode, multiply, align.
  logic                 a_top, b_top, c_top;        // exponent field all ones: Inf or NaN
  logic                 a_zero, b_zero, c_zero;     // exponent field zero: subnormal or zero
  special_t             special, special_q;
  logic [21:0]          product, product_q;
  logic                 product_sign, product_sign_q, addend_sign, addend_sign_q;
  exponent_t            product_exponent, addend_exponent;  // of bit 0
  exponent_t            distance, place, place_q;           // place: exponent of the frame's bit 0
  logic [Precision-1:0] addend, tail;
  logic [Frame-1:0]     aligned, aligned_q;
  logic                 lost, lost_q;               // part of the addend fell out of the frame

  always_comb begin
    a_top        = &a_i[14:10];
    b_top        = &b_i[14:10];
    c_top        = &c_i[AccWidth-2:AccMan];
    a_zero       = a_i[14:10] == '0;
    b_zero       = b_i[14:10] == '0;
    c_zero       = c_i[AccWidth-2:AccMan] == '0;
    product_sign = a_i[15] ^ b_i[15];
    addend_sign  = c_i[AccWidth-1];

    special.infinite = a_top || b_top || c_top;
    special.sign     = c_top ? addend_sign : product_sign;
    special.nan      = (a_top && a_i[9:0] != '0) || (b_top && b_i[9:0] != '0) || (c_top && c_i[AccMan-1:0] != '0) ||
                       (a_top && b_i[14:0] == '0) || (b_top && a_i[14:0] == '0) ||
                       ((a_top || b_top) && c_top && product_sign != addend_sign);

    // Exponent field 0 has the exponent of field 1 and no hidden bit.
    product          = 22'({!a_zero, a_i[9:0]}) * 22'({!b_zero, b_i[9:0]});
    addend           = {!c_zero, c_i[AccMan-1:0]};
    product_exponent = exponent_t'({1'b0, a_i[14:10]}) + exponent_t'({1'b0, a_zero}) +
                       exponent_t'({1'b0, b_i[14:10]}) + exponent_t'({1'b0, b_zero}) - exponent_t'(2 * (15 + 10));
    addend_exponent  = exponent_t'({1'b0, c_i[AccWidth-2:AccMan]}) + exponent_t'({1'b0, c_zero}) -
                       exponent_t'(Bias + int'(AccMan));

    // At distance 0 the addend's bit 0 is 24 above the product's. A product further below is less than a quarter of the
    // addend's last place, so it may stay where it is; so may a product of zero, whatever its exponent fields say.
    distance = product_exponent + exponent_t'(24) - addend_exponent;
    place    = product_exponent - exponent_t'(Below);
    if (distance < 0 || product == '0) begin
      distance = '0;
      place    = addend_exponent - exponent_t'(24 + Below);
    end else if (distance > exponent_t'(Frame)) begin
      distance = exponent_t'(Frame);
    end
    {aligned, tail} = {addend, Frame'(0)} >> distance[6:0];
    lost            = tail != '0;
  end

  always_ff @(posedge clk_i) begin
    special_q      <= special;
    product_q      <= product;
    product_sign_q <= product_sign;
    addend_sign_q  <= addend_sign;
    place_q        <= place;
    aligned_q      <= aligned;
    lost_q         <= lost;
  end

  // Stage 2: add, normalise, round.
  logic                subtract, sign;
  logic [SumWidth-1:0] sum, magnitude, normalised;
  exponent_t           top, zeros, shift;   // top: biased exponent of a one in the sum's highest bit, at least 1
  exponent_t           exponent;
  logic                round_up, exact_zero;
  logic [AccWidth-1:0] result;

  always_comb begin
    // What was lost counts as a fraction: the negative of (sum + fraction) is (-sum - 1) + (1 - fraction).
    subtract  = product_sign_q != addend_sign_q;
    sum       = subtract ? SumWidth'(aligned_q) - (SumWidth'(product_q) << Below)
                         : SumWidth'(aligned_q) + (SumWidth'(product_q) << Below);
    magnitude = sum;
    sign      = addend_sign_q;
    if (subtract && sum[SumWidth-1]) begin
      magnitude = lost_q ? ~sum : -sum;
      sign      = product_sign_q;
    end
    exact_zero = magnitude == '0 && !lost_q;
    if (exact_zero && subtract) sign = 1'b0;

    zeros = exponent_t'(SumWidth);
    for (int unsigned i = 0; i < SumWidth; i++) begin
      if (magnitude[i]) zeros = exponent_t'(SumWidth - 1 - i);
    end
    top        = place_q + exponent_t'(Frame + int'(Bias));
    shift      = zeros < top ? zeros : top - exponent_t'(1);
    normalised = magnitude << shift[6:0];
    exponent   = normalised[SumWidth-1] ? top - shift : '0;

    round_up = normalised[SumWidth-1-Precision] &&
               (normalised[SumWidth-Precision] || lost_q || normalised[SumWidth-2-Precision:0] != '0);
    // A carry out of the significand raises the exponent by itself; from the largest finite number that gives Inf.
    result = {sign, exponent[AccExp-1:0], normalised[SumWidth-2:SumWidth-Precision]} + AccWidth'(round_up);
    if (exponent >= exponent_t'(2 ** AccExp - 1)) result = {sign, Infinity[AccWidth-2:0]};
    if (special_q.infinite) result = {special_q.sign, Infinity[AccWidth-2:0]};
    if (special_q.nan)      result = QuietNan;
  end

  always_ff @(posedge clk_i) result_o <= result;

endmodule : fp16_multiply_add
