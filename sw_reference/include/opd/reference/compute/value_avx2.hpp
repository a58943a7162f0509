#pragma once
// Eight lanes in AVX2, FMA and F16C. Only for source files whose functions are compiled for these
// (run_avx2.cpp, run_avx512.cpp); source: docs/numerics.md "Lanes".
#include <immintrin.h>

#include "opd/reference/compute/value.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

struct F8 {
  __m256 v;
};
struct U8 {
  __m256i v;
};
struct M8 {  ///< all bits of a lane or none
  __m256 v;
};
struct D8 {
  __m256d low, high;
};

template <>
struct Of<F8> {
  static constexpr unsigned kLanes = 8;
  static constexpr bool kHalves = true;
  using Bits = U8;
  using Wide = D8;
};

inline F8 operator+(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F8 operator-(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F8 operator*(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F8 operator/(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F8 operator-(F8 a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))}; }
inline M8 operator<(F8 a, F8 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline M8 operator>(F8 a, F8 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
inline M8 operator==(F8 a, F8 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }

inline U8 operator+(U8 a, U8 b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline U8 operator-(U8 a, U8 b) { return {_mm256_sub_epi32(a.v, b.v)}; }
inline U8 operator&(U8 a, U8 b) { return {_mm256_and_si256(a.v, b.v)}; }
inline U8 operator|(U8 a, U8 b) { return {_mm256_or_si256(a.v, b.v)}; }
inline U8 operator<<(U8 a, unsigned n) { return {_mm256_slli_epi32(a.v, static_cast<int>(n))}; }
inline U8 operator>>(U8 a, unsigned n) { return {_mm256_srli_epi32(a.v, static_cast<int>(n))}; }
/// Of numbers below 2^31.
inline M8 operator<(U8 a, U8 b) { return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.v, a.v))}; }
inline M8 operator>(U8 a, U8 b) { return b < a; }
inline U8 larger(U8 a, U8 b) { return {_mm256_max_epu32(a.v, b.v)}; }

inline D8 operator+(D8 a, D8 b) {
  return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)};
}
inline D8 operator-(D8 a, D8 b) {
  return {_mm256_sub_pd(a.low, b.low), _mm256_sub_pd(a.high, b.high)};
}
inline D8 operator-(D8 a) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  return {_mm256_xor_pd(a.low, sign), _mm256_xor_pd(a.high, sign)};
}
inline D8 operator*(D8 a, D8 b) {
  return {_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high)};
}
inline D8 operator*(D8 a, double b) {
  const __m256d all = _mm256_set1_pd(b);
  return {_mm256_mul_pd(a.low, all), _mm256_mul_pd(a.high, all)};
}

inline U8 bits_of(F8 x) { return {_mm256_castps_si256(x.v)}; }
inline F8 value_of(U8 bits) { return {_mm256_castsi256_ps(bits.v)}; }
inline F8 fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F8 square_root(F8 x) { return {_mm256_sqrt_ps(x.v)}; }
inline D8 widen(F8 x) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(x.v)),
          _mm256_cvtps_pd(_mm256_extractf128_ps(x.v, 1))};
}
inline F8 narrow(D8 x) {
  return {_mm256_set_m128(_mm256_cvtpd_ps(x.high), _mm256_cvtpd_ps(x.low))};
}
inline F8 magnitude(F8 x) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x.v)}; }
inline D8 magnitude(D8 x) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  return {_mm256_andnot_pd(sign, x.low), _mm256_andnot_pd(sign, x.high)};
}
/// The larger of numbers; where b is NaN, b.
inline F8 larger(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline D8 larger(D8 a, D8 b) {
  return {_mm256_max_pd(a.low, b.low), _mm256_max_pd(a.high, b.high)};
}
/// x where it is finite, else 0.
inline D8 zero_unless_finite(D8 x, D8 test) {
  const __m256d zero = _mm256_setzero_pd();
  return {
      _mm256_and_pd(x.low, _mm256_cmp_pd(_mm256_sub_pd(test.low, test.low), zero, _CMP_EQ_OQ)),
      _mm256_and_pd(x.high, _mm256_cmp_pd(_mm256_sub_pd(test.high, test.high), zero, _CMP_EQ_OQ))};
}

inline F8 select(M8 choice, F8 a, F8 b) { return {_mm256_blendv_ps(b.v, a.v, choice.v)}; }
inline U8 select(M8 choice, U8 a, U8 b) {
  return {_mm256_blendv_epi8(b.v, a.v, _mm256_castps_si256(choice.v))};
}
inline D8 select(M8 choice, D8 a, D8 b) {
  const __m256i mask = _mm256_castps_si256(choice.v);
  const __m256d low = _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(mask)));
  const __m256d high =
      _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm256_extracti128_si256(mask, 1)));
  return {_mm256_blendv_pd(b.low, a.low, low), _mm256_blendv_pd(b.high, a.high, high)};
}
/// Of a NaN the instructions give their second operand.
inline F8 bounded(F8 x, F8 low, F8 high) {
  return {_mm256_min_ps(high.v, _mm256_max_ps(low.v, x.v))};
}
inline M8 is_nan(F8 x) { return {_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q)}; }
inline M8 either(M8 a, M8 b) { return {_mm256_or_ps(a.v, b.v)}; }

