#pragma once
// IEEE 754 binary32 arithmetic, one rounding per operation, computed in binary64.
//
//   why exact : sum, difference and product of two binary32 numbers, rounded to binary64 and then
//               to binary32, equal the directly rounded ones: 53 significand bits are >= 2 * 24 + 2
//               (Figueroa, "When is double rounding innocuous?", 1995). With subnormal results too:
//               products are exact in binary64, and a sum that is subnormal is exact anyway.
//   NaN       : every NaN result is 0x7FC00000
//   source    : docs/numerics.md, "Binary32 arithmetic"
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "opd/sc/format.hpp"

namespace opd::sc::binary32 {

static_assert(std::numeric_limits<float>::is_iec559 && std::numeric_limits<double>::is_iec559);

/// The one rounding: to nearest, ties to even.
inline float rounded(double exact) {
  return std::isnan(exact) ? std::bit_cast<float>(0x7FC00000u) : static_cast<float>(exact);
}
inline float add(float a, float b) {
  return rounded(static_cast<double>(a) + static_cast<double>(b));
}
inline float subtract(float a, float b) {
  return rounded(static_cast<double>(a) - static_cast<double>(b));
}
inline float multiply(float a, float b) {
  return rounded(static_cast<double>(a) * static_cast<double>(b));
}

/// Exponent field of a non-negative number.
constexpr int exponent_field(float value) {
  return static_cast<int>(std::bit_cast<std::uint32_t>(value) >> 23);
}

/// value * 2^-n by moving the exponent field, never rounding: 0 for a subnormal `value` and below
/// the normal range, +Inf above it. Precondition: value is not negative.
constexpr float scaled(float value, int n) {
  const int field = exponent_field(value);
  if (field == 0 || field - n < 1) return 0.0f;
  if (field - n > 254) return std::numeric_limits<float>::infinity();
  const std::uint32_t significand = std::bit_cast<std::uint32_t>(value) & 0x007FFFFFu;
  return std::bit_cast<float>(static_cast<std::uint32_t>(field - n) << 23 | significand);
}

/// A magnitude of one of the five formats as a number: exact. Bits above the format's magnitude are
/// ignored; exponent fields are read like any other, so a magnitude past the largest finite one
/// continues the scale (FP32 and BF16: it keeps its bits). Precondition: is_format(format).
inline float from_magnitude(Format format, std::uint32_t max_mag) {
  const FormatProperties& layout = properties(format);
  const std::uint32_t magnitude = max_mag & layout.magnitude_mask();
  if (layout.exponent_bits == 8) {
    return std::bit_cast<float>(magnitude << (23 - layout.significand_bits));
  }
  const auto field = static_cast<int>(magnitude >> layout.significand_bits);
  const std::uint32_t fraction = magnitude & (layout.smallest_normal() - 1);
  const std::uint32_t significand = field == 0 ? fraction : fraction | layout.smallest_normal();
  const int exponent =
      (field == 0 ? 1 : field) - layout.bias - static_cast<int>(layout.significand_bits);
  return std::ldexp(static_cast<float>(significand), exponent);
}

}  // namespace opd::sc::binary32
