// Classification and log2 code of single elements: exhaustive for 8 and 16 bits, stratified for
// FP32.
#include "opd/reference/element.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "opd/reference/log2_code.hpp"
#include "oracle.hpp"

namespace opd {
namespace {

using tb::decode;

/// Compares one element with its value. Returns 1, the number of elements compared.
std::size_t expect_class(Format format, std::uint32_t bits) {
  const ref::Element element = ref::classify(format, bits);
  const double value = std::fabs(decode(format, bits));
  const bool finite = std::isfinite(value);
  EXPECT_EQ(element.nonfinite, !finite) << std::hex << bits;
  EXPECT_EQ(element.saturated, finite && value == tb::max_finite(format)) << std::hex << bits;
  EXPECT_EQ(element.subnormal, finite && value > 0 && value < tb::min_normal(format))
      << std::hex << bits;
  EXPECT_EQ(element.zero, finite && value == 0) << std::hex << bits;
  if (finite) {
    EXPECT_EQ(decode(format, element.magnitude), value) << std::hex << bits;
  }
  return 1;
}

TEST(ReferenceElement, EveryPatternOfTheNarrowFormats) {
  std::size_t compared = 0;
  for (const Format format : tb::kFormats) {
    if (format == Format::kFp32) continue;
    const std::uint32_t patterns = 1u << (8 * tb::element_size(format));
    for (std::uint32_t bits = 0; bits < patterns; ++bits) compared += expect_class(format, bits);
  }
  EXPECT_EQ(compared, 2u * 65536 + 2u * 256);
}

TEST(ReferenceElement, Fp32Stratified) {
  std::mt19937_64 rng(tb::case_seed(1));
  std::size_t compared = 0;
  for (std::uint32_t sign = 0; sign < 2; ++sign) {
    for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
      const std::uint32_t base = sign << 31 | exponent << 23;
      for (const std::uint32_t significand : {0u, 1u, 0x3FFFFFu, 0x400000u, 0x7FFFFEu, 0x7FFFFFu}) {
        compared += expect_class(Format::kFp32, base | significand);
      }
      for (int k = 0; k < 100; ++k) {
        compared +=
            expect_class(Format::kFp32, base | (static_cast<std::uint32_t>(rng()) & 0x7FFFFFu));
      }
    }
  }
  EXPECT_EQ(compared, 2u * 256 * 106);
}

TEST(ReferenceElement, BitsAboveTheFormatAreIgnored) {
  EXPECT_TRUE(ref::classify(Format::kFp16, 0xABCD0000u).zero);
  EXPECT_EQ(ref::classify(Format::kE4m3, 0xFFFFFF81u).magnitude, 1u);
}

/// Magnitudes in increasing order: all of the narrow formats, a dense sample of FP32.
std::vector<std::uint32_t> finite_magnitudes(Format format) {
  std::vector<std::uint32_t> magnitudes;
  const std::uint32_t largest =
      format == Format::kFp32 ? 0x7F7FFFFFu : (1u << (8 * tb::element_size(format) - 1)) - 1;
  const std::uint32_t stride = format == Format::kFp32 ? 9973 : 1;
  for (std::uint64_t bits = 1; bits <= largest; bits += stride) {
    if (std::isfinite(decode(format, static_cast<std::uint32_t>(bits)))) {
      magnitudes.push_back(static_cast<std::uint32_t>(bits));
    }
  }
  return magnitudes;
}

TEST(ReferenceLog2Code, WithinTheBoundAndMonotone) {
  std::size_t compared = 0;
  for (const Format format : tb::kFormats) {
    SCOPED_TRACE(kFormatNames[static_cast<std::size_t>(format)]);
    std::int32_t before = std::numeric_limits<std::int32_t>::min();
    double worst = 0;
    for (const std::uint32_t magnitude : finite_magnitudes(format)) {
      const std::int32_t x = ref::log2_code(format, magnitude);
      ASSERT_GE(x, before) << magnitude;
      ASSERT_GE(x, -4063);
      ASSERT_LE(x, 4096);
      before = x;
      const double value = decode(format, magnitude);
      if (value >= tb::min_normal(format))
        worst = std::max(worst, std::fabs(x / 32.0 - std::log2(value)));
      ++compared;
    }
    EXPECT_LT(worst, 0.045);
    EXPECT_GT(worst, 0.02);  // the comparison looked at something
  }
  const std::size_t narrow = 0x7BFF + 0x7F7F + 0x7E + 0x7B;
  EXPECT_EQ(compared, narrow + (0x7F7FFFFF - 1) / 9973 + 1);
}

TEST(ReferenceLog2Code, SubnormalsStayWithinOneSignificandWidth) {
  std::size_t compared = 0;
  for (const Format format : tb::kFormats) {
    const int significand_bits = static_cast<int>(ref::layout_of(format).significand_bits);
    for (const std::uint32_t magnitude : finite_magnitudes(format)) {
      const double value = decode(format, magnitude);
      if (value >= tb::min_normal(format)) break;
      EXPECT_LE(std::fabs(ref::log2_code(format, magnitude) / 32.0 - std::log2(value)),
                significand_bits + 0.05);
      ++compared;
    }
  }
  EXPECT_GT(compared, 1023u + 127 + 7 + 3);
}

TEST(ReferenceLog2Code, LimitRegistersResetToTheLargestFiniteValue) {
  const Config config;
  EXPECT_EQ(ref::log2_code(Format::kFp16, 0x7BFF), config.limit_fp16);
  EXPECT_EQ(ref::log2_code(Format::kBf16, 0x7F7F), config.limit_bf16);
  EXPECT_EQ(ref::log2_code(Format::kE4m3, 0x7E), config.limit_e4m3);
  EXPECT_EQ(ref::log2_code(Format::kE5m2, 0x7B), config.limit_e5m2);
  EXPECT_EQ(ref::log2_code(Format::kFp32, 0x7F7FFFFF), config.limit_fp32);
}

TEST(ReferenceLog2Code, SidebandMagnitudeMayCarryAnyBits) {
  for (const Format format : tb::kFormats) {
    const std::uint32_t sign = 1u << (8 * tb::element_size(format) - 1);
    EXPECT_EQ(ref::log2_code(format, 5 | sign), ref::log2_code(format, 5));
  }
}

}  // namespace
}  // namespace opd
