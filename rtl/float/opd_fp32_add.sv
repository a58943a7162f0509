// IEEE 754 binary32 sum, round to nearest, ties to even. a - b is a + (-b).
//
// The smaller operand is shifted to the larger one's exponent. Two bits more than the significand
// and the OR of what is shifted further (guard, round, sticky) decide every rounding: nothing is lost
// by a shift of three or less, and after a longer one at most one leading bit cancels.
//
//   latency        : 0 clocks; the sum is 0 unless valid_i
//   NaN, Inf - Inf : 0x7FC00000
//   x - x          : +0; -0 only from -0 + -0
//   rule           : docs/numerics.md, "Binary32 arithmetic"
module opd_fp32_add (
  input  logic        valid_i,
  input  logic [31:0] a_i,
  input  logic [31:0] b_i,
  output logic [31:0] sum_o
);

  localparam int unsigned Width = 28;  // carry, 24 bits of significand, guard, round, sticky

  logic             swap;
  logic [31:0]      greater, smaller;            // by magnitude
  logic [26:0]      significand, aligned, exact_aligned;
  logic [7:0]       exponent, exponent_smaller;  // of a subnormal number: 1
  logic [7:0]       distance;
  logic             lost;                        // a one was shifted out
  logic             subtract;
  logic [Width-1:0] exact;
  logic [30:0]      magnitude;

  always_comb begin
    swap             = 1'b0;
    greater          = '0;
    smaller          = '0;
    significand      = '0;
    aligned          = '0;
    exact_aligned    = '0;
    exponent         = '0;
    exponent_smaller = '0;
    distance         = '0;
    lost             = 1'b0;
    subtract         = 1'b0;
    exact            = '0;
    if (valid_i) begin
      swap             = b_i[30:0] > a_i[30:0];
      greater          = swap ? b_i : a_i;
      smaller          = swap ? a_i : b_i;
      exponent         = greater[30:23] == '0 ? 8'd1 : greater[30:23];
      exponent_smaller = smaller[30:23] == '0 ? 8'd1 : smaller[30:23];
      distance         = exponent - exponent_smaller;
      significand      = {greater[30:23] != '0, greater[22:0], 3'b000};
      exact_aligned    = {smaller[30:23] != '0, smaller[22:0], 3'b000};
      aligned          = exact_aligned >> distance;
      lost             = (aligned << distance) != exact_aligned;
      aligned[0]       = aligned[0] | lost;
      subtract         = greater[31] != smaller[31];
      exact            = subtract ? {1'b0, significand} - {1'b0, aligned}
                                  : {1'b0, significand} + {1'b0, aligned};
    end
  end

  opd_fp32_round #(.Width(Width)) u_round (
    .valid_i,
    .exponent_i   (10'({1'b0, exponent}) + 10'sd1),
    .significand_i(exact),
    .magnitude_o  (magnitude)
  );

  always_comb begin
    sum_o = '0;
    if (valid_i) begin
      if (greater[30:23] == '1) begin
        // A NaN is greater than Inf in magnitude, so one of the two is here if any is.
        sum_o = (greater[22:0] != '0 || (smaller[30:0] == greater[30:0] && subtract))
            ? 32'h7FC0_0000 : greater;
      end else begin
        sum_o = {greater[31] && (exact != '0 || smaller[31]), magnitude};
      end
    end
  end

endmodule : opd_fp32_add
