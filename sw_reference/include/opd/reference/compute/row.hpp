#pragma once
// Rows as the row kernels see them: binary32 numbers, whatever the operands' formats are.
#include "opd/reference/compute/accumulator.hpp"
#include "opd/reference/compute/functions.hpp"
#include "opd/reference/compute/program.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

/// Rows that are computed at a time. E is float, or Half: x and the results lie packed in FP16, and
/// the columns are whole vectors. Numbers past the last column may be read and written, up to a whole
/// vector (kRowPadding), and count for nothing.
template <class E>
struct Rows {
  using Element = E;
  const E* x = nullptr;                ///< in SAFE compressed, where the kernel compresses
  const float* second = nullptr;       ///< gain; null: absent
  const float* third = nullptr;        ///< bias; null: absent
  const std::uint8_t* mask = nullptr;  ///< null: absent
  float* scratch = nullptr;            ///< a binary32 number for each of x; may be x or the result
  std::size_t scratch_stride = 0;
  E* result = nullptr;     ///< of float before the cast to the output; may be x
  std::size_t stride = 0;  ///< from a row of x and mask to the next, in elements
  std::size_t result_stride = 0;
  std::size_t second_stride = 0, third_stride = 0;  ///< 0: the rows share one
  std::uint32_t columns = 0;
  unsigned lanes = 1;   ///< L
  float attribute = 0;  ///< factor, epsilon or correction
  int shift = 0;        ///< s: x was divided by 2^s
};
inline constexpr unsigned kRowPadding = 16;

/// A row for the yardstick: operands as they are, in R.
template <class R>
struct ExactRow {
  const R* x = nullptr;
  const R* second = nullptr;
  const R* third = nullptr;
  const std::uint8_t* mask = nullptr;
  R* result = nullptr;
  std::uint32_t columns = 0;
  R attribute = 0;
};

/// Sum of f(x) over a row of the yardstick.
template <class R, class F>
R exact_sum(const R* x, std::uint32_t columns, F f) {
  R sum = 0;
  for (std::uint32_t i = 0; i < columns; ++i) sum += f(x[i]);
  return sum;
}

/// The result of row r at i is f(r, i), for whole rows.
template <class V, unsigned kRows, class E, class F>
OPD_HOST_DEVICE inline void for_rows(const Rows<E>& rows, F f) {
  E* const result = rows.result;
  const std::size_t stride = rows.result_stride;
  for (std::uint32_t i = 0; i < rows.columns; i += Of<V>::kLanes) {
    OPD_UNROLL_LANES
    for (unsigned r = 0; r < kRows; ++r) store(result + r * stride + i, f(r, i));
  }
}

/// Sums of the rows of x.
template <AccumulatorFormat kA, class V, unsigned kRows, class E>
OPD_HOST_DEVICE inline PerRow<Scalar<kA>, kRows> sums_of_rows(const Rows<E>& rows,
                                                              Watch<kA, V>& watch) {
  return row_sums<kA, V, kRows, Terms::kAny>(
      rows.lanes, rows.columns,
      [x = rows.x, stride = rows.stride](unsigned r, std::uint32_t i) {
        return term_of<kA>(load<V>(x + r * stride + i));
      },
      watch);
}

/// Means of the rows in W, in every lane.
template <AccumulatorFormat kA, class V, unsigned kRows, class E>
OPD_HOST_DEVICE inline PerRow<V, kRows> row_means(const Rows<E>& rows, Watch<kA, V>& watch) {
  const auto sums = sums_of_rows<kA, V, kRows>(rows, watch);
  PerRow<V, kRows> means;
  OPD_UNROLL_LANES
  for (unsigned r = 0; r < kRows; ++r) {
    means[r] = every<V>(row_result<kA>(sums[r] / static_cast<Scalar<kA>>(rows.columns)));
  }
  return means;
}

/// Sums of the squared distances from the means.
template <AccumulatorFormat kA, class V, unsigned kRows, class E>
OPD_HOST_DEVICE inline PerRow<Scalar<kA>, kRows> row_deviations(const Rows<E>& rows,
                                                                PerRow<V, kRows> means,
                                                                Watch<kA, V>& watch) {
  return row_sums<kA, V, kRows, Terms::kNeverNegative>(
      rows.lanes, rows.columns,
      [x = rows.x, stride = rows.stride, means](unsigned r, std::uint32_t i) {
        return square_term<kA>(load<V>(x + r * stride + i) - means[r]);
      },
      watch);
}

/// Sums of squares.
template <AccumulatorFormat kA, class V, unsigned kRows, class E>
OPD_HOST_DEVICE inline PerRow<Scalar<kA>, kRows> row_squares(const Rows<E>& rows,
                                                             Watch<kA, V>& watch) {
  return row_sums<kA, V, kRows, Terms::kNeverNegative>(
      rows.lanes, rows.columns,
      [x = rows.x, stride = rows.stride](unsigned r, std::uint32_t i) {
        return square_term<kA>(load<V>(x + r * stride + i));
      },
      watch);
}

/// 2^n in binary64, n any size that a shift can have.
OPD_HOST_DEVICE inline double power_of_two(int n) {
#if defined(__CUDA_ARCH__)
  return __longlong_as_double(static_cast<long long>(n + 1023) << 52);
#else
  return std::bit_cast<double>(static_cast<std::uint64_t>(n + 1023) << 52);
#endif
}

/// k = RNW(1 / sqrt(S / N + epsilon)). SAFE takes epsilon to the scale of the compressed operand and
/// keeps k finite.
template <AccumulatorFormat kA, class E>
OPD_HOST_DEVICE inline float row_scale_factor(const Rows<E>& row, Scalar<kA> sum) {
  using S = Scalar<kA>;
  S epsilon = row.attribute;
  if constexpr (kA == AccumulatorFormat::kFp64) epsilon *= power_of_two(-2 * row.shift);
  const S k = S{1} / square_root(sum / static_cast<S>(row.columns) + epsilon);
  if constexpr (kA == AccumulatorFormat::kFp64) {
    const float narrowed = static_cast<float>(k);
    return narrowed == from_bits(0x7F800000u) ? from_bits(0x7F7FFFFFu) : narrowed;
  } else {
    return row_result<kA>(k);
  }
}

/// The same of every row, in every lane.
template <AccumulatorFormat kA, class V, unsigned kRows, class E>
OPD_HOST_DEVICE inline PerRow<V, kRows> row_scale_factors(const Rows<E>& rows,
                                                          PerRow<Scalar<kA>, kRows> sums) {
  PerRow<V, kRows> factors;
  OPD_UNROLL_LANES
  for (unsigned r = 0; r < kRows; ++r) {
    factors[r] = every<V>(row_scale_factor<kA>(rows, sums[r]));
  }
  return factors;
}

/// A row's result T (of squares: in x^2) back at the scale of the operand.
template <AccumulatorFormat kA>
OPD_HOST_DEVICE inline float expanded(Scalar<kA> value, int shift) {
  const float t = static_cast<float>(value);
  return kA == AccumulatorFormat::kFp64 ? scaled_by(t, shift) : t;
}

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
