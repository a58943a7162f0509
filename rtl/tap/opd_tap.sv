// Tap on the vector unit's write-back: folds the beats of every operator into one statistic.
//
// There is no ready signal: the tap takes a beat in every clock and cannot stall the vector unit.
// Operators may be interleaved beat by beat; each of NumStreams streams has one set of registers,
// which a `last` beat empties for the next operator of the stream.
//
//   latency        : beat sampled at edge n, completion pulse sampled by edge n + 1
//   throughput     : 1 beat per clock
//   no lane enabled: counts stay, the element index still advances
//   illegal stream : ignored (and an assertion failure)
//   rule           : docs/numerics.md, "Tap"; docs/architecture.md, "Timing contract"
`include "opd_assert.svh"

module opd_tap #(
  parameter int unsigned DatapathWidth = 512,  // bits per beat, 32..512, a multiple of 32
  parameter int unsigned NumStreams    = 4,    // interleaved operators, 1..256
  parameter int unsigned CounterWidth  = 32    // bits of the counters, 2..32
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  logic                       beat_valid_i,
  input  logic [7:0]                 beat_stream_i,       // 0..NumStreams-1
  input  opd_pkg::descriptor_t       beat_descriptor_i,   // constant within an operator
  input  logic                       beat_last_i,
  input  logic [DatapathWidth/8-1:0] beat_lane_en_i,      // bit k = element k takes part
  input  logic [DatapathWidth-1:0]   beat_data_i,         // element k at [k*w +: w]
  output logic                       completion_valid_o,  // pulse; the three below belong to it
  output opd_pkg::descriptor_t       descriptor_o,
  output opd_pkg::summary_t          summary_o
);

  `OPD_ASSERT_PARAM(streams_fit_port, NumStreams >= 1 && NumStreams <= 256)
  `OPD_ASSERT_PARAM(counter_width_is_2_to_32, CounterWidth >= 2 && CounterWidth <= 32)

  localparam int unsigned StreamWidth = NumStreams > 1 ? $clog2(NumStreams) : 1;

  typedef logic [CounterWidth-1:0] counter_t;
  localparam counter_t CounterMax = '1;                // also "no index yet" in first_nonfinite
  localparam counter_t IndexMax   = CounterMax - 1'b1;

  function automatic counter_t add(counter_t count, logic [6:0] increment);
    logic [32:0] sum;
    sum = 33'(count) + 33'(increment);
    return sum > 33'(CounterMax) ? CounterMax : sum[CounterWidth-1:0];
  endfunction

  // ---- stage 1: one beat -----------------------------------------------------------------------
  logic                   beat_valid, beat_valid_q, beat_last_q;
  logic [StreamWidth-1:0] stream_q;
  opd_pkg::descriptor_t   descriptor_q;
  logic [30:0]            beat_max_mag;
  logic [6:0]             beat_elements, beat_nonfinites;
  logic [6:0]             beat_saturated, beat_subnormals, beat_zeros;
  logic [5:0]             beat_first_nonfinite;

  assign beat_valid = beat_valid_i && 32'(beat_stream_i) < NumStreams;

  opd_beat_reduce #(.DatapathWidth(DatapathWidth)) u_beat_reduce (
    .clk_i,
    .rst_ni,
    .beat_valid_i     (beat_valid),
    .beat_format_i    (beat_descriptor_i.format),
    .beat_lane_en_i,
    .beat_data_i,
    .max_mag_o        (beat_max_mag),
    .element_count_o  (beat_elements),
    .nonfinite_count_o(beat_nonfinites),
    .first_nonfinite_o(beat_first_nonfinite),
    .saturated_count_o(beat_saturated),
    .subnormal_count_o(beat_subnormals),
    .zero_count_o     (beat_zeros)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) beat_valid_q <= 1'b0;
    else         beat_valid_q <= beat_valid;
  end

  always_ff @(posedge clk_i) begin
    if (beat_valid) begin
      beat_last_q  <= beat_last_i;
      stream_q     <= beat_stream_i[StreamWidth-1:0];
      descriptor_q <= beat_descriptor_i;
    end
  end

  // ---- stage 2: the operator so far ------------------------------------------------------------
  logic [30:0] max_mag_q         [NumStreams];
  counter_t    element_count_q   [NumStreams];
  counter_t    nonfinite_count_q [NumStreams];
  counter_t    first_nonfinite_q [NumStreams];
  counter_t    saturated_count_q [NumStreams];
  counter_t    subnormal_count_q [NumStreams];
  counter_t    zero_count_q      [NumStreams];
  counter_t    index_q           [NumStreams];  // of lane 0 of the next beat, saturating

  logic [30:0] max_mag_d;
  counter_t    element_count_d, nonfinite_count_d, first_nonfinite_d;
  counter_t    saturated_count_d, subnormal_count_d, zero_count_d, index_d;

  always_comb begin
    max_mag_d         = max_mag_q[stream_q];
    element_count_d   = add(element_count_q[stream_q], beat_elements);
    nonfinite_count_d = add(nonfinite_count_q[stream_q], beat_nonfinites);
    first_nonfinite_d = first_nonfinite_q[stream_q];
    saturated_count_d = add(saturated_count_q[stream_q], beat_saturated);
    subnormal_count_d = add(subnormal_count_q[stream_q], beat_subnormals);
    zero_count_d      = add(zero_count_q[stream_q], beat_zeros);
    index_d           = add(index_q[stream_q], 7'(DatapathWidth / 8));
    unique case (descriptor_q.format)
      opd_reg_pkg::FormatFp16, opd_reg_pkg::FormatBf16:
        index_d = add(index_q[stream_q], 7'(DatapathWidth / 16));
      opd_reg_pkg::FormatFp32: index_d = add(index_q[stream_q], 7'(DatapathWidth / 32));
      default: ;
    endcase
    if (beat_max_mag > max_mag_d) max_mag_d = beat_max_mag;
    if (beat_nonfinites != '0 && first_nonfinite_d == CounterMax) begin
      first_nonfinite_d = add(index_q[stream_q], 7'(beat_first_nonfinite));
      if (first_nonfinite_d > IndexMax) first_nonfinite_d = IndexMax;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      max_mag_q         <= '{default: '0};
      element_count_q   <= '{default: '0};
      nonfinite_count_q <= '{default: '0};
      first_nonfinite_q <= '{default: CounterMax};
      saturated_count_q <= '{default: '0};
      subnormal_count_q <= '{default: '0};
      zero_count_q      <= '{default: '0};
      index_q           <= '{default: '0};
    end else if (beat_valid_q) begin
      max_mag_q[stream_q]         <= beat_last_q ? '0 : max_mag_d;
      element_count_q[stream_q]   <= beat_last_q ? '0 : element_count_d;
      nonfinite_count_q[stream_q] <= beat_last_q ? '0 : nonfinite_count_d;
      first_nonfinite_q[stream_q] <= beat_last_q ? CounterMax : first_nonfinite_d;
      saturated_count_q[stream_q] <= beat_last_q ? '0 : saturated_count_d;
      subnormal_count_q[stream_q] <= beat_last_q ? '0 : subnormal_count_d;
      zero_count_q[stream_q]      <= beat_last_q ? '0 : zero_count_d;
      index_q[stream_q]           <= beat_last_q ? '0 : index_d;
    end
  end

  assign completion_valid_o = beat_valid_q && beat_last_q;
  assign descriptor_o       = descriptor_q;

  always_comb begin
    summary_o = '0;
    if (completion_valid_o) begin
      summary_o.max_mag         = max_mag_d;
      summary_o.element_count   = 32'(element_count_d);
      summary_o.nonfinite_count = 32'(nonfinite_count_d);
      summary_o.first_nonfinite =
          first_nonfinite_d == CounterMax ? opd_pkg::NoElement : 32'(first_nonfinite_d);
      summary_o.saturated_count = 32'(saturated_count_d);
      summary_o.subnormal_count = 32'(subnormal_count_d);
      summary_o.zero_count      = 32'(zero_count_d);
    end
  end

`ifndef SYNTHESIS
  // Only the assertions remember that an operator is open, and which.
  logic                 open_q      [NumStreams];
  opd_pkg::descriptor_t opened_as_q [NumStreams];

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni)           open_q <= '{default: 1'b0};
    else if (beat_valid_q) open_q[stream_q] <= !beat_last_q;
  end

  always_ff @(posedge clk_i) begin
    if (beat_valid_q) opened_as_q[stream_q] <= descriptor_q;
  end

  `OPD_ASSERT(StreamIsLegal_A, beat_valid_i, beat_valid)
  `OPD_ASSERT(DescriptorIsConstantWithinOperator_A, beat_valid_q && open_q[stream_q],
      descriptor_q == opened_as_q[stream_q])
  `OPD_ASSERT(MaximumNeverFallsWithinOperator_A, beat_valid_q,
      max_mag_d >= max_mag_q[stream_q] && max_mag_d >= beat_max_mag)
  `OPD_ASSERT(NonfiniteHasIndex_A, beat_valid_q,
      (nonfinite_count_d == '0) == (first_nonfinite_d == CounterMax))
`endif

endmodule : opd_tap
