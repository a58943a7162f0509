// The lanes of the vector unit: casts around every representable number, functions against long
// double, accumulators by hand. Both instruction sets.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "computations.hpp"
#include "opd/sc/accumulator.hpp"
#include "opd/sc/lane_arithmetic.hpp"
#include "opd/sc/lane_processor.hpp"

namespace opd::tb {
namespace {

using sc::InstructionSet;
using sc::LaneProcessor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

std::uint32_t canonical_nan_of(Format format) {
  constexpr std::array<std::uint32_t, 5> kNans = {0x7E00, 0x7FC0, 0x7F, 0x7E, 0x7FC00000};
  return kNans[static_cast<std::size_t>(format)];
}

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets = {InstructionSet::kPortable};
  if (sc::has_instruction_set(InstructionSet::kAvx2)) sets.push_back(InstructionSet::kAvx2);
  return sets;
}

/// Casts numbers through the kernel `cast` in one row and compares the bits.
struct CastCases {
  std::vector<float> in;
  std::vector<std::uint32_t> expected;

  void add(float x, std::uint32_t bits) {
    in.push_back(x);
    expected.push_back(bits);
  }
  void check(Format format, bool saturate) const {
    const auto columns = static_cast<std::uint32_t>(in.size());
    Computation cast{.kernel = Kernel::kCast, .format = format, .rows = 1, .columns = columns};
    cast.operands[0] = {std::as_bytes(std::span(in)), Format::kFp32, 1, columns};
    for (const InstructionSet set : instruction_sets()) {
      const Execution execution =
          LaneProcessor(set).execute(cast, Mode::kFast, {.saturate = saturate});
      ASSERT_EQ(execution.output.size(), in.size() * layout_of(format).bytes);
      for (std::size_t i = 0; i < in.size(); ++i) {
        ASSERT_EQ(element_at(format, execution.output, i), expected[i])
            << in[i] << " to " << kFormatNames[static_cast<std::size_t>(format)] << " set "
            << static_cast<int>(set) << " saturate " << saturate;
      }
    }
  }
};

class SystemcLaneCast : public testing::TestWithParam<std::size_t> {};

// Every finite number of the format, the midpoint above it and the binary32 numbers around that.
TEST_P(SystemcLaneCast, RoundsToNearestEvenAroundEveryMidpoint) {
  const Format format = kAllFormats[GetParam()];
  const Layout layout = layout_of(format);
  const std::uint32_t sign = 1u << (8 * layout.bytes - 1);
  const std::uint32_t largest = bits_of_value(format, largest_of(format));
  // One unit in the last place above the largest finite number, as if exponents had no bound.
  const double above = largest_of(format) + (largest_of(format) - value_of(format, largest - 1));
  for (const bool saturate : {false, true}) {
    const std::uint32_t overflow = saturate                  ? largest
                                   : format == Format::kE4m3 ? 0x7F
                                                             : largest + 1;
    CastCases cases;
    for (std::uint32_t bits = 0; bits <= largest; ++bits) {
      const double value = value_of(format, bits);
      const double next = bits == largest ? above : value_of(format, bits + 1);
      const std::uint32_t up = bits == largest ? overflow : bits + 1;
      const double half = (value + next) / 2;
      const auto middle = static_cast<float>(half);
      ASSERT_EQ(static_cast<double>(middle), half);
      for (const float s : {1.0f, -1.0f}) {
        const std::uint32_t side = s < 0 ? sign : 0;
        const std::uint32_t up_signed = up == canonical_nan_of(format) ? up : up | side;
        cases.add(s * static_cast<float>(value), bits | side);
        cases.add(s * std::nextafter(middle, 0.0f), bits | side);
        cases.add(s * middle, (bits % 2 == 0 ? bits | side : up_signed));
        cases.add(s * std::nextafter(middle, kInfinity), up_signed);
      }
    }
    for (const float s : {1.0f, -1.0f}) {
      const std::uint32_t side = s < 0 ? sign : 0;
      const std::uint32_t outside =
          overflow == canonical_nan_of(format) ? overflow : overflow | side;
      cases.add(s * kInfinity, outside);
      cases.add(s * std::numeric_limits<float>::max(), outside);
      cases.add(s * kNan, canonical_nan_of(format));
    }
    cases.add(std::bit_cast<float>(0xFF800001u), canonical_nan_of(format));
    cases.check(format, saturate);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SystemcLaneCast, testing::Range(std::size_t{0}, std::size_t{4}));

TEST(SystemcLaneCastFp32, KeepsItsBitsAndClipsWhenAsked) {
  CastCases plain, clipped;
  for (const std::uint32_t bits : {0u, 0x80000000u, 1u, 0x007FFFFFu, 0x3F800001u, 0x7F7FFFFFu}) {
    plain.add(std::bit_cast<float>(bits), bits);
    clipped.add(std::bit_cast<float>(bits), bits);
  }
  plain.add(-kInfinity, 0xFF800000u);
  plain.add(std::bit_cast<float>(0xFFC12345u), 0x7FC00000u);
  clipped.add(-kInfinity, 0xFF7FFFFFu);
  clipped.add(kNan, 0x7FC00000u);
  plain.check(Format::kFp32, false);
  clipped.check(Format::kFp32, true);
}

// Every number of a format is decoded to itself.
TEST(SystemcLaneCastFp32, DecodesEveryNumberOfEveryFormat) {
  for (const Format format : {Format::kFp16, Format::kBf16, Format::kE4m3, Format::kE5m2}) {
    const std::uint32_t count = 1u << (8 * layout_of(format).bytes);
    const auto width = static_cast<std::size_t>(layout_of(format).bytes);
    std::vector<std::byte> elements(count * width);
    for (std::uint32_t bits = 0; bits < count; ++bits) {
      std::memcpy(elements.data() + bits * width, &bits, width);
    }
    Computation cast{.kernel = Kernel::kCast, .format = Format::kFp32, .rows = 1, .columns = count};
    cast.operands[0] = {elements, format, 1, count};
    for (const InstructionSet set : instruction_sets()) {
      const Execution execution = LaneProcessor(set).execute(cast, Mode::kFast, {});
      for (std::uint32_t bits = 0; bits < count; ++bits) {
        const double expected = value_of(format, bits);
        const double result =
            value_of(Format::kFp32, element_at(Format::kFp32, execution.output, bits));
        ASSERT_TRUE(result == expected || (std::isnan(result) && std::isnan(expected))) << bits;
        ASSERT_EQ(std::signbit(result), std::signbit(expected) && !std::isnan(expected)) << bits;
      }
    }
  }
}

TEST(SystemcLanes, ScalingRoundsOnce) {
  EXPECT_EQ(sc::scaled_by(1.5f, 3), 12.0f);
  EXPECT_EQ(sc::scaled_by(0x1.000002p0f, -127), 0x1p-127f);         // tie to even
  EXPECT_EQ(sc::scaled_by(0x1.000006p0f, -127), 0x1.000008p-127f);  // tie to even, upwards
  EXPECT_EQ(sc::scaled_by(0x1p-149f, 276), 0x1p127f);
  EXPECT_EQ(sc::scaled_by(0x1p-149f, 277), kInfinity);
  EXPECT_EQ(sc::scaled_by(1.0f, -150), 0.0f);
  EXPECT_EQ(sc::scaled_by(0x1.000002p0f, -150), 0x1p-149f);
}

TEST(SystemcLanes, ExponentialAtItsEnds) {
  EXPECT_EQ(sc::exponential(0.0f), 1.0f);
  EXPECT_EQ(sc::exponential(-0.0f), 1.0f);
  EXPECT_TRUE(std::isfinite(sc::exponential(88.72283f)));
  EXPECT_EQ(sc::exponential(std::nextafter(88.72283f, 100.0f)), kInfinity);
  EXPECT_EQ(sc::exponential(kInfinity), kInfinity);
  EXPECT_EQ(sc::exponential(std::nextafter(-103.97208f, -200.0f)), 0.0f);
  EXPECT_EQ(sc::exponential(-kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(sc::exponential(kNan)));
  EXPECT_TRUE(std::isnan(sc::exponential(-kNan)));
  EXPECT_EQ(sc::exponential(-103.0f), 0x1p-149f);  // e^-103 = 1.4 of the smallest subnormal
}

TEST(SystemcLanes, ExponentialAgainstLongDouble) {
  double worst = 0;
  for (float x = -87.0f; x < 88.7f; x += 0.00371f) {
    const long double exact = std::exp(static_cast<long double>(x));
    const auto error = static_cast<double>(
        std::fabs((static_cast<long double>(sc::exponential(x)) - exact) / exact));
    worst = std::max(worst, error);
  }
  EXPECT_LT(worst, 2.5 * 0x1p-24);  // 2.5 half units in the last place
  EXPECT_GT(worst, 0x1p-26);        // something was compared
}

TEST(SystemcLanes, SigmoidAndGaussAgainstLongDouble) {
  double worst_sigmoid = 0, worst_gauss = 0;
  for (float x = -30.0f; x < 30.0f; x += 0.00171f) {
    const long double exact = x;
    worst_sigmoid = std::max(
        worst_sigmoid, static_cast<double>(std::fabs(static_cast<long double>(sc::sigmoid(x)) -
                                                     1 / (1 + std::exp(-exact)))));
    worst_gauss = std::max(worst_gauss,
                           static_cast<double>(std::fabs(static_cast<long double>(sc::gauss(x)) -
                                                         std::erfc(-exact / std::sqrt(2.0L)) / 2)));
  }
  EXPECT_LT(worst_sigmoid, 1.5e-7);
  EXPECT_LT(worst_gauss, 0.75e-7 + 1.8e-7);  // half of erf's error, and three roundings near 1
  EXPECT_GT(worst_gauss, 1e-9);
  EXPECT_EQ(sc::gauss(kInfinity), 1.0f);
  EXPECT_EQ(sc::gauss(-kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(sc::gauss(kNan)));
}

TEST(SystemcAccumulators, NarrowOnesRoundTwice) {
  // 2048 + 1 + 2^-13 is above the tie in binary32 terms only when it is not rounded first: RN32
  // keeps it (2049.00012), FP16 then rounds up to 2050.
  sc::AccumulatorWatch watch;
  sc::Accumulators sums(AccumulatorFormat::kFp16, watch);
  sums.clear(1);
  const float first = 2048.0f, second = 1.0f + 0x1p-12f, third = 1.0f + 0x1p-20f;
  sums.take(&first, std::size_t{1});
  sums.take(&second, std::size_t{1});
  EXPECT_EQ(sums.value(), 2050.0);
  sums.clear(1);
  sums.take(&first, std::size_t{1});
  sums.take(&third, std::size_t{1});  // RN32 drops 2^-20: a tie, to the even 2048
  EXPECT_EQ(sums.value(), 2048.0);
  const TapSummary summary = watch.summary(AccumulatorFormat::kFp16);
  EXPECT_EQ(summary.element_count, 4u);
  EXPECT_EQ(summary.max_mag, bits_of_value(Format::kFp16, 2050.0));
  EXPECT_EQ(summary.first_nonfinite, kNoElement);
}

TEST(SystemcAccumulators, KahanKeepsWhatASumDrops) {
  sc::AccumulatorWatch watch;
  sc::Accumulators sums(AccumulatorFormat::kFp64, watch);
  sums.clear(1);
  const float one = 1.0f, tiny = 0x1p-54f, minus = -1.0f;
  sums.take(&one, std::size_t{1});
  for (int i = 0; i < 4; ++i)
    sums.take(&tiny, std::size_t{1});  // each one alone is lost in binary64
  sums.take(&minus, std::size_t{1});
  EXPECT_EQ(sums.value(), 0x1p-52);
}

TEST(SystemcAccumulators, KahanAfterAnInfinityHasNoCorrection) {
  sc::AccumulatorWatch watch;
  sc::Accumulators sums(AccumulatorFormat::kFp64, watch);
  sums.clear(1);
  const float values[] = {kInfinity, 1.0f};
  for (const float& value : values) sums.take(&value, std::size_t{1});
  EXPECT_EQ(sums.value(), static_cast<double>(kInfinity));  // not NaN
  const TapSummary summary = watch.summary(AccumulatorFormat::kFp64);
  EXPECT_EQ(summary.nonfinite_count, 2u);
  EXPECT_EQ(summary.first_nonfinite, 0u);
  EXPECT_EQ(summary.max_mag, 0u);
}

TEST(SystemcAccumulators, TreeOfAnOddNumberOfLanes) {
  sc::AccumulatorWatch watch;
  sc::Accumulators sums(AccumulatorFormat::kFp32, watch);
  const float values[] = {1, 2, 4, 8, 16};
  sums.clear(5);
  sums.take(values, std::size_t{5});
  sums.reduce(5);  // 5: 0+3, 1+4; 3: 0+2; 2: 0+1
  EXPECT_EQ(sums.value(), 31.0);
  const TapSummary summary = watch.summary(AccumulatorFormat::kFp32);
  EXPECT_EQ(summary.element_count, 9u);
  EXPECT_EQ(summary.max_mag, std::bit_cast<std::uint32_t>(31.0f));
}

TEST(SystemcRowMaximum, NansZerosAndInfinities) {
  const auto maximum = [](std::vector<float> values) {
    sc::RowMaximum largest;
    largest.clear();
    largest.take(values.data(), values.size());
    return largest.value();
  };
  EXPECT_EQ(maximum({-3, -1, -2}), -1.0f);
  EXPECT_EQ(maximum({-kInfinity, -kInfinity}), -kInfinity);
  EXPECT_EQ(maximum({1, kInfinity}), kInfinity);
  EXPECT_FALSE(std::signbit(maximum({-0.0f, 0.0f})));
  EXPECT_TRUE(std::isnan(maximum({1, -kNan, 3})));
  EXPECT_TRUE(std::isnan(maximum({kInfinity, kNan})));
}

}  // namespace
}  // namespace opd::tb
