#pragma once
// Mean of a row, then the sum of its squared deviations: for variance, and for layer_norm.
// Source: docs/numerics.md, "Kernels"; docs/vector_unit.md, "Programs".
#include "opd/sc/lane_program.hpp"

namespace opd::sc {
inline namespace OPD_LANES {
namespace kernels {

/// Pass 1 of a row: its mean, in W.
inline float row_mean(Execute& unit, Pass& pass, std::size_t row) {
  unit.accumulators().clear(unit.lanes());
  unit.row(pass, [&](const auto& slice) {
    Lanes x;
    unit.load(0, row, slice, x.at);
    unit.accumulators().take(x.at, slice.count);
  });
  const double quotient = unit.quotient(unit.row_total(), static_cast<double>(unit.columns()));
  return unit.intermediate(static_cast<float>(quotient));
}

/// Pass 2 of a row: the sum of its squared deviations.
inline double row_deviations(Execute& unit, Pass& pass, std::size_t row, float mean) {
  unit.accumulators().clear(unit.lanes());
  unit.row(pass, [&](const auto& slice) {
    Lanes d;
    unit.load(0, row, slice, d.at);
    for (std::size_t i = 0; i < slice.count; ++i) d.at[i] -= mean;
    unit.accumulators().take_products(d.at, d.at, slice.count);
  });
  return unit.row_total();
}

inline void variance(Execute& unit) {
  unit.compress(0);
  Pass& means = unit.pass({.accumulates = true, .scalars = true}, {0});
  Pass& deviations = unit.pass({.operations = 2, .accumulates = true, .scalars = true}, {0});
  const auto columns = static_cast<double>(unit.columns());
  const auto correction = unit.computation().attribute;
  const double count = unit.safe() ? columns - static_cast<double>(correction)
                                   : static_cast<double>(static_cast<float>(columns) - correction);
  for (std::size_t row = 0; row < unit.computation().rows; ++row) {
    const float mean = row_mean(unit, means, row);
    const double total = row_deviations(unit, deviations, row, mean);
    unit.store_scalar(row, unit.quotient(total, count), 2 * unit.exponent(0));
  }
}

}  // namespace kernels
}  // namespace OPD_LANES
}  // namespace opd::sc
