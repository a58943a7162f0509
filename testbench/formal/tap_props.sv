// Properties of opd_tap for one stream, which the solver chooses, under any interleaving with the others: a beat in
// every clock is absorbed, and the completion comes one clock after its last beat whatever else happens; the tap has no
// output that could hold a beat up.
module tap_props #(
  parameter int unsigned DatapathWidth = 32,
  parameter int unsigned NumStreams    = 3,
  parameter int unsigned CounterWidth  = 3  // saturates within a few beats
) (
  input logic                       clk_i,
  input logic                       rst_ni,
  input logic                       beat_valid_i,
  input logic [7:0]                 beat_stream_i,
  input opd_pkg::descriptor_t       beat_descriptor_i,
  input logic                       beat_last_i,
  input logic [DatapathWidth/8-1:0] beat_lane_en_i,
  input logic [DatapathWidth-1:0]   beat_data_i,
  input logic [7:0]                 watched_i  // the stream, constant
);

  logic                 completion_valid;
  opd_pkg::descriptor_t descriptor;
  opd_pkg::summary_t    summary;

  opd_tap #(.DatapathWidth(DatapathWidth), .NumStreams(NumStreams), .CounterWidth(CounterWidth)) dut (
    .clk_i, .rst_ni, .beat_valid_i, .beat_stream_i, .beat_descriptor_i, .beat_last_i, .beat_lane_en_i, .beat_data_i,
    .completion_valid_o(completion_valid), .descriptor_o(descriptor), .summary_o(summary)
  );

  // The beat of the last edge. A beat of a stream that does not exist is no beat.
  logic                       valid_q, last_q;
  logic [7:0]                 stream_q, watched_q;
  opd_pkg::descriptor_t       descriptor_q;
  logic [DatapathWidth/8-1:0] lane_en_q;
  logic [DatapathWidth-1:0]   data_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) valid_q <= 1'b0;
    else         valid_q <= beat_valid_i && beat_stream_i < 8'(NumStreams);
  end
  always_ff @(posedge clk_i) begin
    last_q       <= beat_last_i;
    stream_q     <= beat_stream_i;
    descriptor_q <= beat_descriptor_i;
    lane_en_q    <= beat_lane_en_i;
    data_q       <= beat_data_i;
    watched_q    <= watched_i;
  end

  logic [30:0] max_mag;
  logic [6:0]  per_beat, elements, nonfinites, saturated, subnormals, zeros;
  logic [5:0]  first_nonfinite;

  beat_model #(.DatapathWidth(DatapathWidth)) u_model (
    .format_i(descriptor_q.format), .lane_en_i(lane_en_q), .data_i(data_q),
    .max_mag_o(max_mag), .elements_per_beat_o(per_beat), .element_count_o(elements), .nonfinite_count_o(nonfinites),
    .first_nonfinite_o(first_nonfinite), .saturated_count_o(saturated), .subnormal_count_o(subnormals),
    .zero_count_o(zeros)
  );

  // Statistic of the operator open on the watched stream, before the beat (_q) and with it (_d); 32 bits, saturated.
  localparam logic [31:0] CounterMax = (32'd1 << CounterWidth) - 32'd1;

  typedef struct packed {
    opd_pkg::summary_t summary;
    logic [31:0]       index;  // of lane 0 of the next beat
  } model_t;
  localparam model_t Empty = '{summary: '{first_nonfinite: opd_pkg::NoElement, default: '0}, index: '0};

  function automatic logic [31:0] minimum(logic [31:0] a, logic [31:0] b);
    return a < b ? a : b;
  endfunction

  model_t model_d, model_q;
  logic   watched_beat;
  assign watched_beat = valid_q && stream_q == watched_i;

  always_comb begin
    model_d = model_q;
    if (max_mag > model_q.summary.max_mag) model_d.summary.max_mag = max_mag;
    model_d.summary.element_count   = minimum(CounterMax, model_q.summary.element_count + 32'(elements));
    model_d.summary.nonfinite_count = minimum(CounterMax, model_q.summary.nonfinite_count + 32'(nonfinites));
    model_d.summary.saturated_count = minimum(CounterMax, model_q.summary.saturated_count + 32'(saturated));
    model_d.summary.subnormal_count = minimum(CounterMax, model_q.summary.subnormal_count + 32'(subnormals));
    model_d.summary.zero_count      = minimum(CounterMax, model_q.summary.zero_count + 32'(zeros));
    if (model_q.summary.nonfinite_count == '0 && nonfinites != '0) begin
      model_d.summary.first_nonfinite = minimum(CounterMax - 32'd1, model_q.index + 32'(first_nonfinite));
    end
    model_d.index = minimum(CounterMax, model_q.index + 32'(per_beat));
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni)           model_q <= Empty;
    else if (watched_beat) model_q <= last_q ? Empty : model_d;
  end

  logic first_cycle = 1'b1;
  always_ff @(posedge clk_i) first_cycle <= 1'b0;

  logic [1:0] w;  // index of the watched stream
  assign w = 2'(watched_i);

  logic [NumStreams-1:0] index_iff_nonfinite;
  for (genvar s = 0; s < NumStreams; s++) begin : gen_index_iff_nonfinite
    assign index_iff_nonfinite[s] = (dut.nonfinite_count_q[s] == '0) == (dut.first_nonfinite_q[s] == '1);
  end

  always_comb begin
    assume (!first_cycle || !rst_ni);
    assume (watched_i < 8'(NumStreams) && (first_cycle || watched_i == watched_q));
    assume (beat_descriptor_i.format <= 3'd4);
    if (!first_cycle && rst_ni) begin
      CompletionOneClockAfterLast: assert (completion_valid == (valid_q && last_q));
      if (watched_beat && last_q) begin
        Descriptor:      assert (descriptor == descriptor_q);
        Maximum:         assert (summary.max_mag == model_d.summary.max_mag);
        MaximumOfBeat:   assert (summary.max_mag >= max_mag);
        ElementCount:    assert (summary.element_count == model_d.summary.element_count);
        NonfiniteCount:  assert (summary.nonfinite_count == model_d.summary.nonfinite_count);
        FirstNonfinite:  assert (summary.first_nonfinite == model_d.summary.first_nonfinite);
        SaturatedCount:  assert (summary.saturated_count == model_d.summary.saturated_count);
        SubnormalCount:  assert (summary.subnormal_count == model_d.summary.subnormal_count);
        ZeroCount:       assert (summary.zero_count == model_d.summary.zero_count);
      end
      if (!completion_valid) begin
        NoCompletionNoStatistic: assert (summary == '0);
      end
      // Inductive strengthening: the registers of the tap are those of the model.
      StageHoldsBeat: assert (dut.beat_valid_q == valid_q &&
          (!valid_q || (dut.beat_last_q == last_q && dut.stream_q == 2'(stream_q) && stream_q < 8'(NumStreams) &&
                        dut.descriptor_q == descriptor_q)));
      if (valid_q) begin
        StageHoldsReduction: assert (dut.beat_max_mag == max_mag && dut.beat_elements == elements &&
            dut.beat_nonfinites == nonfinites && (nonfinites == '0 || dut.beat_first_nonfinite == first_nonfinite) &&
            dut.beat_saturated == saturated && dut.beat_subnormals == subnormals && dut.beat_zeros == zeros);
      end
      StreamHoldsModel: assert (dut.max_mag_q[w] == model_q.summary.max_mag &&
          32'(dut.element_count_q[w]) == model_q.summary.element_count &&
          32'(dut.nonfinite_count_q[w]) == model_q.summary.nonfinite_count &&
          32'(dut.first_nonfinite_q[w]) == minimum(CounterMax, model_q.summary.first_nonfinite) &&
          32'(dut.saturated_count_q[w]) == model_q.summary.saturated_count &&
          32'(dut.subnormal_count_q[w]) == model_q.summary.subnormal_count &&
          32'(dut.zero_count_q[w]) == model_q.summary.zero_count && 32'(dut.index_q[w]) == model_q.index);
      IndexIffNonfinite: assert (model_q.summary.nonfinite_count == '0
          ? model_q.summary.first_nonfinite == opd_pkg::NoElement : model_q.summary.first_nonfinite < CounterMax);
      IndexIffNonfiniteEveryStream: assert (index_iff_nonfinite == '1);
    end
  end

endmodule : tap_props
