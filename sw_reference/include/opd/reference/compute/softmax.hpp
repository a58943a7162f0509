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

  /// y = RN32(x * factor), -Inf where the mask hides it.
  template <class V>
  OPD_HOST_DEVICE static V scaled_element(const Row& row, V factor, std::uint32_t i) {
    const V y = load<V>(row.x + i) * factor;
    if (row.mask == nullptr) return y;
    return select(load_mask<V>(row.mask + i), y, constant<V>(0xFF800000u));
  }

  template <AccumulatorFormat kA, class V>
  OPD_HOST_DEVICE static void row(const Row& row, Watch<kA, V>& watch) {
    const V factor = every<V>(row.attribute);
    float* scratch = row.result;  // y, then the exponentials
    const float maximum = row_maximum<V>(row.columns, [&row, factor, scratch](std::uint32_t i) {
      const V y = scaled_element<V>(row, factor, i);
      store(scratch + i, y);
      return y;
    });
    // Everything hidden: no exponential of -Inf + Inf in SAFE, the accumulators take in zeros.
    const bool hidden = kA == AccumulatorFormat::kFp64 && maximum == from_bits(0xFF800000u);
    const V m = every<V>(hidden ? 0.0f : maximum);
    const Scalar<kA> sum = row_sum<kA, V>(
        row.lanes, row.columns,
        [scratch, m](std::uint32_t i) {
          const V e = intermediate<kA>(exp(load<V>(scratch + i) - m));
          store(scratch + i, e);
          return term_of<kA>(e);
        },
        watch);
    const V r = every<V>(hidden ? 0.0f : row_result<kA>(Scalar<kA>{1} / sum));
    for_row<V>(row.columns, row.result,
               [scratch, r](std::uint32_t i) { return load<V>(scratch + i) * r; });
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
