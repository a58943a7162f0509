#pragma once
// log2 of a magnitude as a signed fixed-point number with 5 fraction bits (1/32 bit per LSB).
//
//   range  : -4063 .. 4128; 4096 is the largest value of a finite magnitude
//   error  : below 0.045 bit for normal numbers; monotone over all magnitudes
//   source : docs/numerics.md "Log2 code"
#include <cstdint>

#include "opd/reference/element.hpp"

namespace opd::ref {

/// x(max_mag) of a magnitude of the format, also of one that is no finite number.
OPD_HOST_DEVICE constexpr std::int32_t log2_code(Format format, std::uint32_t max_mag) {
  const FormatLayout layout = layout_of(format);
  const std::uint32_t magnitude = max_mag & layout.magnitude_mask();
  const std::uint32_t significand = magnitude & (layout.min_normal() - 1);
  const auto exponent = static_cast<std::int32_t>(magnitude >> layout.significand_bits);
  const std::uint32_t fraction = layout.significand_bits >= 5
                                     ? significand >> (layout.significand_bits - 5)
                                     : significand << (5 - layout.significand_bits);
  // Mean of 32 log2(1 + f) - floor(32 f) over each eighth, {1, 2, 3, 3, 3, 3, 2, 1}, one hex digit
  // each.
  const std::uint32_t correction = (0x12333321u >> (4 * (fraction >> 2))) & 0xF;
  return (exponent - layout.bias) * 32 + static_cast<std::int32_t>(fraction + correction);
}

}  // namespace opd::ref
