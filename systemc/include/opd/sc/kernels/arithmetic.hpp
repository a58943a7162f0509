#pragma once
// Element-wise arithmetic: one lane operation and a cast.
// Source: docs/numerics.md, "Kernels"; docs/vector_unit.md, "Programs".
#include "opd/sc/lane_program.hpp"

namespace opd::sc {
inline namespace OPD_LANES {
namespace kernels {

inline void add(Execute& unit) {
  element_wise<2>(unit, 1, [](float a, float b) { return a + b; });
}

inline void subtract(Execute& unit) {
  element_wise<2>(unit, 1, [](float a, float b) { return a - b; });
}

inline void multiply(Execute& unit) {
  element_wise<2>(unit, 1, [](float a, float b) { return a * b; });
}

inline void multiply_add(Execute& unit) {
  element_wise<3>(unit, 1, [](float a, float b, float c) { return fma(a, b, c); });
}

inline void scale(Execute& unit) {
  const float factor = unit.computation().attribute;
  element_wise<1>(unit, 1, [factor](float x) { return x * factor; });
}

inline void cast(Execute& unit) {
  element_wise<1>(unit, 1, [](float x) { return x; });
}

inline void relu(Execute& unit) {
  element_wise<1>(unit, 1, [](float x) { return choose((x > 0) | (x != x), x, 0.0f); });
}

inline void square(Execute& unit) {
  element_wise<1>(unit, 1, [](float x) { return x * x; });
}

}  // namespace kernels
}  // namespace OPD_LANES
}  // namespace opd::sc
