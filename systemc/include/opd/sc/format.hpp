#pragma once
// Element formats and the log2 code of a magnitude.
// Source: docs/numerics.md, "Formats" and "Log2 code".
#include <array>
#include <cstddef>
#include <cstdint>

#include "opd/types/registers.hpp"

namespace opd::sc {

/// Bit layout of an element: sign, exponent field, significand field, from the top bit down.
struct FormatProperties {
  unsigned exponent_bits;
  unsigned significand_bits;
  int bias;
  std::uint32_t largest_finite;  ///< magnitude bits; every magnitude above it is Inf or NaN

  constexpr unsigned element_bits() const { return 1 + exponent_bits + significand_bits; }
  constexpr unsigned element_bytes() const { return element_bits() / 8; }
  /// All bits but the sign.
  constexpr std::uint32_t magnitude_mask() const {
    return (std::uint32_t{1} << (exponent_bits + significand_bits)) - 1;
  }
  /// Magnitudes below it have exponent field 0: zero and the subnormals.
  constexpr std::uint32_t smallest_normal() const { return std::uint32_t{1} << significand_bits; }
};

/// Indexed by the Format code.
inline constexpr std::array<FormatProperties, 5> kFormats = {{
    {5, 10, 15, 0x7BFF},       // FP16
    {8, 7, 127, 0x7F7F},       // BF16
    {4, 3, 7, 0x7E},           // E4M3: S.1111.111 is NaN, there is no infinity
    {5, 2, 15, 0x7B},          // E5M2
    {8, 23, 127, 0x7F7FFFFF},  // FP32
}};

/// False for the codes 5..255 that no format has.
constexpr bool is_format(Format format) {
  return static_cast<std::size_t>(format) < kFormats.size();
}

/// Precondition: is_format(format).
constexpr const FormatProperties& properties(Format format) {
  return kFormats[static_cast<std::size_t>(format)];
}

/// log2 of a magnitude as a signed fixed-point number with 5 fraction bits: 32 is one doubling.
///
/// Range : -4063..4096 (14 bits signed).
/// Exact : monotone in the magnitude; within 0.045 bit of log2 for normal numbers. Exponent field 0
///         is read like any other, so zero has a code too; callers ask only for magnitudes above 0.
/// Errors: none; precondition is_format(format).
constexpr int log2_code(Format format, std::uint32_t max_mag) {
  // Mean of 32*log2(1+f) - floor(32*f) over each eighth of the octave, rounded.
  constexpr std::array<int, 8> kCorrection = {1, 2, 3, 3, 3, 3, 2, 1};
  constexpr unsigned kFractionBits = 5;

  const FormatProperties& layout = properties(format);
  const std::uint32_t magnitude = max_mag & layout.magnitude_mask();
  const int exponent = static_cast<int>(magnitude >> layout.significand_bits);
  const std::uint32_t significand = magnitude & (layout.smallest_normal() - 1);
  const std::uint32_t fraction = layout.significand_bits >= kFractionBits
                                     ? significand >> (layout.significand_bits - kFractionBits)
                                     : significand << (kFractionBits - layout.significand_bits);
  return (exponent - layout.bias) * 32 + static_cast<int>(fraction) + kCorrection[fraction >> 2];
}

/// The LIMIT register of a format, in 1/32 bit. Precondition: is_format(format).
constexpr int limit(const Config& config, Format format) {
  const std::array<std::int16_t, 5> limits = {config.limit_fp16, config.limit_bf16,
                                              config.limit_e4m3, config.limit_e5m2,
                                              config.limit_fp32};
  return limits[static_cast<std::size_t>(format)];
}

}  // namespace opd::sc
