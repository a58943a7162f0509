#pragma once
// The dispatch table: one row per kernel, in the order of kKernels. A new operator is its file and
// a row here and there.
#include <tuple>

#include "opd/reference/compute/elementwise.hpp"
#include "opd/reference/compute/layer_norm.hpp"
#include "opd/reference/compute/matrix.hpp"
#include "opd/reference/compute/reductions.hpp"
#include "opd/reference/compute/rms_norm.hpp"
#include "opd/reference/compute/softmax.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

// clang-format off
using Operators = std::tuple<
    Add,
    Subtract,
    Multiply,
    MultiplyAdd,
    Scale,
    Cast,
    Relu,
    Gelu,
    GeluTanh,
    Silu,
    Exp,
    Reciprocal,
    Rsqrt,
    Square,
    Sum,
    SumOfSquares,
    Maximum,
    Mean,
    Variance,
    Softmax,
    LayerNorm,
    RmsNorm,
    Matmul,
    Linear>;
// clang-format on

template <std::size_t... kI>
constexpr bool in_order(std::index_sequence<kI...>) {
  return ((std::tuple_element_t<kI, Operators>::kKernel == kKernels[kI].kernel) && ...);
}
inline constexpr auto kOperatorIndices = std::make_index_sequence<std::tuple_size_v<Operators>>{};
static_assert(std::tuple_size_v<Operators> == kKernels.size() && in_order(kOperatorIndices),
              "Operators has the rows of kKernels, in their order");

/// A table of F<Operator>::kValue, indexed by kernel.
template <template <class> class F, class T, std::size_t... kI>
constexpr std::array<T, sizeof...(kI)> table_of(std::index_sequence<kI...>) {
  return {F<std::tuple_element_t<kI, Operators>>::kValue...};
}

/// Calls f.template operator()<accumulator>().
template <class F>
inline void with_accumulator(AccumulatorFormat accumulator, F f) {
  switch (accumulator) {
    case AccumulatorFormat::kFp16:
      return f.template operator()<AccumulatorFormat::kFp16>();
    case AccumulatorFormat::kBf16:
      return f.template operator()<AccumulatorFormat::kBf16>();
    case AccumulatorFormat::kE4m3:
      return f.template operator()<AccumulatorFormat::kE4m3>();
    case AccumulatorFormat::kE5m2:
      return f.template operator()<AccumulatorFormat::kE5m2>();
    case AccumulatorFormat::kFp32:
      return f.template operator()<AccumulatorFormat::kFp32>();
    case AccumulatorFormat::kFp64:
      break;
  }
  f.template operator()<AccumulatorFormat::kFp64>();
}

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
