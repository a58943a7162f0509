#pragma once
// RMSNorm with an optional gain. Source: docs/numerics.md "Kernels".
#include "opd/reference/compute/row.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

struct RmsNorm {
  static constexpr Kernel kKernel = Kernel::kRmsNorm;
  static constexpr Program kProgram{
      2,
      {{{.operations = 1, .reads = 1, .accumulates = true, .scalar = true},
        {.operations = 1, .reads = 3, .extra = 2}}},
      1};

  template <AccumulatorFormat kA, class V>
  OPD_HOST_DEVICE static void row(const Row& row, Watch<kA, V>& watch) {
    const V k = every<V>(row_scale_factor<kA>(row, row_squares<kA, V>(row, watch)));
    const float* x = row.x;
    const float* gain = row.second;
    if (gain != nullptr) {
      for_row<V>(row.columns, row.result, [x, gain, k](std::uint32_t i) {
        return (load<V>(x + i) * k) * load<V>(gain + i);
      });
    } else {
      for_row<V>(row.columns, row.result, [x, k](std::uint32_t i) { return load<V>(x + i) * k; });
    }
  }

  template <class R>
  static void exact(const ExactRow<R>& row) {
    const R sum = exact_sum(row.x, row.columns, [](R x) { return x * x; });
    const R k = 1 / std::sqrt(sum / static_cast<R>(row.columns) + row.attribute);
    for (std::uint32_t i = 0; i < row.columns; ++i) {
      row.result[i] = row.x[i] * k * (row.second != nullptr ? row.second[i] : R{1});
    }
  }
};

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
