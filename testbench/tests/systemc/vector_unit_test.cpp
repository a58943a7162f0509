// The vector unit's pipeline, edge by edge, against the header of opd/sc/vector_unit.hpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "unit_bench.hpp"

namespace opd::tb {
namespace {

using sc::Operation;

/// FP16 elements of 1.0, as many as fill `beats` beats of 64 bytes.
std::vector<std::byte> ones(std::size_t beats) {
  std::vector<std::byte> bytes(64 * beats);
  for (std::size_t i = 1; i < bytes.size(); i += 2) bytes[i] = std::byte{0x3C};
  return bytes;
}

Operation operation(std::uint16_t op, std::span<const std::byte> elements, std::uint64_t tag) {
  return {.descriptor = {.op = op}, .elements = elements, .statistic = {}, .tag = tag};
}

Operation statistic(std::uint16_t op, std::uint64_t tag) {
  return {.descriptor = {.op = op},
          .elements = {},
          .statistic = TapSummary{.max_mag = 0x3C00, .element_count = 1},
          .tag = tag};
}

std::vector<std::uint64_t> last_beat_cycles(const UnitBench& bench) {
  std::vector<std::uint64_t> result;
  for (const ReportedCompletion& completion : bench.completions)
    result.push_back(completion.last_beat_cycle);
  return result;
}

class SystemcVectorUnitLatency : public testing::TestWithParam<unsigned> {};

TEST_P(SystemcVectorUnitLatency, DealSelectIssueLanesWriteBack) {
  const unsigned latency = GetParam();
  const auto elements = ones(3);
  UnitBench bench({operation(1, elements, 42)}, {.lane_latency = latency});
  ASSERT_TRUE(bench.run());
  // Deal 0, select 1, issue 2, on the bus after 2 + latency, sampled one edge later, and two more
  // beats behind it.
  EXPECT_EQ(bench.completions,
            (std::vector<ReportedCompletion>{{42, 2, 3 + latency + 2, Mode::kFast}}));
  ASSERT_EQ(bench.beats.size(), 3u);
  for (std::uint64_t beat = 0; beat < 3; ++beat) {
    EXPECT_EQ(bench.beats[beat].edge, 3 + latency + beat);
    EXPECT_EQ(bench.beats[beat].beat.last, beat == 2);
  }
  EXPECT_EQ(bench.unit_counts().beats, 3u);
  EXPECT_EQ(bench.unit_counts().operations, 1u);
  EXPECT_EQ(bench.unit_counts().busy_cycles,
            3 + latency + 2);  // edges 1 (dealt at 0) up to the last sampled one
  ASSERT_EQ(bench.records.size(), 1u);
  EXPECT_EQ(bench.counts[0].element_count, 96u);
}

INSTANTIATE_TEST_SUITE_P(Latencies, SystemcVectorUnitLatency, testing::Values(1u, 2u, 4u, 17u));

TEST(SystemcVectorUnit, OneStreamWithoutBubblesFillsTheBus) {
  const auto elements = ones(1);
  std::vector<Operation> operations;
  for (std::uint16_t i = 0; i < 20; ++i) operations.push_back(operation(i, elements, i));
  UnitBench bench(operations, {.lane_latency = 4});
  ASSERT_TRUE(bench.run());
  std::vector<std::uint64_t> expected;
  for (std::uint64_t i = 0; i < 20; ++i) expected.push_back(7 + i);
  EXPECT_EQ(last_beat_cycles(bench), expected);
}

TEST(SystemcVectorUnit, BubblesAreIdleClocksOfTheStream) {
  const auto elements = ones(2);
  UnitBench bench({operation(0, elements, 0), operation(1, elements, 1), operation(2, elements, 2)},
                  {.lane_latency = 1, .bubbles = 3});
  ASSERT_TRUE(bench.run());
  std::vector<std::uint64_t> sampled;
  for (const SampledBeat& beat : bench.beats) sampled.push_back(beat.edge);
  EXPECT_EQ(sampled, (std::vector<std::uint64_t>{4, 5, 9, 10, 14, 15}));
}

TEST(SystemcVectorUnit, BubblesFollowAStatisticToo) {
  const auto elements = ones(1);
  UnitBench bench({statistic(0, 0), operation(1, elements, 1)}, {.lane_latency = 1, .bubbles = 6});
  ASSERT_TRUE(bench.run());
  // Accepted at 4, dealt at 4, selected not before 4 + 1 + 6.
  EXPECT_EQ(last_beat_cycles(bench), (std::vector<std::uint64_t>{4, 4 + 1 + 6 + 3}));
}

TEST(SystemcVectorUnit, ContextsTakeTurnsAndAreDealtInOrder) {
  const auto two = ones(2), three = ones(3), one = ones(1);
  UnitBench bench({operation(0, three, 0), operation(1, three, 1), operation(2, two, 2),
                   operation(3, one, 3), operation(4, one, 4)},
                  {.lane_latency = 1, .streams = 2});
  ASSERT_TRUE(bench.run());
  std::vector<std::uint64_t> edges;
  std::vector<int> ops, streams;
  for (const SampledBeat& beat : bench.beats) {
    edges.push_back(beat.edge);
    ops.push_back(beat.beat.descriptor.op);
    streams.push_back(beat.beat.stream);
  }
  // Operator 1 is dealt one edge after operator 0, so it joins from the second beat on.
  EXPECT_EQ(ops, (std::vector<int>{0, 1, 0, 1, 0, 1, 2, 3, 2, 4}));
  EXPECT_EQ(streams, (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1, 0, 0}));
  EXPECT_EQ(edges, (std::vector<std::uint64_t>{4, 5, 6, 7, 8, 9, 10, 11, 12, 13}));
  ASSERT_EQ(bench.records.size(), 5u);
  EXPECT_EQ(bench.counts[0].element_count, 96u);
  EXPECT_EQ(bench.counts[2].element_count, 32u);  // operator 3 before operator 2
}

TEST(SystemcVectorUnit, TheTailDisablesItsLanes) {
  const auto elements = ones(2);
  UnitBench bench({operation(0, std::span(elements).first(64 + 10), 0)}, {});
  ASSERT_TRUE(bench.run());
  ASSERT_EQ(bench.beats.size(), 2u);
  EXPECT_EQ(bench.beats[0].beat.lane_enable, 0xFFFFFFFFu);
  EXPECT_EQ(bench.beats[1].beat.lane_enable, 0x1Fu);
  EXPECT_TRUE(std::all_of(bench.beats[1].beat.data.begin() + 10, bench.beats[1].beat.data.end(),
                          [](std::uint8_t byte) { return byte == 0; }));
  EXPECT_EQ(bench.counts.at(0), (TapCounts{37, 0, 0}));
}

TEST(SystemcVectorUnit, AnOperatorWithoutElementsIsOneEmptyBeat) {
  UnitBench bench({operation(3, {}, 9)}, {.lane_latency = 4});
  ASSERT_TRUE(bench.run());
  ASSERT_EQ(bench.beats.size(), 1u);
  EXPECT_EQ(bench.beats[0].beat.lane_enable, 0u);
  EXPECT_TRUE(bench.beats[0].beat.last);
  EXPECT_EQ(bench.completions, (std::vector<ReportedCompletion>{{9, 2, 7, Mode::kFast}}));
  EXPECT_EQ(bench.counts.at(0), TapCounts{});
}

TEST(SystemcVectorUnit, AStatisticIsHeldUntilReadyAndBlocksItsStreamOnly) {
  const auto elements = ones(1);
  // Context 0: a statistic, then an operator. Context 1: operators. Depth 1 and a beat per clock
  // keep the queue full.
  std::vector<Operation> operations = {operation(0, elements, 0), operation(1, elements, 1),
                                       statistic(2, 2),           operation(3, elements, 3),
                                       operation(4, elements, 4), operation(5, elements, 5)};
  UnitBench bench(operations, {.lane_latency = 2, .streams = 2},
                  {.queue_depth = 1, .published_engine = false});
  ASSERT_TRUE(bench.run());
  // Selected: 0 at 1, 1 at 2, the statistic at 3, 3 at 4. Then context 0 waits, and its turn holds
  // up the dealing of 4 and 5. Pushed: 0 at 6, 1 at 7, 3 at 9. Popped: 7, 9, 11. So the queue is
  // full before each of the edges 7..11, and 12 is the first that takes the statistic.
  std::map<std::uint64_t, std::uint64_t> last;
  for (const ReportedCompletion& completion : bench.completions)
    last[completion.tag] = completion.last_beat_cycle;
  ASSERT_EQ(last.size(), 6u);
  EXPECT_EQ(last[0], 5u);
  EXPECT_EQ(last[1], 6u);
  EXPECT_EQ(last[3], 8u);
  EXPECT_EQ(last[2], 12u);
  EXPECT_EQ(bench.unit_counts().sideband_wait_cycles, 5u);  // driven after 6
  EXPECT_EQ(last[4], 12u + 5);                              // dealt at 12, when the context is free
  EXPECT_EQ(last[5], 12u + 6);
}

TEST(SystemcVectorUnit, TheSourceIsAskedAgainOnlyAfterARestart) {
  const auto elements = ones(1);
  UnitBench bench({operation(0, elements, 0)}, {});
  ASSERT_TRUE(bench.run());
  EXPECT_EQ(bench.source_calls, 2u);  // one operation, one refusal
  EXPECT_TRUE(bench.done());
  bench.restart({operation(1, elements, 1), operation(2, elements, 2)});
  bench.edge();
  EXPECT_FALSE(bench.done());
  ASSERT_TRUE(bench.run());
  EXPECT_EQ(bench.source_calls, 5u);
  ASSERT_EQ(bench.completions.size(), 3u);
  EXPECT_EQ(bench.completions[2].tag, 2u);
  ASSERT_EQ(bench.records.size(), 3u);
  EXPECT_EQ(bench.records[2].seq, 2u);
}

TEST(SystemcVectorUnit, ASourceThatWaitsIsAskedAgainAtEveryClock) {
  const auto elements = ones(2);
  UnitBench bench({operation(0, elements, 0), operation(1, elements, 1)}, {.lane_latency = 1});
  bench.hold_until = 10;
  for (int i = 0; i < 10; ++i) bench.edge();
  EXPECT_EQ(bench.source_calls, 10u);
  EXPECT_FALSE(bench.done());  // waiting is not the end
  EXPECT_TRUE(bench.beats.empty());
  ASSERT_TRUE(bench.run());
  // Dealt at 10, as if it were 0; the second when the context is free, after the select at 12.
  EXPECT_EQ(last_beat_cycles(bench), (std::vector<std::uint64_t>{10 + 5, 10 + 7}));
  EXPECT_EQ(bench.unit_counts().operations, 2u);
}

TEST(SystemcVectorUnit, WaitingDoesNotHoldUpWhatIsDealt) {
  const auto elements = ones(4);
  UnitBench bench({operation(0, elements, 0), operation(1, elements, 1)}, {.lane_latency = 1});
  for (int i = 0; i < 2; ++i) bench.edge();
  bench.hold_until = 30;
  for (int i = 0; i < 20; ++i) bench.edge();
  EXPECT_EQ(last_beat_cycles(bench), (std::vector<std::uint64_t>{4 + 3}));
  EXPECT_FALSE(bench.done());
  ASSERT_TRUE(bench.run());
  EXPECT_EQ(last_beat_cycles(bench), (std::vector<std::uint64_t>{4 + 3, 30 + 4 + 3}));
}

TEST(SystemcVectorUnit, AnOperatorRunsWithTheModeOfItsIssueEdge) {
  auto bad = ones(1);
  bad[0] = std::byte{0x00};
  bad[1] = std::byte{0x7C};  // an infinity
  const auto filler = ones(1);
  // lane_latency 1: operator 0 is issued at 2, sampled at 4 and its new mode can be used from edge
  // 8 on. Operators are issued one per edge, so op 7 reads its old mode at 3..7 and the new one at
  // 8.
  std::vector<Operation> operations = {operation(7, bad, 0)};
  for (std::uint64_t tag = 1; tag <= 8; ++tag) operations.push_back(operation(7, filler, tag));
  UnitBench bench(operations, {.lane_latency = 1}, {.queue_depth = 16, .published_engine = false});
  ASSERT_TRUE(bench.run());
  ASSERT_EQ(bench.completions.size(), 9u);
  int compared = 0;
  for (const ReportedCompletion& completion : bench.completions) {
    EXPECT_EQ(completion.issue_cycle, 2 + completion.tag);
    EXPECT_EQ(completion.mode, completion.issue_cycle < 8 ? Mode::kFast : Mode::kStable)
        << completion.tag;
    ++compared;
  }
  EXPECT_EQ(compared, 9);
}

TEST(SystemcVectorUnit, ResetLosesOperatorsInFlightAndStartsOver) {
  const auto elements = ones(4);
  std::vector<Operation> operations;
  for (std::uint16_t i = 0; i < 4; ++i) operations.push_back(operation(i, elements, i));
  UnitBench bench(operations, {.lane_latency = 2});
  for (int i = 0; i < 10; ++i) bench.edge();
  // Operator 0 is written back, 1 is in the lanes, 2 in its context: both are lost.
  ASSERT_EQ(bench.completions.size(), 1u);
  bench.rst_n.write(false);
  UnitBench::settle();
  bench.edge();
  bench.rst_n.write(true);
  UnitBench::settle();
  ASSERT_TRUE(bench.run());
  ASSERT_EQ(bench.completions.size(), 2u);
  EXPECT_EQ(bench.completions[1],
            (ReportedCompletion{3, 2, 5 + 3, Mode::kFast}));  // edges count from the reset
  ASSERT_EQ(bench.records.size(), 1u);
  EXPECT_EQ(bench.records[0].op, 3);
  EXPECT_EQ(bench.records[0].seq, 0u);
}

TEST(SystemcVectorUnit, AResetAsksASourceThatHadEndedAgain) {
  UnitBench bench({operation(0, {}, 0)}, {});
  ASSERT_TRUE(bench.run());
  EXPECT_EQ(bench.source_calls, 2u);
  bench.rst_n.write(false);
  UnitBench::settle();
  bench.rst_n.write(true);
  UnitBench::settle();
  EXPECT_FALSE(bench.done());
  ASSERT_TRUE(bench.run());
  EXPECT_EQ(bench.source_calls, 3u);
  EXPECT_EQ(bench.completions.size(), 1u);
}

class SystemcVectorUnitRandom : public testing::TestWithParam<unsigned> {};

TEST_P(SystemcVectorUnitRandom, CompletionsAreReportedInTheOrderOfSeq) {
  const unsigned streams = GetParam();
  const std::uint64_t seed = case_seed(500 + streams);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  const OperationList list = OperationList::random(rng, 3000, 16, 300);
  UnitBench bench(list.operations, {.lane_latency = 3, .bubbles = 1, .streams = streams},
                  {.num_ops = 16,
                   .datapath_width = 256,
                   .num_streams = 8,
                   .queue_depth = 3,
                   .published_engine = false});
  ASSERT_TRUE(bench.run());
  ASSERT_EQ(bench.completions.size(), list.operations.size());
  EXPECT_EQ(bench.unit_counts().operations, list.operations.size());

  // The i-th reported completion has seq i: what its record says is what was put in.
  std::size_t compared = 0;
  for (std::size_t i = 0; i < bench.records.size(); ++i) {
    const OpRecord& record = bench.records[i];
    const Operation& source = list.operations[bench.completions[record.seq].tag];
    const TapSummary expected = source.statistic
                                    ? *source.statistic
                                    : summary_by_value(source.descriptor.format, source.elements);
    ASSERT_EQ(record.op, source.descriptor.op) << "seq " << record.seq;
    ASSERT_EQ(record.step, source.descriptor.step) << "seq " << record.seq;
    ASSERT_EQ(record.max_mag, expected.max_mag) << "seq " << record.seq;
    ASSERT_EQ(record.nonfinite_count, expected.nonfinite_count) << "seq " << record.seq;
    ASSERT_EQ(record.first_nonfinite, expected.first_nonfinite) << "seq " << record.seq;
    ASSERT_EQ(bench.counts[i],
              (TapCounts{expected.element_count, expected.subnormal_count, expected.zero_count}));
    ++compared;
  }
  EXPECT_EQ(compared + bench.unseen_count(), list.operations.size());
  EXPECT_GT(compared, 2500u);

  // Within a stream the order is that of the source.
  std::vector<std::uint64_t> previous(streams, 0);
  for (const ReportedCompletion& completion : bench.completions) {
    std::uint64_t& tag = previous[completion.tag % streams];
    EXPECT_GE(completion.tag, tag);
    tag = completion.tag;
  }
}

INSTANTIATE_TEST_SUITE_P(Streams, SystemcVectorUnitRandom, testing::Values(1u, 2u, 5u, 8u));

template <typename Body>
std::string fatal_type(const Body& body, std::string& message) {
  try {
    body();
  } catch (const sc_core::sc_report& report) {
    message = report.get_msg();
    return report.get_msg_type();
  }
  return "accepted";
}

TEST(SystemcVectorUnitFatal, MoreStreamsThanTheDevice) {
  std::string message;
  EXPECT_EQ(fatal_type([] { sc::VectorUnit("unit", {.num_streams = 2}, {.streams = 3}, {}, {}); },
                       message),
            "/opd/vector_unit/parameters");
  EXPECT_EQ(message, "streams = 3: must be 1..2");
}

TEST(SystemcVectorUnitFatal, LaneLatencyOutOfRange) {
  std::string message;
  EXPECT_EQ(fatal_type([] { sc::VectorUnit("unit", {}, {.lane_latency = 0}, {}, {}); }, message),
            "/opd/vector_unit/parameters");
  EXPECT_EQ(message, "lane_latency = 0: must be 1..1024");
}

TEST(SystemcVectorUnitFatal, ElementsThatAreNotWhole) {
  const auto elements = ones(1);
  std::string message;
  UnitBench bench({operation(5, std::span(elements).first(3), 0)}, {});
  EXPECT_EQ(fatal_type([&bench] { bench.edge(); }, message), "/opd/vector_unit/operation");
  EXPECT_EQ(message, "operation of op 5 has 3 bytes: must be a multiple of 2");
}

}  // namespace
}  // namespace opd::tb
