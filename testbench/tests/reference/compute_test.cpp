// The reference's vector unit against results worked out by hand, casts against the order of the
// formats' values, the functions of a lane against the C library in binary64.
#include "opd/reference/compute.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>

#include "computation_draw.hpp"
#include "opd/reference/compute/functions.hpp"

namespace opd {
namespace {

using tb::decode;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::array<std::uint32_t, 5> kNanBits = {0x7E00, 0x7FC0, 0x7F, 0x7E, 0x7FC00000};

/// Bits of a value that the format holds, found among its patterns.
std::uint32_t bits_of_value(Format format, double value) {
  if (std::isnan(value)) return kNanBits[static_cast<unsigned>(format)];
  if (format == Format::kFp32) return std::bit_cast<std::uint32_t>(static_cast<float>(value));
  for (std::uint32_t bits = 0; bits < 1u << (8 * tb::element_size(format)); ++bits) {
    const double candidate = decode(format, bits);
    if (candidate == value && std::signbit(candidate) == std::signbit(value)) return bits;
  }
  throw std::logic_error("the format has no " + std::to_string(value));
}

using Values = std::vector<double>;

/// Operands as values; every one has `columns` columns and as many rows as that gives.
struct Case {
  Kernel kernel;
  Format format;
  std::uint32_t columns;
  Values x;
  Values second{};
  Values third{};
  double attribute = std::numeric_limits<double>::quiet_NaN();  ///< NaN: the default

  [[nodiscard]] tb::Owned owned() const {
    tb::Owned owned;
    Computation& c = owned.computation;
    c.kernel = kernel;
    c.format = format;
    c.columns = columns;
    c.rows = static_cast<std::uint32_t>(x.size()) / columns;
    c.attribute =
        static_cast<float>(std::isnan(attribute) ? traits_of(kernel).attribute_default : attribute);
    const std::array<const Values*, 3> values = {&x, &second, &third};
    for (std::size_t i = 0; i < 3; ++i) {
      if (values[i]->empty()) continue;
      std::vector<std::uint32_t> bits;
      for (const double value : *values[i]) bits.push_back(bits_of_value(format, value));
      owned.set(i, format, static_cast<std::uint32_t>(bits.size()) / columns, columns, bits);
    }
    return owned;
  }
};

Values values_of(const Execution& execution) {
  Values values;
  const Format format = execution.status.format;
  for (std::size_t k = 0; k < execution.output.size() / tb::element_size(format); ++k) {
    values.push_back(decode(format, tb::load_bits(format, execution.output, k)));
  }
  return values;
}

Values run(const tb::Owned& owned, Mode mode, const UnitSettings& settings = {}) {
  return values_of(ref::compute(owned.computation, mode, settings));
}
Values run(const Case& test, Mode mode, const UnitSettings& settings = {}) {
  return run(test.owned(), mode, settings);
}

/// Equal values, equal signs of zero, NaN for NaN.
void expect_values(const Values& got, const Values& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    if (std::isnan(wanted[k])) {
      EXPECT_TRUE(std::isnan(got[k])) << k << ": " << got[k];
    } else {
      EXPECT_EQ(got[k], wanted[k]) << k;
      EXPECT_EQ(std::signbit(got[k]), std::signbit(wanted[k])) << k;
    }
  }
}

double pow2(int n) { return std::ldexp(1.0, n); }

// ---- Casts

TEST(ReferenceComputeCast, EveryPatternHasItsValue) {
  std::size_t compared = 0;
  for (const Format format : tb::kFormats) {
    if (format == Format::kFp32) continue;
    for (std::uint32_t bits = 0; bits < 1u << (8 * tb::element_size(format)); ++bits) {
      const double wanted = decode(format, bits), got = ref::to_double(format, bits);
      ASSERT_TRUE(got == wanted || (std::isnan(got) && std::isnan(wanted))) << bits;
      ASSERT_TRUE(std::isnan(got) || std::signbit(got) == std::signbit(wanted)) << bits;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 2u * 65536 + 2u * 256);
}

// Between neighbouring values the cast turns at the midpoint, which goes to the even pattern. The
// value above the largest is the one that the format would have with another exponent.
TEST(ReferenceComputeCast, EveryMidpointAndItsNeighbours) {
  std::size_t compared = 0;
  for (const Format format : tb::kFormats) {
    if (format == Format::kFp32) continue;
    const std::uint32_t largest = bits_of_value(format, tb::max_finite(format));
    const std::uint32_t sign = 1u << (8 * tb::element_size(format) - 1);
    for (std::uint32_t m = 0; m <= largest; ++m) {
      const double low = decode(format, m);
      const double high = m < largest ? decode(format, m + 1) : low + (low - decode(format, m - 1));
      const float middle = static_cast<float>((low + high) / 2);
      ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
      const float below = std::nextafter(middle, 0.0f);
      const float above = std::nextafter(middle, std::numeric_limits<float>::infinity());
      const bool top = m == largest;
      const std::uint32_t overflow = format == Format::kE4m3 ? 0x7F : largest + 1;
      const auto expect = [&](float x, bool up) {
        const std::uint32_t rounded = up ? top ? overflow : m + 1 : m;
        ASSERT_EQ(ref::cast(format, x), rounded) << m << ' ' << x;
        ASSERT_EQ(ref::cast(format, x, true), up && top ? largest : rounded) << m << ' ' << x;
        // The NaN of E4M3 has no sign.
        const bool nan = up && top && format == Format::kE4m3;
        ASSERT_EQ(ref::cast(format, -x), nan ? 0x7F : rounded | sign) << m << ' ' << -x;
        ASSERT_EQ(ref::cast(format, -x, true), (up && top ? largest : rounded) | sign);
        compared += 4;
      };
      expect(static_cast<float>(low), false);
      expect(below, false);
      expect(middle, m % 2 == 1);
      expect(above, true);
    }
  }
  EXPECT_EQ(compared, 16u * (0x7C00 + 0x7F80 + 0x7F + 0x7C));
}

TEST(ReferenceComputeCast, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::bit_cast<float>(0xFFC12345u);  // sign and payload go
  const std::map<Format, std::array<std::uint32_t, 4>> wanted = {
      // +Inf, -Inf, +Inf saturating, -0
      {Format::kFp16, {0x7C00, 0xFC00, 0x7BFF, 0x8000}},
      {Format::kBf16, {0x7F80, 0xFF80, 0x7F7F, 0x8000}},
      {Format::kE4m3, {0x7F, 0x7F, 0x7E, 0x80}},
      {Format::kE5m2, {0x7C, 0xFC, 0x7B, 0x80}},
      {Format::kFp32, {0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x80000000}}};
  for (const auto& [format, bits] : wanted) {
    EXPECT_EQ(ref::cast(format, infinity), bits[0]);
    EXPECT_EQ(ref::cast(format, -infinity), bits[1]);
    EXPECT_EQ(ref::cast(format, infinity, true), bits[2]);
    EXPECT_EQ(ref::cast(format, -0.0f), bits[3]);
    EXPECT_EQ(ref::cast(format, nan), kNanBits[static_cast<unsigned>(format)]);
    EXPECT_EQ(ref::cast(format, nan, true), kNanBits[static_cast<unsigned>(format)]);
  }
  EXPECT_EQ(ref::cast(Format::kE4m3, 464.0f), 0x7Eu);  // a tie that goes to 448
  EXPECT_EQ(ref::cast(Format::kE4m3, std::nextafter(464.0f, 465.0f)), 0x7Fu);
}

// ---- Functions of a lane

/// Distance in units of the last place of the correct result (at least that of the smallest
/// subnormal).
double error_ulp(float got, double wanted) {
  const float rounded = static_cast<float>(wanted);
  if (std::isnan(wanted)) return std::isnan(got) ? 0 : kInfinity;
  if (std::isinf(rounded) || std::isinf(got)) return got == rounded ? 0 : kInfinity;
  const double ulp = std::max(pow2(-149), pow2(std::ilogb(wanted == 0 ? 1e-300 : wanted) - 23));
  return std::fabs(static_cast<double>(got) - wanted) / ulp;
}

TEST(ReferenceComputeFunctions, ExpEverywhere) {
  double largest = 0;
  std::size_t compared = 0;
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFu; bits += 997) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (x > 88.72283f) {  // the last number whose exponential is finite
      ASSERT_EQ(ref::lanes::exp(x), std::numeric_limits<float>::infinity()) << x;
    } else {
      largest = std::max(largest, error_ulp(ref::lanes::exp(x), std::exp(double{x})));
    }
    ++compared;
  }
  EXPECT_LE(largest, 1.0);
  EXPECT_GT(compared, 4'000'000u);
  RecordProperty("largest_error_ulp", std::to_string(largest));
}

