#pragma once
// What the lanes of the vector unit compute: formats to binary32 and back, and the functions of a
// lane. Scalar functions of one lane, to be called in loops over lanes that the compiler turns into
// vector code; arrays where a vector instruction does a format.
//
//   casts  : by integer arithmetic on the bits; subnormals by one binary32 addition whose unit in
//            the last place is the format's smallest subnormal
//   NaN    : a cast to a format gives the canonical one; between lane operations any
//   exact  : equal bits whatever the instruction set; nothing is fused but fma()
//   source : docs/numerics.md, "Lanes" and "Functions of a lane"
//
// This header and those that are built on it are compiled once per instruction set: OPD_LANES names
// the namespace of one (src/lane_programs_*.cpp). Alone they are portable.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "opd/sc/format.hpp"

#ifndef OPD_LANES
#define OPD_LANES portable
#endif

namespace opd::sc {
inline namespace OPD_LANES {

/// Lanes of the widest beat: 64 bytes of an 8-bit format.
inline constexpr std::size_t kMaxLanes = 64;

/// The registers of the lanes.
struct Lanes {
  alignas(64) float at[kMaxLanes];
};

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

inline constexpr std::uint32_t kSignBit = 0x80000000u;
inline constexpr std::uint32_t kInfinityBits = 0x7F800000u;
inline constexpr std::uint32_t kCanonicalNan = 0x7FC00000u;

/// condition ? a : b on bits, without a branch.
inline std::uint32_t choose(bool condition, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}
inline float choose(bool condition, float a, float b) {
  return float_of(choose(condition, bits_of(a), bits_of(b)));
}

/// a * b + c, rounded once.
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// ---- Casts

/// The element with these bits as the binary32 number that it is.
template <Format kFormat>
inline float decode(std::uint32_t bits) {
  constexpr FormatProperties kLayout = properties(kFormat);
  if constexpr (kFormat == Format::kFp32) return float_of(bits);
  if constexpr (kFormat == Format::kBf16) return float_of(bits << 16);
  const std::uint32_t sign = (bits << (32 - kLayout.element_bits())) & kSignBit;
  const std::uint32_t magnitude = bits & kLayout.magnitude_mask();
  // With its exponent field taken for a binary32 one the number is too small by a power of two, a
  // subnormal one as well.
  constexpr float kScale =
      std::bit_cast<float>(static_cast<std::uint32_t>(254 - kLayout.bias) << 23);
  const float value = float_of(magnitude << (23 - kLayout.significand_bits)) * kScale;
  std::uint32_t result = bits_of(value);
  if constexpr (kFormat == Format::kE4m3) {
    result = choose(magnitude > kLayout.largest_finite, kCanonicalNan, result);
  } else {
    const std::uint32_t special = kInfinityBits | magnitude << (23 - kLayout.significand_bits);
    result = choose(magnitude > kLayout.largest_finite, special, result);
  }
  return float_of(result | sign);
}

/// The canonical NaN of a format.
constexpr std::uint32_t canonical_nan(Format format) {
  const FormatProperties& layout = properties(format);
  if (format == Format::kE4m3) return layout.magnitude_mask();
  return (layout.largest_finite + 1) | layout.smallest_normal() >> 1;
}

/// Bits of x rounded to the format: to nearest, ties to even. Above the largest finite value
/// infinity (E4M3: NaN), with `saturate` the largest finite value.
template <Format kFormat>
inline std::uint32_t encode(float x, bool saturate = false) {
  constexpr FormatProperties kLayout = properties(kFormat);
  constexpr unsigned kDropped = 23 - kLayout.significand_bits;
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kLayout.bias)
                                    << kLayout.significand_bits;
  constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(128 - kLayout.bias) << 23;
  constexpr std::uint32_t kOverflow =
      kFormat == Format::kE4m3 ? canonical_nan(kFormat) : kLayout.largest_finite + 1;

  const std::uint32_t magnitude = bits_of(x) & ~kSignBit;
  const std::uint32_t sign = (bits_of(x) & kSignBit) >> (32 - kLayout.element_bits());
  std::uint32_t result = magnitude;
  if constexpr (kDropped > 0) {
    const std::uint32_t half = (1u << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1u);
    result = ((magnitude + half) >> kDropped) - kRebias;
  }
  if constexpr (kLayout.bias != 127) {
    // 2^23 of the format's smallest subnormals: their number is what the addition leaves below.
    constexpr std::uint32_t kMagic =
        static_cast<std::uint32_t>(151 - kLayout.bias - static_cast<int>(kLayout.significand_bits))
        << 23;
    const std::uint32_t subnormal = bits_of(float_of(magnitude) + float_of(kMagic)) - kMagic;
    result = choose(magnitude < kSmallestNormal, subnormal, result);
  }
  const bool above = result > kLayout.largest_finite;
  result = choose(above, choose(saturate, kLayout.largest_finite, kOverflow), result) | sign;
  const bool overflow_is_nan = kFormat == Format::kE4m3 && above && !saturate;
  return choose((magnitude > kInfinityBits) | overflow_is_nan, canonical_nan(kFormat), result);
}

/// Calls `body` with the format as a template argument. Precondition: is_format(format).
template <class Body>
inline void with_format(Format format, const Body& body) {
  switch (format) {
    case Format::kFp16:
      return body.template operator()<Format::kFp16>();
    case Format::kBf16:
      return body.template operator()<Format::kBf16>();
    case Format::kE4m3:
      return body.template operator()<Format::kE4m3>();
    case Format::kE5m2:
      return body.template operator()<Format::kE5m2>();
    case Format::kFp32:
      return body.template operator()<Format::kFp32>();
  }
  __builtin_unreachable();
}

template <Format kFormat>
struct ElementWord {
  using Type = std::uint16_t;
};
template <>
struct ElementWord<Format::kE4m3> {
  using Type = std::uint8_t;
};
template <>
struct ElementWord<Format::kE5m2> {
  using Type = std::uint8_t;
};
template <>
struct ElementWord<Format::kFp32> {
  using Type = std::uint32_t;
};

// How many lanes a loop covers is a template argument: std::size_t, or FullBeat, with which the
// compiler knows it.

/// The lanes of a full beat of 16-bit elements in a datapath of 512 bits.
using FullBeat = std::integral_constant<std::size_t, 32>;

#if defined(OPD_LANES_AVX2)
inline __m128i to_halves(const float* lanes) {
  return _mm256_cvtps_ph(_mm256_loadu_ps(lanes), _MM_FROUND_TO_NEAREST_INT);
}
inline __m256 from_halves(const void* halves) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(halves)));
}
#endif

