#pragma once
// Activations: x times a function of x. The limit at -Inf is -0, where the product would be NaN.
// Source: docs/numerics.md, "Kernels"; docs/vector_unit.md, "Programs".
#include "opd/sc/lane_program.hpp"

namespace opd::sc {
inline namespace OPD_LANES {
namespace kernels {

inline float gated(float x, float gate) {
  return choose(bits_of(x) == (kInfinityBits | kSignBit), -0.0f, x * gate);
}

inline void gelu(Execute& unit) {
  element_wise<1>(unit, 2, [](float x) { return gated(x, gauss(x)); });
}

inline void gelu_tanh(Execute& unit) {
  element_wise<1>(unit, 6, [](float x) {
    const float inner = fma(x * x, float_of(0x3D372713), 1.0f);
    return gated(x, sigmoid(x * float_of(0x3FCC422A) * inner));
  });
}

inline void silu(Execute& unit) {
  element_wise<1>(unit, 2, [](float x) { return gated(x, sigmoid(x)); });
}

}  // namespace kernels
}  // namespace OPD_LANES
}  // namespace opd::sc