TEST(ReferenceComputeFunctions, ExpAtItsEnds) {
  const auto at = [](std::uint32_t bits) {
    return std::bit_cast<std::uint32_t>(ref::lanes::exp(std::bit_cast<float>(bits)));
  };
  EXPECT_EQ(at(0x00000000), 0x3F800000u);
  EXPECT_EQ(at(0x80000000), 0x3F800000u);
  EXPECT_LT(at(0x42B17217), 0x7F800000u);  // e^88.72283 is below 2^128
  EXPECT_EQ(at(0x42B17218), 0x7F800000u);
  EXPECT_EQ(at(0x7F800000), 0x7F800000u);
  EXPECT_EQ(at(0xC2CFF1B4), 0x00000001u);  // above half of the smallest subnormal
  EXPECT_EQ(at(0xC2CFF1B5), 0x00000000u);  // -103.97208: just below
  EXPECT_EQ(at(0xC2CFF1B6), 0x00000000u);
  EXPECT_EQ(at(0xFF800000), 0x00000000u);
  EXPECT_GT(at(0x7FC00001), 0x7F800000u);
  EXPECT_GT(at(0xFF800001) & 0x7FFFFFFFu, 0x7F800000u);
}

TEST(ReferenceComputeFunctions, GaussAndSigmoid) {
  double gauss = 0, sigmoid = 0;
  for (int k = -400000; k <= 400000; ++k) {
    const float x = static_cast<float>(k) * 0.00005f;
    gauss = std::max(gauss, std::fabs(double{ref::lanes::gauss(x)} -
                                      0.5 * std::erfc(-double{x} / std::sqrt(2.0))));
    sigmoid = std::max(sigmoid,
                       std::fabs(double{ref::lanes::sigmoid(x)} - 1 / (1 + std::exp(-double{x}))));
  }
  // Half of the 1.5e-7 that the formula is off for erf, and binary32's roundings around 1.
  EXPECT_LE(gauss, 0.75e-7 + 3 * pow2(-24));
  EXPECT_LE(sigmoid, 3 * pow2(-24));
  EXPECT_EQ(ref::lanes::gauss(std::numeric_limits<float>::infinity()), 1.0f);
  EXPECT_EQ(ref::lanes::gauss(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(ref::lanes::rsqrt(0.0f), std::numeric_limits<float>::infinity());
  EXPECT_EQ(ref::lanes::rsqrt(-0.0f), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(ref::lanes::rsqrt(-1.0f)));
  EXPECT_EQ(ref::lanes::rsqrt(std::numeric_limits<float>::infinity()), 0.0f);
}

// ---- Element-wise kernels

TEST(ReferenceComputeElementwise, RoundsOnceToTheOutput) {
  // 1 + 2^-11 is halfway between 1 and 1 + 2^-10; 65504 + 16 halfway to what would be 65536.
  const Case add{Kernel::kAdd,
                 Format::kFp16,
                 4,
                 {1, 1 + pow2(-10), 65504, -65504},
                 {pow2(-11), pow2(-11), 16, -32}};
  expect_values(run(add, Mode::kFast), {1, 1 + pow2(-9), kInfinity, -kInfinity});
  expect_values(run(add, Mode::kFast, {.saturate = true}), {1, 1 + pow2(-9), 65504, -65504});
  // BF16 has 8 bits and a range: 65520 rounds to 2^16.
  expect_values(run(add, Mode::kStable), {1, 1, 65536, -65536});
  expect_values(run(add, Mode::kSafe), {1, 1, 65536, -65536});
  const Case subtract{Kernel::kSubtract, Format::kE4m3, 3, {448, 1.125, 0}, {-16, 1, 0}};
  expect_values(run(subtract, Mode::kFast), {448, 0.125, 0});
  const Case multiply{Kernel::kMultiply, Format::kE5m2, 3, {57344, -3, pow2(-16)}, {2, 0, 0.5}};
  expect_values(run(multiply, Mode::kFast), {kInfinity, -0.0, 0});  // 2^-17: a tie that goes to 0
  const Case cast{Kernel::kCast, Format::kFp16, 3, {-0.0, 65504, kNan}};
  expect_values(run(cast, Mode::kFast), {-0.0, 65504, kNan});
}

TEST(ReferenceComputeElementwise, MultiplyAddIsFused) {
  // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24; binary32 would drop the last bit before the addition.
  const double x = 1 + pow2(-12);
  const Case test{Kernel::kMultiplyAdd, Format::kFp32, 1, {x}, {x}, {-(1 + pow2(-11))}};
  expect_values(run(test, Mode::kFast), {pow2(-24)});
}

TEST(ReferenceComputeElementwise, FunctionsByHand) {
  const Format f = Format::kFp16;
  expect_values(run({Kernel::kScale, f, 3, {3, -kInfinity, 0.5}, {}, {}, 0.25}, Mode::kFast),
                {0.75, -kInfinity, 0.125});
  expect_values(run({Kernel::kRelu, f, 5, {-1, 2, -0.0, kNan, kInfinity}}, Mode::kFast),
                {0, 2, 0, kNan, kInfinity});
  expect_values(run({Kernel::kSquare, f, 3, {-3, 256, pow2(-13)}}, Mode::kFast),
                {9, kInfinity, 0});  // 2^-26 is below half of 2^-24
  expect_values(run({Kernel::kExp, f, 5, {0, 12, -kInfinity, kNan, -20}}, Mode::kFast),
                {1, kInfinity, 0, kNan, 0});
  expect_values(run({Kernel::kReciprocal, f, 4, {4, 0, -0.0, 3}}, Mode::kFast),
                {0.25, kInfinity, -kInfinity, 1365 * pow2(-12)});  // 1/3 in 11 bits
  expect_values(run({Kernel::kRsqrt, f, 4, {4, 0, -1, 16}}, Mode::kFast),
                {0.5, kInfinity, kNan, 0.25});
  for (const Kernel kernel : {Kernel::kGelu, Kernel::kGeluTanh, Kernel::kSilu}) {
    expect_values(run({kernel, f, 5, {0, -kInfinity, kInfinity, kNan, 64}}, Mode::kFast),
                  {0, -0.0, kInfinity, kNan, 64});
  }
  // gelu(1) = 0.841345, silu(1) = 0.731059, gelu_tanh(1) = 0.841192, to FP16's step of 2^-11.
  expect_values(run({Kernel::kGelu, f, 1, {1}}, Mode::kFast), {1723 * pow2(-11)});
  expect_values(run({Kernel::kSilu, f, 1, {1}}, Mode::kFast), {1497 * pow2(-11)});
  expect_values(run({Kernel::kGeluTanh, f, 1, {1}}, Mode::kFast), {1723 * pow2(-11)});
}

TEST(ReferenceComputeElementwise, RowsOfAnOperandRepeat) {
  expect_values(
      run({Kernel::kAdd, Format::kFp16, 2, {1, 2, 3, 4, 5, 6}, {10, 20, 30, 40}}, Mode::kFast),
      {11, 22, 33, 44, 15, 26});
}

// ---- Sums

TEST(ReferenceComputeSum, TheThreeModesGiveThreeResults) {
  // Lane 0 of two takes 2^26, 20 and -2^26. BF16 keeps 8 bits of the first sum, binary32 24 of them
  // (a tie between 16 and 24, to the even 16), SAFE divides by 2^26 and adds in binary64.
  const Case test{Kernel::kSum, Format::kBf16, 6, {pow2(26), 0, 20, 0, -pow2(26), 0}};
  const UnitSettings two_lanes{.datapath_width = 32};
  expect_values(run(test, Mode::kFast, two_lanes), {0});
  expect_values(run(test, Mode::kStable, two_lanes), {16});
  expect_values(run(test, Mode::kSafe, two_lanes), {20});
}

TEST(ReferenceComputeSum, SquaresOverflowInFastAlone) {
  // 200^2 = 40000 in two lanes; 80000 is no FP16 number. BF16's step there is 512.
  const Case test{Kernel::kSumOfSquares, Format::kFp16, 2, {200, 200}};
  const tb::Owned owned = test.owned();
  expect_values(run(owned, Mode::kFast), {kInfinity});
  expect_values(run(owned, Mode::kFast, {.saturate = true}), {65504});
  expect_values(run(owned, Mode::kFast, {.accumulator = AccumulatorChoice::kWide}), {kInfinity});
  expect_values(run(owned, Mode::kStable), {79872});
  expect_values(run(owned, Mode::kSafe), {79872});
  // Two writes of lanes and 31 of the tree, the last of which is Inf.
  const TapSummary watched = *ref::compute(owned.computation, Mode::kFast).accumulators;
  EXPECT_EQ(watched, (TapSummary{.max_mag = 0x78E2,  // 40000
                                 .element_count = 33,
                                 .nonfinite_count = 1,
                                 .first_nonfinite = 0}));
  // 1.5625^2 * 2 in binary32, divided by 2^14: what SAFE's accumulators hold.
  const Execution safe = ref::compute(owned.computation, Mode::kSafe);
  EXPECT_EQ(safe.accumulator_format, Format::kFp32);
  EXPECT_EQ(*safe.accumulators, (TapSummary{.max_mag = std::bit_cast<std::uint32_t>(4.8828125f),
                                            .element_count = 2 + 2 * 31,
                                            .first_nonfinite = kNoElement}));
}

TEST(ReferenceComputeSum, TreeOfSixLanes) {
  // 96 bits: 6 lanes, h = 3, 2, 1. Lane 1 meets lane 4 before lane 0 sees either: 2048 + 1 would
  // round to 2048 each time.
  const Case test{Kernel::kSum, Format::kFp16, 6, {2048, 1, 0, 1, 1, 0}};
  const tb::Owned owned = test.owned();
  expect_values(run(owned, Mode::kFast, {.datapath_width = 96}), {2050});
  const Execution watched = ref::compute(owned.computation, Mode::kFast, {.datapath_width = 96});
  EXPECT_EQ(watched.accumulators->element_count, 6u + 5u);
  EXPECT_EQ(watched.accumulators->max_mag, bits_of_value(Format::kFp16, 2050));
  EXPECT_EQ(watched.accumulator_format, Format::kFp16);
}

TEST(ReferenceComputeSum, TreeOfThirtyTwoLanes) {
  // Elements 16 and 48 meet in lane 16, and lane 16 meets lane 0 first; 32 is lost in lane 0.
  Values x(64, 0.0);
  x[0] = 2048;
  x[16] = x[32] = x[48] = 1;
  const tb::Owned owned = Case{Kernel::kSum, Format::kFp16, 64, x}.owned();
  expect_values(run(owned, Mode::kFast), {2050});
  expect_values(run(owned, Mode::kFast, {.accumulator = AccumulatorChoice::kWide}),
                {2052});  // 2051, a tie
  EXPECT_EQ(ref::compute(owned.computation, Mode::kFast).accumulators->element_count, 64u + 31u);
}

TEST(ReferenceComputeSum, KahanKeepsWhatBinary64Loses) {
  // One lane: 2^60 + 100 + 100 - 2^60. Binary64 has steps of 256 there and would give 0; the
  // compensation collects the two to 200, which becomes one step.
  const tb::Owned owned =
      Case{Kernel::kSum, Format::kFp32, 4, {pow2(60), 100, 100, -pow2(60)}}.owned();
  const UnitSettings one_lane{.datapath_width = 32};
  expect_values(run(owned, Mode::kSafe, one_lane), {256});
  expect_values(run(owned, Mode::kStable, one_lane), {0});
  const Execution execution = ref::compute(owned.computation, Mode::kSafe, one_lane);
  EXPECT_EQ(*execution.accumulators,
            (TapSummary{.max_mag = 0x3F800000,  // 1 + 2^-52 of the compressed operand, in binary32
                        .element_count = 4,
                        .first_nonfinite = kNoElement}));
}

TEST(ReferenceComputeSum, CompressionKeepsTheIntermediateFinite) {
  const tb::Owned owned =
      Case{Kernel::kSum, Format::kFp32, 3, {pow2(127), pow2(127), -pow2(127)}}.owned();
  const UnitSettings one_lane{.datapath_width = 32};
  expect_values(run(owned, Mode::kStable, one_lane), {kInfinity});
  expect_values(run(owned, Mode::kSafe, one_lane), {pow2(127)});
  // A subnormal operand is brought up: s = -149.
  const tb::Owned tiny = Case{Kernel::kSumOfSquares, Format::kFp32, 2, {pow2(-149), 0}}.owned();
  expect_values(run(tiny, Mode::kSafe, one_lane), {0});
  EXPECT_EQ(ref::compute(tiny.computation, Mode::kSafe, one_lane).accumulators->max_mag,
            0x3F800000u);
}

TEST(ReferenceComputeSum, MeanVarianceMaximum) {
  const Values x = {1, 2, 3, 4, 5, 5, 5, 5};
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    expect_values(run({Kernel::kMean, Format::kFp16, 4, x}, mode), {2.5, 5});
    expect_values(run({Kernel::kVariance, Format::kFp16, 4, x}, mode), {1.25, 0});
    expect_values(run({Kernel::kMaximum, Format::kFp16, 4, {-1, 3, 2, -9, 1, kNan, 7, 2}}, mode),
                  {3, kNan});
    expect_values(run({Kernel::kMaximum, Format::kFp16, 2, {-0.0, 0, -0.0, -0.0}}, mode),
                  {0, -0.0});
    // In a row long enough for vectors.
    Values mixed(40, -0.0);
    mixed[11] = 0;
    expect_values(run({Kernel::kMaximum, Format::kFp16, 40, mixed}, mode), {0});
    mixed[11] = -1;
    expect_values(run({Kernel::kMaximum, Format::kFp16, 40, mixed}, mode), {-0.0});
    expect_values(run({Kernel::kMaximum, Format::kFp16, 2, {-kInfinity, -kInfinity}}, mode),
                  {-kInfinity});
  }
  // 5 / 3 in FP16: 1.6669921875
  expect_values(run({Kernel::kVariance, Format::kFp16, 4, {1, 2, 3, 4}, {}, {}, 1}, Mode::kFast),
                {1707 * pow2(-10)});
}

// ---- softmax and norms

TEST(ReferenceComputeSoftmax, ByHand) {
  const Format f = Format::kFp16;
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    expect_values(run({Kernel::kSoftmax, f, 4, {3, 3, 3, 3}}, mode), {0.25, 0.25, 0.25, 0.25});
    expect_values(run({Kernel::kSoftmax, f, 2, {60000, -60000}}, mode), {1, 0});
    expect_values(run({Kernel::kSoftmax, f, 2, {1, -kInfinity}}, mode), {1, 0});
    expect_values(run({Kernel::kSoftmax, f, 2, {1, kInfinity}}, mode), {kNan, kNan});
    expect_values(run({Kernel::kSoftmax, f, 2, {1, kNan}}, mode), {kNan, kNan});
  }
  // A factor whose product FP16 could not hold: y is a lane value, and so is its maximum.
  expect_values(run({Kernel::kSoftmax, f, 2, {60000, 0}, {}, {}, 8}, Mode::kFast), {1, 0});
  // e^-1 = 0.36788 rounds to 1507 * 2^-12 between the passes, their sum 1.36792 to 1.3681640625;
  // 1 / that is 0.730906.. and rounds to 1497 * 2^-11.
  const Values got = run({Kernel::kSoftmax, f, 2, {1, 0}}, Mode::kFast);
  expect_values(got, {1497 * pow2(-11), 1102 * pow2(-12)});
}

