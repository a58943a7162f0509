#pragma once
// Softmax over a row, with a mask: maximum, exponentials and their sum, scale.
// Source: docs/numerics.md, "Kernels"; docs/vector_unit.md, "Programs".
#include "opd/sc/lane_program.hpp"

namespace opd::sc {
inline namespace OPD_LANES {
namespace kernels {

inline void softmax(Execute& unit) {
  const Computation& computation = unit.computation();
  const bool masked = computation.has(1);
  const unsigned mask = masked ? 1 : 0;
  const float factor = computation.attribute;
  Pass& maxima = unit.pass({.operations = 2 + mask, .reduces = true}, {0, 1});
  Pass& sums = unit.pass({.operations = 3 + mask, .accumulates = true, .scalars = true}, {0, 1});
  Pass& scales = unit.pass({.operations = 1}, {});

  const auto load = [&](std::size_t row, const auto& slice, float* y) {
    unit.load(0, row, slice, y);
    for (std::size_t i = 0; i < slice.count; ++i) y[i] *= factor;
    if (masked) unit.apply_mask(1, row, slice, y);
  };
  RowMaximum largest;
  std::vector<float> scratchpad(unit.columns() + kMaxLanes);  // exponentials of a row
  for (std::size_t row = 0; row < computation.rows; ++row) {
    largest.clear();
    unit.row(maxima, [&](const auto& slice) {
      Lanes y;
      load(row, slice, y.at);
      largest.take(y.at, slice.count);
    });
    const float m = largest.value();
    const bool hidden = unit.safe() && m == float_of(kInfinityBits | kSignBit);

    unit.accumulators().clear(unit.lanes());
    unit.row(sums, [&](const auto& slice) {
      Lanes y;
      load(row, slice, y.at);
      const float shift = m;
      for (std::size_t i = 0; i < slice.count; ++i) y.at[i] = exponential(y.at[i] - shift);
      if (hidden) std::fill_n(y.at, slice.count, 0.0f);
      unit.intermediates(y.at, slice.count);
      unit.accumulators().take(y.at, slice.count);
      std::memcpy(scratchpad.data() + slice.first, y.at, slice.count * sizeof(float));
    });
    const double total = unit.row_total();
    const float r = unit.intermediate(static_cast<float>(unit.quotient(1.0, total)));

    unit.row(scales, [&](const auto& slice) {
      Lanes y;
      const float* e = scratchpad.data() + slice.first;
      const float k = hidden ? 0.0f : r;
      for (std::size_t i = 0; i < slice.count; ++i) y.at[i] = e[i] * k;
      unit.store(row * unit.columns() + slice.first, y.at, slice.count);
    });
  }
}

}  // namespace kernels
}  // namespace OPD_LANES
}  // namespace opd::sc
