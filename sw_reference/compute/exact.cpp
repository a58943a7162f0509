// The yardstick: kernels in binary64 by their formulas, sums over a row in long double, products of
// matrices by Eigen.
#include <Eigen/Core>

#include "check.hpp"
#include "opd/reference/compute.hpp"
#include "opd/reference/compute/operators.hpp"

namespace opd::ref {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Elements of an operand; empty when it is absent.
template <class R>
std::vector<R> values_of(const Operand& operand) {
  const std::size_t bytes = layout_of(operand.format).bytes();
  std::vector<R> values(operand.elements.size() / bytes);
  for (std::size_t k = 0; k < values.size(); ++k) {
    std::uint32_t bits = 0;
    for (std::size_t b = 0; b < bytes; ++b) {
      bits |= std::to_integer<std::uint32_t>(operand.elements[k * bytes + b]) << (8 * b);
    }
    values[k] = static_cast<R>(to_double(operand.format, bits));
  }
  return values;
}

template <class Op>
void exact_elementwise(const Computation& c, std::vector<double>& output) {
  std::array<std::vector<double>, kMaxOperands> operand;
  for (std::size_t i = 0; i < kMaxOperands; ++i) operand[i] = values_of<double>(c.operands[i]);
  for (std::size_t k = 0; k < output.size(); ++k) {
    const std::size_t r = k / c.columns, column = k % c.columns;
    const auto at = [&](std::size_t i) {
      return operand[i].empty() ? 0.0 : operand[i][r % c.operands[i].rows * c.columns + column];
    };
    output[k] = Op::exact(at(0), at(1), at(2), static_cast<double>(c.attribute));
  }
}

template <class Op>
void exact_rows(const Computation& c, std::vector<double>& output) {
  using R = long double;
  const bool masked = traits_of(c.kernel).operands[1] == "mask";
  std::array<std::vector<R>, kMaxOperands> operand;
  for (std::size_t i = 0; i < kMaxOperands; ++i) {
    if (i != 1 || !masked) operand[i] = values_of<R>(c.operands[i]);
  }
  const std::size_t width = output.size() / c.rows;
  std::vector<R> result(c.columns);
  for (std::size_t r = 0; r < c.rows; ++r) {
    const auto row_of = [&](std::size_t i) {
      return operand[i].empty() ? nullptr : operand[i].data() + r % c.operands[i].rows * c.columns;
    };
    const auto* mask = reinterpret_cast<const std::uint8_t*>(c.operands[1].elements.data());
    Op::exact(lanes::ExactRow<R>{
        .x = row_of(0),
        .second = row_of(1),
        .third = row_of(2),
        .mask = masked && c.has(1) ? mask + r % c.operands[1].rows * c.columns : nullptr,
        .result = result.data(),
        .columns = c.columns,
        .attribute = c.attribute});
    for (std::size_t k = 0; k < width; ++k) output[r * width + k] = static_cast<double>(result[k]);
  }
}

template <class Op>
void exact_matrix(const Computation& c, std::vector<double>& output) {
  const std::vector<double> a = values_of<double>(c.operands[0]);
  const std::vector<double> b = values_of<double>(c.operands[1]);
  const std::vector<double> bias = values_of<double>(c.operands[2]);
  const auto rows = static_cast<Eigen::Index>(c.rows), depth = static_cast<Eigen::Index>(c.depth);
  const auto columns = static_cast<Eigen::Index>(c.columns);
  for (Eigen::Index batch = 0; batch < static_cast<Eigen::Index>(c.batch); ++batch) {
    const Eigen::Map<const Matrix> left(a.data() + batch * rows * depth, rows, depth);
    const Eigen::Map<const Matrix> right(b.data() + batch * columns * depth, columns, depth);
    Eigen::Map<Matrix> product(output.data() + batch * rows * columns, rows, columns);
    product.noalias() = left * right.transpose();
  }
  for (std::size_t k = 0; k < output.size(); ++k) {
    output[k] = Op::exact(output[k], bias.empty() ? nullptr : &bias[k % c.columns],
                          static_cast<double>(c.attribute));
  }
}

template <class Op>
struct ExactOf {
  static constexpr void (*choose())(const Computation&, std::vector<double>&) {
    constexpr KernelShape kShape = traits_of(Op::kKernel).shape;
    if constexpr (kShape == KernelShape::kElementwise) {
      return &exact_elementwise<Op>;
    } else if constexpr (kShape == KernelShape::kMatrix) {
      return &exact_matrix<Op>;
    } else {
      return &exact_rows<Op>;
    }
  }
  static constexpr auto kValue = choose();
};

}  // namespace

std::vector<double> compute_exact(const Computation& computation) {
  check(computation, {}, Bytes::kPresent);
  static constexpr auto kExact =
      lanes::table_of<ExactOf, void (*)(const Computation&, std::vector<double>&)>(
          lanes::kOperatorIndices);
  std::vector<double> output(computation.output_elements());
  kExact[static_cast<std::size_t>(computation.kernel)](computation, output);
  return output;
}

}  // namespace opd::ref
