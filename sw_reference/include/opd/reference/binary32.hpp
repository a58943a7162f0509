#pragma once
// IEEE 754 binary32 with every rounding named: what the published engine is made of.
//
//   exact  : round to nearest even, subnormals kept, nothing fused. On the GPU by intrinsics, which
//            are never contracted; on the CPU by -ffp-contract=off, which opd::types carries to
//            every target that includes this file
//   source : docs/numerics.md "Binary32 arithmetic", "Published engine"
#include <bit>
#include <cfloat>
#include <cstdint>

#include "opd/reference/element.hpp"

namespace opd::ref {

static_assert(FLT_EVAL_METHOD == 0, "float expressions must be evaluated in binary32");
#if defined(__FAST_MATH__)
#error "opd: -ffast-math reorders and flushes; build the reference without it"
#endif

OPD_HOST_DEVICE inline float add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

OPD_HOST_DEVICE inline float subtract(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}

OPD_HOST_DEVICE inline float multiply(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

OPD_HOST_DEVICE inline std::uint32_t to_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return std::bit_cast<std::uint32_t>(value);
#endif
}

OPD_HOST_DEVICE inline float from_bits(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

/// Exponent field of a non-negative number.
OPD_HOST_DEVICE inline std::int32_t exponent_field(float value) {
  return static_cast<std::int32_t>(to_bits(value) >> 23);
}

/// c * 2^-n of a finite c >= 0 by its exponent alone: 0 when the result would not be normal, +Inf
/// when it would be too large.
OPD_HOST_DEVICE inline float scaled(float c, std::int32_t n) {
  const std::int32_t exponent = exponent_field(c);
  if (exponent == 0 || exponent - n < 1) return 0.0f;
  if (exponent - n > 254) return from_bits(0x7F800000u);
  return from_bits(to_bits(c) - (static_cast<std::uint32_t>(n) << 23));
}

/// A magnitude as a binary32 number, exact. Bits above the format's width are ignored, and a
/// non-finite exponent field is read like any other: a sideband max_mag may have one.
OPD_HOST_DEVICE inline float to_binary32(Format format, std::uint32_t max_mag) {
  const FormatLayout layout = layout_of(format);
  const std::uint32_t magnitude = max_mag & layout.magnitude_mask();
  const unsigned padding = 23 - layout.significand_bits;
  if (layout.bias == 127) return from_bits(magnitude << padding);
  if (magnitude < layout.min_normal()) {  // 2^(1 - bias - significand_bits) per unit, normal here
    return scaled(static_cast<float>(magnitude),
                  static_cast<std::int32_t>(layout.significand_bits) + layout.bias - 1);
  }
  const auto rebias = static_cast<std::uint32_t>(127 - layout.bias) << 23;
  return from_bits((magnitude << padding) + rebias);
}

}  // namespace opd::ref
