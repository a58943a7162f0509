#pragma once
// Elements for tests: what their bits mean as numbers, and random ones from the strata that matter.
// Written from the format specifications in floating point, unlike anything under test.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "opd/types/record.hpp"
#include "seed.hpp"

namespace opd::tb {

inline constexpr std::array<Format, 5> kAllFormats = {Format::kFp16, Format::kBf16, Format::kE4m3,
                                                      Format::kE5m2, Format::kFp32};

struct Layout {
  int bytes, exponent_bits, significand_bits;
};

inline Layout layout_of(Format format) {
  constexpr std::array<Layout, 5> kLayouts = {
      {{2, 5, 10}, {2, 8, 7}, {1, 4, 3}, {1, 5, 2}, {4, 8, 23}}};
  return kLayouts[static_cast<std::size_t>(format)];
}

/// Value of an element: NaN and infinity as the format defines them.
inline double value_of(Format format, std::uint32_t bits) {
  const Layout layout = layout_of(format);
  const auto exponent =
      static_cast<int>(bits >> layout.significand_bits & ((1u << layout.exponent_bits) - 1));
  const auto significand = static_cast<int>(bits & ((1u << layout.significand_bits) - 1));
  const int all_ones = (1 << layout.exponent_bits) - 1;
  const int bias = all_ones / 2;
  const double sign = (bits >> (8 * layout.bytes - 1) & 1u) != 0 ? -1.0 : 1.0;
  if (format == Format::kE4m3) {
    if (exponent == all_ones && significand == 7) return std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == all_ones) {
    return significand == 0 ? sign * std::numeric_limits<double>::infinity()
                            : std::numeric_limits<double>::quiet_NaN();
  }
  const double scale = std::ldexp(1.0, -layout.significand_bits);
  if (exponent == 0) return sign * std::ldexp(significand * scale, 1 - bias);
  return sign * std::ldexp(1.0 + significand * scale, exponent - bias);
}

/// Largest finite value and smallest normal one.
inline double largest_of(Format format) {
  constexpr std::array<double, 5> kLargest = {65504.0, 0x1.FEp127, 448.0, 57344.0, 0x1.FFFFFEp127};
  return kLargest[static_cast<std::size_t>(format)];
}
inline double smallest_normal_of(Format format) {
  constexpr std::array<int, 5> kExponent = {-14, -126, -6, -14, -126};
  return std::ldexp(1.0, kExponent[static_cast<std::size_t>(format)]);
}

inline std::uint32_t element_at(Format format, std::span<const std::byte> bytes,
                                std::size_t index) {
  const auto width = static_cast<std::size_t>(layout_of(format).bytes);
  std::uint32_t bits = 0;
  std::memcpy(&bits, bytes.data() + index * width, width);
  return bits;
}

/// The tap's summary by value. Lanes k with enabled(k) = false take no part.
template <typename Enabled>
TapSummary summary_by_value(Format format, std::span<const std::byte> bytes,
                            const Enabled& enabled) {
  TapSummary summary;
  double largest = 0;
  const std::size_t count = bytes.size() / static_cast<std::size_t>(layout_of(format).bytes);
  for (std::size_t k = 0; k < count; ++k) {
    if (!enabled(k)) continue;
    ++summary.element_count;
    const std::uint32_t bits = element_at(format, bytes, k);
    const double magnitude = std::fabs(value_of(format, bits));
    if (!std::isfinite(magnitude)) {
      if (summary.nonfinite_count++ == 0) summary.first_nonfinite = static_cast<std::uint32_t>(k);
      continue;
    }
    if (magnitude == largest_of(format)) ++summary.saturated_count;
    if (magnitude == 0) ++summary.zero_count;
    if (magnitude > 0 && magnitude < smallest_normal_of(format)) ++summary.subnormal_count;
    if (magnitude > largest) {
      largest = magnitude;
      const auto sign = std::uint32_t{1} << (8 * layout_of(format).bytes - 1);
      summary.max_mag = bits & ~sign;
    }
  }
  return summary;
}

inline TapSummary summary_by_value(Format format, std::span<const std::byte> bytes) {
  return summary_by_value(format, bytes, [](std::size_t) { return true; });
}

/// `count` random elements. Most are ordinary bit patterns below the limit; zeros, subnormals,
/// values at the limit and non-finite ones are mixed in unless `tame`.
inline std::vector<std::byte> random_elements(std::mt19937_64& rng, Format format,
                                              std::size_t count, bool tame) {
  const Layout layout = layout_of(format);
  const auto width = static_cast<std::size_t>(layout.bytes);
  const std::uint32_t sign = std::uint32_t{1} << (8 * layout.bytes - 1);
  const std::uint32_t infinity = sign - (1u << layout.significand_bits);  // exponent field all ones
  const std::uint32_t largest = format == Format::kE4m3 ? 0x7E : infinity - 1;
  std::vector<std::byte> bytes(count * width);
  for (std::size_t k = 0; k < count; ++k) {
    std::uint32_t bits =
        static_cast<std::uint32_t>(draw(rng, 0, (1 << (layout.exponent_bits - 1)) - 1))
            << layout.significand_bits |
        static_cast<std::uint32_t>(draw(rng, 0, (1 << layout.significand_bits) - 1));
    switch (tame ? -1 : draw(rng, 0, 60)) {
      case 0:
        bits = 0;
        break;
      case 1:
        bits = static_cast<std::uint32_t>(draw(rng, 1, (1 << layout.significand_bits) - 1));
        break;
      case 2:
        bits = largest;
        break;
      case 3:
        bits = largest - 1;
        break;
      case 4:
        bits = largest + 1;
        break;  // the first non-finite magnitude
      case 5:
        bits = sign - 1;
        break;  // NaN
      default:
        break;
    }
    if (draw(rng, 0, 1) == 1) bits |= sign;
    std::memcpy(bytes.data() + k * width, &bits, width);
  }
  return bytes;
}

}  // namespace opd::tb
