// Queue of completions in front of the detection unit, with drop counter and high-water mark.
//
// It never holds up the source: a completion that finds the queue full, or that is illegal, is not
// stored but counted in unseen_count_o, once.
//
//   latency : a completion pushed at edge k can be popped at edge k + 1
//   full    : a push is accepted when the same edge pops
//   clear   : the mark falls to the level after the edge, the counter to what that edge counts
//   empty   : pop_i is not allowed; head_o is then undefined
//   rule    : docs/architecture.md, "Timing contract"
`include "opd_assert.svh"

module opd_op_queue #(
  parameter int unsigned QueueDepth = 8  // entries, 1..255
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 push_valid_i,
  input  logic                 push_legal_i,   // 0 = count, do not store
  input  opd_pkg::completion_t push_i,
  input  logic                 pop_i,          // only when not empty
  input  logic                 clear_i,        // high-water mark and counter start again
  output opd_pkg::completion_t head_o,
  output logic                 empty_o,
  output logic [7:0]           level_o,        // entries held
  output logic [7:0]           high_water_o,   // largest level since reset or clear
  output logic                 unseen_o,       // a completion is not stored
  output logic [31:0]          unseen_count_o  // of them, saturating
);

  `OPD_ASSERT_PARAM(level_fits_8_bits, QueueDepth >= 1 && QueueDepth <= 255)

  localparam int unsigned PtrWidth = QueueDepth > 1 ? $clog2(QueueDepth) : 1;

  opd_pkg::completion_t entry_q [QueueDepth];
  logic [PtrWidth-1:0]  write_ptr_q, read_ptr_q;
  logic [7:0]           level_d, level_q, high_water_q;
  logic [31:0]          unseen_count_q;
  logic                 full, store;

  function automatic logic [PtrWidth-1:0] next(logic [PtrWidth-1:0] ptr);
    return 32'(ptr) == QueueDepth - 1 ? '0 : ptr + 1'b1;
  endfunction

  assign empty_o  = level_q == '0;
  assign full     = 32'(level_q) == QueueDepth;
  assign store    = push_valid_i && push_legal_i && (!full || pop_i);
  assign unseen_o = push_valid_i && !store;
  assign level_d  = level_q + 8'(store) - 8'(pop_i);
  assign head_o   = entry_q[read_ptr_q];

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      write_ptr_q    <= '0;
      read_ptr_q     <= '0;
      level_q        <= '0;
      high_water_q   <= '0;
      unseen_count_q <= '0;
    end else begin
      level_q <= level_d;
      if (store) write_ptr_q <= next(write_ptr_q);
      if (pop_i) read_ptr_q <= next(read_ptr_q);
      if (clear_i || level_d > high_water_q) high_water_q <= level_d;
      if (clear_i)                               unseen_count_q <= 32'(unseen_o);
      else if (unseen_o && unseen_count_q != '1) unseen_count_q <= unseen_count_q + 32'd1;
    end
  end

  always_ff @(posedge clk_i) begin
    if (store) entry_q[write_ptr_q] <= push_i;
  end

  assign level_o        = level_q;
  assign high_water_o   = high_water_q;
  assign unseen_count_o = unseen_count_q;

  `OPD_ASSERT(NeverUnderflows_A, pop_i, !empty_o)
  `OPD_ASSERT(NeverOverflows_A, store, !full || pop_i)
  `OPD_ASSERT(HighWaterIsAHighest_A, push_valid_i, level_q <= high_water_q)
  `OPD_ASSERT(LevelIsPointerDistance_A, push_valid_i || pop_i,
      (32'(read_ptr_q) + 32'(level_q)) % QueueDepth == 32'(write_ptr_q))

endmodule : opd_op_queue
