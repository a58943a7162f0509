// The device's timing, edge by edge, against docs/architecture.md, and what its pins do to bad
// input.
#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "device_bench.hpp"

namespace opd::tb {
namespace {

constexpr std::uint32_t kOne = 0x3C00;  // FP16
constexpr std::uint32_t kTwo = 0x4000;
constexpr std::uint32_t kInfinity = 0x7C00;

OpDescriptor fp16(std::uint16_t op, std::uint32_t step = 0) {
  return {.op = op, .format = Format::kFp16, .step = step, .scale_log2 = 0};
}

CycleInput statistic_input(const OpDescriptor& descriptor,
                           const TapSummary& summary = {.max_mag = kOne, .element_count = 1}) {
  CycleInput input;
  input.stat_valid = true;
  input.statistic = {descriptor, summary};
  return input;
}

std::vector<std::uint32_t> seqs(const std::vector<OpRecord>& records) {
  std::vector<std::uint32_t> result;
  for (const OpRecord& record : records) result.push_back(record.seq);
  return result;
}

TEST(SystemcDeviceTiming, ReactionIsFourCycles) {
  DeviceBench bench;
  CycleInput input{.beat_valid = true, .mode_op = 5, .beat = make_beat(fp16(5), {kInfinity}, true)};
  const CycleOutput n = bench.edge(input);
  input.beat_valid = false;
  const CycleOutput n1 = bench.edge(input);
  const CycleOutput n2 = bench.edge(input);
  const CycleOutput n3 = bench.edge(input);
  const CycleOutput n4 = bench.edge(input);
  const CycleOutput n5 = bench.edge(input);

  EXPECT_EQ(std::vector<int>(
                {n.queue_level, n1.queue_level, n2.queue_level, n3.queue_level, n4.queue_level}),
            std::vector<int>({0, 0, 1, 0, 0}));
  EXPECT_EQ(std::vector<bool>({n1.record_valid, n2.record_valid, n3.record_valid, n4.record_valid,
                               n5.record_valid}),
            std::vector<bool>({false, false, false, true, false}));
  EXPECT_EQ(n3.mode, Mode::kFast);
  EXPECT_EQ(n4.mode, Mode::kStable);
  EXPECT_EQ(n5.queue_high_water, 1);
  EXPECT_EQ(n4.record.op, 5);
  EXPECT_EQ(n4.record.mode, static_cast<std::uint8_t>(Mode::kStable));
  EXPECT_EQ(n4.record.cause, static_cast<std::uint8_t>(Cause::kNonfinite));
  EXPECT_EQ(n4.record.risk, 255);
  EXPECT_EQ(n4.record.first_nonfinite, 0u);
}

TEST(SystemcDeviceTiming, AStatisticReactsInThreeCycles) {
  DeviceBench bench;
  const TapSummary summary{
      .max_mag = kOne, .element_count = 8, .nonfinite_count = 1, .first_nonfinite = 3};
  CycleInput input = statistic_input(fp16(2), summary);
  input.mode_op = 2;
  EXPECT_TRUE(bench.edge(input).stat_ready);
  input.stat_valid = false;
  EXPECT_EQ(bench.edge(input).queue_level, 1);
  const CycleOutput n2 = bench.edge(input);
  const CycleOutput n3 = bench.edge(input);
  EXPECT_FALSE(n2.record_valid);
  EXPECT_EQ(n2.mode, Mode::kFast);
  EXPECT_TRUE(n3.record_valid);
  EXPECT_EQ(n3.mode, Mode::kStable);
  EXPECT_EQ(n3.record.first_nonfinite, 3u);
}

TEST(SystemcDeviceTiming, TheSidebandWaitsForTheTap) {
  DeviceBench bench;
  CycleInput input = statistic_input(fp16(1));
  input.beat_valid = true;
  input.beat = make_beat(fp16(0), {kOne}, true);
  // Edge 0 takes statistic and beat; edge 1 folds the beat and must not take a second statistic;
  // edge 2 takes it.
  EXPECT_TRUE(bench.edge(input).stat_ready);
  input.beat_valid = false;
  input.statistic.descriptor.op = 2;
  EXPECT_FALSE(bench.edge(input).stat_ready);
  EXPECT_TRUE(bench.edge(input).stat_ready);
  bench.idle(8);
  ASSERT_EQ(bench.records.size(), 3u);
  EXPECT_EQ(seqs(bench.records), (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(bench.records[0].op, 1);  // numbered at its own edge
  EXPECT_EQ(bench.records[1].op, 0);  // numbered one edge after the beat was sampled
  EXPECT_EQ(bench.records[2].op, 2);
}

TEST(SystemcDeviceTiming, OneCompletionPerTwoCycles) {
  DeviceBench bench;
  for (std::uint16_t op = 0; op < 4; ++op) bench.edge(make_beat(fp16(op), {kOne}, true));
  std::vector<int> valid_edges;
  for (int edge = 4; edge < 16; ++edge) {
    if (bench.edge().record_valid) valid_edges.push_back(edge);
  }
  EXPECT_EQ(valid_edges, (std::vector<int>{4, 6, 8, 10}));
}

TEST(SystemcDeviceTiming, AFullQueueDropsAndCounts) {
  DeviceBench bench({.queue_depth = 2, .published_engine = false});
  // Eight last beats at edges 0..7 are pushed at 1..8. Pops are at 2, 4, 6, 8: a push at the edge
  // of a pop is taken even when the queue is full, so 5 and 7 find it full and completions 4 and 6
  // are lost.
  std::vector<int> levels;
  std::vector<unsigned> unseen;
  for (std::uint16_t op = 0; op < 8; ++op) {
    const CycleOutput output = bench.edge(make_beat(fp16(op), {kOne}, true));
    levels.push_back(output.queue_level);
    unseen.push_back(output.unseen_count);
  }
  for (int i = 0; i < 3; ++i) {
    const CycleOutput output = bench.edge();
    levels.push_back(output.queue_level);
    unseen.push_back(output.unseen_count);
  }
  EXPECT_EQ(levels, (std::vector<int>{0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(unseen, (std::vector<unsigned>{0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 2}));
  bench.idle(8);
  EXPECT_EQ(seqs(bench.records), (std::vector<std::uint32_t>{0, 1, 2, 3, 5, 7}));
  for (const OpRecord& record : bench.records) EXPECT_EQ(record.op, record.seq);
  EXPECT_EQ(bench.outputs().queue_high_water, 2);
  EXPECT_EQ(bench.outputs().queue_level, 0);
}

TEST(SystemcDeviceTiming, AFullQueueHoldsTheSidebandUp) {
  DeviceBench bench({.queue_depth = 1, .published_engine = false});
  // Depth 1: a statistic is taken at 0 and popped at 1, when the queue still counts as full for the
  // handshake. So one is taken at 2, and popped at 3, and so on.
  std::vector<bool> ready;
  for (int i = 0; i < 8; ++i) ready.push_back(bench.edge(statistic_input(fp16(0))).stat_ready);
  EXPECT_EQ(ready, (std::vector<bool>{true, false, true, false, true, false, true, false}));
  bench.idle(6);
  EXPECT_EQ(seqs(bench.records), (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(bench.outputs().unseen_count, 0u);
}

TEST(SystemcDevice, InterleavedStreamsAreApart) {
  DeviceBench bench({.num_streams = 3, .published_engine = false});
  // Three operators of two, three and one beats; 32 FP16 elements per beat.
  const std::vector<std::uint32_t> full(32, kOne);
  std::vector<std::uint32_t> with_infinity = full;
  with_infinity[7] = kInfinity;
  bench.edge(make_beat(fp16(10, 1), full, false, 0));
  bench.edge(make_beat(fp16(11, 2), full, false, 1));
  bench.edge(make_beat(fp16(12, 3), {kTwo, 0x8000, 0x0001}, true, 2));  // 2, -0, a subnormal
  bench.edge(make_beat(fp16(11, 2), full, false, 1));
  bench.edge(make_beat(fp16(10, 1), {kTwo}, true, 0));
  bench.edge(make_beat(fp16(11, 2), with_infinity, true, 1));
  bench.edge(
      make_beat(fp16(13, 4), {kOne}, true, 1));  // opens and closes the next operator of the stream
  bench.idle(10);

  ASSERT_EQ(bench.records.size(), 4u);
  EXPECT_EQ(bench.records[0].op, 12);
  EXPECT_EQ(bench.records[0].step, 3u);
  EXPECT_EQ(bench.records[0].max_mag, kTwo);
  EXPECT_EQ(bench.counts[0], (TapCounts{3, 1, 1}));
  EXPECT_EQ(bench.records[1].op, 10);
  EXPECT_EQ(bench.records[1].max_mag, kTwo);
  EXPECT_EQ(bench.counts[1], (TapCounts{33, 0, 0}));
  EXPECT_EQ(bench.records[2].op, 11);
  EXPECT_EQ(bench.records[2].max_mag, kOne);
  EXPECT_EQ(bench.records[2].nonfinite_count, 1u);
  EXPECT_EQ(bench.records[2].first_nonfinite, 2u * 32 + 7);
  EXPECT_EQ(bench.counts[2], (TapCounts{96, 0, 0}));
  EXPECT_EQ(bench.records[3].op, 13);
  EXPECT_EQ(bench.records[3].first_nonfinite, kNoElement);
  EXPECT_EQ(bench.counts[3], (TapCounts{1, 0, 0}));
}

TEST(SystemcDevice, DisabledLanesKeepTheirIndex) {
  DeviceBench bench;
  Beat beat = make_beat(fp16(0), std::vector<std::uint32_t>(32, kInfinity), false);
  beat.lane_enable = ~std::uint64_t{0} << 32;  // only bits past the last element: no lane at all
  bench.edge(beat);
  beat.lane_enable = 0xFFFFFFFF80000000u;  // lane 31 of the second beat
  beat.last = true;
  bench.edge(beat);
  bench.idle(6);
  ASSERT_EQ(bench.records.size(), 1u);
  EXPECT_EQ(bench.counts[0].element_count, 1u);
  EXPECT_EQ(bench.records[0].nonfinite_count, 1u);
  EXPECT_EQ(bench.records[0].first_nonfinite, 63u);
  EXPECT_EQ(bench.records[0].max_mag, 0u);
}

TEST(SystemcDevice, AnOperatorWithoutAnyLaneIsACompletion) {
  DeviceBench bench;
  bench.edge(make_beat(fp16(3, 9), {}, true));
  bench.idle(6);
  ASSERT_EQ(bench.records.size(), 1u);
  EXPECT_EQ(bench.counts[0], TapCounts{});
  EXPECT_EQ(bench.records[0].flags, flag_bit(Flag::kWarmup));
  EXPECT_EQ(bench.records[0].first_nonfinite, kNoElement);
}

class SystemcDeviceWidth : public testing::TestWithParam<unsigned> {};

TEST_P(SystemcDeviceWidth, EveryFormatAgainstTheSummaryByValue) {
  const unsigned beat_bytes = GetParam() / 8;
  DeviceBench bench({.datapath_width = GetParam(), .published_engine = false});
  const std::uint64_t seed = case_seed(100 + GetParam());
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  int compared = 0;
  for (int round = 0; round < 40; ++round) {
    for (const Format format : kAllFormats) {
      const auto width = static_cast<std::size_t>(layout_of(format).bytes);
      const auto slots = beat_bytes / width;
      const auto beats = static_cast<std::size_t>(draw(rng, 1, 4));
      const auto elements = random_elements(rng, format, beats * slots, round % 2 == 0);
      std::vector<std::uint64_t> enables;
      for (std::size_t b = 0; b < beats; ++b) {
        Beat beat;
        beat.descriptor = {.op = 1, .format = format, .step = 1, .scale_log2 = 0};
        beat.last = b + 1 == beats;
        beat.lane_enable = draw(rng, 0, 2) == 0 ? rng() : ~std::uint64_t{0};
        enables.push_back(beat.lane_enable);
        beat.data.fill(0xFF);  // past the datapath: not looked at
        std::memcpy(beat.data.data(), elements.data() + b * beat_bytes, beat_bytes);
        bench.edge(beat);
      }
      bench.idle(5);
      const TapSummary expected = summary_by_value(format, elements, [&](std::size_t k) {
        return (enables[k / slots] >> (k % slots) & 1) != 0;
      });
      ASSERT_EQ(bench.records.size(), static_cast<std::size_t>(compared + 1));
      const OpRecord& record = bench.records.back();
      ASSERT_EQ(record.max_mag, expected.max_mag);
      ASSERT_EQ(record.nonfinite_count, expected.nonfinite_count);
      ASSERT_EQ(record.first_nonfinite, expected.first_nonfinite);
      ASSERT_EQ(record.saturated_count, expected.saturated_count);
      ASSERT_EQ(bench.counts.back(),
                (TapCounts{expected.element_count, expected.subnormal_count, expected.zero_count}));
      ++compared;
    }
  }
  EXPECT_EQ(compared, 200);
}

INSTANTIATE_TEST_SUITE_P(Widths, SystemcDeviceWidth, testing::Values(32u, 96u, 256u, 512u));

TEST(SystemcDevice, CountersStopAndIndicesStopOneBelow) {
  DeviceBench bench({.counter_width = 4, .published_engine = false});
  std::vector<std::uint32_t> elements(32, 0);
  elements[20] = kInfinity;
  bench.edge(make_beat(fp16(0), elements, true));
  CycleInput input = statistic_input(fp16(1), {.max_mag = 0xABCD1234,
                                               .element_count = 100,
                                               .nonfinite_count = 16,
                                               .first_nonfinite = 15,
                                               .saturated_count = 17,
                                               .subnormal_count = 15,
                                               .zero_count = 14});
  bench.idle(1);
  bench.edge(input);
  bench.idle(8);
  ASSERT_EQ(bench.records.size(), 2u);
  EXPECT_EQ(bench.counts[0], (TapCounts{15, 0, 15}));
  EXPECT_EQ(bench.records[0].first_nonfinite, 14u);
  EXPECT_EQ(bench.records[0].nonfinite_count, 1u);
  EXPECT_EQ(bench.counts[1], (TapCounts{15, 15, 14}));
  EXPECT_EQ(bench.records[1].first_nonfinite, 14u);
  EXPECT_EQ(bench.records[1].nonfinite_count, 15u);
  EXPECT_EQ(bench.records[1].saturated_count, 15u);
  EXPECT_EQ(bench.records[1].max_mag, 0x1234u);  // FP16 has 15 bits of magnitude
}

TEST(SystemcDevice, IllegalCompletionsUseUpTheirSeqAndAreCounted) {
  DeviceBench bench({.num_ops = 4, .published_engine = false});
  bench.edge(make_beat(fp16(4), {kOne}, true));  // no such operator
  OpDescriptor unknown = fp16(0);
  unknown.format = static_cast<Format>(5);
  Beat beat;
  beat.descriptor = unknown;
  beat.last = true;
  beat.lane_enable = ~std::uint64_t{0};
  bench.edge(beat);
  EXPECT_EQ(bench.edge().unseen_count, 1u);  // at the edge that would have pushed it
  EXPECT_EQ(bench.edge().unseen_count, 2u);
  EXPECT_TRUE(bench.edge(statistic_input(fp16(65535))).stat_ready);  // taken, and counted
  EXPECT_TRUE(bench.edge(statistic_input(unknown)).stat_ready);
  bench.edge(statistic_input(fp16(3)));
  bench.idle(6);
  EXPECT_EQ(bench.outputs().unseen_count, 4u);
  EXPECT_EQ(bench.outputs().queue_high_water, 1);
  EXPECT_EQ(seqs(bench.records), (std::vector<std::uint32_t>{4}));
}

TEST(SystemcDevice, IllegalAndFullCountsOnce) {
  DeviceBench bench({.num_ops = 4, .queue_depth = 1, .published_engine = false});
  for (int i = 0; i < 3; ++i) bench.edge(make_beat(fp16(0), {kOne}, true));
  // Pushes: 0 at edge 1, 1 at edge 2 (with a pop), 2 at edge 3 into a full queue.
  bench.edge(make_beat(fp16(9), {kOne}, true));  // folded at edge 4
  bench.idle(10);
  EXPECT_EQ(bench.outputs().unseen_count, 2u);
  EXPECT_EQ(seqs(bench.records), (std::vector<std::uint32_t>{0, 1}));
}

TEST(SystemcDevice, AStreamThatDoesNotExistIsIgnored) {
  DeviceBench bench({.num_streams = 2, .published_engine = false});
  bench.edge(make_beat(fp16(0), {kOne}, true, 2));
  bench.edge(make_beat(fp16(1), {kOne}, true, 1));
  bench.idle(6);
  ASSERT_EQ(bench.records.size(), 1u);
  EXPECT_EQ(bench.records[0].seq, 0u);
  EXPECT_EQ(bench.records[0].op, 1);
  EXPECT_EQ(bench.outputs().unseen_count, 0u);
}

TEST(SystemcDevice, TheModePortIsCombinational) {
  DeviceBench bench({.num_ops = 4, .published_engine = false});
  bench.edge(make_beat(fp16(3), {kInfinity}, true));
  bench.idle(4);
  int compared = 0;
  for (const std::uint16_t op : std::initializer_list<std::uint16_t>{3, 0, 3, 4, 3, 65535}) {
    const CycleOutput output =
        bench.edge(CycleInput{.mode_op = op});  // sampled by the edge that first sees mode_op
    EXPECT_EQ(output.mode, op == 3 ? Mode::kStable : Mode::kFast) << op;
    ++compared;
  }
  EXPECT_EQ(compared, 6);
}

TEST(SystemcDevice, ResetIsAsynchronousAndEmptiesEverything) {
  DeviceBench bench({.queue_depth = 2, .published_engine = false});
  for (int i = 0; i < 8; ++i) bench.edge(make_beat(fp16(3, 7), {kInfinity}, true));
  bench.idle(8);
  for (int i = 0; i < 3; ++i) bench.edge(make_beat(fp16(3, 7), {kInfinity}, true));
  bench.edge(make_beat(fp16(3, 7), {kInfinity}, false));  // an operator half way
  CycleInput look;
  look.mode_op = 3;
  const CycleOutput before = bench.edge(look);
  EXPECT_EQ(before.mode, Mode::kSafe);
  EXPECT_GT(before.queue_level, 0);
  EXPECT_GT(before.unseen_count, 0u);
  const std::size_t records_before = bench.records.size();
  EXPECT_GT(records_before, 4u);

  bench.rst_n.write(false);
  bench.settle();  // no clock edge
  const CycleOutput in_reset = bench.outputs();
  EXPECT_FALSE(in_reset.record_valid);
  EXPECT_EQ(in_reset.mode, Mode::kFast);
  EXPECT_EQ(in_reset.queue_level, 0);
  EXPECT_EQ(in_reset.queue_high_water, 0);
  EXPECT_EQ(in_reset.unseen_count, 0u);
  EXPECT_TRUE(in_reset.stat_ready);
  bench.edge(make_beat(fp16(3, 7), {kInfinity}, true));  // not sampled

  bench.rst_n.write(true);
  bench.settle();
  bench.edge(make_beat(fp16(3, 7), {kTwo, kOne}, true));
  bench.idle(6);
  ASSERT_EQ(bench.records.size(), records_before + 1);
  EXPECT_EQ(bench.records.back().seq, 0u);
  EXPECT_EQ(bench.records.back().nonfinite_count, 0u);
  EXPECT_EQ(bench.records.back().flags, flag_bit(Flag::kWarmup));
  EXPECT_EQ(bench.records.back().mode, static_cast<std::uint8_t>(Mode::kFast));
  EXPECT_EQ(bench.counts.back(), (TapCounts{2, 0, 0}));
}

TEST(SystemcDevice, RecordsFollowTheOperatorsHistory) {
  DeviceBench bench;
  const auto sample = [&bench](std::uint32_t step, std::uint32_t max_mag) {
    bench.edge(statistic_input(fp16(0, step), {.max_mag = max_mag, .element_count = 1}));
    bench.idle(3);
    return bench.records.back();
  };
  std::uint32_t step = 0;
  for (; step < 16; ++step) EXPECT_EQ(sample(step, kOne).flags, flag_bit(Flag::kWarmup)) << step;
  // 16.0: x = 129, d = 4 * 129 - 4 = 512 > 384. Two jumps: FAST to STABLE; 128 < risk_safe, so no
  // further.
  OpRecord record = sample(step++, 0x4C00);
  EXPECT_EQ(record.flags, flag_bit(Flag::kJump));
  EXPECT_EQ(record.risk, 128);
  EXPECT_EQ(record.mode, static_cast<std::uint8_t>(Mode::kStable));
  EXPECT_EQ(record.cause, static_cast<std::uint8_t>(Cause::kRisk));
  // The mean, 4 + 32, is drawn up to 3 bits below the sample: m = 516 - 384 = 132. The same sample
  // again would be no jump, d = 384; 32.0 is one: x = 161, d = 644 - 132 = 512.
  record = sample(step++, 0x5000);
  EXPECT_EQ(record.flags, flag_bit(Flag::kJump));
  EXPECT_EQ(record.mode, static_cast<std::uint8_t>(Mode::kStable));
  EXPECT_EQ(record.cause, static_cast<std::uint8_t>(Cause::kNone));
  const std::uint32_t last_alarm = step - 1;
  for (int i = 0; i < 100 && record.mode != static_cast<std::uint8_t>(Mode::kFast); ++i)
    record = sample(step++, kOne);
  EXPECT_EQ(record.cause, static_cast<std::uint8_t>(Cause::kRecovered));
  EXPECT_EQ(record.step, last_alarm + 64);  // quiet_steps
  EXPECT_EQ(bench.records.size(), static_cast<std::size_t>(step));
}

template <typename Construct>
std::string fatal_type(const Construct& construct, std::string& message) {
  try {
    construct();
  } catch (const sc_core::sc_report& report) {
    message = report.get_msg();
    return report.get_msg_type();
  }
  return "accepted";
}

TEST(SystemcDeviceFatal, ParametersOutOfRange) {
  std::string message;
  EXPECT_EQ(fatal_type([] { sc::Device("device", {.queue_depth = 256}); }, message),
            "/opd/device/parameters");
  EXPECT_EQ(message, "queue_depth = 256: must be 1..255");
}

TEST(SystemcDeviceFatal, AnUpsetOfNothing) {
  DeviceBench bench({.num_ops = 4});
  std::string message;
  EXPECT_EQ(fatal_type([&] { bench.inject_upset(4, sc::UpsetTarget::kMemory); }, message),
            "/opd/device/upset");
  EXPECT_EQ(message, "op = 4: must be 0..3");
  EXPECT_EQ(fatal_type([&] { bench.inject_upset(0, sc::UpsetTarget::kModeRegister, 3); }, message),
            "/opd/device/upset");
  EXPECT_EQ(message, "bit = 3: must be 0..2");
}

}  // namespace
}  // namespace opd::tb
