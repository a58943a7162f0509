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

  template <AccumulatorFormat kA, class V, unsigned kRows, class E>
  OPD_HOST_DEVICE static void rows(const Rows<E>& rows, Watch<kA, V>& watch) {
    const auto m = row_means<kA, V, kRows>(rows, watch);
    const auto k =
        row_scale_factors<kA, V, kRows>(rows, row_deviations<kA, V, kRows>(rows, m, watch));
    const auto normalised = [x = rows.x, stride = rows.stride, m, k](unsigned r, std::uint32_t i) {
      return (load<V>(x + r * stride + i) - m[r]) * k[r];
    };
    const auto gain = [y = rows.second, stride = rows.second_stride](unsigned r, std::uint32_t i) {
      return load<V>(y + r * stride + i);
    };
    const auto bias = [y = rows.third, stride = rows.third_stride](unsigned r, std::uint32_t i) {
      return load<V>(y + r * stride + i);
    };
    if (rows.second != nullptr && rows.third != nullptr) {
      for_rows<V, kRows>(rows, [=](unsigned r, std::uint32_t i) {
        return fma(normalised(r, i), gain(r, i), bias(r, i));
      });
    } else if (rows.second != nullptr) {
      for_rows<V, kRows>(
          rows, [=](unsigned r, std::uint32_t i) { return normalised(r, i) * gain(r, i); });
    } else if (rows.third != nullptr) {
      for_rows<V, kRows>(
          rows, [=](unsigned r, std::uint32_t i) { return normalised(r, i) + bias(r, i); });
    } else {
      for_rows<V, kRows>(rows, normalised);
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
