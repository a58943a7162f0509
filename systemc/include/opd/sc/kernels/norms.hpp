#pragma once
// LayerNorm and RMSNorm: a row's scale factor, then every element times it.
// Source: docs/numerics.md, "Kernels"; docs/vector_unit.md, "Programs".
#include "opd/sc/kernels/variance.hpp"
#include "opd/sc/lane_program.hpp"

namespace opd::sc {
inline namespace OPD_LANES {
namespace kernels {

/// 1 / sqrt(total / N + epsilon) in W. Of a compressed row epsilon is compressed with it, and the
/// result stays finite.
inline float scale_factor(Execute& unit, double total) {
  const auto columns = static_cast<double>(unit.columns());
  const float epsilon = unit.computation().attribute;
  if (!unit.safe()) {
    const float square = static_cast<float>(total) / static_cast<float>(columns);
    return unit.intermediate(1.0f / __builtin_sqrtf(square + epsilon));
  }
  const double compressed = std::ldexp(static_cast<double>(epsilon), -2 * unit.exponent(0));
  const double factor = 1.0 / __builtin_sqrt(total / columns + compressed);
  const auto rounded = static_cast<float>(factor);
  return rounded == float_of(kInfinityBits) ? float_of(kInfinityBits - 1) : rounded;
}

inline void layer_norm(Execute& unit) {
  const Computation& computation = unit.computation();
  const bool has_gain = computation.has(1), has_bias = computation.has(2);
  unit.compress(0);
  Pass& means = unit.pass({.accumulates = true, .scalars = true}, {0});
  Pass& deviations = unit.pass({.operations = 2, .accumulates = true, .scalars = true}, {0});
  Pass& scales = unit.pass({.operations = has_gain || has_bias ? 3u : 2u}, {0, 1, 2});
  for (std::size_t row = 0; row < computation.rows; ++row) {
    const float mean = row_mean(unit, means, row);
    const float factor = scale_factor(unit, row_deviations(unit, deviations, row, mean));
    unit.row(scales, [&](const auto& slice) {
      Lanes y, gain, bias;
      unit.load(0, row, slice, y.at);
      for (std::size_t i = 0; i < slice.count; ++i) y.at[i] = (y.at[i] - mean) * factor;
      if (has_gain) unit.load(1, row, slice, gain.at);
      if (has_bias) unit.load(2, row, slice, bias.at);
      if (has_gain && has_bias) {
        for (std::size_t i = 0; i < slice.count; ++i) {
          y.at[i] = fma(y.at[i], gain.at[i], bias.at[i]);
        }
      } else if (has_gain) {
        for (std::size_t i = 0; i < slice.count; ++i) y.at[i] *= gain.at[i];
      } else if (has_bias) {
        for (std::size_t i = 0; i < slice.count; ++i) y.at[i] += bias.at[i];
      }
      unit.store(row * unit.columns() + slice.first, y.at, slice.count);
    });
  }
}

inline void rms_norm(Execute& unit) {
  const bool has_gain = unit.computation().has(1);
  unit.compress(0);
  Pass& squares = unit.pass({.operations = 1, .accumulates = true, .scalars = true}, {0});
  Pass& scales = unit.pass({.operations = has_gain ? 2u : 1u}, {0, 1});
  for (std::size_t row = 0; row < unit.computation().rows; ++row) {
    unit.accumulators().clear(unit.lanes());
    unit.row(squares, [&](const auto& slice) {
      Lanes x;
      unit.load(0, row, slice, x.at);
      unit.accumulators().take_products(x.at, x.at, slice.count);
    });
    const float factor = scale_factor(unit, unit.row_total());
    unit.row(scales, [&](const auto& slice) {
      Lanes y, gain;
      unit.load(0, row, slice, y.at);
      for (std::size_t i = 0; i < slice.count; ++i) y.at[i] *= factor;
      if (has_gain) {
        unit.load(1, row, slice, gain.at);
        for (std::size_t i = 0; i < slice.count; ++i) y.at[i] *= gain.at[i];
      }
      unit.store(row * unit.columns() + slice.first, y.at, slice.count);
    });
  }
}

}  // namespace kernels
}  // namespace OPD_LANES
}  // namespace opd::sc
