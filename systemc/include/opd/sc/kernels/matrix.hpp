#pragma once
// Matrix products, tile by tile: rows of the matrix unit by lanes, over the depth, then write-back.
// Source: docs/numerics.md, "Kernels"; docs/vector_unit.md, "Programs".
#include "opd/sc/lane_program.hpp"

namespace opd::sc {
inline namespace OPD_LANES {
namespace kernels {

/// The dot products of a tile's rows with its columns.
inline void tile(Execute& unit, const float* rows, std::size_t row_count, const float* columns,
                 std::size_t column_count, float* results, std::size_t stride) {
  const std::size_t depth = unit.computation().depth;
  Accumulators& accumulators = unit.accumulators();
  for (std::size_t row = 0; row < row_count; ++row) {
    accumulators.clear(column_count);
    accumulators.dot(rows + row * depth, columns, depth, column_count);
    for (std::size_t j = 0; j < column_count; ++j) {
      results[row * stride + j] = static_cast<float>(accumulators.value(j));
    }
  }
}

/// The product pass. Returns the dot products, expanded.
inline std::vector<float> product(Execute& unit) {
  const Computation& computation = unit.computation();
  const std::size_t rows = computation.rows, columns = computation.columns;
  const std::size_t depth = computation.depth, lanes = unit.lanes();
  unit.compress(0);
  unit.compress(1);
  Pass& pass = unit.product_pass();
  std::vector<float> results(computation.output_elements());
  std::vector<float> a(rows * depth), b(depth * kMaxLanes), operand_row(depth + kMaxLanes);
  const auto load_row = [&](std::size_t operand, std::size_t row, float* out) {
    for (std::size_t first = 0; first < depth; first += kMaxLanes) {
      Lanes x;
      const Slice<std::size_t> slice{first, std::min(kMaxLanes, depth - first)};
      unit.load(operand, row, slice, x.at);
      std::memcpy(out + first, x.at, slice.count * sizeof(float));
    }
  };
  for (std::size_t batch = 0; batch < computation.batch; ++batch) {
    for (std::size_t row = 0; row < rows; ++row) {
      load_row(0, batch * rows + row, a.data() + row * depth);
    }
    for (std::size_t column = 0; column < columns; column += lanes) {
      const std::size_t column_count = std::min(lanes, columns - column);
      for (std::size_t j = 0; j < column_count; ++j) {  // a lane has a column: depth by depth
        load_row(1, batch * columns + column + j, operand_row.data());
        for (std::size_t k = 0; k < depth; ++k) b[k * kMaxLanes + j] = operand_row[k];
      }
      for (std::size_t row = 0; row < rows; row += unit.matrix_rows()) {
        const std::size_t row_count = std::min<std::size_t>(unit.matrix_rows(), rows - row);
        tile(unit, a.data() + row * depth, row_count, b.data(), column_count,
             results.data() + (batch * rows + row) * columns + column, columns);
        pass.beats(depth);
      }
    }
  }
  if (unit.safe()) {
    const int exponent = unit.exponent(0) + unit.exponent(1);
    for (float& result : results) result = scaled_by(result, exponent);
  }
  return results;
}

inline void matmul(Execute& unit) {
  const std::vector<float> products = product(unit);
  Pass& pass = unit.pass({.operations = 1}, {});
  const float factor = unit.computation().attribute;
  const std::size_t rows = std::size_t{unit.computation().batch} * unit.computation().rows;
  for (std::size_t row = 0; row < rows; ++row) {
    unit.row(pass, [&](const auto& slice) {
      Lanes y;
      const std::size_t at = row * unit.columns() + slice.first;
      for (std::size_t i = 0; i < slice.count; ++i) y.at[i] = products[at + i] * factor;
      unit.store(at, y.at, slice.count);
    });
  }
}

inline void linear(Execute& unit) {
  const std::vector<float> products = product(unit);
  Pass& pass = unit.pass({.operations = 1}, {2});
  const bool has_bias = unit.computation().has(2);
  for (std::size_t row = 0; row < unit.computation().rows; ++row) {
    unit.row(pass, [&](const auto& slice) {
      Lanes y, bias;
      const std::size_t at = row * unit.columns() + slice.first;
      std::memcpy(y.at, products.data() + at, slice.count * sizeof(float));
      if (has_bias) {
        unit.load(2, row, slice, bias.at);
        for (std::size_t i = 0; i < slice.count; ++i) y.at[i] += bias.at[i];
      }
      unit.store(at, y.at, slice.count);
    });
  }
}

}  // namespace kernels
}  // namespace OPD_LANES
}  // namespace opd::sc
