// Normalises and rounds the exact magnitude of a sum or product to binary32: nearest, ties to even.
//
// A shift to the left and the exponent go together, in steps of powers of two, until the leading
// one is at the top or the exponent is 1; what then has no leading one is subnormal. Below the
// 24 bits kept, one bit decides and the OR of the rest breaks the tie. A carry out of the
// significand moves into the exponent field by itself, also from subnormal to normal and to infinity.
//
//   latency : 0 clocks; the result is 0 unless valid_i
//   zero    : a significand of 0 gives 0
//   range   : exponent_i may be 0 or negative when the upper 25 bits of the significand are 0: the
//             value is then below half the smallest subnormal number, and the result 0
//   rule    : docs/numerics.md, "Binary32 arithmetic"; IEEE 754-2019, 4.3.1 and 7.4
module opd_fp32_round #(
  parameter int unsigned Width = 28  // bits of the significand, 26..128
) (
  input  logic              valid_i,
  input  logic signed [9:0] exponent_i,     // exponent field that a one in the top bit would have
  input  logic [Width-1:0]  significand_i,  // the lowest bit may be the OR of all below it
  output logic [30:0]       magnitude_o     // bits of the result without its sign
);

  localparam int unsigned Stages = $clog2(Width);

  logic [Width-1:0]  significand;
  logic signed [9:0] exponent;
  logic              half, rest, up;

  always_comb begin
    significand = significand_i;
    exponent    = exponent_i;
    half        = 1'b0;
    rest        = 1'b0;
    up          = 1'b0;
    magnitude_o = '0;
    if (valid_i) begin
      // Shifts by min(leading zeros, exponent - 1), from the largest power of two down.
      for (int unsigned stage = 0; stage < Stages; stage++) begin
        if ((significand >> (Width - (32'd1 << (Stages - 1 - stage)))) == '0 &&
            exponent > 10'sd1 <<< (Stages - 1 - stage)) begin
          significand = significand << (32'd1 << (Stages - 1 - stage));
          exponent    = exponent - (10'sd1 <<< (Stages - 1 - stage));
        end
      end
      half = significand[Width-25];
      rest = significand[Width-26:0] != '0;
      up   = half && (rest || significand[Width-24]);
      if (significand[Width-1] && exponent >= 10'sd255) begin
        magnitude_o = {8'hFF, 23'd0};
      end else begin
        magnitude_o = {significand[Width-1] ? exponent[7:0] : 8'd0, significand[Width-2 -: 23]} +
                      31'(up);
      end
    end
  end

endmodule : opd_fp32_round