TEST(ReferenceComputeSoftmax, MaskAndARowThatIsAllHidden) {
  tb::Owned owned = Case{Kernel::kSoftmax, Format::kFp16, 3, {1, 1, 9, 1, 2, 3}}.owned();
  owned.set_mask(1, 2, 3, {1, 255, 0, 0, 0, 0});
  expect_values(run(owned, Mode::kFast), {0.5, 0.5, 0, kNan, kNan, kNan});
  expect_values(run(owned, Mode::kStable), {0.5, 0.5, 0, kNan, kNan, kNan});
  expect_values(run(owned, Mode::kSafe), {0.5, 0.5, 0, 0, 0, 0});
  const Execution fast = ref::compute(owned.computation, Mode::kFast);
  EXPECT_EQ(tb::load_bits(Format::kFp16, fast.output, 3), 0x7E00u);
  EXPECT_GT(fast.accumulators->nonfinite_count, 0u);
  EXPECT_EQ(ref::compute(owned.computation, Mode::kSafe).accumulators->nonfinite_count, 0u);
}

TEST(ReferenceComputeNorm, LayerNormByHand) {
  const Format f = Format::kFp16;
  // Mean 2.5, variance 1.25; with epsilon 0.75 the root is sqrt(2), 1/sqrt(2) is 1448 * 2^-11 in
  // FP16 and 181 * 2^-8 in BF16, where it is not rounded before.
  const double k = 1448 * pow2(-11);
  expect_values(run({Kernel::kLayerNorm, f, 4, {1, 2, 3, 4}, {}, {}, 0.75}, Mode::kFast),
                {-1.5 * k, -0.5 * k, 0.5 * k, 1.5 * k});
  expect_values(run({Kernel::kLayerNorm, f, 4, {1, 2, 3, 4}, {}, {}, 0.75}, Mode::kStable),
                {-136 * pow2(-7), -181 * pow2(-9), 181 * pow2(-9), 136 * pow2(-7)});
  // Zero variance: all distances are 0, what remains is the bias.
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    expect_values(run({Kernel::kLayerNorm, f, 3, {7, 7, 7}, {1, 2, 3}, {0.5, -1, 0}}, mode),
                  {0.5, -1, 0});
    expect_values(run({Kernel::kLayerNorm, f, 3, {7, 7, 7}, {1, 2, -3}}, mode), {0, 0, -0.0});
  }
  tb::Owned bias_alone = Case{Kernel::kLayerNorm, f, 2, {7, 7}}.owned();
  bias_alone.set(2, f, 1, 2, {0x3C00, 0xBC00});
  expect_values(run(bias_alone, Mode::kFast), {1, -1});
}

