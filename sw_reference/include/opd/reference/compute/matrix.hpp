#pragma once
// Matrix kernels: dot products over the depth, and the write-back of the matrix unit.
//
//   write_back(dot, bias, attribute) : before the cast to the output; what a kernel has not is not
//                                      read
//   source                           : docs/numerics.md "Kernels"
#include "opd/reference/compute/row.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

/// a[0] * b[0] + ... in this order, one accumulator.
template <AccumulatorFormat kA>
OPD_HOST_DEVICE inline Scalar<kA> dot(const float* a, const float* b, std::uint32_t depth,
                                      Watch<kA, float>& watch) {
  Accumulator<kA, float> accumulator;
  accumulator.clear();
  for (std::uint32_t k = 0; k < depth; ++k) {
    accumulator.take_product(a[k], b[k]);
    watch.see(accumulator);
  }
  return accumulator.value();
}

inline constexpr Program kMatrixProgram{
    2, {{{.reads = 3, .accumulates = true, .product = true}, {.operations = 1, .reads = 4}}}, 3};

struct Matmul {
  static constexpr Kernel kKernel = Kernel::kMatmul;
  static constexpr Program kProgram = kMatrixProgram;
  OPD_HOST_DEVICE static float write_back(float dot, const float*, float factor) {
    return dot * factor;
  }
  template <class R>
  static R exact(R dot, const R*, R factor) {
    return dot * factor;
  }
};

struct Linear {
  static constexpr Kernel kKernel = Kernel::kLinear;
  static constexpr Program kProgram = kMatrixProgram;
  OPD_HOST_DEVICE static float write_back(float dot, const float* bias, float) {
    return bias != nullptr ? dot + *bias : dot;
  }
  template <class R>
  static R exact(R dot, const R* bias, R) {
    return bias != nullptr ? dot + *bias : dot;
  }
};

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
