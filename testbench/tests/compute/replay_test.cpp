// Testplan: CMP-10 (a closed loop over modes, equal on every path), CMP-11 (a fault in what a path
// computes is found and named), CMP-12 (errors, distances, outcomes and costs by hand), CMP-14 (the
// operators of a stream that computes).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <systemc>

#include "compute.hpp"
#include "metrics.hpp"
#include "opd/reference/compute.hpp"
#include "opd/reference/cpu.hpp"
#include "opd/trace/writer.hpp"
#include "paths/cpu_path.hpp"
#include "paths/rtl_factory.hpp"
#include "paths/simulation.hpp"

namespace {

using namespace opd;
using namespace opd::tb;

constexpr std::uint32_t kRows = 4, kColumns = 8, kDepth = 16;
constexpr std::size_t kSteps = 12, kFirstStep = 3;  // operands from kFirstStep on

void append(std::vector<std::byte>& bytes, std::uint32_t bits) {
  bytes.push_back(static_cast<std::byte>(bits & 0xFF));
  bytes.push_back(static_cast<std::byte>(bits >> 8));
}
std::uint32_t half(double value) { return ref::cast(Format::kFp16, static_cast<float>(value)); }

/// "plain" has statistics alone, "product" is a matmul whose result doubles with every step and passes
/// FP16's limit at step 7, "rows" a sum of squares of ones, "shape" a linear layer without operands.
trace::Trace computing_trace() {
  trace::TraceContent content{.name = "computing", .label = trace::Label::kGradual};
  content.probes = {{.name = "plain", .format = Format::kFp16, .shape = {5}},
                    {.name = "product", .format = Format::kFp16, .shape = {kRows, kColumns}},
                    {.name = "rows", .format = Format::kFp16, .shape = {kRows, 1}},
                    {.name = "shape", .format = Format::kFp16, .shape = {kRows, kColumns}}};
  const auto operand = [](const char* name, std::uint32_t rows, std::uint32_t columns) {
    return trace::TracedOperand{name, Format::kFp16, rows, columns};
  };
  content.operators = {
      {.probe = 1,
       .kernel = Kernel::kMatmul,
       .rows = kRows,
       .columns = kColumns,
       .depth = kDepth,
       .attribute = 1,
       .operands = {operand("a", kRows, kDepth), operand("b", kColumns, kDepth)}},
      {.probe = 3,
       .kernel = Kernel::kLinear,
       .rows = kRows,
       .columns = kColumns,
       .depth = kDepth,
       .operands = {operand("x", kRows, kDepth), operand("weight", kColumns, kDepth)}},
      {.probe = 2,
       .kernel = Kernel::kSumOfSquares,
       .rows = kRows,
       .columns = kColumns,
       .operands = {operand("x", kRows, kColumns)}}};
  for (std::size_t s = 0; s < kSteps; ++s) {
    content.step.push_back(static_cast<std::int64_t>(10 * s));
    // Each of kDepth terms is 2^(s + 5): their sum is 2^(s + 9), and 2^16 at step index 7.
    const double product = std::ldexp(1.0, static_cast<int>(s) + 9);
    const bool overflow = product > 65504;
    content.max_abs.insert(content.max_abs.end(),
                           {1.0f, overflow ? 0.0f : static_cast<float>(product), 8.0f, 1.0f});
    content.nonfinite.insert(content.nonfinite.end(), {0, overflow ? kRows * kColumns : 0, 0, 0});
    if (overflow && !content.first_bad)
      content.first_bad = trace::FirstBad{static_cast<std::uint32_t>(10 * s), "product"};
    if (s < kFirstStep) continue;
    content.operand_step.push_back(static_cast<std::int64_t>(10 * s));
    for (std::uint32_t i = 0; i < kRows * kDepth; ++i)
      append(content.operands["product"]["a"], half(std::ldexp(1.0, static_cast<int>(s))));
    for (std::uint32_t i = 0; i < kColumns * kDepth; ++i)
      append(content.operands["product"]["b"], half(32));
    for (std::uint32_t i = 0; i < kRows * kColumns; ++i)
      append(content.operands["rows"]["x"], half(1));
    for (std::uint32_t i = 0; i < kRows; ++i) append(content.outputs["rows"], half(8));
    for (std::uint32_t i = 0; i < kRows * kColumns; ++i)
      append(content.outputs["product"], half(product));
  }
  return trace::Trace::parse(trace::serialize(content, "computing"), "computing");
}

constexpr std::size_t tag_of(std::size_t step, std::size_t probe) { return 4 * step + probe; }
constexpr std::size_t kComputed = 2 * (kSteps - kFirstStep);

/// Nothing but a non-finite value moves an operator out of FAST.
Config late_config() {
  Config config;
  config.weight_forecast = config.weight_critical = config.weight_jump = 0;
  return config;
}

std::vector<std::size_t> order_of(const PathResult& path) {
  std::vector<std::size_t> order;
  for (const Completion& completion : path.completions) order.push_back(completion.tag);
  return order;
}

// --- CMP-14 ---

TEST(ComputingStream, AccumulatorsAreOperatorsBeyondTheProbes) {
  const trace::Trace trace = computing_trace();
  const OperatorStream operators(trace, 6, true);
  EXPECT_EQ(operators.size(), 4 * kSteps);
  EXPECT_EQ(operators.ops(), 6u);
  EXPECT_EQ(operators.computed_operators(), kComputed);
  EXPECT_EQ(operators.name_of(1), "product");
  EXPECT_EQ(operators.name_of(4), "product/accumulator");
  EXPECT_EQ(operators.name_of(5), "rows/accumulator");
  EXPECT_EQ(operators.probe_of(5), 2u);

  EXPECT_FALSE(operators.at(tag_of(kFirstStep - 1, 1)).computation);
  EXPECT_TRUE(operators.at(tag_of(kFirstStep - 1, 1)).statistic);
  const Operator product = operators.at(tag_of(kFirstStep, 1));
  ASSERT_TRUE(product.computation);
  EXPECT_EQ(product.accumulator_op, 4);
  EXPECT_FALSE(product.statistic);
  EXPECT_FALSE(operators.at(tag_of(kFirstStep, 3)).computation) << "a shape computes nothing";

  const std::size_t accumulator = operators.accumulator_tag(tag_of(kFirstStep, 2));
  EXPECT_TRUE(operators.is_accumulator(accumulator));
  EXPECT_EQ(operators.operator_tag(accumulator), tag_of(kFirstStep, 2));
  EXPECT_EQ(operators.step_index(accumulator), kFirstStep);
  EXPECT_EQ(operators.descriptor(accumulator).op, 5);
  EXPECT_EQ(operators.descriptor(accumulator).step, 10 * kFirstStep);

  const std::vector<std::size_t> order = operators.program_order();
  ASSERT_EQ(order.size(), 4 * kSteps + kComputed);
  const std::size_t first = kFirstStep * 4;
  EXPECT_EQ(order[first + 1], tag_of(kFirstStep, 1));
  EXPECT_EQ(order[first + 2], operators.accumulator_tag(tag_of(kFirstStep, 1)));
  EXPECT_EQ(order[first + 3], tag_of(kFirstStep, 2));
}

TEST(ComputingStream, WithoutComputeNothingIsComputed) {
  const trace::Trace trace = computing_trace();
  const OperatorStream operators(trace, 4);
  EXPECT_FALSE(operators.computes());
  EXPECT_EQ(operators.ops(), 4u);
  EXPECT_TRUE(operators.at(tag_of(kFirstStep, 1)).statistic);
  EXPECT_EQ(operators.program_order().size(), operators.size());
}

TEST(ComputingStream, AccumulatorsNeedRoomInTheDevice) {
  const trace::Trace trace = computing_trace();
  EXPECT_NO_THROW(OperatorStream(trace, 4));
  try {
    const OperatorStream operators(trace, 5, true);
    FAIL() << "6 operators in a device of 5";
  } catch (const trace::TraceError& error) {
    EXPECT_EQ(error.field(), "probes");
    EXPECT_NE(std::string(error.what()).find("4 probes and 2 accumulators"), std::string::npos);
  }
}

// --- CMP-10 ---

struct Paths {
  LockstepResult lockstep;
  PathResult loosely_timed, cpu;
};

Paths run_all(const trace::Trace& trace, const ComputeOptions& compute, unsigned streams,
              const OperandFault* cpu_fault = nullptr) {
  const OperatorStream operators(trace, rtl_parameters().num_ops, true);
  const Config config = late_config();
  // One Simulation a process and set of options: SystemC elaborates once.
  Simulation simulation({.device = rtl_parameters(),
                         .config = config,
                         .compute = compute,
                         .bubbles = 1,
                         .streams = streams});
  Paths paths;
  const auto rtl = make_rtl_device();
  paths.lockstep = simulation.run_lockstep(operators, rtl.get());
  const std::vector<std::size_t> order = order_of(paths.lockstep.systemc);
  paths.loosely_timed = simulation.run_loosely_timed(operators, order);
  paths.cpu = run_cpu(operators, rtl_parameters(), config, order, compute, cpu_fault);
  return paths;
}

void expect_equal(const trace::Trace& trace, const Paths& paths) {
  const OperatorStream operators(trace, rtl_parameters().num_ops, true);
  const PathResult& systemc = paths.lockstep.systemc;
  EXPECT_FALSE(paths.lockstep.divergence);
  EXPECT_EQ(systemc.completions.size(), 4 * kSteps + kComputed);
  for (const PathResult* other : {&paths.loosely_timed, &paths.cpu}) {
    const auto executions = compare_executions(operators, systemc, *other, false);
    EXPECT_EQ(executions.compared, kComputed) << other->path;
    EXPECT_EQ(executions.elements, (kSteps - kFirstStep) * (kRows * kColumns + kRows));
    EXPECT_EQ(executions.mismatches, 0u) << other->path << ": " << executions.first->field;
    EXPECT_EQ(
        compare_streams("systemc", systemc.completions, other->path, other->completions).mismatches,
        0u)
        << other->path;
    for (std::size_t i = 0; i < systemc.completions.size(); ++i) {
      EXPECT_EQ(systemc.completions[i].mode_at_issue, other->completions[i].mode_at_issue)
          << other->path << ", seq " << i;
    }
  }
}

const Execution& execution_of(const PathResult& path, std::size_t tag) {
  for (const ComputedExecution& e : path.executions)
    if (e.tag == tag) return e.execution;
  throw std::out_of_range("no such execution");
}

void expect_closed_loop(unsigned streams) {
  const trace::Trace trace = computing_trace();
  const Paths paths = run_all(trace, {}, streams);
  expect_equal(trace, paths);
  const OperatorStream operators(trace, rtl_parameters().num_ops, true);
  EXPECT_EQ(order_of(paths.lockstep.systemc) == operators.program_order(), streams == 1);
  const auto ran = [&](std::size_t step) -> const Execution& {
    return execution_of(paths.lockstep.systemc, tag_of(step, 1));
  };
  EXPECT_EQ(ran(6).status.mode, Mode::kFast);
  EXPECT_EQ(element_at(Format::kFp16, ran(6).output, 0), half(32768));
  EXPECT_EQ(ran(7).status.mode, Mode::kFast);
  EXPECT_EQ(element_at(Format::kFp16, ran(7).output, 0), 0x7C00u);
  EXPECT_EQ(ran(8).status.mode, Mode::kStable);
  EXPECT_EQ(ran(8).status.format, Format::kBf16);
  EXPECT_EQ(element_at(Format::kBf16, ran(8).output, 0), 0x4800u);  // 2^17
  EXPECT_EQ(execution_of(paths.lockstep.systemc, tag_of(11, 2)).status.mode, Mode::kFast);
}

TEST(Computing, AnOverflowInFastIsFollowedByStableWhichDoesNotOverflow) { expect_closed_loop(1); }

// Here completions of other streams come between an operator and its accumulators.
TEST(Computing, TheLoopIsTheSameWithSeveralStreams) { expect_closed_loop(3); }

// Squares of 32752 overflow in FP16 accumulators; k = 1 / sqrt(Inf) is 0, so the output is finite. The
// accumulators' operator goes into STABLE, and with it the norm.
TEST(Computing, AccumulatorsThatOverflowMoveTheirOperator) {
  trace::TraceContent content{.name = "norm"};
  content.probes = {{.name = "norm", .format = Format::kFp16, .shape = {1, kColumns}}};
  content.operators = {{.probe = 0,
                        .kernel = Kernel::kRmsNorm,
                        .rows = 1,
                        .columns = kColumns,
                        .attribute = 1e-6f,
                        .operands = {{"x", Format::kFp16, 1, kColumns}}}};
  for (std::int64_t step = 0; step < 4; ++step) {
    content.step.push_back(step);
    content.operand_step.push_back(step);
    content.max_abs.push_back(1.0f);
    content.nonfinite.push_back(0);
    for (std::uint32_t i = 0; i < kColumns; ++i)
      append(content.operands["norm"]["x"], half(step < 2 ? 1 : 32752));
  }
  const trace::Trace trace = trace::Trace::parse(trace::serialize(content, "norm"), "norm");
  const Paths paths = run_all(trace, {}, 1);
  const OperatorStream operators(trace, rtl_parameters().num_ops, true);
  EXPECT_EQ(compare_executions(operators, paths.lockstep.systemc, paths.cpu, false).mismatches, 0u);
  EXPECT_EQ(
      compare_executions(operators, paths.lockstep.systemc, paths.loosely_timed, false).mismatches,
      0u);
  const Execution &overflow = execution_of(paths.lockstep.systemc, 2),
                  &after = execution_of(paths.lockstep.systemc, 3);
  EXPECT_EQ(overflow.status.mode, Mode::kFast);
  EXPECT_GT(overflow.accumulators->nonfinite_count, 0u);
  EXPECT_EQ(element_at(Format::kFp16, overflow.output, 0), 0u);
  EXPECT_EQ(after.status.mode, Mode::kStable);
  EXPECT_EQ(after.accumulators->nonfinite_count, 0u);
  EXPECT_EQ(element_at(Format::kBf16, after.output, 0), 0x3F80u);  // 1
}

TEST(Computing, AForcedModeRunsWhateverTheControllerSays) {
  const trace::Trace trace = computing_trace();
  const Paths paths = run_all(
      trace,
      {.force_mode = Mode::kSafe, .accumulator = AccumulatorChoice::kNarrow, .saturate = true}, 1);
  expect_equal(trace, paths);
  for (const ComputedExecution& e : paths.lockstep.systemc.executions) {
    EXPECT_EQ(e.execution.status.mode, Mode::kSafe);
    EXPECT_TRUE(e.execution.status.saturating && e.execution.status.compensated);
  }
}

// --- CMP-11 ---

TEST(Computing, AFaultyOperandIsNamedAtItsOperatorStepModeAndElement) {
  const trace::Trace trace = computing_trace();
  const OperatorStream operators(trace, rtl_parameters().num_ops, true);
  const OperandFault fault = operand_fault(operators, {});
  EXPECT_EQ(fault.tag, tag_of(kFirstStep, 1));
  const Paths paths = run_all(trace, {}, 1, &fault);
  const auto executions = compare_executions(operators, paths.lockstep.systemc, paths.cpu, false);
  EXPECT_EQ(executions.mismatches, 1u);
  ASSERT_TRUE(executions.first && executions.first->record);
  EXPECT_EQ(executions.first->record->op, 1);
  EXPECT_EQ(executions.first->record->step, 10 * kFirstStep);
  EXPECT_EQ(executions.first->record->seq, 4 * kFirstStep + 1);
  EXPECT_EQ(executions.first->field, "output element 0 in FAST");
  EXPECT_EQ(executions.first->left_value, "0x6C00 (4096)");  // 2^(3 + 9)
  EXPECT_NE(executions.first->right_value, executions.first->left_value);
  EXPECT_EQ(
      compare_executions(operators, paths.lockstep.systemc, paths.loosely_timed, false).mismatches,
      0u);
}

TEST(CompareExecution, NamesTheFirstFieldThatDiffers) {
  const trace::Trace trace = computing_trace();
  const OperatorStream operators(trace, 6, true);
  const std::size_t tag = tag_of(kFirstStep, 1);
  const Execution good = ref::compute(*operators.at(tag).computation, Mode::kSafe);
  EXPECT_FALSE(compare_execution(operators, tag, "a", good, "b", good));
  const auto field_of = [&](auto change) {
    Execution bad = good;
    change(bad);
    const auto difference = compare_execution(operators, tag, "a", good, "b", bad);
    return difference ? difference->field : "";
  };
  EXPECT_EQ(field_of([](Execution& e) { e.status.mode = Mode::kFast; }), "mode");
  EXPECT_EQ(field_of([](Execution& e) { e.status.format = Format::kFp16; }),
            "output format in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { e.status.accumulator = AccumulatorFormat::kFp32; }),
            "accumulator in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { e.status.accumulates = false; }), "accumulates in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { e.status.compensated = false; }), "compensated in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { e.status.compressed = false; }), "compressed in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { e.status.saturating = true; }), "saturating in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { e.output.pop_back(); }), "output bytes in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { e.output[7] ^= std::byte{1}; }),
            "output element 3 in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { e.accumulators.reset(); }), "accumulators in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { ++e.accumulators->max_mag; }),
            "accumulators' max_mag in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { ++e.accumulators->element_count; }),
            "accumulators' element_count in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { ++e.accumulators->nonfinite_count; }),
            "accumulators' nonfinite_count in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { e.accumulators->first_nonfinite = 0; }),
            "accumulators' first_nonfinite in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { ++e.accumulators->saturated_count; }),
            "accumulators' saturated_count in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { ++e.accumulators->subnormal_count; }),
            "accumulators' subnormal_count in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { ++e.accumulators->zero_count; }),
            "accumulators' zero_count in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { e.accumulator_format = Format::kFp16; }),
            "accumulator statistic's format in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { ++e.cost.passes; }), "passes in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { ++e.cost.beats; }), "beats in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { ++e.cost.cycles; }), "cycles in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { ++e.cost.bytes_read; }), "bytes read in SAFE");
  EXPECT_EQ(field_of([](Execution& e) { ++e.cost.bytes_written; }), "bytes written in SAFE");
}

