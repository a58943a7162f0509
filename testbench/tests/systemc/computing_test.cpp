// Operators that the vector unit computes: every edge of their way, modes from the device,
// registers in force, several streams, reset, and the loosely timed unit beside the cycle-accurate one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "computations.hpp"
#include "opd/sc/lane_processor.hpp"
#include "opd/sc/loosely_timed_device.hpp"
#include "opd/sc/loosely_timed_unit.hpp"
#include "unit_bench.hpp"

namespace opd::tb {
namespace {

using sc::Operation;
using Values = std::vector<double>;

Operation computed(const OwnedComputation& owned, std::uint16_t op, std::uint64_t tag) {
  Operation operation;
  operation.descriptor = {.op = op, .format = owned.computation.format};
  operation.tag = tag;
  operation.computation = owned.computation;
  return operation;
}

/// With its accumulators as operator op + 100, tag + 100.
Operation with_accumulators(Operation operation) {
  operation.accumulator_op = static_cast<std::uint16_t>(operation.descriptor.op + 100);
  operation.accumulator_tag = operation.tag + 100;
  return operation;
}

Operation recorded(std::span<const std::byte> elements, std::uint16_t op, std::uint64_t tag) {
  Operation operation;
  operation.descriptor = {.op = op};
  operation.elements = elements;
  operation.tag = tag;
  return operation;
}

/// One row of FP16 ones.
OwnedComputation ones(Kernel kernel, std::uint32_t columns) {
  return row_of(kernel, Format::kFp16, Values(columns, 1.0));
}

std::vector<std::uint64_t> sampled_edges(const UnitBench& bench) {
  std::vector<std::uint64_t> edges;
  for (const SampledBeat& beat : bench.beats) edges.push_back(beat.edge);
  return edges;
}

class SystemcComputingLatency : public testing::TestWithParam<unsigned> {};

TEST_P(SystemcComputingLatency, TheLastClocksOfAnExecutionAreItsBeats) {
  const unsigned latency = GetParam();
  // Two operations per beat, three beats: 6 clocks, of which the last three put out a beat.
  const OwnedComputation gelu = ones(Kernel::kGelu, 96), sum = ones(Kernel::kSum, 64);
  UnitBench bench({computed(gelu, 1, 7), computed(sum, 2, 8)}, {.lane_latency = latency});
  ASSERT_TRUE(bench.run());
  ASSERT_EQ(bench.executions.size(), 2u);
  EXPECT_EQ(bench.executions[0].execution.cost.cycles, 6u);
  // Two beats of one clock and five levels of the tree.
  EXPECT_EQ(bench.executions[1].execution.cost.cycles, 7u);
  // Deal 0, select 1, issue 2: the lanes are taken from 2 to 7, then from 8 to 14.
  EXPECT_EQ(sampled_edges(bench),
            (std::vector<std::uint64_t>{2 + 3 + latency + 1, 2 + 4 + latency + 1,
                                        2 + 5 + latency + 1, 8 + 6 + latency + 1}));
  EXPECT_EQ(bench.completions,
            (std::vector<ReportedCompletion>{{7, 2, 8 + latency, Mode::kFast},
                                             {8, 8, 15 + latency, Mode::kFast}}));
  EXPECT_EQ(bench.executions[0].issue_cycle, 2u);
  EXPECT_EQ(bench.executions[1].issue_cycle, 8u);
  EXPECT_EQ(bench.unit_counts().executions, 2u);
  EXPECT_EQ(bench.unit_counts().computing_cycles, 13u);
  EXPECT_EQ(bench.unit_counts().operations, 2u);
  EXPECT_EQ(bench.unit_counts().beats, 4u);
  EXPECT_EQ(bench.unit_counts().busy_cycles, 15u + latency);
  ASSERT_EQ(bench.records.size(), 2u);
  EXPECT_EQ(bench.records[1].max_mag, 0x5400u);  // 64
  EXPECT_EQ(bench.counts[0].element_count, 96u);
}

INSTANTIATE_TEST_SUITE_P(Latencies, SystemcComputingLatency, testing::Values(1u, 2u, 4u, 17u));

TEST(SystemcComputing, AnOperatorOfOneClockIsIssuedLikeARecordedOne) {
  const OwnedComputation cast = ones(Kernel::kCast, 32);
  std::vector<Operation> operations;
  for (std::uint16_t i = 0; i < 10; ++i) operations.push_back(computed(cast, i, i));
  UnitBench bench(operations, {.lane_latency = 4});
  ASSERT_TRUE(bench.run());
  std::vector<std::uint64_t> expected;
  for (std::uint64_t i = 0; i < 10; ++i) expected.push_back(7 + i);
  EXPECT_EQ(sampled_edges(bench), expected);
}

TEST(SystemcComputing, BubblesFollowTheExecution) {
  const OwnedComputation sum = ones(Kernel::kSum, 64);
  UnitBench bench({computed(sum, 0, 0), computed(sum, 1, 1)}, {.lane_latency = 1, .bubbles = 3});
  ASSERT_TRUE(bench.run());
  EXPECT_EQ(bench.executions[1].issue_cycle, 2u + 7 + 3);
}

TEST(SystemcComputing, OtherStreamsWaitForTheLanes) {
  const OwnedComputation sum = ones(Kernel::kSum, 64);
  const auto four = pack(Format::kFp16, Values(128, 1.0)),
             one = pack(Format::kFp16, Values(32, 1.0));
  UnitBench bench({recorded(four, 0, 0), computed(sum, 1, 1), recorded(one, 2, 2)},
                  {.lane_latency = 4, .streams = 3});
  ASSERT_TRUE(bench.run());
  // Operator 0 is issued at 2, the sum at 3; the lanes are its own up to 9.
  std::vector<std::uint64_t> edges;
  std::vector<int> ops;
  for (const SampledBeat& beat : bench.beats) {
    edges.push_back(beat.edge);
    ops.push_back(beat.beat.descriptor.op);
  }
  EXPECT_EQ(ops, (std::vector<int>{0, 1, 2, 0, 0, 0}));
  EXPECT_EQ(edges, (std::vector<std::uint64_t>{7, 14, 15, 16, 17, 18}));
}

TEST(SystemcComputing, AccumulatorsFollowByTheSideband) {
  const OwnedComputation sum = row_of(Kernel::kSumOfSquares, Format::kFp16, {300, 2});
  Operation first = with_accumulators(computed(sum, 3, 0));
  first.descriptor.step = 5;
  first.descriptor.scale_log2 = 4;
  UnitBench bench({first, computed(sum, 4, 1)}, {.lane_latency = 4});
  ASSERT_TRUE(bench.run());
  // One beat of two operations and five levels: 7 clocks, issued at 2, sampled at 13. The statistic
  // is on the pins from edge 14 on and taken by edge 15, which frees the context.
  EXPECT_EQ(bench.completions, (std::vector<ReportedCompletion>{{0, 2, 13, Mode::kFast},
                                                                {100, 2, 15, Mode::kFast},
                                                                {1, 17, 17 + 11, Mode::kFast}}));
  EXPECT_EQ(bench.unit_counts().sideband_wait_cycles, 0u);
  ASSERT_EQ(bench.records.size(), 3u);
  EXPECT_EQ(bench.records[0].op, 3u);
  EXPECT_EQ(bench.records[1].op, 103u);
  EXPECT_EQ(bench.records[1].step, 5u);
  EXPECT_EQ(bench.records[1].format, static_cast<std::uint8_t>(Format::kFp16));
  // 300 squared overflows: once in its lane, five times in the tree.
  EXPECT_EQ(bench.records[1].nonfinite_count, 6u);
  EXPECT_EQ(bench.records[1].first_nonfinite, 0u);
  EXPECT_EQ(bench.records[1].max_mag, 0x4400u);  // 4
  EXPECT_EQ(bench.counts[1], (TapCounts{2 + 31, 0, 0}));
}

/// Lane 0 gets 2^15, 2^-10, -2^15, lane 1 gets 2, 2^-10, -2: the sum is 0 in FP16, 2^-10 in FP32
/// and 2^-9 in FP64.
OwnedComputation three_sums() {
  Values row(66, 0.0);
  row[0] = 0x1p15, row[32] = 0x1p-10, row[64] = -0x1p15;
  row[1] = 2, row[33] = 0x1p-10, row[65] = -2;
  return row_of(Kernel::kSum, Format::kFp16, row);
}

double element_of(const SampledBeat& sampled) {
  const auto bytes = std::as_bytes(std::span(sampled.beat.data));
  return value_of(sampled.beat.descriptor.format,
                  element_at(sampled.beat.descriptor.format, bytes, 0));
}

void set_mode(UnitBench& bench, std::uint16_t op, Mode mode) {
  bench.write(reg::kOpSetting, static_cast<std::uint32_t>(mode) | 1u << 8);
  bench.write(reg::kOpCommand, op | static_cast<std::uint32_t>(Command::kSet) << 16);
  while (bench.read(reg::kOpStatus) != 0) {
  }
}

TEST(SystemcComputing, TheModeRegisterChangesTheArithmetic) {
  const OwnedComputation sum = three_sums();
  UnitBench bench({}, {});
  const Values results = {0, 0x1p-10, 0x1p-9};
  const std::vector<AccumulatorFormat> accumulators = {
      AccumulatorFormat::kFp16, AccumulatorFormat::kFp32, AccumulatorFormat::kFp64};
  EXPECT_EQ(bench.unit().read_register(unit_reg::kStatus), 0u);
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    const auto i = static_cast<std::size_t>(mode);
    set_mode(bench, 3, mode);
    bench.restart({with_accumulators(computed(sum, 3, i))});
    ASSERT_TRUE(bench.run());
    const Format format = mode == Mode::kFast ? Format::kFp16 : Format::kBf16;
    ASSERT_EQ(bench.beats.size(), i + 1);
    EXPECT_EQ(element_of(bench.beats[i]), results[i]);
    EXPECT_EQ(bench.beats[i].beat.descriptor.format, format);
    ASSERT_EQ(bench.records.size(), 2 * (i + 1));
    EXPECT_EQ(bench.records[2 * i].format, static_cast<std::uint8_t>(format));
    EXPECT_EQ(bench.records[2 * i + 1].format,
              static_cast<std::uint8_t>(mode == Mode::kFast ? Format::kFp16 : Format::kFp32));
    EXPECT_EQ(bench.completions[2 * i].mode, mode);

    using namespace unit_reg;
    const std::uint32_t status = bench.unit().read_register(kStatus);
    EXPECT_EQ(kStatusKernel.get(status), static_cast<std::uint32_t>(Kernel::kSum));
    EXPECT_EQ(kStatusMode.get(status), i);
    EXPECT_EQ(kStatusFormat.get(status), static_cast<std::uint32_t>(format));
    EXPECT_EQ(kStatusAccumulator.get(status), static_cast<std::uint32_t>(accumulators[i]));
    EXPECT_EQ(kStatusAccumulates.get(status), 1u);
    EXPECT_EQ(kStatusCompensated.get(status), mode == Mode::kSafe ? 1u : 0u);
    EXPECT_EQ(kStatusCompressed.get(status), mode == Mode::kSafe ? 1u : 0u);
    EXPECT_EQ(kStatusSaturating.get(status), 0u);
    EXPECT_EQ(kStatusValid.get(status), 1u);
    for (const std::uint16_t count : {kFastCount, kStableCount, kSafeCount}) {
      EXPECT_EQ(bench.unit().read_register(count), (count - kFastCount) / 4u <= i ? 1u : 0u);
    }
  }
}

TEST(SystemcComputing, TheMoreCarefulOfTwoModeRegistersRuns) {
  const OwnedComputation sum = three_sums();
  UnitBench bench({}, {});
  std::size_t runs = 0;
  for (const Mode own : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    for (const Mode second : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
      set_mode(bench, 3, own);
      set_mode(bench, 7, second);
      Operation operation = computed(sum, 3, runs);
      operation.second_mode_op = 7;
      // The one after it reads its own register alone.
      bench.restart({operation, computed(sum, 3, runs + 100)});
      ASSERT_TRUE(bench.run());
      ASSERT_EQ(bench.executions.size(), 2 * (runs + 1));
      const ReportedExecution &both = bench.executions[2 * runs],
                              &alone = bench.executions[2 * runs + 1];
      EXPECT_EQ(both.execution.status.mode, std::max(own, second));
      EXPECT_EQ(bench.completions[2 * runs].mode, std::max(own, second));
      EXPECT_EQ(alone.execution.status.mode, own);
      ++runs;
    }
  }
}

TEST(SystemcComputing, ASecondModeRegisterIsReadOneClockBeforeTheFirst) {
  const OwnedComputation sum = ones(Kernel::kSum, 32);
  Operation operation = computed(sum, 3, 0);
  operation.second_mode_op = 7;
  UnitBench bench({operation, computed(sum, 4, 1)}, {.lane_latency = 4});
  ASSERT_TRUE(bench.run());
  ASSERT_EQ(bench.executions.size(), 2u);
  EXPECT_EQ(bench.executions[0].issue_cycle, 3u);  // else 2
  EXPECT_EQ(bench.executions[1].issue_cycle, 3 + bench.executions[0].execution.cost.cycles);
}

TEST(SystemcComputing, ControlForcesSaturatesAndWidens) {
  using namespace unit_reg;
  const OwnedComputation sum = three_sums();
  const OwnedComputation square = row_of(Kernel::kSquare, Format::kFp16, {300});
  const auto one = pack(Format::kFp16, {1.0});
  UnitBench bench({}, {});
  const auto run = [&bench](std::uint32_t control, std::vector<Operation> operations) {
    bench.unit().write_register(kControl, control);
    bench.restart(std::move(operations));
    EXPECT_TRUE(bench.run());
    return element_of(bench.beats.back());
  };
  const auto forced = [](Mode mode) {
    return kControlForce.put(1) | kControlForcedMode.put(static_cast<std::uint32_t>(mode));
  };
  EXPECT_EQ(run(forced(Mode::kSafe), {computed(sum, 0, 0)}), 0x1p-9);
  EXPECT_EQ(bench.completions.back().mode, Mode::kSafe);
  EXPECT_EQ(run(forced(Mode::kStable), {computed(sum, 0, 0)}), 0x1p-10);
  EXPECT_EQ(run(forced(Mode::kSafe), {recorded(one, 0, 0)}), 1.0);
  EXPECT_EQ(bench.completions.back().mode, Mode::kFast);  // a recorded operator reads the port
  EXPECT_EQ(run(kControlForcedMode.put(2), {computed(sum, 0, 0)}), 0.0);  // not in force
  EXPECT_EQ(run(kControlAccumulator.put(2), {computed(sum, 0, 0)}), 0x1p-10);
  EXPECT_TRUE(std::isinf(run(0, {computed(square, 1, 0)})));
  EXPECT_EQ(run(kControlSaturate.put(1), {computed(square, 2, 0)}), 65504.0);
  EXPECT_EQ(kStatusSaturating.get(bench.unit().read_register(kStatus)), 1u);
  EXPECT_EQ(bench.unit().read_register(kFastCount), 4u);
}

TEST(SystemcComputing, AResetLosesTheExecutionAndRestoresTheRegisters) {
  using namespace unit_reg;
  const OwnedComputation gelu = ones(Kernel::kGelu, 96), sum = ones(Kernel::kSum, 64);
  UnitBench bench({computed(gelu, 1, 0), with_accumulators(computed(sum, 2, 1))},
                  {.settings = {.accumulator = AccumulatorChoice::kWide}});
  EXPECT_EQ(bench.unit().read_register(kControl), kControlAccumulator.put(2));
  bench.unit().write_register(kControl, kControlSaturate.put(1));
  while (bench.edges < 11) bench.edge();  // the first beat of gelu is out, the sum has the lanes
  ASSERT_EQ(bench.executions.size(), 2u);
  ASSERT_EQ(bench.beats.size(), 1u);
  bench.rst_n.write(false);
  UnitBench::settle();
  bench.rst_n.write(true);
  UnitBench::settle();
  EXPECT_EQ(bench.unit().read_register(kControl), kControlAccumulator.put(2));
  EXPECT_EQ(bench.unit().read_register(kStatus), 0u);
  EXPECT_EQ(bench.unit().read_register(kFastCount), 0u);
  EXPECT_EQ(bench.unit_counts().executions, 0u);
  bench.beats.clear();
  bench.restart({computed(sum, 5, 9)});
  const std::uint64_t start = bench.edges;
  ASSERT_TRUE(bench.run());
  // As after power-up: issued at 2, 7 clocks, latency 4.
  ASSERT_EQ(bench.completions.size(), 1u);
  EXPECT_EQ(bench.completions[0], (ReportedCompletion{9, 2, 13, Mode::kFast}));
  ASSERT_EQ(bench.beats.size(), 1u);
  EXPECT_EQ(bench.beats[0].edge, start + 13);
  ASSERT_EQ(bench.records.size(), 1u);
  EXPECT_EQ(bench.records[0].max_mag, 0x5400u);
}

/// Recorded and computed operators in any order, ops 0..31, accumulators in ops 32..63.
struct Mixture {
  std::deque<OwnedComputation> computations;
  OperationList list;