TEST(ReferenceComputeNorm, RmsNormByHand) {
  const Format f = Format::kFp16;
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    expect_values(run({Kernel::kRmsNorm, f, 4, {2, -2, 2, -2}, {1, 2, 3, 4}, {}, 0}, mode),
                  {1, -2, 3, -4});
  }
  // 300^2 is no FP16 number: k = 1 / sqrt(Inf) = 0 in FAST.
  const Case large{Kernel::kRmsNorm, f, 2, {300, -300}, {}, {}, 0};
  expect_values(run(large, Mode::kFast), {0, -0.0});
  expect_values(run(large, Mode::kStable), {1, -1});
  expect_values(run(large, Mode::kSafe), {1, -1});
  // 2^70 squared is no binary32 number either; SAFE divides by 2^70 first.
  const Case larger{Kernel::kRmsNorm, Format::kBf16, 2, {pow2(70), -pow2(70)}, {}, {}, 0};
  expect_values(run(larger, Mode::kStable), {0, -0.0});
  expect_values(run(larger, Mode::kSafe), {1, -1});
  // A row of zeros beside a row of 2^127: epsilon shrinks to nothing, k stays finite.
  const Case zeros{Kernel::kRmsNorm, Format::kFp32, 1, {pow2(127), 0}, {}, {}, 1e-6};
  expect_values(run(zeros, Mode::kSafe), {1, 0});
}

