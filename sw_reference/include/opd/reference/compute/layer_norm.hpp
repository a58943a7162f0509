#pragma once
// LayerNorm with an optional gain and bias. Source: docs/numerics.md "Kernels".
#include "opd/reference/compute/reductions.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

struct LayerNorm {
  static constexpr Kernel kKernel = Kernel::kLayerNorm;
  static constexpr Program kProgram{
      3,
      {{{.operations = 0, .reads = 1, .accumulates = true, .scalar = true},
        {.operations = 2, .reads = 1, .accumulates = true, .scalar = true},
        {.operations = 2, .reads = 7, .extra = 6}}},
      1};

  template <AccumulatorFormat kA, class V>
  OPD_HOST_DEVICE static void row(const Row& row, Watch<kA, V>& watch) {
    const float mean = row_mean<kA, V>(row, watch);
    const V k = every<V>(row_scale_factor<kA>(row, row_deviation<kA, V>(row, mean, watch)));
    const V m = every<V>(mean);
    const float* gain = row.second;
    const float* bias = row.third;
    const auto normalised = [x = row.x, m, k](std::uint32_t i) { return (load<V>(x + i) - m) * k; };
    if (gain != nullptr && bias != nullptr) {
      for_row<V>(row.columns, row.result, [&](std::uint32_t i) {
        return fma(normalised(i), load<V>(gain + i), load<V>(bias + i));
      });
    } else if (gain != nullptr) {
      for_row<V>(row.columns, row.result,
                 [&](std::uint32_t i) { return normalised(i) * load<V>(gain + i); });
    } else if (bias != nullptr) {
      for_row<V>(row.columns, row.result,
                 [&](std::uint32_t i) { return normalised(i) + load<V>(bias + i); });
    } else {
      for_row<V>(row.columns, row.result, normalised);
    }
  }

  template <class R>
  static void exact(const ExactRow<R>& row) {
    const ExactMoments<R> moments(row);
    const R k = 1 / std::sqrt(moments.deviation / static_cast<R>(row.columns) + row.attribute);
    for (std::uint32_t i = 0; i < row.columns; ++i) {
      R y = (row.x[i] - moments.mean) * k;
      if (row.second != nullptr) y *= row.second[i];
      if (row.third != nullptr) y += row.third[i];
      row.result[i] = y;
    }
  }
};

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
