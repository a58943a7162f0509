#pragma once
// Element formats as a trace needs them: width, safetensors dtype, largest finite value, and the
// magnitude bits of a value (docs/numerics.md "Formats", docs/formats.md "Replay of a probe").
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "opd/types/registers.hpp"

namespace opd::trace {

/// One row of the table in docs/numerics.md "Formats".
struct FormatLayout {
  std::string_view dtype;  ///< safetensors name
  unsigned bytes;          ///< per element
  int significand_bits;
  int bias;
  std::uint32_t max_magnitude;  ///< bits of the largest finite magnitude
  float max_value;              ///< the same as a number
};

inline constexpr std::array<FormatLayout, kFormatNames.size()> kFormatLayouts = {{
    {"F16", 2, 10, 15, 0x7BFF, 65504.0f},
    {"BF16", 2, 7, 127, 0x7F7F, 0x1.FEp127f},
    {"F8_E4M3", 1, 3, 7, 0x7E, 448.0f},
    {"F8_E5M2", 1, 2, 15, 0x7B, 57344.0f},
    {"F32", 4, 23, 127, 0x7F7FFFFF, 0x1.FFFFFEp127f},
}};

constexpr const FormatLayout& layout_of(Format format) {
  return kFormatLayouts[static_cast<std::size_t>(format)];
}

/// Magnitude bits of `max_abs` in `format`: rounded to nearest, ties to even; above the largest
/// finite value (Inf and NaN included) the bits of that value. The sign is ignored. Integer
/// arithmetic, so the result does not depend on the rounding mode or on flush-to-zero.
constexpr std::uint32_t magnitude_bits(Format format, float max_abs) {
  const FormatLayout& layout = layout_of(format);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(max_abs) & 0x7FFFFFFFu;
  if (bits >= 0x7F800000u) return layout.max_magnitude;

  // |max_abs| = significand * 2^(exponent - 23); exponent field 0 has no hidden bit and counts
  // as 1.
  const std::uint32_t field = bits >> 23;
  const std::uint32_t significand = (bits & 0x7FFFFFu) | (field == 0 ? 0u : 0x800000u);
  const int exponent = static_cast<int>(std::max(field, 1u)) - 127;

  // One unit in the last place of the result is 2^(result_exponent - significand_bits): below the
  // smallest normal number the exponent stops and the result is subnormal.
  const int result_exponent = std::max(exponent, 1 - layout.bias);
  const int shift = 23 - layout.significand_bits + (result_exponent - exponent);
  if (shift > 24) return 0;  // below half of the smallest subnormal: significand < 2^24

  // A carry out of the significand moves into the exponent, where it belongs.
  const std::uint64_t half_up = shift == 0 ? 0 : (std::uint64_t{1} << (shift - 1)) - 1;
  const std::uint64_t odd = shift == 0 ? 0 : (significand >> shift) & 1u;
  const auto rounded = static_cast<std::uint32_t>((significand + half_up + odd) >> shift);
  const auto base = static_cast<std::uint32_t>(result_exponent + layout.bias - 1)
                    << layout.significand_bits;
  return std::min(base + rounded, layout.max_magnitude);
}

}  // namespace opd::trace
