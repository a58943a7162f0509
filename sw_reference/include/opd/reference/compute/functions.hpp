#pragma once
// The functions of a lane: reciprocal, rsqrt, exp, sigmoid, gauss.
//
//   cost   : exp 7 fused multiply-adds and 2 more for the reduction; gauss one exp, one division
//   source : docs/numerics.md "Functions of a lane"
#include "opd/reference/compute/casts.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

template <class V>
OPD_HOST_DEVICE inline V constant(std::uint32_t bits) {
  return every<V>(from_bits(bits));
}

template <class V>
OPD_HOST_DEVICE inline V reciprocal(V x) {
  return every<V>(1.0f) / x;
}

template <class V>
OPD_HOST_DEVICE inline V rsqrt(V x) {
  return reciprocal(square_root(x));
}

template <class V>
OPD_HOST_DEVICE inline V exp(V argument) {
  // Past the ends the definition's +0 and +Inf are what the rounding of -104 and 89 gives.
  const V x = bounded(argument, every<V>(-104.0f), every<V>(89.0f));
  // The addition rounds to the nearest integer, to even.
  const V shifted = x * constant<V>(0x3FB8AA3Bu) + constant<V>(kRounder);
  const V n = shifted - constant<V>(kRounder);
  V r = fma(n, constant<V>(0xBF317200u), x);
  r = fma(n, constant<V>(0xB5BFBE8Eu), r);
  V p = constant<V>(0x39500D01u);
  p = fma(p, r, constant<V>(0x3AB60B61u));
  p = fma(p, r, constant<V>(0x3C088889u));
  p = fma(p, r, constant<V>(0x3D2AAAABu));
  p = fma(p, r, constant<V>(0x3E2AAAABu));
  p = fma(p, r, constant<V>(0x3F000000u));
  p = fma(p, r, every<V>(1.0f));
  p = fma(p, r, every<V>(1.0f));
  return times_power(p, n, bits_of(shifted));
}

template <class V>
OPD_HOST_DEVICE inline V sigmoid(V x) {
  return reciprocal(every<V>(1.0f) + exp(-x));
}

/// Distribution function of the normal distribution.
template <class V>
OPD_HOST_DEVICE inline V gauss(V x) {
  const V z = magnitude(x) * constant<V>(0x3F3504F3u);
  const V t = reciprocal(fma(constant<V>(0x3EA7BA05u), z, every<V>(1.0f)));
  V q = constant<V>(0x3F87DC22u);
  q = fma(q, t, constant<V>(0xBFBA00E3u));
  q = fma(q, t, constant<V>(0x3FB5F0E3u));
  q = fma(q, t, constant<V>(0xBE91A98Eu));
  q = fma(q, t, constant<V>(0x3E827906u));
  const V u = (q * t) * exp(-(z * z));
  const V v = every<V>(0.5f) * u;
  return select(x < every<V>(0.0f), v, every<V>(1.0f) - v);
}

/// x * y, where -Inf gives -0: what lies between the two is finite, and the limit is 0.
template <class V>
OPD_HOST_DEVICE inline V gated(V x, V y) {
  return select(x == constant<V>(0xFF800000u), every<V>(-0.0f), x * y);
}

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
