#pragma once
// softmax with a factor and a mask: maximum, exponentials and their sum, scaling.
// Source: docs/numerics.md "Kernels".
#include "opd/reference/compute/row.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

struct Softmax {
  static constexpr Kernel kKernel = Kernel::kSoftmax;
  static constexpr Program kProgram{
      3,
      {{{.operations = 2, .reads = 3, .extra = 2, .maximum = true},
        {.operations = 3, .reads = 3, .extra = 2, .accumulates = true, .scalar = true},
        {.operations = 1}}}};

  template <AccumulatorFormat kA, class V, unsigned kRows, class E>
  OPD_HOST_DEVICE static void rows(const Rows<E>& rows, Watch<kA, V>& watch) {
    const E* x = rows.x;
    const std::size_t stride = rows.stride;
    const V factor = every<V>(rows.attribute);
    if (rows.mask == nullptr) {
      run<kA, V, kRows>(rows, watch, [x, stride, factor](unsigned r, std::uint32_t i) {
        return load<V>(x + r * stride + i) * factor;
      });
    } else {
      run<kA, V, kRows>(
          rows, watch, [x, stride, factor, mask = rows.mask](unsigned r, std::uint32_t i) {
            return select(load_mask<V>(mask + r * stride + i), load<V>(x + r * stride + i) * factor,
                          constant<V>(0xFF800000u));
          });
    }
  }

  /// y(r, i) = RN32(x * factor), -Inf where the mask hides it.
  template <AccumulatorFormat kA, class V, unsigned kRows, class E, class Y>
  OPD_HOST_DEVICE static void run(const Rows<E>& rows, Watch<kA, V>& watch, Y y) {
    // A NaN that the maximum loses is found in the sum.
    const auto maxima = row_maxima<V, kRows, Nans::kMayBeLost>(rows.columns, y);
    // Everything hidden: no exponential of -Inf + Inf in SAFE, the accumulators take in zeros.
    PerRow<bool, kRows> hidden;
    PerRow<V, kRows> m;
    OPD_UNROLL_LANES
    for (unsigned r = 0; r < kRows; ++r) {
      hidden[r] = kA == AccumulatorFormat::kFp64 && maxima[r] == from_bits(0xFF800000u);
      m[r] = every<V>(hidden[r] ? 0.0f : maxima[r]);
    }
    float* const exponentials = rows.scratch;
    const std::size_t stride = rows.scratch_stride;
    const auto sums = row_sums<kA, V, kRows, Terms::kNeverNegative>(
        rows.lanes, rows.columns,
        [exponentials, stride, m, y](unsigned r, std::uint32_t i) {
          const V e = intermediate<kA>(exp(y(r, i) - m[r]));
          store(exponentials + r * stride + i, e);
          return term_of<kA>(e);
        },
        watch);
    PerRow<V, kRows> factors;
    OPD_UNROLL_LANES
    for (unsigned r = 0; r < kRows; ++r) {
      factors[r] = every<V>(hidden[r] ? 0.0f : row_result<kA>(Scalar<kA>{1} / sums[r]));
    }
    for_rows<V, kRows>(rows, [exponentials, stride, factors](unsigned r, std::uint32_t i) {
      return load<V>(exponentials + r * stride + i) * factors[r];
    });
  }

  template <class R>
  static void exact(const ExactRow<R>& row) {
    R m = -std::numeric_limits<R>::infinity();
    for (std::uint32_t i = 0; i < row.columns; ++i) {
      row.result[i] = row.mask == nullptr || row.mask[i] != 0 ? row.x[i] * row.attribute
                                                              : -std::numeric_limits<R>::infinity();
      if (row.result[i] > m || row.result[i] != row.result[i]) m = row.result[i];
    }
    R sum = 0;
    for (std::uint32_t i = 0; i < row.columns; ++i) {
      row.result[i] = std::exp(row.result[i] - m);
      sum += row.result[i];
    }
    for (std::uint32_t i = 0; i < row.columns; ++i) row.result[i] /= sum;
  }
};

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