  Mixture(std::mt19937_64& rng, std::size_t count) {
    OperationList recorded = OperationList::random(rng, count, 32, 700);
    list.memory = std::move(recorded.memory);
    for (std::size_t i = 0; i < count; ++i) {
      Operation operation = recorded.operations[i];
      operation.descriptor.op %= 32;
      if (draw(rng, 0, 1) == 0) {
        const Kernel kernel = kKernels[static_cast<std::size_t>(draw(rng, 0, 23))].kernel;
        const Format format = kAllFormats[static_cast<std::size_t>(draw(rng, 0, 4))];
        computations.push_back(random_computation(rng, kernel, format, draw(rng, 0, 3) != 0));
        operation.elements = {};
        operation.statistic.reset();
        operation.descriptor.format = format;
        operation.computation = computations.back().computation;
        if (traits_of(kernel).accumulates && draw(rng, 0, 2) != 0) {
          operation.accumulator_op = static_cast<std::uint16_t>(operation.descriptor.op + 32);
          operation.accumulator_tag = i + count;
          if (draw(rng, 0, 1) == 0) operation.second_mode_op = operation.accumulator_op;
        }
      }
      list.operations.push_back(operation);
    }
  }
};

constexpr DeviceParameters kMixedDevice = {.num_ops = 64, .num_streams = 4, .queue_depth = 255};

class SystemcComputingMixed : public testing::TestWithParam<unsigned> {};

TEST_P(SystemcComputingMixed, EveryOperatorKeepsItsBeatsAndItsClocks) {
  const unsigned streams = GetParam();
  const std::uint64_t seed = case_seed(4200 + streams);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  const std::size_t count = 600;
  const Mixture mixture(rng, count);
  UnitBench bench(mixture.list.operations, {.lane_latency = 3, .bubbles = 1, .streams = streams},
                  kMixedDevice);
  ASSERT_TRUE(bench.run());
  ASSERT_EQ(bench.unseen_count(), 0u);

  // The outputs by execution, in the order of issue; lanes are never shared.
  const sc::LaneProcessor processor;
  std::map<std::uint64_t, const ReportedExecution*> executions;
  std::uint64_t free_at = 0;
  for (const ReportedExecution& reported : bench.executions) {
    const Operation& operation = mixture.list.operations.at(reported.tag);
    ASSERT_TRUE(operation.computation);
    EXPECT_EQ(reported.execution,
              processor.execute(*operation.computation, reported.execution.status.mode, {}));
    EXPECT_GE(reported.issue_cycle, free_at);
    free_at = reported.issue_cycle + reported.execution.cost.cycles;
    executions[reported.tag] = &reported;
  }

  // Every completion: who, when, in which mode; and the record with its number.
  ASSERT_EQ(bench.records.size(), bench.completions.size());
  std::size_t accumulators = 0, modes = 0;
  for (std::size_t i = 0; i < bench.completions.size(); ++i) {
    const ReportedCompletion& completion = bench.completions[i];
    const bool follows = completion.tag >= count;
    const Operation& operation = mixture.list.operations.at(completion.tag % count);
    const OpRecord& record = bench.records[i];
    ASSERT_EQ(record.seq, i);
    if (!operation.computation) continue;
    const ReportedExecution& reported = *executions.at(completion.tag % count);
    const Execution& execution = reported.execution;
    EXPECT_EQ(completion.issue_cycle, reported.issue_cycle);
    EXPECT_EQ(completion.mode, execution.status.mode);
    modes += completion.mode != Mode::kFast;
    if (follows) {
      ++accumulators;
      EXPECT_EQ(record.op, operation.accumulator_op);
      EXPECT_EQ(record.max_mag, execution.accumulators->max_mag);
      EXPECT_EQ(record.nonfinite_count, execution.accumulators->nonfinite_count);
      EXPECT_EQ(record.format, static_cast<std::uint8_t>(execution.accumulator_format));
      continue;
    }
    EXPECT_EQ(completion.last_beat_cycle, reported.issue_cycle + execution.cost.cycles + 3);
    EXPECT_EQ(record.op, operation.descriptor.op);
    EXPECT_EQ(record.format, static_cast<std::uint8_t>(execution.status.format));
    const TapSummary summary = summary_by_value(execution.status.format, execution.output);
    EXPECT_EQ(record.max_mag, summary.max_mag);
    EXPECT_EQ(record.nonfinite_count, summary.nonfinite_count);
    EXPECT_EQ(record.first_nonfinite, summary.first_nonfinite);
    EXPECT_EQ(bench.counts[i].element_count, summary.element_count);
  }
  EXPECT_GT(accumulators, 60u);
  EXPECT_GT(modes, 20u);
  EXPECT_EQ(bench.completions.size(), count + accumulators);
}

INSTANTIATE_TEST_SUITE_P(Streams, SystemcComputingMixed, testing::Values(1u, 2u, 4u));

TEST(SystemcComputing, LooselyTimedGivesTheSameBitsAndClocks) {
  const std::uint64_t seed = case_seed(4300);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  const Mixture mixture(rng, 600);
  sc::LooselyTimedDevice device("lt_device", kMixedDevice);
  std::vector<OpRecord> records;
  std::vector<ReportedCompletion> completions;
  std::vector<ReportedExecution> executions;
  std::size_t next = mixture.list.operations.size();
  sc::LooselyTimedUnit unit(
      "lt_unit", {},
      [&](Operation& operation) {
        if (next == mixture.list.operations.size()) return sc::SourceAnswer::kEnd;
        operation = mixture.list.operations[next++];
        return sc::SourceAnswer::kOperation;
      },
      [&](const OpRecord& record, const TapCounts&) { records.push_back(record); },
      [&](std::uint64_t tag, std::uint64_t issue, std::uint64_t last, Mode mode) {
        completions.push_back({tag, issue, last, mode});
      },
      [&](std::uint64_t tag, std::uint64_t issue, const Execution& execution) {
        executions.push_back({tag, issue, execution});
      });
  unit.socket.bind(device.socket);
  // Bubbles enough for the device to react before the next operator is issued.
  UnitBench accurate(mixture.list.operations, {.lane_latency = 1, .bubbles = 40}, kMixedDevice);
  ASSERT_TRUE(accurate.run());
  next = 0;
  unit.restart();
  sc_core::sc_start(1, sc_core::SC_MS);
  ASSERT_TRUE(unit.done());

  ASSERT_EQ(executions.size(), accurate.executions.size());
  ASSERT_GT(executions.size(), 200u);
  for (std::size_t i = 0; i < executions.size(); ++i) {
    ASSERT_EQ(executions[i].tag, accurate.executions[i].tag);
    ASSERT_EQ(executions[i].execution, accurate.executions[i].execution) << i;
  }
  ASSERT_EQ(records, accurate.records);
  ASSERT_EQ(completions.size(), accurate.completions.size());
  std::size_t e = 0;
  for (std::size_t i = 0; i < completions.size(); ++i) {
    EXPECT_EQ(completions[i].tag, accurate.completions[i].tag);
    EXPECT_EQ(completions[i].mode, accurate.completions[i].mode);
    if (e == executions.size() || executions[e].tag != completions[i].tag) continue;
    EXPECT_EQ(completions[i].last_beat_cycle - completions[i].issue_cycle,
              executions[e].execution.cost.cycles);
    if (completions.size() > i + 1 && completions[i + 1].tag >= 600) {  // its accumulators
      EXPECT_EQ(completions[i + 1].last_beat_cycle, completions[i].last_beat_cycle + 1);
    }
    ++e;
  }
  EXPECT_EQ(e, executions.size());
  for (const Register& entry : kUnitRegisters) {
    EXPECT_EQ(unit.read_register(entry.address), accurate.unit().read_register(entry.address));
  }
}

std::string refused(const Operation& operation) {
  UnitBench bench({operation}, {});
  return fatal([&bench] { bench.edge(); }, "/opd/vector_unit/operation");
}

TEST(SystemcComputingFatal, AComputationThatDoesNotFit) {
  OwnedComputation sum = ones(Kernel::kSum, 64);
  sum.computation.operands[0].columns = 63;
  EXPECT_EQ(refused(computed(sum, 5, 0)),
            "operation of op 5: operand of sum: x.columns = 63: must be 64");
}

TEST(SystemcComputingFatal, ElementsBesideAComputation) {
  const OwnedComputation sum = ones(Kernel::kSum, 64);
  Operation operation = computed(sum, 5, 0);
  operation.elements = sum.memory.front();
  EXPECT_EQ(refused(operation),
            "operation of op 5: elements or statistic beside a computation: must be unset");
}

TEST(SystemcComputingFatal, ADescriptorOfAnotherFormat) {
  const OwnedComputation sum = ones(Kernel::kSum, 64);
  Operation operation = computed(sum, 5, 0);
  operation.descriptor.format = Format::kBf16;
  EXPECT_EQ(refused(operation),
            "operation of op 5: descriptor.format = 1: must be that of the computation, 0");
}

TEST(SystemcComputingFatal, AccumulatorsOfAKernelWithoutAny) {
  const OwnedComputation cast = ones(Kernel::kCast, 64);
  EXPECT_EQ(refused(with_accumulators(computed(cast, 5, 0))),
            "operation of op 5: accumulator_op is set: must be unset, cast has no accumulators");
}

TEST(SystemcComputingFatal, AccumulatorsOfARecordedOperator) {
  const auto one = pack(Format::kFp16, {1.0});
  EXPECT_EQ(refused(with_accumulators(recorded(one, 5, 0))),
            "operation of op 5: accumulator_op is set without a computation: must be unset");
}

TEST(SystemcComputingFatal, ASecondModeRegisterOfARecordedOperator) {
  const auto one = pack(Format::kFp16, Values(32, 1.0));
  Operation operation = recorded(one, 5, 0);
  operation.second_mode_op = 6;
  EXPECT_EQ(refused(operation),
            "operation of op 5: second_mode_op is set without a computation: must be unset");
}

TEST(SystemcComputingFatal, SettingsOutOfRange) {
  EXPECT_EQ(fatal([] { sc::VectorUnit("unit", {}, {.settings = {.fp64_lanes = 65}}, {}, {}); },
                  "/opd/vector_unit/parameters"),
            "settings.fp64_lanes = 65: must be 1..64");
}

TEST(SystemcComputingFatal, LooselyTimedSettingsOutOfRange) {
  EXPECT_EQ(
      fatal([] { sc::LooselyTimedUnit("unit", {.settings = {.datapath_width = 48}}, {}, {}, {}); },
            "/opd/loosely_timed_unit/parameters"),
      "settings.datapath_width = 48: must be a multiple of 32");
}

TEST(SystemcComputingFatal, LooselyTimedComputationThatDoesNotFit) {
  OwnedComputation sum = ones(Kernel::kSum, 64);
  sum.computation.rows = 0;
  sc::LooselyTimedDevice device("device", {});
  bool given = false;
  sc::LooselyTimedUnit unit("unit", {},
                            [&](Operation& operation) {
                              if (std::exchange(given, true)) return sc::SourceAnswer::kEnd;
                              operation = computed(sum, 5, 0);
                              return sc::SourceAnswer::kOperation;
                            },
                            {}, {});
  unit.socket.bind(device.socket);
  EXPECT_EQ(
      fatal([] { sc_core::sc_start(1, sc_core::SC_US); }, "/opd/loosely_timed_unit/operation"),
      "operation of op 5: rows of sum = 0: must be 1 or more");
}

}  // namespace
}  // namespace opd::tb
