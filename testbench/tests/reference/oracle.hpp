#pragma once
// What the formats mean, by value: an oracle that shares nothing with the bit patterns of the
// reference. Elements are decoded to double (exact for all five formats) and classified by
// comparing numbers.
#include <algorithm>
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

inline constexpr std::array<Format, 5> kFormats = {Format::kFp16, Format::kBf16, Format::kE4m3,
                                                   Format::kE5m2, Format::kFp32};

inline std::size_t element_size(Format format) {
  return format == Format::kFp32 ? 4 : format == Format::kFp16 || format == Format::kBf16 ? 2 : 1;
}

inline double decode_fields(std::uint32_t bits, int exponent_bits, int significand_bits, int bias,
                            bool has_infinity) {
  const auto significand = static_cast<double>(bits & ((1u << significand_bits) - 1));
  const int exponent = static_cast<int>((bits >> significand_bits) & ((1u << exponent_bits) - 1));
  const double sign = ((bits >> (exponent_bits + significand_bits)) & 1u) != 0 ? -1.0 : 1.0;
  if (has_infinity && exponent == (1 << exponent_bits) - 1) {
    return significand == 0 ? sign * std::numeric_limits<double>::infinity()
                            : std::numeric_limits<double>::quiet_NaN();
  }
  const double scale = std::ldexp(1.0, -significand_bits);
  return sign * (exponent == 0 ? std::ldexp(significand * scale, 1 - bias)
                               : std::ldexp(1.0 + significand * scale, exponent - bias));
}

/// Value of an element. FP32 and BF16 go through the machine's own float.
inline double decode(Format format, std::uint32_t bits) {
  const auto as_float = [](std::uint32_t word) {
    float value;
    std::memcpy(&value, &word, sizeof value);
    return static_cast<double>(value);
  };
  switch (format) {
    case Format::kFp16:
      return decode_fields(bits, 5, 10, 15, true);
    case Format::kBf16:
      return as_float(bits << 16);
    case Format::kE4m3:
      return (bits & 0x7F) == 0x7F ? std::numeric_limits<double>::quiet_NaN()
                                   : decode_fields(bits, 4, 3, 7, false);
    case Format::kE5m2:
      return decode_fields(bits, 5, 2, 15, true);
    case Format::kFp32:
      break;
  }
  return as_float(bits);
}

inline double max_finite(Format format) {
  switch (format) {
    case Format::kFp16:
      return 65504;
    case Format::kBf16:
      return std::ldexp(255.0, 120);  // 1.9921875 * 2^127
    case Format::kE4m3:
      return 448;
    case Format::kE5m2:
      return 57344;
    case Format::kFp32:
      break;
  }
  return static_cast<double>(std::numeric_limits<float>::max());
}

inline double min_normal(Format format) {
  switch (format) {
    case Format::kFp16:
    case Format::kE5m2:
      return std::ldexp(1.0, -14);
    case Format::kE4m3:
      return std::ldexp(1.0, -6);
    case Format::kBf16:
    case Format::kFp32:
      break;
  }
  return std::ldexp(1.0, -126);
}

inline std::uint32_t load_bits(Format format, std::span<const std::byte> elements, std::size_t k) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, elements.data() + k * element_size(format), element_size(format));
  return bits;
}

/// Statistic by value: counts in 64 bits, saturated at the end.
inline TapSummary oracle_summary(Format format, std::span<const std::byte> elements,
                                 std::span<const std::uint8_t> enabled, unsigned counter_width) {
  const std::uint64_t limit = (std::uint64_t{1} << counter_width) - 1;
  std::uint64_t count = 0, nonfinite = 0, saturated = 0, subnormal = 0, zero = 0;
  std::uint64_t first = kNoElement;
  double largest = 0;
  std::uint32_t largest_bits = 0;
  for (std::size_t k = 0; k < elements.size() / element_size(format); ++k) {
    if (!enabled.empty() && enabled[k] == 0) continue;
    const std::uint32_t bits = load_bits(format, elements, k);
    const double value = std::fabs(decode(format, bits));
    ++count;
    if (!std::isfinite(value)) {
      if (nonfinite++ == 0) first = std::min<std::uint64_t>(k, limit - 1);
      continue;
    }
    if (value > largest) {
      largest = value;
      largest_bits = bits & ~(1u << (8 * element_size(format) - 1));
    }
    saturated += value == max_finite(format) ? 1 : 0;
    subnormal += value > 0 && value < min_normal(format) ? 1 : 0;
    zero += value == 0 ? 1 : 0;
  }
  const auto clamp = [limit](std::uint64_t n) {
    return static_cast<std::uint32_t>(std::min(n, limit));
  };
  return {.max_mag = largest_bits,
          .element_count = clamp(count),
          .nonfinite_count = clamp(nonfinite),
          .first_nonfinite = static_cast<std::uint32_t>(first),
          .saturated_count = clamp(saturated),
          .subnormal_count = clamp(subnormal),
          .zero_count = clamp(zero)};
}

/// Kinds of content that take different ways through a vectorised summary.
enum class Content { kRandom, kModerate, kNearLimit, kTiny, kOneNonfinite, kAllNonfinite, kCount };

inline std::uint32_t draw_element(std::mt19937_64& rng, Format format, Content content) {
  const std::size_t width = 8 * element_size(format);
  const std::uint32_t all = width == 32 ? 0xFFFFFFFFu : (1u << width) - 1;
  std::uint32_t limit = 0;  // bits of the largest finite value
  switch (format) {
    case Format::kFp16:
      limit = 0x7BFF;
      break;
    case Format::kBf16:
      limit = 0x7F7F;
      break;
    case Format::kE4m3:
      limit = 0x7E;
      break;
    case Format::kE5m2:
      limit = 0x7B;
      break;
    case Format::kFp32:
      limit = 0x7F7FFFFF;
      break;
  }
  const std::uint32_t sign = (rng() & 1) != 0 ? 1u << (width - 1) : 0;
  switch (content) {
    case Content::kNearLimit:
      return sign | (limit - 2 + static_cast<std::uint32_t>(rng() % 4));  // one above the limit
    case Content::kTiny:
      return sign | static_cast<std::uint32_t>(rng() % 3);
    case Content::kAllNonfinite:
      return sign | (limit + 1);
    case Content::kRandom:
      return static_cast<std::uint32_t>(rng()) & all;
    default:
      break;
  }
  return static_cast<std::uint32_t>(rng()) & all &
         ~(1u << (width - 2));  // exponent below half: finite
}

/// `count` elements that start `misalignment` bytes after the returned buffer's begin.
inline std::vector<std::byte> draw_elements(std::mt19937_64& rng, Format format, Content content,
                                            std::size_t count, std::size_t misalignment) {
  const std::size_t size = element_size(format);
  std::vector<std::byte> bytes(misalignment + count * size);
  for (std::size_t k = 0; k < count; ++k) {
    const std::uint32_t bits = draw_element(rng, format, content);
    std::memcpy(bytes.data() + misalignment + k * size, &bits, size);
  }
  if (content == Content::kOneNonfinite && count > 0) {
    const std::uint32_t bits = draw_element(rng, format, Content::kAllNonfinite);
    std::memcpy(bytes.data() + misalignment + rng() % count * size, &bits, size);
  }
  return bytes;
}

/// Every configuration field uniform over its legal range.
inline Config draw_config(std::mt19937_64& rng) {
  Config config;
  for (const ConfigField& field : kConfigFields) {
    field.set(config, static_cast<std::int32_t>(draw(rng, field.minimum, field.maximum)));
  }
  return config;
}

}  // namespace opd::tb
