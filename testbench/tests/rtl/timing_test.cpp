// The timing contract of docs/architecture.md: reaction, sideband, queue, drops, illegal
// completions, reset.
#include <gtest/gtest.h>

#include <algorithm>

#include "Vopd_top.h"
#include "Vopd_top_forecast.h"
#include "Vopd_top_published.h"
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

/// The record and the new mode are sampled `cycles` edges after the last beat, and not before.
template <class Model>
void expect_reaction(int cycles) {
  Pins<Model> pins;
  pins.edge();
  CycleInput input = one_beat(7, 0x7C00);
  input.mode_op = 7;
  pins.edge(input);
  CycleInput idle;
  idle.mode_op = 7;
  for (int after = 1; after < cycles; ++after) {
    const CycleOutput output = pins.edge(idle);
    EXPECT_FALSE(output.record_valid) << "edge n + " << after;
    EXPECT_EQ(output.mode, Mode::kFast) << "edge n + " << after;
  }
  const CycleOutput output = pins.edge(idle);
  EXPECT_TRUE(output.record_valid);
  EXPECT_EQ(output.mode, Mode::kStable);
  EXPECT_FALSE(pins.edge(idle).record_valid);  // a pulse of one cycle
}
TEST(Timing, ReactionIsTwelveCycles) { expect_reaction<Vopd_top>(12); }
TEST(Timing, ReactionIsTwelveCyclesWithThePublishedEngineAlone) {
  expect_reaction<Vopd_top_published>(12);
}
TEST(Timing, ReactionIsFourCyclesWithoutThePublishedEngine) {
  expect_reaction<Vopd_top_forecast>(4);
}