/// `count` packed elements into as many lanes, the other lanes up to the next multiple of 8 to +0.
/// Precondition: count <= kMaxLanes.
template <Format kFormat, class Count>
inline void decode_lanes(const std::byte* elements, Count count, float* lanes) {
  using Word = typename ElementWord<kFormat>::Type;
  const std::size_t whole = count / 8 * 8;
#if defined(OPD_LANES_AVX2)
  if constexpr (kFormat == Format::kFp16) {
    for (std::size_t i = 0; i < whole; i += 8) {
      _mm256_storeu_ps(lanes + i, from_halves(elements + i * sizeof(Word)));
    }
    if (whole == count) return;
    Word words[8] = {};
    std::memcpy(words, elements + whole * sizeof(Word), (count - whole) * sizeof(Word));
    _mm256_storeu_ps(lanes + whole, from_halves(words));
    return;
  }
#endif
  for (std::size_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, elements + i * sizeof(Word), sizeof(Word));
    lanes[i] = decode<kFormat>(word);
  }
  if (whole != count) std::fill(lanes + count, lanes + whole + 8, 0.0f);
}

/// The first `count` lanes as packed elements.
template <Format kFormat, class Count>
inline void encode_lanes(const float* lanes, Count count, bool saturate, std::byte* elements) {
  using Word = typename ElementWord<kFormat>::Type;
#if defined(OPD_LANES_AVX2)
  if constexpr (kFormat == Format::kFp16) {
    const __m128i infinity = _mm_set1_epi16(0x7C00);
    const __m128i largest = _mm_set1_epi16(saturate ? 0x7BFF : 0x7C00);
    for (std::size_t i = 0; i < count; i += 8) {
      const __m128i halves = to_halves(lanes + i);
      const __m128i magnitude = _mm_and_si128(halves, _mm_set1_epi16(0x7FFF));
      const __m128i sign = _mm_andnot_si128(_mm_set1_epi16(0x7FFF), halves);
      const __m128i number = _mm_or_si128(sign, _mm_min_epi16(magnitude, largest));
      const __m128i result =
          _mm_blendv_epi8(number, _mm_set1_epi16(0x7E00), _mm_cmpgt_epi16(magnitude, infinity));
      if (i + 8 <= count) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(elements + i * sizeof(Word)), result);
      } else {
        std::memcpy(elements + i * sizeof(Word), &result, (count - i) * sizeof(Word));
      }
    }
    return;
  }