// ---- Matrix kernels

tb::Owned matrix(Kernel kernel, std::uint32_t batch, std::uint32_t rows, std::uint32_t columns,
                 std::uint32_t depth, const Values& a, const Values& b, const Values& bias,
                 float factor) {
  tb::Owned owned;
  owned.computation.kernel = kernel;
  owned.computation.batch = batch;
  owned.computation.rows = rows;
  owned.computation.columns = columns;
  owned.computation.depth = depth;
  owned.computation.attribute = factor;
  const auto set = [&](std::size_t i, const Values& values, std::uint32_t width) {
    std::vector<std::uint32_t> bits;
    for (const double value : values) bits.push_back(bits_of_value(Format::kFp16, value));
    owned.set(i, Format::kFp16, static_cast<std::uint32_t>(bits.size()) / width, width, bits);
  };
  set(0, a, depth);
  set(1, b, depth);
  if (!bias.empty()) set(2, bias, columns);
  return owned;
}

TEST(ReferenceComputeMatrix, ByHand) {
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    expect_values(
        run(matrix(Kernel::kMatmul, 1, 2, 2, 2, {1, 2, 3, 4}, {5, 6, 7, 8}, {}, 0.5f), mode),
        {8.5, 11.5, 19.5, 26.5});
    expect_values(run(matrix(Kernel::kMatmul, 2, 1, 2, 1, {2, 3}, {1, 4, 10, 20}, {}, 1.0f), mode),
                  {2, 8, 30, 60});
    expect_values(
        run(matrix(Kernel::kLinear, 1, 2, 2, 2, {1, 2, 3, 4}, {5, 6, 7, 8}, {100, -1}, 0), mode),
        {117, 22, 139, 52});
  }
}

