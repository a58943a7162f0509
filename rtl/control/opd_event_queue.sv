// Queue of events for software, with a counter of lost events and a high-water mark.
//
// It never holds up the device: an event that finds the queue full is lost, and counted.
//
//   latency : an event pushed at edge k is at the head, or behind others, after edge k
//   full    : a push is accepted when the same edge pops
//   empty   : pop_i does nothing; head_o is 0
//   clear_i : high-water mark to the level after the edge, counter to what is lost at that edge
//   rule    : docs/controller.md, "Events and hints"; docs/architecture.md, "Registers in time"
`include "opd_assert.svh"

module opd_event_queue #(
  parameter int unsigned EventDepth = 16  // entries, 1..255
) (
  input  logic            clk_i,
  input  logic            rst_ni,
  input  logic            push_i,
  input  opd_pkg::event_t event_i,
  input  logic            pop_i,
  input  logic            clear_i,
  output opd_pkg::event_t head_o,        // oldest event
  output logic [7:0]      level_o,       // events held
  output logic [7:0]      high_water_o,  // largest level since reset or clear_i
  output logic [31:0]     lost_count_o,  // saturating
  output logic            lost_o         // the event on event_i is lost at this edge
);

  `OPD_ASSERT_PARAM(level_fits_8_bits, EventDepth >= 1 && EventDepth <= 255)

  localparam int unsigned PtrWidth = EventDepth > 1 ? $clog2(EventDepth) : 1;

  opd_pkg::event_t     entry_q [EventDepth];
  logic [PtrWidth-1:0] write_ptr_q, read_ptr_q;
  logic [7:0]          level_d, level_q, high_water_q;
  logic [31:0]         lost_count_q;
  logic                pop, store;

  function automatic logic [PtrWidth-1:0] next(logic [PtrWidth-1:0] ptr);
    return 32'(ptr) == EventDepth - 1 ? '0 : ptr + 1'b1;
  endfunction

  assign pop     = pop_i && level_q != '0;
  assign store   = push_i && (32'(level_q) < EventDepth || pop);
  assign lost_o  = push_i && !store;
  assign level_d = level_q + 8'(store) - 8'(pop);
  assign head_o  = level_q != '0 ? entry_q[read_ptr_q] : '0;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      write_ptr_q  <= '0;
      read_ptr_q   <= '0;
      level_q      <= '0;
      high_water_q <= '0;
      lost_count_q <= '0;
    end else begin
      level_q <= level_d;
      if (store) write_ptr_q <= next(write_ptr_q);
      if (pop)   read_ptr_q <= next(read_ptr_q);
      if (clear_i || level_d > high_water_q) high_water_q <= level_d;
      if (clear_i)                           lost_count_q <= 32'(lost_o);
      else if (lost_o && lost_count_q != '1) lost_count_q <= lost_count_q + 32'd1;
    end
  end

  always_ff @(posedge clk_i) begin
    if (store) entry_q[write_ptr_q] <= event_i;
  end

  assign level_o      = level_q;
  assign high_water_o = high_water_q;
  assign lost_count_o = lost_count_q;

  `OPD_ASSERT(LevelWithinDepth_A, push_i || pop_i, 32'(level_q) <= EventDepth)
  `OPD_ASSERT(EventIsStoredOrLost_A, push_i, store != lost_o)
  `OPD_ASSERT(LostOnlyWhenFull_A, lost_o, 32'(level_q) == EventDepth)
  `OPD_ASSERT(HighWaterIsAHighest_A, push_i, level_q <= high_water_q)
  `OPD_ASSERT(LevelIsPointerDistance_A, push_i || pop_i,
      (32'(read_ptr_q) + 32'(level_q)) % EventDepth == 32'(write_ptr_q))

endmodule : opd_event_queue