TEST(CompareExecutions, AMissingOneIsAMismatchUnlessItMayBe) {
  const trace::Trace trace = computing_trace();
  const OperatorStream operators(trace, 6, true);
  PathResult left{.path = "systemc"}, right{.path = "cpu"};
  for (std::size_t step = kFirstStep; step < kSteps; ++step) {
    const std::size_t tag = tag_of(step, 2);
    left.executions.push_back({tag, ref::compute(*operators.at(tag).computation, Mode::kFast)});
  }
  right.executions = left.executions;
  right.executions.erase(right.executions.begin() + 2);
  for (const bool swapped : {false, true}) {
    const PathResult &a = swapped ? right : left, &b = swapped ? left : right;
    const auto strict = compare_executions(operators, a, b, false);
    EXPECT_EQ(strict.mismatches, 1u);
    ASSERT_TRUE(strict.first && strict.first->record);
    EXPECT_EQ(strict.first->field, "execution");
    EXPECT_EQ(strict.first->left_value, swapped ? "missing" : "present");
    EXPECT_EQ(strict.first->record->step, 10 * (kFirstStep + 2));
    EXPECT_EQ(compare_executions(operators, a, b, true).mismatches, 0u);
  }
}

// --- CMP-12 ---

std::vector<std::byte> halves(std::initializer_list<std::uint32_t> bits) {
  std::vector<std::byte> bytes;
  for (const std::uint32_t b : bits) append(bytes, b);
  return bytes;
}