TEST(ReferenceComputeMatrix, AccumulatorOfFast) {
  // 256 * 256 - 256 * 256: FP16 accumulators overflow at the first product and stay there.
  const tb::Owned owned = matrix(Kernel::kMatmul, 1, 1, 1, 2, {256, 256}, {256, -256}, {}, 1.0f);
  expect_values(run(owned, Mode::kFast), {0});
  const UnitSettings narrow{.accumulator = AccumulatorChoice::kNarrow};
  expect_values(run(owned, Mode::kFast, narrow), {kInfinity});
  const Execution wide = ref::compute(owned.computation, Mode::kFast);
  EXPECT_EQ(*wide.accumulators, (TapSummary{.max_mag = std::bit_cast<std::uint32_t>(65536.0f),
                                            .element_count = 2,
                                            .first_nonfinite = kNoElement}));
  EXPECT_EQ(*ref::compute(owned.computation, Mode::kFast, narrow).accumulators,
            (TapSummary{.element_count = 2, .nonfinite_count = 2, .first_nonfinite = 0}));
  // SAFE: both divided by 2^8, so that the accumulator goes to 1 and back.
  EXPECT_EQ(*ref::compute(owned.computation, Mode::kSafe).accumulators,
            (TapSummary{.max_mag = 0x3F800000, .element_count = 2, .first_nonfinite = kNoElement}));
}

