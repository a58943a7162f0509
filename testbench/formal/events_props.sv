// Properties of opd_event_queue: an event is queued or counted as lost, never neither. One event, which the solver chooses,
// is followed from its push to its pop; what is proven for it holds for every one.
module events_props #(
  parameter int unsigned EventDepth = 3  // not a power of two
) (
  input logic            clk_i,
  input logic            rst_ni,
  input logic            push_i,
  input opd_pkg::event_t event_i,
  input logic            pop_i,
  input logic            clear_i,
  input logic            follow_i  // follow the event accepted at this edge
);

  opd_pkg::event_t head;
  logic [7:0]      level, high_water;
  logic [31:0]     lost_count;
  logic            lost;

  opd_event_queue #(.EventDepth(EventDepth)) dut (
    .clk_i, .rst_ni, .push_i, .event_i, .pop_i, .clear_i,
    .head_o(head), .level_o(level), .high_water_o(high_water), .lost_count_o(lost_count), .lost_o(lost)
  );

  // What happens at the coming edge, by docs/controller.md and docs/architecture.md alone.
  logic removed, queued;
  assign removed = pop_i && level != '0;
  assign queued  = push_i && (level < 8'(EventDepth) || removed);

  logic [31:0]     lost_q;
  logic [7:0]      level_q, highest_q, level_after;
  logic            following_q;
  logic [7:0]      ahead_q;  // events in front of the followed one
  opd_pkg::event_t followed_q;
  assign level_after = level_q + 8'(queued) - 8'(removed);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      lost_q      <= '0;
      level_q     <= '0;
      highest_q   <= '0;
      following_q <= 1'b0;
      ahead_q     <= '0;
    end else begin
      if (clear_i) lost_q <= '0;
      if (push_i && !queued && (clear_i || lost_q != 32'hFFFF_FFFF)) lost_q <= (clear_i ? 32'd0 : lost_q) + 32'd1;
      level_q <= level_after;
      if (clear_i || level_after > highest_q) highest_q <= level_after;
      if (!following_q && follow_i && queued) begin
        following_q <= 1'b1;
        ahead_q     <= level - 8'(removed);
        followed_q  <= event_i;
      end else if (following_q && removed) begin
        if (ahead_q == '0) following_q <= 1'b0;
        else               ahead_q <= ahead_q - 8'd1;
      end
    end
  end

  logic first_cycle = 1'b1;
  always_ff @(posedge clk_i) first_cycle <= 1'b0;

  always_comb begin
    assume (!first_cycle || !rst_ni);
    if (!first_cycle && rst_ni) begin
      LevelWithinDepth:    assert (level <= 8'(EventDepth));
      LevelCountsQueued:   assert (level == level_q);
      HighWaterIsHighest:  assert (high_water == highest_q);
      LostCountsTheRest:   assert (lost_count == lost_q);
      QueuedOrLost:        assert (lost == (push_i && !queued));
      if (level == '0) begin
        EmptyReadsZero: assert (head == '0);
      end
      if (following_q) begin
        FollowedIsInside: assert (ahead_q < level);
        if (ahead_q == '0) begin
          FollowedArrivesUnchangedInOrder: assert (head == followed_q);
        end
      end
      // Inductive strengthening: internal state.
      HighWaterCoversLevel: assert (high_water >= level);
      PointersWithinDepth:  assert (32'(dut.read_ptr_q) < EventDepth && 32'(dut.write_ptr_q) < EventDepth);
      PointerDistance:      assert ((32'(dut.read_ptr_q) + 32'(level)) % EventDepth == 32'(dut.write_ptr_q));
      if (following_q) begin
        FollowedInItsSlot: assert (dut.entry_q[2'((32'(dut.read_ptr_q) + 32'(ahead_q)) % EventDepth)] == followed_q);
      end
    end
  end

endmodule : events_props
