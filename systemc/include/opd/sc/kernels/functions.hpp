#pragma once
// The functions of a lane as operators of their own.
// Source: docs/numerics.md, "Kernels"; docs/vector_unit.md, "Programs".
#include "opd/sc/lane_program.hpp"

namespace opd::sc {
inline namespace OPD_LANES {
namespace kernels {

inline void exp(Execute& unit) {
  element_wise<1>(unit, 1, [](float x) { return exponential(x); });
}

inline void reciprocal(Execute& unit) {
  element_wise<1>(unit, 1, [](float x) { return inverse(x); });
}

inline void rsqrt(Execute& unit) {
  element_wise<1>(unit, 1, [](float x) { return inverse_root(x); });
}

}  // namespace kernels
}  // namespace OPD_LANES
}  // namespace opd::sc
