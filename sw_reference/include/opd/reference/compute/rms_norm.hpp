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

  template <AccumulatorFormat kA, class V, unsigned kRows, class E>
  OPD_HOST_DEVICE static void rows(const Rows<E>& rows, Watch<kA, V>& watch) {
    const auto k = row_scale_factors<kA, V, kRows>(rows, row_squares<kA, V, kRows>(rows, watch));
    const auto scaled = [x = rows.x, stride = rows.stride, k](unsigned r, std::uint32_t i) {
      return load<V>(x + r * stride + i) * k[r];
    };
    if (rows.second != nullptr) {
      for_rows<V, kRows>(rows, [scaled, gain = rows.second, stride = rows.second_stride](
                                   unsigned r, std::uint32_t i) {
        return scaled(r, i) * load<V>(gain + r * stride + i);
      });
    } else {
      for_rows<V, kRows>(rows, scaled);
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