#endif
  for (std::size_t i = 0; i < count; ++i) {
    const auto word = static_cast<Word>(encode<kFormat>(lanes[i], saturate));
    std::memcpy(elements + i * sizeof(Word), &word, sizeof(Word));
  }
}

/// The first `count` lanes rounded to the format and back; lanes up to the next multiple of 8 may
/// be rounded with them.
template <Format kFormat, class Count>
inline void round_lanes(float* lanes, Count count) {
  if constexpr (kFormat == Format::kFp32) return;
#if defined(OPD_LANES_AVX2)
  if constexpr (kFormat == Format::kFp16) {
    for (std::size_t i = 0; i < count; i += 8) {
      _mm256_storeu_ps(lanes + i, _mm256_cvtph_ps(to_halves(lanes + i)));
    }
    return;
  }
#endif
  for (std::size_t i = 0; i < count; ++i) lanes[i] = decode<kFormat>(encode<kFormat>(lanes[i]));
}

template <class Count>
inline void decode_lanes(Format format, const std::byte* elements, Count count, float* lanes) {
  with_format(format, [&]<Format kFormat>() { decode_lanes<kFormat>(elements, count, lanes); });
}
template <class Count>
inline void encode_lanes(Format format, const float* lanes, Count count, bool saturate,
                         std::byte* elements) {
  with_format(format,
              [&]<Format kFormat>() { encode_lanes<kFormat>(lanes, count, saturate, elements); });
}
template <class Count>
inline void round_lanes(Format format, float* lanes, Count count) {
  with_format(format, [&]<Format kFormat>() { round_lanes<kFormat>(lanes, count); });
}

/// One value rounded to the format and back.
inline float rounded_to(Format format, float x) {
  float result = x;
  with_format(format, [&]<Format kFormat>() { result = decode<kFormat>(encode<kFormat>(x)); });
  return result;
}

/// x * 2^n, rounded once: the product is exact in binary64. Precondition: |n| <= 600.
inline float scaled_by(float x, int n) {
  const double power = std::bit_cast<double>(static_cast<std::uint64_t>(1023 + n) << 52);
  return static_cast<float>(static_cast<double>(x) * power);
}

// ---- Functions

inline float inverse(float x) { return 1.0f / x; }
inline float inverse_root(float x) { return 1.0f / __builtin_sqrtf(x); }

inline float exponential(float x) {
  const bool above = x > float_of(0x42B17217), below = x < float_of(0xC2CFF1B5);
  const bool special = above | below | (x != x);
  const float in = choose(special, 0.0f, x);
  // Added to 1.5 * 2^23 a number is rounded to an integer, which stands in the low bits.
  constexpr float kShift = 0x1.8p23f;
  const float shifted = in * float_of(0x3FB8AA3B) + kShift;
  const float n = shifted - kShift;
  const auto power = static_cast<std::int32_t>(bits_of(shifted) - bits_of(kShift));
  float r = fma(n, float_of(0xBF317200), in);
  r = fma(n, float_of(0xB5BFBE8E), r);
  float p = float_of(0x39500D01);
  p = fma(p, r, float_of(0x3AB60B61));
  p = fma(p, r, float_of(0x3C088889));
  p = fma(p, r, float_of(0x3D2AAAAB));
  p = fma(p, r, float_of(0x3E2AAAAB));
  p = fma(p, r, 0.5f);
  p = fma(p, r, 1.0f);
  p = fma(p, r, 1.0f);
  // Two powers of two, of which only the second product can leave the normal range.
  const std::int32_t half = power >> 1;
  const float first = float_of(static_cast<std::uint32_t>(half + 127) << 23);
  const float second = float_of(static_cast<std::uint32_t>(power - half + 127) << 23);
  const float result = p * first * second;
  const float limit = choose(above, float_of(kInfinityBits), choose(below, 0.0f, x));
  return choose(special, limit, result);
}

inline float sigmoid(float x) { return inverse(1.0f + exponential(-x)); }

/// Distribution function of the normal distribution.
inline float gauss(float x) {
  const float z = float_of(bits_of(x) & ~kSignBit) * float_of(0x3F3504F3);
  const float t = inverse(fma(float_of(0x3EA7BA05), z, 1.0f));
  float q = float_of(0x3F87DC22);
  q = fma(q, t, float_of(0xBFBA00E3));
  q = fma(q, t, float_of(0x3FB5F0E3));
  q = fma(q, t, float_of(0xBE91A98E));
  q = fma(q, t, float_of(0x3E827906));
  const float u = q * t * exponential(-(z * z));
  const float v = 0.5f * u;
  return choose(x < 0, v, 1.0f - v);
}

}  // namespace OPD_LANES
}  // namespace opd::sc