// ---- Status and cost

TEST(ReferenceComputeStatus, WhatEachModeRuns) {
  const tb::Owned norm = Case{Kernel::kRmsNorm, Format::kFp16, 1, {1}}.owned();
  EXPECT_EQ(ref::status_of(norm.computation, Mode::kFast),
            (ExecutionStatus{.mode = Mode::kFast,
                             .format = Format::kFp16,
                             .accumulator = AccumulatorFormat::kFp16,
                             .accumulates = true}));
  EXPECT_EQ(ref::status_of(norm.computation, Mode::kStable, {.saturate = true}),
            (ExecutionStatus{.mode = Mode::kStable,
                             .format = Format::kBf16,
                             .accumulator = AccumulatorFormat::kFp32,
                             .accumulates = true,
                             .saturating = true}));
  EXPECT_EQ(ref::status_of(norm.computation, Mode::kSafe),
            (ExecutionStatus{.mode = Mode::kSafe,
                             .format = Format::kBf16,
                             .accumulator = AccumulatorFormat::kFp64,
                             .accumulates = true,
                             .compensated = true,
                             .compressed = true}));
  const auto accumulator = [](Kernel kernel, Format format, AccumulatorChoice choice) {
    Computation c{.kernel = kernel, .format = format, .rows = 1, .columns = 1, .depth = 1};
    c.operands[0] = c.operands[1] = {{}, format, 1, 1};
    return ref::status_of(c, Mode::kFast, {.accumulator = choice}).accumulator;
  };
  using Choice = AccumulatorChoice;
  EXPECT_EQ(accumulator(Kernel::kMatmul, Format::kE4m3, Choice::kPerOperator),
            AccumulatorFormat::kFp32);
  EXPECT_EQ(accumulator(Kernel::kMatmul, Format::kE4m3, Choice::kNarrow), AccumulatorFormat::kE4m3);
  EXPECT_EQ(accumulator(Kernel::kRmsNorm, Format::kBf16, Choice::kWide), AccumulatorFormat::kFp32);
  EXPECT_EQ(accumulator(Kernel::kAdd, Format::kBf16, Choice::kNarrow), AccumulatorFormat::kFp32);
  // FP32 stays FP32.
  const tb::Owned binary32 = Case{Kernel::kAdd, Format::kFp32, 1, {1}, {1}}.owned();
  EXPECT_EQ(ref::status_of(binary32.computation, Mode::kSafe).format, Format::kFp32);
  EXPECT_FALSE(ref::compute(binary32.computation, Mode::kSafe).accumulators.has_value());
}

Computation shaped(Kernel kernel, Format format, std::uint32_t rows, std::uint32_t columns) {
  Computation c{.kernel = kernel, .format = format, .rows = rows, .columns = columns};
  c.operands[0] = {{}, format, rows, columns};
  return c;
}

TEST(ReferenceComputeCost, ByHand) {
  // 4 x 64 FP16: 8 beats of 32 in each pass, five levels.
  Computation softmax = shaped(Kernel::kSoftmax, Format::kFp16, 4, 64);
  EXPECT_EQ(ref::cost(softmax, Mode::kFast), (ExecutionCost{3, 24, 21 + 45 + 8, 1024, 512}));
  EXPECT_EQ(ref::cost(softmax, Mode::kStable), (ExecutionCost{3, 24, 74, 1024, 512}));
  EXPECT_EQ(ref::cost(softmax, Mode::kSafe), (ExecutionCost{3, 24, 21 + 200 + 8, 1024, 512}));
  softmax.operands[1] = {{}, Format::kFp16, 1, 64};
  EXPECT_EQ(ref::cost(softmax, Mode::kFast), (ExecutionCost{3, 24, 29 + 53 + 8, 1152, 512}));

  Computation norm = shaped(Kernel::kRmsNorm, Format::kFp16, 4, 64);
  norm.operands[1] = {{}, Format::kFp16, 1, 64};
  EXPECT_EQ(ref::cost(norm, Mode::kFast), (ExecutionCost{2, 16, 29 + 16, 1024 + 128, 512}));
  EXPECT_EQ(ref::cost(norm, Mode::kSafe),
            (ExecutionCost{3, 24, 13 + 192 + 24, 3 * 512 + 128, 512}));
  EXPECT_EQ(ref::cost(norm, Mode::kSafe, {.fp64_lanes = 32}),
            (ExecutionCost{3, 24, 13 + (8 * 6 + 40 + 8) + 24, 3 * 512 + 128, 512}));

  Computation matmul{.kernel = Kernel::kMatmul, .batch = 2, .rows = 20, .columns = 40, .depth = 16};
  matmul.operands[0] = {{}, Format::kFp16, 40, 16};
  matmul.operands[1] = {{}, Format::kFp16, 80, 16};
  EXPECT_EQ(ref::cost(matmul, Mode::kFast),
            (ExecutionCost{2, 128 + 80, 128 + 80, 1280 + 2560, 3200}));
  EXPECT_EQ(ref::cost(matmul, Mode::kSafe),
            (ExecutionCost{4, 20 + 40 + 208, 25 + 45 + 2176 + 80, 2 * 3840, 3200}));

  // Two beats of 64 E4M3 elements go out as four of BF16.
  Computation add = shaped(Kernel::kAdd, Format::kE4m3, 1, 128);
  add.operands[1] = add.operands[0];
  EXPECT_EQ(ref::cost(add, Mode::kFast), (ExecutionCost{1, 2, 2, 256, 128}));
  EXPECT_EQ(ref::cost(add, Mode::kStable), (ExecutionCost{1, 2, 4, 256, 256}));
  // A maximum has the tail of a reduction and nothing more in SAFE.
  const Computation maximum = shaped(Kernel::kMaximum, Format::kFp32, 3, 17);
  EXPECT_EQ(ref::cost(maximum, Mode::kSafe), (ExecutionCost{1, 6, 10, 204, 12}));
}

