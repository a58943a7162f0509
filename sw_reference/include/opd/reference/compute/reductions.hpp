#pragma once
// Row reductions: sum, sum of squares, maximum, mean, variance.
//
//   rows(rows, watch) : one number of each row before the cast to the output; SAFE divides x by
//                       2^shift first and expands here
//   source            : docs/numerics.md "Kernels"
#include "opd/reference/compute/row.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

struct Sum {
  static constexpr Kernel kKernel = Kernel::kSum;
  static constexpr Program kProgram{1, {{{.operations = 0, .reads = 1, .accumulates = true}}}, 1};
  template <AccumulatorFormat kA, class V, unsigned kRows, class E>
  OPD_HOST_DEVICE static void rows(const Rows<E>& rows, Watch<kA, V>& watch) {
    const auto sums = sums_of_rows<kA, V, kRows>(rows, watch);
    for (unsigned r = 0; r < kRows; ++r) rows.result[r] = expanded<kA>(sums[r], rows.shift);
  }
  template <class R>
  static void exact(const ExactRow<R>& row) {
    row.result[0] = exact_sum(row.x, row.columns, [](R x) { return x; });
  }
};

struct SumOfSquares {
  static constexpr Kernel kKernel = Kernel::kSumOfSquares;
  static constexpr Program kProgram{1, {{{.operations = 1, .reads = 1, .accumulates = true}}}, 1};
  template <AccumulatorFormat kA, class V, unsigned kRows, class E>
  OPD_HOST_DEVICE static void rows(const Rows<E>& rows, Watch<kA, V>& watch) {
    const auto sums = row_squares<kA, V, kRows>(rows, watch);
    for (unsigned r = 0; r < kRows; ++r) rows.result[r] = expanded<kA>(sums[r], 2 * rows.shift);
  }
  template <class R>
  static void exact(const ExactRow<R>& row) {
    row.result[0] = exact_sum(row.x, row.columns, [](R x) { return x * x; });
  }
};

struct Maximum {
  static constexpr Kernel kKernel = Kernel::kMaximum;
  static constexpr Program kProgram{1, {{{.operations = 1, .reads = 1, .maximum = true}}}};
  template <AccumulatorFormat kA, class V, unsigned kRows, class E>
  OPD_HOST_DEVICE static void rows(const Rows<E>& rows, Watch<kA, V>&) {
    const auto maxima = row_maxima<V, kRows, Nans::kKept>(
        rows.columns, [x = rows.x, stride = rows.stride](unsigned r, std::uint32_t i) {
          return load<V>(x + r * stride + i);
        });
    for (unsigned r = 0; r < kRows; ++r) {
      float m = maxima[r];
      const float* x = rows.x + r * rows.stride;
      if (m == 0) {  // +0 if any element is. In integers: g++ 12 vectorises max(-0, +0) wrongly
        bool positive = false;
        for (std::uint32_t i = 0; i < rows.columns; ++i) positive = positive || to_bits(x[i]) == 0;
        m = from_bits(positive ? 0 : 0x80000000u);
      }
      rows.result[r] = m;
    }
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
  template <AccumulatorFormat kA, class V, unsigned kRows, class E>
  OPD_HOST_DEVICE static void rows(const Rows<E>& rows, Watch<kA, V>& watch) {
    const auto sums = sums_of_rows<kA, V, kRows>(rows, watch);
    for (unsigned r = 0; r < kRows; ++r) {
      rows.result[r] = expanded<kA>(sums[r] / static_cast<Scalar<kA>>(rows.columns), rows.shift);
    }
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
  template <AccumulatorFormat kA, class V, unsigned kRows, class E>
  OPD_HOST_DEVICE static void rows(const Rows<E>& rows, Watch<kA, V>& watch) {
    using S = Scalar<kA>;
    const auto means = row_means<kA, V, kRows>(rows, watch);
    const auto sums = row_deviations<kA, V, kRows>(rows, means, watch);
    const S degrees = static_cast<S>(rows.columns) - static_cast<S>(rows.attribute);
    for (unsigned r = 0; r < kRows; ++r) {
      rows.result[r] = expanded<kA>(sums[r] / degrees, 2 * rows.shift);
    }
  }
  template <class R>
  static void exact(const ExactRow<R>& row) {
    row.result[0] = ExactMoments<R>(row).deviation / (static_cast<R>(row.columns) - row.attribute);
  }
};

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
