#pragma once
// A row as the row kernels see it: binary32 numbers, whatever the operands' formats are.
#include "opd/reference/compute/accumulator.hpp"
#include "opd/reference/compute/functions.hpp"
#include "opd/reference/compute/program.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

/// Bytes and numbers past the last column may be read and written, up to a whole vector
/// (kRowPadding), and count for nothing.
struct Row {
  const float* x = nullptr;            ///< in SAFE compressed, where the kernel compresses
  const float* second = nullptr;       ///< gain; null: absent
  const float* third = nullptr;        ///< bias; null: absent
  const std::uint8_t* mask = nullptr;  ///< null: absent
  float* result = nullptr;             ///< before the cast to the output; one number of a reduction
  std::uint32_t columns = 0;
  unsigned lanes = 1;   ///< L
  float attribute = 0;  ///< factor, epsilon or correction
  int shift = 0;        ///< s: x was divided by 2^s
};
inline constexpr unsigned kRowPadding = 8;

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

/// result[i] = f(i) for a whole row.
template <class V, class F>
OPD_HOST_DEVICE inline void for_row(std::uint32_t columns, float* result, F f) {
  OPD_UNROLL_LANES
  for (std::uint32_t i = 0; i < columns; i += Of<V>::kLanes) store(result + i, f(i));
}

/// Mean of a row in W.
template <AccumulatorFormat kA, class V>
OPD_HOST_DEVICE inline float row_mean(const Row& row, Watch<kA, V>& watch) {
  const float* x = row.x;
  const Scalar<kA> sum = row_sum<kA, V>(
      row.lanes, row.columns, [x](std::uint32_t i) { return term_of<kA>(load<V>(x + i)); }, watch);
  return row_result<kA>(sum / static_cast<Scalar<kA>>(row.columns));
}

/// Sum of the squared distances from `mean`.
template <AccumulatorFormat kA, class V>
OPD_HOST_DEVICE inline Scalar<kA> row_deviation(const Row& row, float mean, Watch<kA, V>& watch) {
  const float* x = row.x;
  const V m = every<V>(mean);
  return row_sum<kA, V>(
      row.lanes, row.columns,
      [x, m](std::uint32_t i) { return square_term<kA>(load<V>(x + i) - m); }, watch);
}

/// Sum of squares.
template <AccumulatorFormat kA, class V>
OPD_HOST_DEVICE inline Scalar<kA> row_squares(const Row& row, Watch<kA, V>& watch) {
  const float* x = row.x;
  return row_sum<kA, V>(
      row.lanes, row.columns, [x](std::uint32_t i) { return square_term<kA>(load<V>(x + i)); },
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
template <AccumulatorFormat kA>
OPD_HOST_DEVICE inline float row_scale_factor(const Row& row, Scalar<kA> sum) {
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

/// A row's result T (of squares: in x^2) back at the scale of the operand.
template <AccumulatorFormat kA>
OPD_HOST_DEVICE inline float expanded(Scalar<kA> value, int shift) {
  const float t = static_cast<float>(value);
  return kA == AccumulatorFormat::kFp64 ? scaled_by(t, shift) : t;
}

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
