#pragma once
// The programs of the vector unit, one row per kernel. A new operator is a file beside this one and
// a row here.
#include <array>

#include "opd/sc/kernels/activations.hpp"
#include "opd/sc/kernels/arithmetic.hpp"
#include "opd/sc/kernels/functions.hpp"
#include "opd/sc/kernels/matrix.hpp"
#include "opd/sc/kernels/norms.hpp"
#include "opd/sc/kernels/reductions.hpp"
#include "opd/sc/kernels/softmax.hpp"
#include "opd/sc/kernels/variance.hpp"
#include "opd/sc/lane_program.hpp"
#include "opd/types/computation.hpp"

namespace opd::sc {
inline namespace OPD_LANES {

struct Program {
  Kernel kernel;
  void (*run)(Execute&);
  bool compresses;  ///< SAFE divides its operands by a power of two
};

inline constexpr std::array<Program, kKernels.size()> kPrograms = {{
    {Kernel::kAdd, kernels::add, false},
    {Kernel::kSubtract, kernels::subtract, false},
    {Kernel::kMultiply, kernels::multiply, false},
    {Kernel::kMultiplyAdd, kernels::multiply_add, false},
    {Kernel::kScale, kernels::scale, false},
    {Kernel::kCast, kernels::cast, false},
    {Kernel::kRelu, kernels::relu, false},
    {Kernel::kGelu, kernels::gelu, false},
    {Kernel::kGeluTanh, kernels::gelu_tanh, false},
    {Kernel::kSilu, kernels::silu, false},
    {Kernel::kExp, kernels::exp, false},
    {Kernel::kReciprocal, kernels::reciprocal, false},
    {Kernel::kRsqrt, kernels::rsqrt, false},
    {Kernel::kSquare, kernels::square, false},
    {Kernel::kSum, kernels::sum, true},
    {Kernel::kSumOfSquares, kernels::sum_of_squares, true},
    {Kernel::kMaximum, kernels::maximum, false},
    {Kernel::kMean, kernels::mean, true},
    {Kernel::kVariance, kernels::variance, true},
    {Kernel::kSoftmax, kernels::softmax, false},
    {Kernel::kLayerNorm, kernels::layer_norm, true},
    {Kernel::kRmsNorm, kernels::rms_norm, true},
    {Kernel::kMatmul, kernels::matmul, true},
    {Kernel::kLinear, kernels::linear, true},
}};

constexpr bool in_order_of_kernels() {
  for (std::size_t i = 0; i < kPrograms.size(); ++i) {
    if (static_cast<std::size_t>(kPrograms[i].kernel) != i) return false;
  }
  return true;
}
static_assert(in_order_of_kernels());

}  // namespace OPD_LANES
}  // namespace opd::sc
