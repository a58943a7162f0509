// Testplan: CMP-30 (the lanes of the SystemC model = the reference in every bit of the output, in the
// accumulators' statistic, in what ran and in every clock and byte of its cost: each kernel in each
// format, mode and setting, over stratified random operands), CMP-31 (a fault in one operator of
// either side is found and named). 24 million elements by default, ten times as many with
// OPD_SOAK=full (scripts/test --full).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <systemc>
#include <vector>

#include "opd/reference/compute.hpp"
#include "opd/sc/lane_processor.hpp"
#include "random_computation.hpp"

namespace {

using namespace opd;
using namespace opd::tb;

constexpr std::array kFormats = {Format::kFp16, Format::kBf16, Format::kE4m3, Format::kE5m2,
                                 Format::kFp32};
constexpr std::array kModes = {Mode::kFast, Mode::kStable, Mode::kSafe};
constexpr std::uint64_t kElements = 24'000'000;

std::uint64_t elements_wanted() {
  const char* text = std::getenv("OPD_SOAK");
  return text != nullptr && std::string(text) == "full" ? 10 * kElements : kElements;
}

/// Settings number `i` of those that change what is computed or what it costs.
UnitSettings settings(unsigned i) {
  UnitSettings result;
  result.datapath_width = std::array{512u, 512u, 128u, 96u}[i % 4];
  result.fp64_lanes = std::array{8u, 1u, 5u}[i % 3];
  result.matrix_rows = std::array{16u, 3u}[i % 2];
  result.saturate = i / 2 % 2 != 0;
  result.accumulator = static_cast<AccumulatorChoice>(i / 4 % 3);
  return result;
}

std::string name_of(const Computation& c, Mode mode, const UnitSettings& s) {
  return std::string(traits_of(c.kernel).name) + " " +
         std::string(kFormatNames[static_cast<std::size_t>(c.format)]) + " " +
         std::string(kModeNames[static_cast<std::size_t>(mode)]) + " [" + std::to_string(c.batch) +
         " x " + std::to_string(c.rows) + ", " + std::to_string(c.columns) + "] depth " +
         std::to_string(c.depth) + ", " + std::to_string(s.datapath_width) + " bits, accumulator " +
         std::to_string(static_cast<unsigned>(s.accumulator)) + (s.saturate ? ", saturating" : "");
}

/// What differs first, with both values; empty when nothing does.
std::string difference(const Execution& reference, const Execution& systemc) {
  const auto text = [](const auto& left, const auto& right, const char* field) {
    return std::string(field) + ": reference " + std::to_string(left) + ", systemc " +
           std::to_string(right);
  };
  if (reference.status.format != systemc.status.format)
    return text(unsigned(reference.status.format), unsigned(systemc.status.format), "format");
  if (reference.output.size() != systemc.output.size())
    return text(reference.output.size(), systemc.output.size(), "output bytes");
  const std::size_t width =
      reference.status.format == Format::kFp32                                               ? 4
      : reference.status.format == Format::kE4m3 || reference.status.format == Format::kE5m2 ? 1
                                                                                             : 2;
  for (std::size_t i = 0; i * width < reference.output.size(); ++i) {
    std::uint32_t left = 0, right = 0;
    std::memcpy(&left, reference.output.data() + i * width, width);
    std::memcpy(&right, systemc.output.data() + i * width, width);
    if (left != right) return text(left, right, ("element " + std::to_string(i)).c_str());
  }
  if (!(reference.status == systemc.status)) return "status differs";
  if (reference.accumulators.has_value() != systemc.accumulators.has_value())
    return "accumulators: only one side has a statistic";
  if (reference.accumulators) {
    const TapSummary &left = *reference.accumulators, &right = *systemc.accumulators;
    if (left.max_mag != right.max_mag) return text(left.max_mag, right.max_mag, "max_mag");
    if (left.element_count != right.element_count)
      return text(left.element_count, right.element_count, "accumulator writes");
    if (left.nonfinite_count != right.nonfinite_count)
      return text(left.nonfinite_count, right.nonfinite_count, "non-finite writes");
    if (!(left == right)) return "accumulators: other counts";
    if (reference.accumulator_format != systemc.accumulator_format) return "accumulator format";
  }
  const ExecutionCost &left = reference.cost, &right = systemc.cost;
  if (left.passes != right.passes) return text(left.passes, right.passes, "passes");
  if (left.beats != right.beats) return text(left.beats, right.beats, "beats");
  if (left.cycles != right.cycles) return text(left.cycles, right.cycles, "cycles");
  if (left.bytes_read != right.bytes_read)
    return text(left.bytes_read, right.bytes_read, "bytes read");
  if (left.bytes_written != right.bytes_written)
    return text(left.bytes_written, right.bytes_written, "bytes written");
  return {};
}

class Equality : public ::testing::TestWithParam<Kernel> {};

TEST_P(Equality, EveryFormatModeAndSetting) {
  const std::uint64_t seed = case_seed(0x0BD00 + static_cast<std::uint64_t>(GetParam()));
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomComputation random(seed);
  sc::LaneProcessor lanes;
  const std::uint64_t wanted = elements_wanted() / kKernels.size() + 1;
  std::uint64_t elements = 0, executions = 0;
  // Large ones are rare: many shapes, and now and then operands that fill thousands of beats.
  for (unsigned round = 0; elements < wanted; ++round) {
    const auto size = round % 32 == 31 ? 20000u : std::array{8u, 40u, 700u, 3000u}[round % 4];
    for (const Format format : kFormats) {
      const OwnedComputation owned = random.next(GetParam(), format, size);
      const Computation& c = owned.computation;
      const UnitSettings unit = settings(static_cast<unsigned>(executions % 61));
      for (const Mode mode : kModes) {
        const Execution reference = ref::compute(c, mode, unit);
        const std::string found = difference(reference, lanes.execute(c, mode, unit));
        ASSERT_EQ(found, "") << name_of(c, mode, unit);
        ASSERT_EQ(ref::cost(c, mode, unit), reference.cost) << name_of(c, mode, unit);
        elements += std::uint64_t{c.operands[0].rows} * c.operands[0].columns;
        ++executions;
      }
    }
  }
  std::printf("%s: %llu elements in %llu executions, reference = systemc\n",
              std::string(traits_of(GetParam()).name).c_str(),
              static_cast<unsigned long long>(elements),
              static_cast<unsigned long long>(executions));
  RecordProperty("elements", std::to_string(elements));
}

INSTANTIATE_TEST_SUITE_P(Kernels, Equality, ::testing::ValuesIn([] {
                           std::vector<Kernel> all;
                           for (const KernelTraits& traits : kKernels) all.push_back(traits.kernel);
                           return all;
                         }()),
                         [](const auto& info) { return std::string(traits_of(info.param).name); });

/// One bit of one operand falsified on one side, as a fault in that operator would show: the
/// comparison names the place.
TEST(EqualityFaults, AFaultOfEitherSideIsFoundAndNamed) {
  RandomComputation random(case_seed(77));
  sc::LaneProcessor lanes;
  for (const KernelTraits& traits : kKernels) {
    SCOPED_TRACE(traits.name);
    OwnedComputation owned = random.next(traits.kernel, Format::kFp16, 700);
    for (std::size_t i = 0, next = 0; i < kMaxOperands; ++i) {
      if (!owned.computation.has(i)) continue;
      const std::byte fill = traits.operands[i] == "mask" ? std::byte{1} : std::byte{0x3C};
      std::ranges::fill(owned.bytes[next++], fill);  // about 1 in either format
    }
    owned.computation.attribute = static_cast<float>(traits.attribute_default);
    const Computation& right = owned.computation;
    std::vector<std::byte> falsified(right.operands[0].elements.begin(),
                                     right.operands[0].elements.end());
    falsified[1] ^= std::byte{0x40};  // of the first element: now a NaN
    Computation wrong = right;
    wrong.operands[0].elements = falsified;
    const auto compared = [&](const Computation& in_reference, const Computation& in_systemc) {
      return difference(ref::compute(in_reference, Mode::kFast, {}),
                        lanes.execute(in_systemc, Mode::kFast, {}));
    };
    EXPECT_EQ(compared(right, right), "");
    EXPECT_EQ(compared(wrong, wrong), "");
    EXPECT_EQ(compared(right, wrong).substr(0, 10), "element 0:");
    EXPECT_EQ(compared(wrong, right).substr(0, 10), "element 0:");
  }
}

}  // namespace

int sc_main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
