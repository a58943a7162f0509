// magnitude_bits against the definition of the formats: every finite value, every half-way point
// and its neighbours.
#include "opd/trace/magnitude.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <ostream>
#include <random>

#include "seed.hpp"

namespace opd::tb {
namespace {

using trace::magnitude_bits;

/// docs/numerics.md "Formats", written again: what the magnitude bits mean.
struct Definition {
  Format format;
  int significand_bits;
  int bias;
  std::uint32_t largest;

  double value(std::uint32_t magnitude) const {
    const auto field = static_cast<int>(magnitude >> significand_bits);
    const double fraction = std::ldexp(
        static_cast<double>(magnitude & ((1u << significand_bits) - 1)), -significand_bits);
    return field == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, field - bias);
  }
};
void PrintTo(const Definition& d, std::ostream* os) {
  *os << kFormatNames[static_cast<std::size_t>(d.format)];
}

class Magnitude : public testing::TestWithParam<Definition> {};

TEST_P(Magnitude, EveryValueAndEveryHalfWayPoint) {
  const Definition& d = GetParam();
  const float infinity = std::numeric_limits<float>::infinity();
  std::uint32_t compared = 0;
  for (std::uint32_t m = 0; m <= d.largest; ++m) {
    const auto exact = static_cast<float>(d.value(m));
    ASSERT_EQ(static_cast<double>(exact), d.value(m));
    ASSERT_EQ(magnitude_bits(d.format, exact), m);
    ASSERT_EQ(magnitude_bits(d.format, -exact), m);
    // Half-way to the next value; above the largest one that is where IEEE would round to infinity.
    const double half_way = (d.value(m) + d.value(m + 1)) / 2;
    const auto half = static_cast<float>(half_way);
    const std::uint32_t up = std::min(m + 1, d.largest);
    if (static_cast<double>(half) == half_way) {
      ASSERT_EQ(magnitude_bits(d.format, half), m % 2 == 0 ? m : up) << half;
      ASSERT_EQ(magnitude_bits(d.format, std::nextafter(half, 0.0f)), m) << half;
      ASSERT_EQ(magnitude_bits(d.format, std::nextafter(half, infinity)), up) << half;
      ++compared;
    } else {
      ASSERT_EQ(m, d.largest) << "only past the largest BF16 may a half-way point be no float";
    }
  }
  EXPECT_GE(compared, d.largest);
}

TEST_P(Magnitude, StopsAtTheLargestFiniteValue) {
  const Definition& d = GetParam();
  for (const float x :
       {std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(), static_cast<float>(d.value(d.largest)) * 1.5f}) {
    EXPECT_EQ(magnitude_bits(d.format, x), d.largest);
  }
  EXPECT_EQ(trace::layout_of(d.format).max_magnitude, d.largest);
  EXPECT_EQ(static_cast<double>(trace::layout_of(d.format).max_value), d.value(d.largest));
}

INSTANTIATE_TEST_SUITE_P(Formats, Magnitude,
                         testing::Values(Definition{Format::kFp16, 10, 15, 0x7BFF},
                                         Definition{Format::kBf16, 7, 127, 0x7F7F},
                                         Definition{Format::kE4m3, 3, 7, 0x7E},
                                         Definition{Format::kE5m2, 2, 15, 0x7B}),
                         testing::PrintToStringParamName());

TEST(MagnitudeFp32, IsTheBitsOfTheFloat) {
  const std::uint64_t seed = case_seed(0x7ACE0002);
  SCOPED_TRACE("reproduce: OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  std::vector<std::uint32_t> samples = {0,        1,          2,          0x7FFFFF,  0x800000,
                                        0x800001, 0x3F800000, 0x7F7FFFFE, 0x7F7FFFFF};
  while (samples.size() < 1000000)
    samples.push_back(static_cast<std::uint32_t>(draw(rng, 0, 0x7F7FFFFF)));
  for (const std::uint32_t bits : samples) {
    ASSERT_EQ(magnitude_bits(Format::kFp32, std::bit_cast<float>(bits)), bits);
  }
  EXPECT_EQ(samples.size(), 1000000u);
  EXPECT_EQ(magnitude_bits(Format::kFp32, std::numeric_limits<float>::infinity()), 0x7F7FFFFFu);
}

TEST(MagnitudeMonotone, OverRandomFloats) {
  const std::uint64_t seed = case_seed(0x7ACE0003);
  SCOPED_TRACE("reproduce: OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  int compared = 0;
  for (int i = 0; i < 200000; ++i) {
    const auto a = static_cast<std::uint32_t>(draw(rng, 0, 0x7F7FFFFF));
    const auto b = static_cast<std::uint32_t>(draw(rng, 0, 0x7F7FFFFF));
    for (std::size_t f = 0; f < kFormatNames.size(); ++f) {
      const auto format = static_cast<Format>(f);
      ASSERT_LE(magnitude_bits(format, std::bit_cast<float>(std::min(a, b))),
                magnitude_bits(format, std::bit_cast<float>(std::max(a, b))));
      ++compared;
    }
  }
  EXPECT_EQ(compared, 1000000);
}

}  // namespace
}  // namespace opd::tb
