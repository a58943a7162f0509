#pragma once
// What the lane functions are written in: a value V of one or several lanes (here float; eight lanes
// in value_avx2.hpp, sixteen in value_avx512.hpp), its bits and its binary64 counterpart.
//
//   exact  : IEEE 754, round to nearest even; nothing is fused but `fma`. Operators of float and
//            double round once: opd::types carries -ffp-contract=off and --fmad=false
//   source : docs/numerics.md "Lanes"
#include <cmath>
#include <cstdint>

#include "opd/reference/compute/isa.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

/// Types that go with V.
template <class V>
struct Of;
template <>
struct Of<float> {
  static constexpr unsigned kLanes = 1;
  static constexpr bool kHalves = false;  ///< has load_halves, store_halves, rounded_to_half
  using Bits = std::uint32_t;
  using Wide = double;
};
template <class V>
using Bits = typename Of<V>::Bits;
template <class V>
using Wide = typename Of<V>::Wide;

/// An FP16 element in memory.
struct Half {
  std::uint16_t bits;
};

OPD_HOST_DEVICE inline std::uint32_t bits_of(float x) { return to_bits(x); }
OPD_HOST_DEVICE inline float value_of(std::uint32_t bits) { return from_bits(bits); }

OPD_HOST_DEVICE inline float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
OPD_HOST_DEVICE inline float square_root(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}
OPD_HOST_DEVICE inline double square_root(double x) {
#if defined(__CUDA_ARCH__)
  return __dsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}
OPD_HOST_DEVICE inline double widen(float x) { return x; }
OPD_HOST_DEVICE inline float narrow(double x) { return static_cast<float>(x); }

OPD_HOST_DEVICE inline float magnitude(float x) { return from_bits(to_bits(x) & 0x7FFFFFFFu); }
OPD_HOST_DEVICE inline double magnitude(double x) { return x < 0 ? -x : x; }
OPD_HOST_DEVICE inline bool finite(double x) { return x - x == 0; }
/// Inf and NaN are not below it.
OPD_HOST_DEVICE inline bool finite(float x) { return (to_bits(x) & 0x7FFFFFFFu) < 0x7F800000u; }

OPD_HOST_DEVICE inline float select(bool choice, float a, float b) { return choice ? a : b; }
OPD_HOST_DEVICE inline double select(bool choice, double a, double b) { return choice ? a : b; }
OPD_HOST_DEVICE inline std::uint32_t select(bool choice, std::uint32_t a, std::uint32_t b) {
  return choice ? a : b;
}
OPD_HOST_DEVICE inline bool is_nan(float x) { return x != x; }
OPD_HOST_DEVICE inline bool either(bool a, bool b) { return a || b; }

/// x between the two; NaN stays.
OPD_HOST_DEVICE inline float bounded(float x, float low, float high) {
  return x < low ? low : x > high ? high : x;
}

/// The lanes of V at an address; every lane the same number.
template <class V>
OPD_HOST_DEVICE inline V load(const float* address) {
  return *address;
}
OPD_HOST_DEVICE inline void store(float* address, float x) { *address = x; }
template <class V>
OPD_HOST_DEVICE inline V every(float x) {
  return x;
}
template <class V>
OPD_HOST_DEVICE inline Bits<V> every_bits(std::uint32_t bits) {
  return bits;
}
/// RN32(p * 2^n), n a whole number in -150..128 whose bits are those of `shifted` less kRounder's.
inline constexpr std::uint32_t kRounder = 0x4B400000u;  ///< 1.5 * 2^23: its last place is 1
template <class V, class B>
OPD_HOST_DEVICE inline V times_power(V p, V, B shifted) {
  // 2^n in two factors. The first product is exact, so the second rounds once.
  const auto word = [](std::uint32_t bits) { return every_bits<V>(bits); };
  const B exponent = shifted - word(kRounder - 256);  // n + 256
  const B half = exponent >> 1;
  const B rest = exponent - half;
  const V first = value_of((half - word(1)) << 23);  // 2^(half - 128)
  const V second = value_of((rest - word(1)) << 23);
  return (p * first) * second;
}

/// A byte per lane, true where it is not 0.
template <class V>
OPD_HOST_DEVICE inline auto load_mask(const std::uint8_t* address) {
  return *address != 0;
}
/// True in the first n lanes.
template <class V>
auto first_lanes(unsigned n);
/// FP16 elements at an address.
template <class V>
V load_halves(const std::byte* address);
/// Packed elements of 1, 2 or 4 bytes to and from bits.
template <class V, unsigned kBytes>
OPD_HOST_DEVICE inline Bits<V> load_packed(const std::byte* address) {
  std::uint32_t bits = 0;
  for (unsigned b = 0; b < kBytes; ++b) {
    bits |= static_cast<std::uint32_t>(address[b]) << (8 * b);
  }
  return bits;
}
template <unsigned kBytes>
OPD_HOST_DEVICE inline void store_packed(std::byte* address, std::uint32_t bits) {
  for (unsigned b = 0; b < kBytes; ++b) address[b] = static_cast<std::byte>(bits >> (8 * b));
}

/// RN32(x * 2^n), n of any size: in binary64 the product is exact.
template <class V>
OPD_HOST_DEVICE inline V scaled_by(V x, int n) {
  const int clamped = n > 300 ? 300 : n < -300 ? -300 : n;
  const double factor =
#if defined(__CUDA_ARCH__)
      __longlong_as_double(static_cast<long long>(clamped + 1023) << 52);
#else
      std::bit_cast<double>(static_cast<std::uint64_t>(clamped + 1023) << 52);
#endif
  return narrow(widen(x) * factor);
}

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
