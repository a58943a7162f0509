// Merges the two sources of completions, the tap and the sideband, and numbers them.
//
// The tap cannot wait, so it wins: the sideband is ready when the tap has no completion and the
// sideband's half of the queue has room. Every completion uses up a number, also one that cannot be
// queued, so that the gap shows in the records.
//
//   latency : 0 clocks from either source to completion_o; stat_ready_o depends on registers only
//   neither : completion_valid_o = 0, completion_o = 0
//   rule    : docs/architecture.md, "Timing contract"; what is kept of a statistic: docs/numerics.md, "Tap"
`include "opd_assert.svh"

module opd_intake #(
  parameter int unsigned NumOps       = 256,  // operators with state, 1..65536
  parameter int unsigned CounterWidth = 32    // bits of the counters, 2..32
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  // Tap
  input  logic                 tap_valid_i,
  input  opd_pkg::descriptor_t tap_descriptor_i,
  input  opd_pkg::summary_t    tap_summary_i,
  // Sideband
  input  logic                 stat_valid_i,
  output logic                 stat_ready_o,
  input  opd_pkg::descriptor_t stat_descriptor_i,
  input  opd_pkg::summary_t    stat_summary_i,       // not clamped, any max_mag
  // Queue
  input  logic                 queue_has_room_i,     // for the sideband: half of it is the tap's
  output logic                 completion_valid_o,
  output logic                 completion_legal_o,   // operator and format exist
  output opd_pkg::completion_t completion_o
);

  localparam logic [31:0] CounterMax = 32'hFFFF_FFFF >> (32 - CounterWidth);

  function automatic logic [31:0] clamp(logic [31:0] value, logic [31:0] maximum);
    return value > maximum ? maximum : value;
  endfunction

  logic [31:0] seq_q;

  assign stat_ready_o       = queue_has_room_i && !tap_valid_i;
  assign completion_valid_o = tap_valid_i || (stat_valid_i && stat_ready_o);
  assign completion_legal_o = 32'(completion_o.descriptor.op) < NumOps &&
                              32'(completion_o.descriptor.format) < opd_pkg::NumFormats;

  always_comb begin
    completion_o = '0;
    if (tap_valid_i) begin
      completion_o.seq        = seq_q;
      completion_o.descriptor = tap_descriptor_i;
      completion_o.summary    = tap_summary_i;
    end else if (completion_valid_o) begin
      completion_o.seq                     = seq_q;
      completion_o.descriptor              = stat_descriptor_i;
      completion_o.summary.max_mag         =
          opd_pkg::magnitude_bits(stat_descriptor_i.format, stat_summary_i.max_mag);
      completion_o.summary.element_count   = clamp(stat_summary_i.element_count, CounterMax);
      completion_o.summary.nonfinite_count = clamp(stat_summary_i.nonfinite_count, CounterMax);
      completion_o.summary.first_nonfinite =
          stat_summary_i.first_nonfinite == opd_pkg::NoElement
              ? opd_pkg::NoElement
              : clamp(stat_summary_i.first_nonfinite, CounterMax - 32'd1);
      completion_o.summary.saturated_count = clamp(stat_summary_i.saturated_count, CounterMax);
      completion_o.summary.subnormal_count = clamp(stat_summary_i.subnormal_count, CounterMax);
      completion_o.summary.zero_count      = clamp(stat_summary_i.zero_count, CounterMax);
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni)                 seq_q <= '0;
    else if (completion_valid_o) seq_q <= seq_q + 32'd1;
  end

  `OPD_ASSERT(TapNeverWaits_A, tap_valid_i, completion_valid_o && !stat_ready_o)

endmodule : opd_intake