TEST(ComputeError, IsRelativeAndInUnitsInTheLastPlace) {
  // 1 + 2^-10 for 1: one unit. 2 for 2. The smallest subnormal for 0: one unit, and no relative
  // error. Inf, and a value that is Inf in binary64, are left out.
  const auto output = halves({0x3C01, 0x4000, 0x0001, 0x7C00, 0x3C00});
  const std::array<double, 5> exact = {1, 2, 0, 1e6, std::numeric_limits<double>::infinity()};
  const ComputeError error = error_of(Format::kFp16, output, exact);
  EXPECT_EQ(error.elements, 3u);
  EXPECT_EQ(error.relative_elements, 2u);
  EXPECT_EQ(error.largest_relative, std::ldexp(1.0, -10));
  EXPECT_EQ(error.mean_relative, std::ldexp(1.0, -11));
  EXPECT_EQ(error.largest_ulps, 1.0);
  EXPECT_EQ(error.mean_ulps, 2.0 / 3);
  EXPECT_FALSE(error_of(Format::kFp16, halves({0x7E00}), std::array{1.0}).largest_ulps);
  // A unit is that of the exact value: just below 1 it is half as large.
  const double below = std::nextafter(1.0, 0.0);
  EXPECT_NEAR(*error_of(Format::kFp16, halves({0x3C01}), std::array{below}).largest_ulps, 2.0,
              1e-9);
  // E4M3 has 3 significand bits: 448 for 464 is half a unit of 32.
  const std::array output8 = {std::byte{0x7E}};
  EXPECT_EQ(error_of(Format::kE4m3, output8, std::array{464.0}).largest_ulps, 0.5);
}