TEST(ReferenceComputeCost, IsThatOfTheExecution) {
  std::mt19937_64 rng(tb::case_seed(7));
  for (const KernelTraits& traits : kKernels) {
    const tb::Owned owned = tb::draw_computation(rng, traits.kernel, Format::kFp16);
    for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
      const Execution execution = ref::compute(owned.computation, mode);
      EXPECT_EQ(execution.cost, ref::cost(owned.computation, mode));
      EXPECT_EQ(execution.status, ref::status_of(owned.computation, mode));
      EXPECT_EQ(execution.cost.bytes_written, execution.output.size());
      EXPECT_EQ(execution.accumulators.has_value(), traits.accumulates);
    }
  }
}

// ---- Yardstick and errors

TEST(ReferenceComputeExact, AgreesWithTheModesWhereNothingRounds) {
  const tb::Owned owned =
      Case{Kernel::kLayerNorm, Format::kFp16, 4, {1, 2, 3, 4}, {}, {}, 0.75}.owned();
  const std::vector<double> exact = ref::compute_exact(owned.computation);
  ASSERT_EQ(exact.size(), 4u);
  EXPECT_DOUBLE_EQ(exact[0], -1.5 / std::sqrt(2.0));
  const tb::Owned product =
      matrix(Kernel::kMatmul, 1, 2, 2, 2, {1, 2, 3, 4}, {5, 6, 7, 8}, {}, 0.5f);
  EXPECT_EQ(ref::compute_exact(product.computation), (std::vector<double>{8.5, 11.5, 19.5, 26.5}));
  tb::Owned masked = Case{Kernel::kSoftmax, Format::kFp16, 2, {1, 9}}.owned();
  masked.set_mask(1, 1, 2, {1, 0});
  EXPECT_EQ(ref::compute_exact(masked.computation), (std::vector<double>{1, 0}));
  EXPECT_EQ(
      ref::compute_exact(
          Case{Kernel::kSum, Format::kFp32, 3, {pow2(127), 1, -pow2(127)}}.owned().computation)
          .size(),
      1u);
}

std::string message_of(const Computation& computation, const UnitSettings& settings = {}) {
  try {
    (void)ref::compute(computation, Mode::kFast, settings);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(ReferenceComputeErrors, NameTheOperandOrTheSetting) {
  const tb::Owned good = Case{Kernel::kAdd, Format::kFp16, 2, {1, 2, 3, 4}, {1, 2}}.owned();
  const auto changed = [&](auto change) {
    Computation c = good.computation;
    change(c);
    return message_of(c);
  };
  EXPECT_EQ(changed([](Computation& c) { c.operands[1] = {}; }), "add: operand b is missing");
  EXPECT_EQ(changed([](Computation& c) { c.operands[1].columns = 1; }),
            "add: operand b is [1, 1], not [1..2, 2]");
  EXPECT_EQ(changed([](Computation& c) { c.operands[0].rows = 3; }),
            "add: operand a is [3, 2], not [1..2, 2]");
  EXPECT_EQ(changed([](Computation& c) { c.operands[0].format = Format::kFp32; }),
            "add: operand a has 8 bytes; its shape and format ask for 16");
  EXPECT_NE(changed([](Computation& c) { c.rows = 0; }).find("must be at least 1"),
            std::string::npos);
  EXPECT_NE(
      changed([](Computation& c) { c.format = static_cast<Format>(9); }).find("format code 9"),
      std::string::npos);
  EXPECT_NE(changed([](Computation& c) { c.kernel = static_cast<Kernel>(24); }).find("kernel: 24"),
            std::string::npos);
  EXPECT_EQ(changed([](Computation& c) { c.operands[2] = c.operands[1]; }),
            "add: has no operand number 2");
  EXPECT_EQ(message_of(good.computation, {.datapath_width = 100}),
            "datapath_width: 100 is no multiple of 32");
  EXPECT_EQ(message_of(good.computation, {.fp64_lanes = 65}), "fp64_lanes: 65 is not in 1..64");
  EXPECT_EQ(message_of(good.computation, {.matrix_rows = 0}), "matrix_rows: 0 is not in 1..1024");
  EXPECT_THROW((void)ref::compute(good.computation, static_cast<Mode>(3)), std::invalid_argument);
}

}  // namespace
}  // namespace opd