template <>
inline F8 load<F8>(const float* address) {
  return {_mm256_loadu_ps(address)};
}
inline void store(float* address, F8 x) { _mm256_storeu_ps(address, x.v); }
inline void store(double* address, D8 x) {
  _mm256_storeu_pd(address, x.low);
  _mm256_storeu_pd(address + 4, x.high);
}
template <>
inline F8 every<F8>(float x) {
  return {_mm256_set1_ps(x)};
}
template <>
inline U8 every_bits<F8>(std::uint32_t bits) {
  return {_mm256_set1_epi32(static_cast<int>(bits))};
}
template <>
inline auto load_mask<F8>(const std::uint8_t* address) {
  const __m256i bytes =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(address)));
  return M8{_mm256_castsi256_ps(_mm256_cmpgt_epi32(bytes, _mm256_setzero_si256()))};
}
/// True in the first n lanes.
template <>
inline auto first_lanes<F8>(unsigned n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return M8{_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane))};
}
/// Lane j of the result is lane j + n of x; n is 4, 2 or 1. What lies above is of no meaning.
inline F8 moved_down(F8 x, unsigned n) {
  if (n == 4) return {_mm256_permute2f128_ps(x.v, x.v, 0x11)};
  if (n == 2) return {_mm256_permute_ps(x.v, 0x0E)};
  return {_mm256_permute_ps(x.v, 0x01)};
}
inline D8 moved_down(D8 x, unsigned n) {
  if (n == 4) return {x.high, x.high};
  if (n == 2) return {_mm256_permute2f128_pd(x.low, x.low, 0x11), x.high};
  return {_mm256_permute_pd(x.low, 0x1), x.high};
}
inline float first_lane(F8 x) { return _mm256_cvtss_f32(x.v); }
inline double first_lane(D8 x) { return _mm256_cvtsd_f64(x.low); }

template <>
inline U8 load_packed<F8, 1>(const std::byte* address) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(address)))};
}
template <>
inline U8 load_packed<F8, 2>(const std::byte* address) {
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(address)))};
}
template <>
inline U8 load_packed<F8, 4>(const std::byte* address) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(address))};
}
inline __m128i packed_16(U8 bits) {
  return _mm_packus_epi32(_mm256_castsi256_si128(bits.v), _mm256_extracti128_si256(bits.v, 1));
}
template <unsigned kBytes>
inline void store_packed(std::byte* address, U8 bits) {
  if constexpr (kBytes == 4) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(address), bits.v);
  } else if constexpr (kBytes == 2) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(address), packed_16(bits));
  } else {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(address),
                     _mm_packus_epi16(packed_16(bits), _mm_setzero_si128()));
  }
}

/// FP16 elements, by the instructions for them: overflow gives Inf, a NaN stays one.
template <>
inline F8 load_halves<F8>(const std::byte* address) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(address)))};
}
inline void store_halves(std::byte* address, F8 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(address),
                   _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
inline F8 rounded_to_half(F8 x) {
  return {_mm256_cvtph_ps(_mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT))};
}

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
