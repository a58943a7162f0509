#pragma once
// Sixteen lanes in AVX-512 (F, BW, DQ, VL). Only for source files whose functions are compiled for
// these (run_avx512.cpp); source: docs/numerics.md "Lanes".
#include <immintrin.h>

#include "opd/reference/compute/value.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

struct F16 {
  __m512 v;
};
struct U16 {
  __m512i v;
};
struct M16 {
  __mmask16 v;
};
struct D16 {
  __m512d low, high;
};

template <>
struct Of<F16> {
  static constexpr unsigned kLanes = 16;
  static constexpr bool kHalves = true;
  using Bits = U16;
  using Wide = D16;
};

inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 operator-(F16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
inline M16 operator<(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline M16 operator>(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
inline M16 operator==(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }

inline U16 operator+(U16 a, U16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline U16 operator-(U16 a, U16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline U16 operator&(U16 a, U16 b) { return {_mm512_and_si512(a.v, b.v)}; }
inline U16 operator|(U16 a, U16 b) { return {_mm512_or_si512(a.v, b.v)}; }
inline U16 operator<<(U16 a, unsigned n) { return {_mm512_slli_epi32(a.v, n)}; }
inline U16 operator>>(U16 a, unsigned n) { return {_mm512_srli_epi32(a.v, n)}; }
inline M16 operator<(U16 a, U16 b) { return {_mm512_cmplt_epu32_mask(a.v, b.v)}; }
inline M16 operator>(U16 a, U16 b) { return b < a; }
inline U16 larger(U16 a, U16 b) { return {_mm512_max_epu32(a.v, b.v)}; }

inline D16 operator+(D16 a, D16 b) {
  return {_mm512_add_pd(a.low, b.low), _mm512_add_pd(a.high, b.high)};
}
inline D16 operator-(D16 a, D16 b) {
  return {_mm512_sub_pd(a.low, b.low), _mm512_sub_pd(a.high, b.high)};
}
inline D16 operator-(D16 a) {
  const __m512d sign = _mm512_set1_pd(-0.0);
  return {_mm512_xor_pd(a.low, sign), _mm512_xor_pd(a.high, sign)};
}
inline D16 operator*(D16 a, D16 b) {
  return {_mm512_mul_pd(a.low, b.low), _mm512_mul_pd(a.high, b.high)};
}
inline D16 operator*(D16 a, double b) {
  const __m512d all = _mm512_set1_pd(b);
  return {_mm512_mul_pd(a.low, all), _mm512_mul_pd(a.high, all)};
}

inline U16 bits_of(F16 x) { return {_mm512_castps_si512(x.v)}; }
inline F16 value_of(U16 bits) { return {_mm512_castsi512_ps(bits.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 square_root(F16 x) { return {_mm512_sqrt_ps(x.v)}; }
inline D16 widen(F16 x) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(x.v)),
          _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1))};
}
inline F16 narrow(D16 x) {
  return {_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(x.low)),
                             _mm512_cvtpd_ps(x.high), 1)};
}
inline F16 magnitude(F16 x) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), x.v)}; }
inline D16 magnitude(D16 x) {
  const __m512d sign = _mm512_set1_pd(-0.0);
  return {_mm512_andnot_pd(sign, x.low), _mm512_andnot_pd(sign, x.high)};
}
/// The larger of numbers; where b is NaN, b.
inline F16 larger(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline D16 larger(D16 a, D16 b) {
  return {_mm512_max_pd(a.low, b.low), _mm512_max_pd(a.high, b.high)};
}
/// x where it is finite, else 0.
inline D16 zero_unless_finite(D16 x, D16 test) {
  const __m512d zero = _mm512_setzero_pd();
  return {_mm512_maskz_mov_pd(
              _mm512_cmp_pd_mask(_mm512_sub_pd(test.low, test.low), zero, _CMP_EQ_OQ), x.low),
          _mm512_maskz_mov_pd(
              _mm512_cmp_pd_mask(_mm512_sub_pd(test.high, test.high), zero, _CMP_EQ_OQ), x.high)};
}

inline F16 select(M16 choice, F16 a, F16 b) { return {_mm512_mask_mov_ps(b.v, choice.v, a.v)}; }
inline U16 select(M16 choice, U16 a, U16 b) { return {_mm512_mask_mov_epi32(b.v, choice.v, a.v)}; }
inline D16 select(M16 choice, D16 a, D16 b) {
  return {_mm512_mask_mov_pd(b.low, static_cast<__mmask8>(choice.v), a.low),
          _mm512_mask_mov_pd(b.high, static_cast<__mmask8>(choice.v >> 8), a.high)};
}
/// Of a NaN the instructions give their second operand.
inline F16 bounded(F16 x, F16 low, F16 high) {
  return {_mm512_min_ps(high.v, _mm512_max_ps(low.v, x.v))};
}
inline M16 is_nan(F16 x) { return {_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q)}; }
inline M16 either(M16 a, M16 b) { return {static_cast<__mmask16>(a.v | b.v)}; }
/// RN32(p * 2^n), n whole numbers.
inline F16 times_power(F16 p, F16 n, U16) { return {_mm512_scalef_ps(p.v, n.v)}; }

