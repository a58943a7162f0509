// Statistic of one beat by a plain loop over its elements, each taken apart into exponent and significand field.
// The model that opd_beat_reduce and opd_tap are proven against; shares no method with them.
//
//   latency     : 0 clocks
//   none enabled: max_mag_o = 0, counts 0; first_nonfinite_o = 0 when every element is finite
//   rule        : docs/numerics.md, "Formats" and "Tap"
module beat_model #(
  parameter int unsigned DatapathWidth = 64  // bits per beat
) (
  input  logic [2:0]                 format_i,
  input  logic [DatapathWidth/8-1:0] lane_en_i,
  input  logic [DatapathWidth-1:0]   data_i,
  output logic [30:0]                max_mag_o,
  output logic [6:0]                 elements_per_beat_o,
  output logic [6:0]                 element_count_o,
  output logic [6:0]                 nonfinite_count_o,
  output logic [5:0]                 first_nonfinite_o,
  output logic [6:0]                 saturated_count_o,
  output logic [6:0]                 subnormal_count_o,
  output logic [6:0]                 zero_count_o
);

  logic [31:0] bits;
  logic [30:0] mag, largest;
  logic [7:0]  exponent, special;  // exponent field, and its value in Inf and NaN
  logic [22:0] significand;
  logic        nonfinite;

  always_comb begin
    max_mag_o         = '0;
    element_count_o   = '0;
    nonfinite_count_o = '0;
    first_nonfinite_o = '0;
    saturated_count_o = '0;
    subnormal_count_o = '0;
    zero_count_o      = '0;

    case (format_i)
      3'd0, 3'd1: elements_per_beat_o = 7'(DatapathWidth / 16);
      3'd2, 3'd3: elements_per_beat_o = 7'(DatapathWidth / 8);
      3'd4:       elements_per_beat_o = 7'(DatapathWidth / 32);
      default:    elements_per_beat_o = '0;  // unknown format: no element
    endcase

    for (int k = 0; k < DatapathWidth / 8; k++) begin
      bits        = '0;
      mag         = '0;
      exponent    = '0;
      special     = 8'hFF;
      significand = '0;
      largest     = '0;
      case (format_i)
        3'd0: begin
          bits        = 32'(16'(data_i >> (16 * k)));
          mag         = 31'(bits[14:0]);
          exponent    = 8'(bits[14:10]);
          special     = 8'd31;
          significand = 23'(bits[9:0]);
          largest     = 31'h7BFF;
        end
        3'd1: begin
          bits        = 32'(16'(data_i >> (16 * k)));
          mag         = 31'(bits[14:0]);
          exponent    = bits[14:7];
          significand = 23'(bits[6:0]);
          largest     = 31'h7F7F;
        end
        3'd2: begin
          bits        = 32'(8'(data_i >> (8 * k)));
          mag         = 31'(bits[6:0]);
          exponent    = 8'(bits[6:3]);
          significand = 23'(bits[2:0]);
          largest     = 31'h7E;
        end
        3'd3: begin
          bits        = 32'(8'(data_i >> (8 * k)));
          mag         = 31'(bits[6:0]);
          exponent    = 8'(bits[6:2]);
          special     = 8'd31;
          significand = 23'(bits[1:0]);
          largest     = 31'h7B;
        end
        default: begin
          bits        = 32'(data_i >> (32 * k));
          mag         = bits[30:0];
          exponent    = bits[30:23];
          significand = bits[22:0];
          largest     = 31'h7F7F_FFFF;
        end
      endcase
      // E4M3 has no infinity: one NaN, and its largest exponent is an ordinary one.
      nonfinite = format_i == 3'd2 ? mag == 31'h7F : exponent == special;

      if (k < 32'(elements_per_beat_o) && lane_en_i[k]) begin
        if (nonfinite && nonfinite_count_o == '0) first_nonfinite_o = 6'(k);
        if (!nonfinite && mag > max_mag_o) max_mag_o = mag;
        element_count_o   += 7'd1;
        nonfinite_count_o += 7'(nonfinite);
        saturated_count_o += 7'(mag == largest);
        subnormal_count_o += 7'(exponent == '0 && significand != '0);
        zero_count_o      += 7'(mag == '0);
      end
    end
  end

endmodule : beat_model
