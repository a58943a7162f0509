// Properties of opd_beat_reduce: every output, one clock after a beat of any format (also an unknown one), equals
// the plain loop of beat_model; without a beat the outputs hold.
module beat_reduce_props #(
  parameter int unsigned DatapathWidth = 64
) (
  input logic                       clk_i,
  input logic                       rst_ni,
  input logic                       beat_valid_i,
  input logic [2:0]                 beat_format_i,
  input logic [DatapathWidth/8-1:0] beat_lane_en_i,
  input logic [DatapathWidth-1:0]   beat_data_i
);

  logic [30:0] max_mag, model_max_mag, model_max_mag_q;
  logic [6:0]  elements, nonfinites, saturated, subnormals, zeros;
  logic [6:0]  model_elements, model_nonfinites, model_saturated, model_subnormals, model_zeros;
  logic [6:0]  model_elements_q, model_nonfinites_q, model_saturated_q, model_subnormals_q, model_zeros_q;
  logic [5:0]  first_nonfinite, model_first, model_first_q;

  opd_beat_reduce #(.DatapathWidth(DatapathWidth)) dut (
    .clk_i, .rst_ni, .beat_valid_i, .beat_format_i, .beat_lane_en_i, .beat_data_i,
    .max_mag_o(max_mag), .element_count_o(elements), .nonfinite_count_o(nonfinites), .first_nonfinite_o(first_nonfinite),
    .saturated_count_o(saturated), .subnormal_count_o(subnormals), .zero_count_o(zeros)
  );

  beat_model #(.DatapathWidth(DatapathWidth)) u_model (
    .format_i(beat_format_i), .lane_en_i(beat_lane_en_i), .data_i(beat_data_i),
    .max_mag_o(model_max_mag), .elements_per_beat_o(), .element_count_o(model_elements),
    .nonfinite_count_o(model_nonfinites), .first_nonfinite_o(model_first), .saturated_count_o(model_saturated),
    .subnormal_count_o(model_subnormals), .zero_count_o(model_zeros)
  );

  logic seen_q;  // there was a beat: the outputs are defined
  initial seen_q = 1'b0;

  always_ff @(posedge clk_i) begin
    if (beat_valid_i) begin
      seen_q             <= 1'b1;
      model_max_mag_q    <= model_max_mag;
      model_elements_q   <= model_elements;
      model_nonfinites_q <= model_nonfinites;
      model_first_q      <= model_first;
      model_saturated_q  <= model_saturated;
      model_subnormals_q <= model_subnormals;
      model_zeros_q      <= model_zeros;
    end
  end

  logic first_cycle = 1'b1;
  always_ff @(posedge clk_i) first_cycle <= 1'b0;

  always_comb begin
    assume (!first_cycle || !rst_ni);
    if (seen_q) begin
      MaximumIsLargestFinite: assert (max_mag == model_max_mag_q);
      ElementCount:           assert (elements == model_elements_q);
      NonfiniteCount:         assert (nonfinites == model_nonfinites_q);
      SaturatedCount:         assert (saturated == model_saturated_q);
      SubnormalCount:         assert (subnormals == model_subnormals_q);
      ZeroCount:              assert (zeros == model_zeros_q);
      if (nonfinites != '0) begin
        FirstNonfinite: assert (first_nonfinite == model_first_q);
      end
    end
  end

endmodule : beat_reduce_props