template <>
inline F16 load<F16>(const float* address) {
  return {_mm512_loadu_ps(address)};
}
inline void store(float* address, F16 x) { _mm512_storeu_ps(address, x.v); }
inline void store(double* address, D16 x) {
  _mm512_storeu_pd(address, x.low);
  _mm512_storeu_pd(address + 8, x.high);
}
template <>
inline F16 every<F16>(float x) {
  return {_mm512_set1_ps(x)};
}
template <>
inline U16 every_bits<F16>(std::uint32_t bits) {
  return {_mm512_set1_epi32(static_cast<int>(bits))};
}
template <>
inline auto load_mask<F16>(const std::uint8_t* address) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(address));
  return M16{_mm_test_epi8_mask(bytes, bytes)};
}
/// True in the first n lanes, n <= 16.
template <>
inline auto first_lanes<F16>(unsigned n) {
  return M16{static_cast<__mmask16>((1u << n) - 1)};
}
/// Lane j of the result is lane j + n of x; n is 8, 4, 2 or 1. What lies above is of no meaning.
inline F16 moved_down(F16 x, unsigned n) {
  if (n == 8) return {_mm512_shuffle_f32x4(x.v, x.v, 0x0E)};
  if (n == 4) return {_mm512_shuffle_f32x4(x.v, x.v, 0x01)};
  if (n == 2) return {_mm512_permute_ps(x.v, 0x0E)};
  return {_mm512_permute_ps(x.v, 0x01)};
}
inline D16 moved_down(D16 x, unsigned n) {
  if (n == 8) return {x.high, x.high};
  if (n == 4) return {_mm512_shuffle_f64x2(x.low, x.low, 0x0E), x.high};
  if (n == 2) return {_mm512_shuffle_f64x2(x.low, x.low, 0x01), x.high};
  return {_mm512_permute_pd(x.low, 0x1), x.high};
}
inline float first_lane(F16 x) { return _mm512_cvtss_f32(x.v); }
inline double first_lane(D16 x) { return _mm512_cvtsd_f64(x.low); }

template <>
inline U16 load_packed<F16, 1>(const std::byte* address) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(address)))};
}
template <>
inline U16 load_packed<F16, 2>(const std::byte* address) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(address)))};
}
template <>
inline U16 load_packed<F16, 4>(const std::byte* address) {
  return {_mm512_loadu_si512(address)};
}
template <unsigned kBytes>
inline void store_packed(std::byte* address, U16 bits) {
  if constexpr (kBytes == 4) {
    _mm512_storeu_si512(address, bits.v);
  } else if constexpr (kBytes == 2) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(address), _mm512_cvtepi32_epi16(bits.v));
  } else {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(address), _mm512_cvtepi32_epi8(bits.v));
  }
}

/// FP16 elements, by the instructions for them: overflow gives Inf, a NaN stays one.
template <>
inline F16 load_halves<F16>(const std::byte* address) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(address)))};
}
inline void store_halves(std::byte* address, F16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(address),
                      _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
inline F16 rounded_to_half(F16 x) {
  return {_mm512_cvtph_ps(_mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT))};
}

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
