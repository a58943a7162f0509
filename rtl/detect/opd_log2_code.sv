// Log2 of a magnitude as signed fixed point with 5 fraction bits: x of docs/numerics.md.
//
// Exponent and upper significand bits are already a piecewise-linear logarithm; a table of eight
// corrections brings it within 0.045 bit for normal numbers. Monotone in the magnitude.
//
//   latency        : 0 clocks
//   range          : -4063..4128 (4096 for finite magnitudes)
//   zero           : the code of exponent field 0, significand 0; the caller must not use it
//   unknown format : read as FP32; the caller never lets one in
//   rule           : docs/numerics.md, "Log2 code"
module opd_log2_code (
  input  logic [2:0]                           format_i,   // opd_reg_pkg::format_e
  input  logic [30:0]                          max_mag_i,  // bits of the magnitude
  output logic signed [opd_pkg::CodeWidth-1:0] code_o      // unit 1/32 bit
);

  logic [7:0] exponent, bias;
  logic [4:0] fraction;    // upper bits of the significand
  logic [1:0] correction;

  always_comb begin
    unique case (format_i)
      opd_reg_pkg::FormatFp16: begin
        exponent = 8'(max_mag_i[14:10]);
        fraction = max_mag_i[9:5];
        bias     = 8'd15;
      end
      opd_reg_pkg::FormatBf16: begin
        exponent = max_mag_i[14:7];
        fraction = max_mag_i[6:2];
        bias     = 8'd127;
      end
      opd_reg_pkg::FormatE4m3: begin
        exponent = 8'(max_mag_i[6:3]);
        fraction = {max_mag_i[2:0], 2'b00};
        bias     = 8'd7;
      end
      opd_reg_pkg::FormatE5m2: begin
        exponent = 8'(max_mag_i[6:2]);
        fraction = {max_mag_i[1:0], 3'b000};
        bias     = 8'd15;
      end
      default: begin
        exponent = max_mag_i[30:23];
        fraction = max_mag_i[22:18];
        bias     = 8'd127;
      end
    endcase
    // Mean of 32*log2(1+f) - floor(32*f) over each eighth, rounded.
    unique case (fraction[4:2])
      3'd0, 3'd7: correction = 2'd1;
      3'd1, 3'd6: correction = 2'd2;
      default:    correction = 2'd3;
    endcase
    code_o = {9'(exponent) - 9'(bias), fraction} + 14'(correction);
  end

endmodule : opd_log2_code
