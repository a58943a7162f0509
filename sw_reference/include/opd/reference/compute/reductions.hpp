#pragma once
// Row reductions: sum, sum of squares, maximum, mean, variance.
//
//   row(row, watch) : one number before the cast to the output; SAFE divides x by 2^shift first and
//                     expands here
//   source          : docs/numerics.md "Kernels"
#include "opd/reference/compute/row.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

struct Sum {
  static constexpr Kernel kKernel = Kernel::kSum;
  static constexpr Program kProgram{1, {{{.operations = 0, .reads = 1, .accumulates = true}}}, 1};
  template <AccumulatorFormat kA, class V>
  OPD_HOST_DEVICE static void row(const Row& row, Watch<kA, V>& watch) {
    const float* x = row.x;
    const Scalar<kA> sum = row_sum<kA, V>(
        row.lanes, row.columns, [x](std::uint32_t i) { return term_of<kA>(load<V>(x + i)); },
        watch);
    row.result[0] = expanded<kA>(sum, row.shift);
  }
  template <class R>
  static void exact(const ExactRow<R>& row) {
    row.result[0] = exact_sum(row.x, row.columns, [](R x) { return x; });
  }
};

struct SumOfSquares {
  static constexpr Kernel kKernel = Kernel::kSumOfSquares;
  static constexpr Program kProgram{1, {{{.operations = 1, .reads = 1, .accumulates = true}}}, 1};
  template <AccumulatorFormat kA, class V>
  OPD_HOST_DEVICE static void row(const Row& row, Watch<kA, V>& watch) {
    row.result[0] = expanded<kA>(row_squares<kA, V>(row, watch), 2 * row.shift);
  }
  template <class R>
  static void exact(const ExactRow<R>& row) {
    row.result[0] = exact_sum(row.x, row.columns, [](R x) { return x * x; });
  }
};

struct Maximum {
  static constexpr Kernel kKernel = Kernel::kMaximum;
  static constexpr Program kProgram{1, {{{.operations = 1, .reads = 1, .maximum = true}}}};
  template <AccumulatorFormat kA, class V>
  OPD_HOST_DEVICE static void row(const Row& row, Watch<kA, V>&) {
    const float* x = row.x;
    float m = row_maximum<V>(row.columns, [x](std::uint32_t i) { return load<V>(x + i); });
    if (m == 0) {  // +0 if any element is. In integers: g++ 12 vectorises max(-0, +0) wrongly
      bool positive = false;
      for (std::uint32_t i = 0; i < row.columns; ++i) positive = positive || to_bits(x[i]) == 0;
      m = from_bits(positive ? 0 : 0x80000000u);
    }
    row.result[0] = m;
  }
  template <class R>
  static void exact(const ExactRow<R>& row) {
    R m = -std::numeric_limits<R>::infinity();
    for (std::uint32_t i = 0; i < row.columns; ++i) {
      if (row.x[i] > m || row.x[i] != row.x[i]) m = row.x[i];
    }
    row.result[0] = m;
  }
};

struct Mean {
  static constexpr Kernel kKernel = Kernel::kMean;
  static constexpr Program kProgram{
      1, {{{.operations = 0, .reads = 1, .accumulates = true, .scalar = true}}}, 1};
  template <AccumulatorFormat kA, class V>
  OPD_HOST_DEVICE static void row(const Row& row, Watch<kA, V>& watch) {
    const float* x = row.x;
    const Scalar<kA> sum = row_sum<kA, V>(
        row.lanes, row.columns, [x](std::uint32_t i) { return term_of<kA>(load<V>(x + i)); },
        watch);
    row.result[0] = expanded<kA>(sum / static_cast<Scalar<kA>>(row.columns), row.shift);
  }
  template <class R>
  static void exact(const ExactRow<R>& row) {
    row.result[0] =
        exact_sum(row.x, row.columns, [](R x) { return x; }) / static_cast<R>(row.columns);
  }
};

/// Sum of squared distances from the mean, of the yardstick.
template <class R>
struct ExactMoments {
  R mean, deviation;
  explicit ExactMoments(const ExactRow<R>& row)
      : mean(exact_sum(row.x, row.columns, [](R x) { return x; }) / static_cast<R>(row.columns)),
        deviation(exact_sum(row.x, row.columns, [this](R x) { return (x - mean) * (x - mean); })) {}
};

struct Variance {
  static constexpr Kernel kKernel = Kernel::kVariance;
  static constexpr Program kProgram{
      2,
      {{{.operations = 0, .reads = 1, .accumulates = true, .scalar = true},
        {.operations = 2, .reads = 1, .accumulates = true, .scalar = true}}},
      1};
  template <AccumulatorFormat kA, class V>
  OPD_HOST_DEVICE static void row(const Row& row, Watch<kA, V>& watch) {
    using S = Scalar<kA>;
    const S sum = row_deviation<kA, V>(row, row_mean<kA, V>(row, watch), watch);
    const S degrees = static_cast<S>(row.columns) - static_cast<S>(row.attribute);
    row.result[0] = expanded<kA>(sum / degrees, 2 * row.shift);
  }
  template <class R>
  static void exact(const ExactRow<R>& row) {
    row.result[0] = ExactMoments<R>(row).deviation / (static_cast<R>(row.columns) - row.attribute);
  }
};

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
