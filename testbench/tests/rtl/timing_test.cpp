// The timing contract of docs/architecture.md: reaction, sideband, queue, drops, illegal
// completions, reset.
#include <gtest/gtest.h>

#include "Vopd_top.h"
#include "Vopd_top_small.h"
#include "pins.hpp"

namespace opd::tb {
namespace {

/// A one-beat operator with one element.
CycleInput one_beat(std::uint16_t op, std::uint32_t element, std::uint8_t stream = 0) {
  CycleInput input;
  input.beat_valid = true;
  input.beat.stream = stream;
  input.beat.descriptor.op = op;
  input.beat.last = true;
  input.beat.lane_enable = 1;
  set_element(input.beat, 16, 0, element);
  return input;
}

TEST(Timing, ReactionIsFourCycles) {
  Pins<Vopd_top> pins;
  pins.edge();
  CycleInput input = one_beat(7, 0x7C00);
  input.mode_op = 7;
  pins.edge(input);
  const std::uint64_t n = pins.edges();
  CycleInput idle;
  idle.mode_op = 7;
  for (int after = 1; after <= 3; ++after) {
    const CycleOutput output = pins.edge(idle);
    EXPECT_FALSE(output.record_valid) << "edge n + " << after;
    EXPECT_EQ(output.mode, Mode::kFast) << "edge n + " << after;
  }
  const CycleOutput output = pins.edge(idle);
  EXPECT_EQ(pins.edges(), n + 4);
  EXPECT_TRUE(output.record_valid);
  EXPECT_EQ(output.mode, Mode::kStable);
  EXPECT_FALSE(pins.edge(idle).record_valid);  // a pulse of one cycle
}

TEST(Timing, StatisticReactionIsThreeCycles) {
  Pins<Vopd_top> pins;
  CycleInput input;
  input.stat_valid = true;
  input.statistic = nonfinite(3, 1);
  EXPECT_TRUE(pins.edge(input).stat_ready);
  for (int after = 1; after <= 2; ++after) EXPECT_FALSE(pins.edge().record_valid);
  EXPECT_TRUE(pins.edge().record_valid);
}

// The tap completes at n + 1, so in that cycle, and in no other, the sideband waits.
TEST(Timing, SidebandWaitsForTap) {
  Pins<Vopd_top> pins;
  EXPECT_TRUE(pins.edge(one_beat(1, 0x3C00)).stat_ready);
  CycleInput input;
  input.stat_valid = true;
  input.statistic = finite(2, 0, 0x3C00);
  EXPECT_FALSE(pins.edge(input).stat_ready);
  EXPECT_TRUE(pins.edge(input).stat_ready);
  EXPECT_TRUE(pins.edge().stat_ready);
  pins.drain();
  ASSERT_EQ(pins.seen().size(), 2u);  // the refused attempt left nothing behind
  EXPECT_EQ(pins.seen()[0].record.op, 1);
  EXPECT_EQ(pins.seen()[1].record.op, 2);
  EXPECT_EQ(pins.seen()[1].record.seq, 1u);
}

// One completion per clock against one per two clocks. The first is pushed at edge k and popped at
// k + 1; from then on the level rises by one at every second edge. With depth D it is full before
// push number 2D (from 0), which meets WRITE and is dropped, and so is every second one after it.
template <class Model>
void expect_drops(unsigned depth) {
  Pins<Model> pins;
  const unsigned completions = 4 * depth + 6;
  for (unsigned i = 0; i < completions; ++i) pins.edge(one_beat(0, 0x3C00));
  unsigned highest = 0;
  for (int i = 0; i < 600; ++i) highest = std::max<unsigned>(highest, pins.edge().queue_level);
  const CycleOutput after = pins.edge();
  EXPECT_LE(highest, depth);
  EXPECT_EQ(after.queue_level, 0);
  EXPECT_EQ(after.queue_high_water, depth);
  std::vector<std::uint32_t> want;
  for (std::uint32_t seq = 0; seq < completions; ++seq) {
    if (seq < 2 * depth || seq % 2 == 1) want.push_back(seq);
  }
  std::vector<std::uint32_t> got;
  for (const Seen& seen : pins.seen()) got.push_back(seen.record.seq);
  EXPECT_EQ(got, want);
  EXPECT_EQ(after.unseen_count, completions - want.size());
  for (std::size_t i = 1; i < pins.seen().size(); ++i) {
    EXPECT_EQ(pins.seen()[i].edge - pins.seen()[i - 1].edge, 2u);
  }
}
TEST(Timing, FullQueueDropsAndCounts) { expect_drops<Vopd_top>(8); }
TEST(Timing, FullQueueDropsAndCountsSmall) { expect_drops<Vopd_top_small>(2); }

TEST(Timing, FullQueueHoldsSidebandBack) {
  Pins<Vopd_top_small> pins;  // depth 2
  CycleInput input;
  input.stat_valid = true;
  input.statistic = finite(0, 0, 0x3C00);
  // Push at 1 (level 1); push and pop at 2 (1); push at 3 (2: full); pop at 4 (1); push at 5 (2);
  // pop at 6 ...
  const bool want[] = {true, true, true, false, true, false, true, false};
  std::uint32_t accepted = 0;
  for (const bool ready : want) {
    EXPECT_EQ(pins.edge(input).stat_ready, ready);
    accepted += ready ? 1 : 0;
  }
  pins.drain();
  EXPECT_EQ(pins.seen().size(), accepted);
  EXPECT_EQ(pins.edge().unseen_count, 0u);
}

TEST(Timing, IllegalCompletionsUseUpASeqAndAreCounted) {
  Pins<Vopd_top_small> pins;  // five operators
  pins.edge(one_beat(5, 0x7C00));
  pins.edge();
  CycleInput bad_format = one_beat(0, 0x7C00);
  bad_format.beat.descriptor.format = static_cast<Format>(5);
  pins.edge(bad_format);
  pins.edge();
  CycleInput bad_statistic;
  bad_statistic.stat_valid = true;
  bad_statistic.statistic = nonfinite(0xFFFF, 0);
  EXPECT_TRUE(pins.edge(bad_statistic).stat_ready);
  bad_statistic.statistic = nonfinite(0, 0);
  bad_statistic.statistic.descriptor.format = static_cast<Format>(7);
  EXPECT_TRUE(pins.edge(bad_statistic).stat_ready);
  pins.edge(one_beat(4, 0x3C00));
  pins.drain();
  ASSERT_EQ(pins.seen().size(), 1u);
  EXPECT_EQ(pins.seen()[0].record.seq, 4u);
  EXPECT_EQ(pins.seen()[0].record.op, 4);
  const CycleOutput after = pins.edge();
  EXPECT_EQ(after.unseen_count, 4u);
  EXPECT_EQ(after.queue_high_water, 1);
}

TEST(Timing, ModeOfIllegalOperatorIsFast) {
  Pins<Vopd_top_small> pins;
  for (std::uint16_t op = 0; op < 5; ++op) pins.sample(nonfinite(op, 0));
  int compared = 0;
  constexpr std::uint16_t kOps[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 0x8000, 0xFFFF};
  for (const std::uint16_t op : kOps) {
    CycleInput input;
    input.mode_op = op;
    EXPECT_EQ(pins.edge(input).mode, op < 5 ? Mode::kStable : Mode::kFast) << op;
    ++compared;
  }
  EXPECT_EQ(compared, 12);
}

TEST(Timing, ResetEmptiesEverything) {
  Pins<Vopd_top> pins;
  for (int i = 0; i < 3; ++i) pins.sample(nonfinite(1, 0));  // op 1: SAFE
  CycleInput open = one_beat(1, 0x7C00, 2);
  open.beat.last = false;
  pins.edge(open);                                             // an operator half done
  for (int i = 0; i < 9; ++i) pins.edge(one_beat(1, 0x7C00));  // and a queue half full
  const std::size_t before = pins.seen().size();
  pins.reset();
  CycleInput idle;
  idle.mode_op = 1;
  for (int i = 0; i < 20; ++i) {
    const CycleOutput output = pins.edge(idle);
    EXPECT_EQ(output.mode, Mode::kFast);
    EXPECT_EQ(output.queue_level, 0);
    EXPECT_EQ(output.queue_high_water, 0);
    EXPECT_EQ(output.unseen_count, 0u);
  }
  EXPECT_EQ(pins.seen().size(), before);
  pins.edge(one_beat(1, 0x3C00, 2));
  pins.drain();
  ASSERT_EQ(pins.seen().size(), before + 1);
  EXPECT_EQ(pins.seen().back().record.seq, 0u);
  EXPECT_EQ(pins.seen().back().record.nonfinite_count, 0u);
  EXPECT_EQ(pins.seen().back().record.flags, flag_bit(Flag::kWarmup));
}

// Protocol violations stop the simulation, each by its own assertion.
TEST(TimingDeathTest, AStreamThatDoesNotExist) {
  EXPECT_DEATH(
      {
        report_on_stderr();
        Pins<Vopd_top> pins;
        pins.edge(one_beat(0, 0x3C00, 4));
      },
      "StreamIsLegal_A");
}

TEST(TimingDeathTest, ADescriptorThatChangesWithinAnOperator) {
  EXPECT_DEATH(
      {
        report_on_stderr();
        Pins<Vopd_top> pins;
        CycleInput input = one_beat(0, 0x3C00);
        input.beat.last = false;
        pins.edge(input);
        input.beat.descriptor.step = 1;
        pins.edge(input);
        pins.edge();
      },
      "DescriptorIsConstantWithinOperator_A");
}

}  // namespace
}  // namespace opd::tb
