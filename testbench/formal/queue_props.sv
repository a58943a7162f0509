// Properties of the path of a completion from its two sources to the head of the op queue: opd_intake and opd_op_queue,
// wired as in opd_top. One completion, which the solver chooses, is followed from its push to its pop; what is proven
// for it holds for every one.
module queue_props #(
  parameter int unsigned NumOps       = 5,
  parameter int unsigned QueueDepth   = 3,  // not a power of two
  parameter int unsigned CounterWidth = 5
) (
  input logic                 clk_i,
  input logic                 rst_ni,
  input logic                 tap_valid_i,
  input opd_pkg::descriptor_t tap_descriptor_i,
  input opd_pkg::summary_t    tap_summary_i,
  input logic                 stat_valid_i,
  input opd_pkg::descriptor_t stat_descriptor_i,
  input opd_pkg::summary_t    stat_summary_i,
  input logic                 pop_i,
  input logic                 clear_i,
  input logic                 follow_i  // follow the completion accepted at this edge
);

  localparam int unsigned SidebandLevel = QueueDepth > 1 ? QueueDepth / 2 : 1;

  logic                 stat_ready, completion_valid, completion_legal, empty, unseen;
  opd_pkg::completion_t completion, head;
  logic [7:0]           level, high_water;
  logic [31:0]          unseen_count;

  opd_intake #(.NumOps(NumOps), .CounterWidth(CounterWidth)) u_intake (
    .clk_i, .rst_ni, .tap_valid_i, .tap_descriptor_i, .tap_summary_i, .stat_valid_i, .stat_ready_o(stat_ready),
    .stat_descriptor_i, .stat_summary_i, .queue_has_room_i(32'(level) < SidebandLevel),
    .completion_valid_o(completion_valid), .completion_legal_o(completion_legal), .completion_o(completion)
  );
  opd_op_queue #(.QueueDepth(QueueDepth)) u_op_queue (
    .clk_i, .rst_ni, .push_valid_i(completion_valid), .push_legal_i(completion_legal), .push_i(completion), .pop_i,
    .clear_i, .head_o(head), .empty_o(empty), .level_o(level), .high_water_o(high_water), .unseen_o(unseen),
    .unseen_count_o(unseen_count)
  );

  // What happens at the coming edge, by docs/architecture.md alone.
  opd_pkg::descriptor_t descriptor;
  logic                 arrives, legal, accepted;
  assign arrives    = tap_valid_i || (stat_valid_i && stat_ready);
  assign descriptor = tap_valid_i ? tap_descriptor_i : stat_descriptor_i;
  assign legal      = descriptor.op < 16'(NumOps) && descriptor.format <= 3'd4;
  assign accepted   = arrives && legal && (level < 8'(QueueDepth) || pop_i);

  logic [31:0] seq_q, unseen_q;
  logic [7:0]  level_q, highest_q;
  // The followed completion and how many are in front of it.
  logic                 following_q;
  logic [7:0]           ahead_q;
  opd_pkg::completion_t followed_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      seq_q       <= '0;
      unseen_q    <= '0;
      level_q     <= '0;
      highest_q   <= '0;
      following_q <= 1'b0;
      ahead_q     <= '0;
    end else begin
      if (arrives) seq_q <= seq_q + 32'd1;
      // Clearing falls before what happens at its edge.
      if (clear_i) unseen_q <= '0;
      if (arrives && !accepted && (clear_i || unseen_q != 32'hFFFF_FFFF)) unseen_q <= (clear_i ? 32'd0 : unseen_q) + 32'd1;
      level_q <= level_q + 8'(accepted) - 8'(pop_i);
      if (clear_i || level_q + 8'(accepted) - 8'(pop_i) > highest_q) highest_q <= level_q + 8'(accepted) - 8'(pop_i);
      if (!following_q && follow_i && accepted) begin
        following_q <= 1'b1;
        ahead_q     <= level - 8'(pop_i);
        followed_q  <= completion;
      end else if (following_q && pop_i) begin
        if (ahead_q == '0) following_q <= 1'b0;
        else               ahead_q <= ahead_q - 8'd1;
      end
    end
  end

  // Sideband counters are clamped to the tap's width.
  localparam logic [31:0] CounterMax = (32'd1 << CounterWidth) - 32'd1;
  function automatic logic clamped(logic [31:0] out, logic [31:0] in, logic [31:0] maximum);
    return in <= maximum ? out == in : out == maximum;
  endfunction

  logic first_cycle = 1'b1;
  always_ff @(posedge clk_i) first_cycle <= 1'b0;

  always_comb begin
    assume (!first_cycle || !rst_ni);
    assume (!pop_i || !empty);  // the contract of pop_i
    if (!first_cycle && rst_ni) begin
      LevelWithinDepth:      assert (level <= 8'(QueueDepth));
      LevelCountsAccepted:   assert (level == level_q);
      EmptyIsLevelZero:      assert (empty == (level == '0));
      HighWaterCoversLevel:  assert (high_water >= level);
      HighWaterIsHighest:    assert (high_water == highest_q);
      UnseenCountsTheRest:   assert (unseen_count == unseen_q);
      UnseenIsTold:          assert (unseen == (arrives && !accepted));
      ReadyLeavesTheTapItsHalf: assert (stat_ready == (32'(level) < SidebandLevel && !tap_valid_i));
      TapAlwaysArrives:      assert (!tap_valid_i || completion_valid);
      CompletionIffArrival:  assert (completion_valid == arrives);
      LegalByDefinition:     assert (!completion_valid || completion_legal == legal);
      if (completion_valid) begin
        SeqCountsCompletions: assert (completion.seq == seq_q);
        DescriptorOfSource:   assert (completion.descriptor == descriptor);
      end
      if (tap_valid_i) begin
        TapStatisticAsItIs: assert (completion.summary == tap_summary_i);
      end else if (completion_valid) begin
        case (stat_descriptor_i.format)
          3'd0, 3'd1: StatMaximumOf15Bits: assert (completion.summary.max_mag == {16'd0, stat_summary_i.max_mag[14:0]});
          3'd2, 3'd3: StatMaximumOf7Bits:  assert (completion.summary.max_mag == {24'd0, stat_summary_i.max_mag[6:0]});
          default:    StatMaximumAsItIs:   assert (completion.summary.max_mag == stat_summary_i.max_mag);
        endcase
        StatElementsClamped: assert (clamped(completion.summary.element_count, stat_summary_i.element_count, CounterMax));
        StatNonfinitesClamped:
          assert (clamped(completion.summary.nonfinite_count, stat_summary_i.nonfinite_count, CounterMax));
        StatFirstClamped: assert (stat_summary_i.first_nonfinite == 32'hFFFF_FFFF
            ? completion.summary.first_nonfinite == 32'hFFFF_FFFF
            : clamped(completion.summary.first_nonfinite, stat_summary_i.first_nonfinite, CounterMax - 32'd1));
        StatSaturatedClamped:
          assert (clamped(completion.summary.saturated_count, stat_summary_i.saturated_count, CounterMax));
        StatSubnormalsClamped:
          assert (clamped(completion.summary.subnormal_count, stat_summary_i.subnormal_count, CounterMax));
        StatZerosClamped: assert (clamped(completion.summary.zero_count, stat_summary_i.zero_count, CounterMax));
      end
      if (following_q) begin
        FollowedIsInside: assert (ahead_q < level);
        if (ahead_q == '0) begin
          FollowedArrivesUnchangedInOrder: assert (head == followed_q);
        end
      end
      // Inductive strengthening: internal state.
      SeqRegister:         assert (u_intake.seq_q == seq_q);
      PointersWithinDepth: assert (32'(u_op_queue.read_ptr_q) < QueueDepth && 32'(u_op_queue.write_ptr_q) < QueueDepth);
      PointerDistance:
        assert ((32'(u_op_queue.read_ptr_q) + 32'(level)) % QueueDepth == 32'(u_op_queue.write_ptr_q));
      if (following_q) begin
        FollowedInItsSlot:
          assert (u_op_queue.entry_q[2'((32'(u_op_queue.read_ptr_q) + 32'(ahead_q)) % QueueDepth)] == followed_q);
      end
    end
  end

endmodule : queue_props