template <class Model>
void expect_statistic_reaction(int cycles) {
  Pins<Model> pins;
  CycleInput input;
  input.stat_valid = true;
  input.statistic = nonfinite(3, 1);
  EXPECT_TRUE(pins.edge(input).stat_ready);
  for (int after = 1; after < cycles; ++after) EXPECT_FALSE(pins.edge().record_valid) << after;
  EXPECT_TRUE(pins.edge().record_valid);
}
TEST(Timing, StatisticReactionIsElevenCycles) { expect_statistic_reaction<Vopd_top>(11); }
TEST(Timing, StatisticReactionIsThreeCyclesWithoutThePublishedEngine) {
  expect_statistic_reaction<Vopd_top_forecast>(3);
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

/// The queue of docs/architecture.md by itself: a push per entry of `pushes` that is true, a pop every
/// `interval` clocks at most.
struct QueueModel {
  unsigned depth, interval;
  unsigned level = 0, high_water = 0, lost = 0;
  unsigned busy = 0;       ///< clocks until READ
  std::vector<bool> seen;  ///< per push

  void clock(bool push) {
    const bool pop = busy == 0 && level > 0;
    busy = pop ? interval - 1 : busy - (busy > 0 ? 1 : 0);
    const bool stored = push && (level < depth || pop);
    if (push) seen.push_back(stored);
    lost += push && !stored;
    level += (stored ? 1u : 0u) - (pop ? 1u : 0u);
    high_water = std::max(high_water, level);
  }
};

/// Drives single-beat operators where `pushes` says so. Records, gaps in seq, the unseen counter, the
/// high-water mark and the distance between records are those of the model.
template <class Model>
QueueModel expect_queue(unsigned depth, unsigned interval, const std::vector<bool>& pushes) {
  Pins<Model> pins;
  QueueModel want{.depth = depth, .interval = interval};
  for (const bool push : pushes) {
    pins.edge(push ? one_beat(0, 0x3C00) : CycleInput{});
    want.clock(push);
  }
  for (unsigned i = 0; i < (depth + 2) * interval; ++i) pins.edge();
  const CycleOutput after = pins.edge();
  EXPECT_EQ(after.queue_level, 0);
  EXPECT_EQ(after.queue_high_water, want.high_water);
  EXPECT_EQ(after.unseen_count, want.lost);
  std::vector<std::uint32_t> sequence, got;
  for (std::uint32_t seq = 0; seq < want.seen.size(); ++seq) {
    if (want.seen[seq]) sequence.push_back(seq);
  }
  for (const Seen& seen : pins.seen()) got.push_back(seen.record.seq);
  EXPECT_EQ(got, sequence);
  EXPECT_GT(got.size(), depth);
  for (std::size_t i = 1; i < pins.seen().size(); ++i) {
    EXPECT_GE(pins.seen()[i].edge - pins.seen()[i - 1].edge, interval);
  }
  return want;
}

TEST(Timing, FullQueueDropsAndCounts) {
  EXPECT_GT(expect_queue<Vopd_top>(8, 10, std::vector<bool>(200, true)).lost, 150u);
}
TEST(Timing, FullQueueDropsAndCountsSmall) {
  EXPECT_GT(expect_queue<Vopd_top_small>(2, 10, std::vector<bool>(200, true)).lost, 150u);
}
TEST(Timing, FullQueueDropsAndCountsWithoutThePublishedEngine) {
  EXPECT_GT(expect_queue<Vopd_top_forecast>(8, 2, std::vector<bool>(200, true)).lost, 80u);
}

/// As many operators, as early, as "at most `burst` + t / `interval` in every stretch of t clocks"
/// allows.
std::vector<bool> greediest(unsigned burst, unsigned interval, unsigned clocks) {
  std::vector<bool> pushes;
  for (unsigned now = 0; now < clocks; ++now) {
    pushes.push_back(true);
    unsigned count = 0;
    for (unsigned t = 1; t <= now + 1 && pushes.back(); ++t) {
      count += pushes[now + 1 - t];
      if (count > burst + t / interval) pushes.back() = false;
    }
  }
  return pushes;
}

/// Nothing is lost at the bound of docs/architecture.md, "What the queue can take", which fills the
/// queue; one operator more in the burst, and one is.
template <class Model>
void expect_bound(unsigned depth, unsigned interval) {
  const QueueModel at = expect_queue<Model>(depth, interval, greediest(depth, interval, 300));
  EXPECT_EQ(at.lost, 0u);
  EXPECT_EQ(at.high_water, depth);
  const QueueModel above =
      expect_queue<Model>(depth, interval, greediest(depth + 1, interval, 300));
  EXPECT_EQ(above.lost, 1u);
}
TEST(Timing, WorstLegalStream) { expect_bound<Vopd_top>(8, 10); }
TEST(Timing, WorstLegalStreamSmall) { expect_bound<Vopd_top_small>(2, 10); }
TEST(Timing, WorstLegalStreamWithoutThePublishedEngine) { expect_bound<Vopd_top_forecast>(8, 2); }

// Half of the queue, one entry at least, is the sideband's: with depth 2 it waits while one waits, with
// depth 8 while four do. Edge 1 pushes, edge 2 pops, and the next pops are at 12, 22, ...
template <class Model>
void expect_sideband(unsigned room, std::vector<bool> want) {
  Pins<Model> pins;
  CycleInput input;
  input.stat_valid = true;
  input.statistic = finite(0, 0, 0x3C00);
  std::uint32_t accepted = 0;
  unsigned highest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const CycleOutput output = pins.edge(input);
    EXPECT_EQ(output.stat_ready, want[i]) << "edge " << i + 1;
    EXPECT_EQ(output.stat_ready, output.queue_level < room) << "edge " << i + 1;
    highest = std::max<unsigned>(highest, output.queue_level);
    accepted += output.stat_ready ? 1 : 0;
  }
  EXPECT_EQ(highest, room);
  pins.drain();
  EXPECT_EQ(pins.seen().size(), accepted);
  EXPECT_EQ(pins.edge().unseen_count, 0u);
}
TEST(Timing, SidebandWaitsForHalfTheQueue) {
  std::vector<bool> want(25, false);
  for (const std::size_t edge : {1, 2, 3, 4, 5, 13, 23}) want[edge - 1] = true;
  expect_sideband<Vopd_top>(4, want);
}
TEST(Timing, SidebandWaitsForHalfTheQueueSmall) {
  std::vector<bool> want(25, false);
  for (const std::size_t edge : {1, 3, 13, 23}) want[edge - 1] = true;
  expect_sideband<Vopd_top_small>(1, want);
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