TEST(FrameworkDifference, IsByTheNumbersThatLieBetween) {
  const auto computed = halves({0x3C00, 0x3C00, 0x3C00, 0x3C00, 0x3C00, 0x3C00, 0x0000, 0x8001,
                                0x7C00, 0x7C00, 0x7E00, 0x7C00});
  const auto written = halves({0x3C00, 0x3C01, 0x3BFE, 0x3C04, 0x3C08, 0x3C09, 0x8000, 0x0001,
                               0x7C00, 0x7BFF, 0xFE01, 0xFC00});
  const FrameworkDifference difference = difference_of(Format::kFp16, computed, written);
  EXPECT_EQ(difference.elements, 12u);
  EXPECT_EQ(difference.different, 9u);  // all but 1, Inf and NaN, whatever the NaN's bits
  // The two zeros are no number apart, the two smallest subnormals two.
  const std::array<std::uint64_t, 7> expected = {4, 1, 2, 1, 1, 1, 2};
  EXPECT_EQ(difference.distances, expected);
}

TEST(ComputeAnswers, AreOfEveryModeAndEveryStep) {
  const trace::Trace trace = computing_trace();
  const OperatorStream operators(trace, rtl_parameters().num_ops, true);
  const PathResult cpu =
      run_cpu(operators, rtl_parameters(), late_config(), operators.program_order());
  const UnitSettings settings;
  const ComputeResult result = answer_compute(operators, cpu, cpu, std::nullopt, settings,
                                              std::nullopt, [](std::size_t, std::size_t) {});
  ASSERT_EQ(result.operators.size(), 3u);
  const OperatorAnswer &product = result.operators[0], &shape = result.operators[1],
                       &rows = result.operators[2];
  ASSERT_EQ(product.steps.size(), kSteps - kFirstStep);
  EXPECT_EQ(product.first_overflow[0], 70u);
  EXPECT_FALSE(product.first_overflow[1] || product.first_overflow[2]);
  EXPECT_EQ(product.first_issue[1], 80u);
  EXPECT_EQ(product.lead_steps, 0u);
  EXPECT_EQ(product.issued[0], 8u);
  EXPECT_EQ(product.issued[1], 4u);
  EXPECT_EQ(product.accumulator_op, 4);
  for (const StepAnswer& step : product.steps) {
    EXPECT_EQ(step.overflow, step.step == 70);
    EXPECT_EQ(step.modes[0].overflow, step.step >= 70);
    EXPECT_EQ(step.modes[0].nonfinite, step.step >= 70 ? kRows * kColumns : 0u);
    const double exact = std::ldexp(1.0, static_cast<int>(step.step / 10) + 9);
    for (const Mode mode : {Mode::kStable, Mode::kSafe}) {
      const ModeOutcome& outcome = step.modes[static_cast<std::size_t>(mode)];
      EXPECT_EQ(outcome.largest, exact);
      EXPECT_EQ(outcome.error.largest_ulps, 0.0);
      EXPECT_EQ(outcome.error.elements, kRows * kColumns);
    }
    EXPECT_EQ(step.modes[1].accumulator_largest, exact);  // of SAFE: compressed to 1 x 1, 16 terms
    EXPECT_EQ(step.modes[2].accumulator_largest, 16.0);
    ASSERT_TRUE(step.framework);
    EXPECT_EQ(step.framework->different, 0u);
    EXPECT_TRUE(step.framework->cause.empty());
  }
  EXPECT_TRUE(shape.steps.empty());
  EXPECT_EQ(shape.issued[0], kSteps);
  EXPECT_EQ(rows.issued[0], kSteps);
  // docs/vector_unit.md: one tile of 16 deep and its write-back of 2 beats, one a row of its 4.
  EXPECT_EQ(product.cost[0].cycles, kDepth + kRows);
  const auto cycles = [&](std::size_t mode) {
    return product.cost[mode].cycles + shape.cost[mode].cycles + rows.cost[mode].cycles;
  };
  EXPECT_EQ(result.cost.executions, 3 * kSteps);
  EXPECT_EQ(result.cost.all_fast, kSteps * cycles(0));
  EXPECT_EQ(result.cost.all_safe, kSteps * cycles(2));
  EXPECT_EQ(result.cost.as_issued,
            kSteps * cycles(0) + 4 * (product.cost[1].cycles - product.cost[0].cycles));
  EXPECT_EQ(result.cost.culprit, 0);
  EXPECT_EQ(result.cost.culprit_safe,
            kSteps * (cycles(0) + product.cost[2].cycles - product.cost[0].cycles));

  // An incident names the culprit, also by its accumulators.
  for (const std::uint16_t op : {std::uint16_t{2}, std::uint16_t{5}}) {
    EXPECT_EQ(answer_compute(operators, cpu, cpu, op, settings, std::nullopt,
                             [](std::size_t, std::size_t) {})
                  .cost.culprit,
              2);
  }
}

TEST(Metrics, AccumulatorsHaveIncidentsOfTheirOwn) {
  const trace::Trace trace = computing_trace();
  const OperatorStream operators(trace, 6, true);
  std::vector<Completion> completions;
  completions.push_back({.tag = operators.accumulator_tag(tag_of(kFirstStep, 2)),
                         .record = {.step = 30,
                                    .op = 5,
                                    .format = static_cast<std::uint8_t>(Format::kFp32),
                                    .mode = static_cast<std::uint8_t>(Mode::kStable),
                                    .nonfinite_count = 1,
                                    .risk = 255}});
  const DetectionQuality quality = assess(operators, completions, {});
  ASSERT_TRUE(quality.first);
  EXPECT_EQ(quality.first->op, 5);
  const auto engines =
      compare_engines(operators, completions, quality.first->op, rtl_parameters(), {});
  ASSERT_EQ(engines.size(), 3u);
  for (const EngineDetection& engine : engines) {
    ASSERT_TRUE(engine.incident);
    EXPECT_EQ(engine.incident->step, 30u);
  }
}

}  // namespace

int sc_main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
