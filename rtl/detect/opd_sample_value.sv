// Largest magnitude of a sample as the binary32 number y that the published engine works on.
//
// Every finite number of the five formats is a binary32 number X; X is then seen in units of a power
// of two, which moves its exponent and rounds nothing. The seed sets the unit, so that its y is in
// [1, 2).
//
//   latency        : 0 clocks; outputs are 0 unless valid_i
//   subnormals     : y = 0 for FP32 and BF16; the other formats' are normal in binary32
//   above the range: y = 2^48
//   rule           : docs/numerics.md, "Published engine"
module opd_sample_value (
  input  logic              valid_i,
  input  logic [2:0]        format_i,      // legal
  input  logic [30:0]       max_mag_i,     // bits of a magnitude, finite and not 0
  input  logic signed [7:0] scale_log2_i,
  input  logic              seed_i,        // the sample sets the anchor
  input  logic signed [9:0] anchor_i,      // before the sample
  output logic signed [9:0] anchor_o,      // after the sample, -126..382
  output logic [31:0]       y_o            // binary32, 0..2^48
);

  localparam logic [30:0] Highest = 31'h5780_0000;  // 2^48

  logic [7:0]         rebias;       // 127 - bias of a small format
  logic [7:0]         exponent;     // of X
  logic [9:0]         significand;  // of a small format, padded below
  logic [3:0]         zeros;        // above the leading one
  logic [30:0]        magnitude;    // X
  logic signed [11:0] shift;        // the unit is 2^shift, -381..382
  logic [30:0]        y;

  always_comb begin
    rebias      = '0;
    exponent    = '0;
    significand = '0;
    zeros       = '0;
    magnitude   = '0;
    shift       = '0;
    y           = '0;
    anchor_o    = '0;
    y_o         = '0;
    if (valid_i) begin
      unique case (format_i)
        opd_reg_pkg::FormatFp16: begin
          rebias      = 8'd112;
          exponent    = 8'(max_mag_i[14:10]);
          significand = max_mag_i[9:0];
        end
        opd_reg_pkg::FormatE4m3: begin
          rebias      = 8'd120;
          exponent    = 8'(max_mag_i[6:3]);
          significand = {max_mag_i[2:0], 7'd0};
        end
        opd_reg_pkg::FormatE5m2: begin
          rebias      = 8'd112;
          exponent    = 8'(max_mag_i[6:2]);
          significand = {max_mag_i[1:0], 8'd0};
        end
        default: ;
      endcase
      if (exponent == '0) begin
        // Subnormal: the leading one moves out of the top and becomes the one not stored.
        for (int unsigned position = 0; position < 10; position++) begin
          if (significand[position]) zeros = 4'(9 - position);
        end
        exponent    = rebias - 8'(zeros);
        significand = significand << (5'(zeros) + 5'd1);
      end else begin
        exponent = exponent + rebias;
      end
      unique case (format_i)
        opd_reg_pkg::FormatFp32: magnitude = max_mag_i;
        opd_reg_pkg::FormatBf16: magnitude = {max_mag_i[14:0], 16'd0};
        default:                 magnitude = {exponent, significand, 13'd0};
      endcase

      anchor_o = anchor_i;
      if (seed_i) begin
        anchor_o = (magnitude[30:23] == '0 ? 10'sd1 : 10'({2'b00, magnitude[30:23]})) -
                   10'(scale_log2_i);
      end
      shift = 12'(anchor_o) + 12'(scale_log2_i) - 12'sd127;
      y     = opd_pkg::scaled(magnitude, shift);
      y_o   = {1'b0, y > Highest ? Highest : y};  // magnitudes sort like their bits
    end
  end

endmodule : opd_sample_value
