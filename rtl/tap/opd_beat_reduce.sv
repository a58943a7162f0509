// Statistic of one beat: largest finite magnitude and element counts, for all five formats.
//
// One datapath serves every format. The beat is cut into 64-bit containers; an element lies inside
// one container, and its sign bit, once cleared, is a spare bit that keeps the lanes of the
// container apart. So one 64-bit adder compares every lane of a container at once:
//   magnitude >= threshold   <=>   bit `sign` of  magnitude + (2^sign - threshold)
//   a >= b                   <=>   bit `sign` of  (a + 2^sign) - b
// and the format only selects constants. Magnitudes of finite numbers sort like the numbers, hence
// unsigned comparison (docs/numerics.md, "Formats"). Simulators gain as well: eight 64-bit words
// instead of 112 lanes.
//
//   latency      : 1 clock; the result holds until the next valid beat
//   throughput   : 1 beat per clock, no back-pressure
//   depth        : log2(containers) + 3 lane-wise maxima
//   none enabled : max_mag_o = 0, all counts 0; an element of an unknown format is no element
//   rule         : docs/numerics.md, "Tap"
`include "opd_assert.svh"

module opd_beat_reduce #(
  parameter int unsigned DatapathWidth = 512  // bits per beat, 32..512, a multiple of 32
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,             // for the assertions only
  input  logic                       beat_valid_i,
  input  logic [2:0]                 beat_format_i,      // opd_reg_pkg::format_e
  input  logic [DatapathWidth/8-1:0] beat_lane_en_i,     // bit k = element k takes part
  input  logic [DatapathWidth-1:0]   beat_data_i,        // element k at [k*w +: w]
  output logic [30:0]                max_mag_o,          // largest finite magnitude
  output logic [6:0]                 element_count_o,    // enabled elements, 0..64
  output logic [6:0]                 nonfinite_count_o,
  output logic [5:0]                 first_nonfinite_o,  // lane; only with nonfinite_count_o > 0
  output logic [6:0]                 saturated_count_o,
  output logic [6:0]                 subnormal_count_o,
  output logic [6:0]                 zero_count_o
);

  `OPD_ASSERT_PARAM(datapath_is_32_to_512_bits_in_words,
      DatapathWidth >= 32 && DatapathWidth <= 512 && DatapathWidth % 32 == 0)

  typedef logic [63:0] container_t;

  localparam int unsigned NumContainers = (DatapathWidth + 63) / 64;
  // Leaves of the reduction tree; those past the last container hold no element.
  localparam int unsigned NumLeaves     = 1 << $clog2(NumContainers);
  // Bytes that the beat has; the tree may have room for more.
  localparam container_t  BytesOfBeat   = ~64'd0 >> (64 - DatapathWidth / 8);

  // Moves bit k to bit 2k. Wires only, written as swaps of halves: log2 instead of 32 steps.
  function automatic container_t spread(logic [31:0] bits);
    container_t v;
    v = {32'd0, bits};
    v = (v | (v << 16)) & 64'h0000_FFFF_0000_FFFF;
    v = (v | (v << 8)) & 64'h00FF_00FF_00FF_00FF;
    v = (v | (v << 4)) & 64'h0F0F_0F0F_0F0F_0F0F;
    v = (v | (v << 2)) & 64'h3333_3333_3333_3333;
    return (v | (v << 1)) & 64'h5555_5555_5555_5555;
  endfunction

  // Transposes an 8 x 8 bit matrix: bit 8r + c moves to bit 8c + r. Wires only.
  function automatic container_t transpose(container_t bits);
    container_t v;
    v = bits;
    v = (v & 64'hAA55_AA55_AA55_AA55) | ((v & 64'h00AA_00AA_00AA_00AA) << 7) |
        ((v >> 7) & 64'h00AA_00AA_00AA_00AA);
    v = (v & 64'hCCCC_3333_CCCC_3333) | ((v & 64'h0000_CCCC_0000_CCCC) << 14) |
        ((v >> 14) & 64'h0000_CCCC_0000_CCCC);
    return (v & 64'hF0F0_F0F0_0F0F_0F0F) | ((v & 64'h0000_0000_F0F0_F0F0) << 28) |
        ((v >> 28) & 64'h0000_0000_F0F0_F0F0);
  endfunction

  // All magnitude bits of the lanes whose sign bit is set in `lanes`. The lanes do not borrow from
  // each other, and all bits between a sign and the lane's LSB are 0: wires after optimisation.
  function automatic container_t magnitude_mask(container_t lanes, logic [5:0] sign_index);
    return lanes - (lanes >> sign_index);
  endfunction

  // Lane-wise maximum of magnitudes; `sign` holds the sign bit of every lane.
  function automatic container_t maximum(
      container_t a, container_t b, container_t sign, logic [5:0] sign_index);
    container_t a_wins;
    a_wins = magnitude_mask(((a | sign) - b) & sign, sign_index);
    return (a & a_wins) | (b & ~a_wins);
  endfunction

  // Sum of the eight bytes; every byte is at most 8, so no byte ever carries into the next.
  function automatic logic [6:0] sum_of_bytes(container_t bytes);
    container_t v;
    v = bytes + (bytes >> 32);
    v = v + (v >> 16);
    v = v + (v >> 8);
    return v[6:0];
  endfunction

  logic [64*NumLeaves-1:0] beat_containers;
  logic [63:0]             beat_lanes;

  assign beat_containers = (64*NumLeaves)'(beat_data_i);
  assign beat_lanes      = 64'(beat_lane_en_i);

  // The whole of it for one beat. A task called by the clocked process, so that a simulator pays for
  // valid beats only and keeps intermediate values in registers instead of in the model's memory.
  task automatic reduce_beat();
    // Constants of the format, in every lane of a container.
    container_t sign, lsb;
    container_t largest;     // largest finite magnitude; the next one is not finite
    container_t normal;      // smallest normal magnitude
    logic [5:0] sign_index;  // position of the sign in its lane
    logic [1:0] log2_bytes;  // of an element
    container_t byte_en;     // bit 8c + b: byte b of container c is the top of an enabled element
    container_t byte_en_t;   // the same, bit 8b + c
    // Per container: the sign position of a lane tells whether the lane ...
    container_t mag, is_element, is_nonzero, is_normal, is_largest_or_more, is_nonfinite;
    container_t first_flags;  // is_nonfinite of the first container that has any
    logic [2:0] first_container, first_byte;
    // Reduction trees; the root ends in [0]. Counts: one byte per byte of the container.
    container_t best[NumLeaves];
    container_t elements[NumLeaves];
    container_t nonzeros[NumLeaves];
    container_t normals[NumLeaves];
    container_t largest_or_more[NumLeaves];
    container_t nonfinites[NumLeaves];

    sign       = {4{16'h8000}};
    sign_index = 6'd15;
    log2_bytes = 2'd1;
    byte_en    = spread(beat_lanes[31:0]) << 1;
    largest    = '0;
    normal     = '0;
    unique case (beat_format_i)
      opd_reg_pkg::FormatFp16: begin
        largest = {4{16'h7BFF}};
        normal  = {4{16'h0400}};
      end
      opd_reg_pkg::FormatBf16: begin
        largest = {4{16'h7F7F}};
        normal  = {4{16'h0080}};
      end
      opd_reg_pkg::FormatE4m3, opd_reg_pkg::FormatE5m2: begin
        sign       = {8{8'h80}};
        sign_index = 6'd7;
        log2_bytes = 2'd0;
        byte_en    = beat_lanes;
        largest    = beat_format_i == opd_reg_pkg::FormatE4m3 ? {8{8'h7E}} : {8{8'h7B}};
        normal     = beat_format_i == opd_reg_pkg::FormatE4m3 ? {8{8'h08}} : {8{8'h04}};
      end
      opd_reg_pkg::FormatFp32: begin
        sign       = {2{32'h8000_0000}};
        sign_index = 6'd31;
        log2_bytes = 2'd2;
        byte_en    = spread(32'(spread({16'd0, beat_lanes[15:0]}))) << 3;
        largest    = {2{32'h7F7F_FFFF}};
        normal     = {2{32'h0080_0000}};
      end
      default: byte_en = '0;
    endcase
    lsb       = sign >> sign_index;
    byte_en_t = transpose(byte_en & BytesOfBeat);  // lane bits past the last element are ignored

    first_flags     = '0;
    first_container = '0;
    for (int c = NumLeaves - 1; c >= 0; c--) begin
      mag                = beat_containers[64*c +: 64] & ~sign;
      is_element         = (byte_en_t << (7 - c)) & sign;
      is_nonzero         = (mag + (sign - lsb)) & is_element;
      is_normal          = (mag + (sign - normal)) & is_element;
      is_largest_or_more = (mag + (sign - largest)) & is_element;
      is_nonfinite       = '0;
      if (is_largest_or_more != '0) begin  // rare; a simulator gains, the result is the same
        is_nonfinite = (mag + (sign - largest - lsb)) & is_element;
      end

      best[c]            = mag & magnitude_mask(is_element & ~is_nonfinite, sign_index);
      elements[c]        = is_element >> 7;
      nonzeros[c]        = is_nonzero >> 7;
      normals[c]         = is_normal >> 7;
      largest_or_more[c] = is_largest_or_more >> 7;
      nonfinites[c]      = is_nonfinite >> 7;
      if (is_nonfinite != '0) begin
        first_flags     = is_nonfinite;
        first_container = 3'(c);
      end
    end

    for (int level = 0; (1 << level) < NumLeaves; level++) begin
      for (int c = 0; c < NumLeaves; c += 2 << level) begin
        best[c]            = maximum(best[c], best[c + (1 << level)], sign, sign_index);
        elements[c]        = elements[c] + elements[c + (1 << level)];
        nonzeros[c]        = nonzeros[c] + nonzeros[c + (1 << level)];
        normals[c]         = normals[c] + normals[c + (1 << level)];
        largest_or_more[c] = largest_or_more[c] + largest_or_more[c + (1 << level)];
        nonfinites[c]      = nonfinites[c] + nonfinites[c + (1 << level)];
      end
    end

    first_byte = '0;
    for (int b = 7; b >= 0; b--) begin
      if (first_flags[8*b + 7]) first_byte = 3'(b);
    end

    // Now the lanes of the last container: halves, quarters, bytes.
    best[0] = maximum(best[0], best[0] >> 32, sign, sign_index);
    if (sign_index < 6'd31) best[0] = maximum(best[0], best[0] >> 16, sign, sign_index);
    if (sign_index < 6'd15) best[0] = maximum(best[0], best[0] >> 8, sign, sign_index);
    best[0] = best[0] & ((64'd1 << sign_index) - 64'd1);

    max_mag_o         <= best[0][30:0];
    element_count_o   <= sum_of_bytes(elements[0]);
    zero_count_o      <= sum_of_bytes(elements[0] - nonzeros[0]);
    subnormal_count_o <= sum_of_bytes(nonzeros[0] - normals[0]);
    saturated_count_o <= sum_of_bytes(largest_or_more[0] - nonfinites[0]);
    nonfinite_count_o <= sum_of_bytes(nonfinites[0]);
    first_nonfinite_o <= {first_container, first_byte} >> log2_bytes;
  endtask

  always_ff @(posedge clk_i) begin
    if (beat_valid_i) reduce_beat();
  end

  // Equalities that hold for the result of every beat.
`ifndef SYNTHESIS
  logic result_valid_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) result_valid_q <= 1'b0;
    else         result_valid_q <= beat_valid_i;
  end
`endif

  `OPD_ASSERT(ClassesAreDisjoint_A, result_valid_q,
      9'(nonfinite_count_o) + 9'(saturated_count_o) + 9'(subnormal_count_o) + 9'(zero_count_o) <=
      9'(element_count_o))
  `OPD_ASSERT(MaximumIsZeroIffNoFiniteNonzero_A, result_valid_q,
      (max_mag_o == '0) == (8'(nonfinite_count_o) + 8'(zero_count_o) == 8'(element_count_o)))

endmodule : opd_beat_reduce
