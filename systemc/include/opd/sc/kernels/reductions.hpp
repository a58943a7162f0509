#pragma once
// Row reductions in one pass: sum, mean, sum of squares, maximum.
// Source: docs/numerics.md, "Kernels"; docs/vector_unit.md, "Programs".
#include "opd/sc/lane_program.hpp"

namespace opd::sc {
inline namespace OPD_LANES {
namespace kernels {

inline void row_sum(Execute& unit, bool mean) {
  unit.compress(0);
  Pass& pass = unit.pass({.accumulates = true, .scalars = mean}, {0});
  for (std::size_t row = 0; row < unit.computation().rows; ++row) {
    unit.accumulators().clear(unit.lanes());
    unit.row(pass, [&](const auto& slice) {
      Lanes x;
      unit.load(0, row, slice, x.at);
      unit.accumulators().take(x.at, slice.count);
    });
    const double total = unit.row_total();
    unit.store_scalar(row, mean ? unit.quotient(total, static_cast<double>(unit.columns())) : total,
                      unit.exponent(0));
  }
}

inline void sum(Execute& unit) { row_sum(unit, false); }

inline void mean(Execute& unit) { row_sum(unit, true); }

inline void sum_of_squares(Execute& unit) {
  unit.compress(0);
  Pass& pass = unit.pass({.operations = 1, .accumulates = true}, {0});
  for (std::size_t row = 0; row < unit.computation().rows; ++row) {
    unit.accumulators().clear(unit.lanes());
    unit.row(pass, [&](const auto& slice) {
      Lanes x;
      unit.load(0, row, slice, x.at);
      unit.accumulators().take_products(x.at, x.at, slice.count);
    });
    unit.store_scalar(row, unit.row_total(), 2 * unit.exponent(0));
  }
}

inline void maximum(Execute& unit) {
  Pass& pass = unit.pass({.operations = 1, .reduces = true}, {0});
  RowMaximum largest;
  for (std::size_t row = 0; row < unit.computation().rows; ++row) {
    largest.clear();
    unit.row(pass, [&](const auto& slice) {
      Lanes x;
      unit.load(0, row, slice, x.at);
      largest.take(x.at, slice.count);
    });
    const float value = largest.value();
    unit.store(row, &value, std::size_t{1});
  }
}

}  // namespace kernels
}  // namespace OPD_LANES
}  // namespace opd::sc
