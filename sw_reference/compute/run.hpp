#pragma once
// Runs one job with the operators of this instruction set: operands are decoded row by row, the
// operator works in binary32, the result is cast to the output. Included by one source file per
// instruction set; nothing of the standard library that could be shared with another is used.
#include "job.hpp"
#include "opd/reference/compute/operators.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

#if defined(OPD_LANES_AVX512)
using Vector = F16;
#elif defined(OPD_LANES_AVX2)
using Vector = F8;
#else
using Vector = float;
#endif

inline constexpr std::uint64_t kChunk =
    1024;  ///< elements of an element-wise pass, in the L1 cache

inline std::uint64_t element_bytes(Format format) { return layout_of(format).bytes(); }

/// Row r of an operand, which repeats its rows.
inline const std::byte* row_of(const Operand& operand, std::uint64_t r, std::uint64_t bytes) {
  return operand.elements.data() + r % operand.rows * operand.columns * bytes;
}

/// Casts results to the output.
inline void append(Job& job, const float* results, std::uint64_t count) {
  encode_row<Vector>(job.plan.status.format, job.plan.status.saturating, results, count,
                     job.staging);
  job.append(job, job.staging, count * element_bytes(job.plan.status.format));
}

inline void add(JobWrites& to, const Writes& from) {
  ref::add(to, from.largest, from.count, from.nonfinite);
}

/// Divides by 2^shift in place.
inline void compress(float* values, std::uint64_t count, int shift) {
  std::uint64_t k = 0;
  if (shift == 0) return;
  for (; k + Of<Vector>::kLanes <= count; k += Of<Vector>::kLanes) {
    store(values + k, scaled_by(load<Vector>(values + k), -shift));
  }
  for (; k < count; ++k) values[k] = scaled_by(values[k], -shift);
}

template <class Op>
void run_elementwise(Job& job) {
  const Computation& c = job.computation;
  bool flat = true;
  for (const Operand& operand : c.operands) {
    flat = flat && (operand.elements.empty() || operand.rows == c.rows);
  }
  const std::uint64_t rows = flat ? 1 : c.rows;
  const std::uint64_t columns = flat ? std::uint64_t{c.rows} * c.columns : c.columns;
  alignas(64) float value[kMaxOperands][kChunk] = {};
  alignas(64) float result[kChunk];
  const Vector attribute = every<Vector>(c.attribute);
  for (std::uint64_t r = 0; r < rows; ++r) {
    for (std::uint64_t first = 0; first < columns; first += kChunk) {
      const std::uint64_t count = columns - first < kChunk ? columns - first : kChunk;
      for (std::size_t i = 0; i < kMaxOperands; ++i) {
        const Operand& operand = c.operands[i];
        if (operand.elements.empty()) continue;
        const std::uint64_t bytes = element_bytes(operand.format);
        decode_row<Vector>(operand.format, row_of(operand, r, bytes) + first * bytes, count,
                           value[i]);
      }
      for (std::uint64_t k = 0; k < count; k += Of<Vector>::kLanes) {
        store(result + k, Op::apply(load<Vector>(value[0] + k), load<Vector>(value[1] + k),
                                    load<Vector>(value[2] + k), attribute));
      }
      append(job, result, count);
    }
  }
}

/// Fetches rows of the operands of a row kernel into the scratch memory.
class RowFetcher {
 public:
  explicit RowFetcher(const Job& job)
      : job_(job),
        masked_(traits_of(job.computation.kernel).operands[1] == "mask"),
        stride_(row_stride(job.computation.columns)) {}

  /// Rows r to r + count of all operands, x with `decoded` alone. What a kernel writes over x does
  /// not matter to the next call.
  void fetch(std::uint32_t r, unsigned count, bool decoded) {
    const Computation& c = job_.computation;
    for (std::size_t i = 0; i < kMaxOperands; ++i) {
      const Operand& operand = c.operands[i];
      if (operand.elements.empty() || (i == 0 && !decoded)) continue;
      if (i == 1 && masked_) {
        // Copied, so that a whole vector can be read.
        auto* mask = reinterpret_cast<std::uint8_t*>(room(1));
        for (unsigned k = 0; k < count; ++k) {
          __builtin_memcpy(mask + k * stride_, row_of(operand, r + k, 1), c.columns);
        }
        continue;
      }
      if (i > 0 && operand.rows == 1) {
        if (shared_ >> i & 1u) continue;
        shared_ |= 1u << i;
        fetch_row(i, r, room(i));
        continue;
      }
      for (unsigned k = 0; k < count; ++k) fetch_row(i, r + k, room(i) + k * stride_);
    }
  }

  /// Everything but x and the results.
  template <class E>
  Rows<E> rows() const {
    const Computation& c = job_.computation;
    const auto stride_of = [&](std::size_t i) { return c.operands[i].rows == 1 ? 0 : stride_; };
    Rows<E> rows;
    if (c.has(1) && !masked_) rows.second = room(1);
    if (c.has(1) && masked_) rows.mask = reinterpret_cast<const std::uint8_t*>(room(1));
    if (c.has(2)) rows.third = room(2);
    rows.stride = stride_;
    rows.second_stride = stride_of(1);
    rows.third_stride = stride_of(2);
    rows.columns = c.columns;
    rows.lanes = job_.plan.lanes;
    rows.attribute = c.attribute;
    rows.shift = job_.plan.shift[0];
    return rows;
  }

  /// Room for kMostRows rows of operand i.
  float* room(std::size_t i) const { return job_.scratch + i * kMostRows * stride_; }
  std::size_t stride() const { return stride_; }

 private:
  void fetch_row(std::size_t i, std::uint32_t r, float* to) const {
    const Operand& operand = job_.computation.operands[i];
    decode_row<Vector>(operand.format, row_of(operand, r, element_bytes(operand.format)),
                       operand.columns, to);
    compress(to, operand.columns, job_.plan.shift[i]);
  }
  const Job& job_;
  bool masked_;
  std::size_t stride_;
  unsigned shared_ = 0;  ///< operands of one row that are there already
};

/// Rows r to r + kRows on V; E as in Rows. The results of a reduction go to `reduced`, others to the
/// output.
template <class Op, AccumulatorFormat kA, class V, unsigned kRows, class E>
void run_block(Job& job, RowFetcher& fetcher, std::uint32_t r, float* reduced,
               Watch<kA, V>& watch) {
  constexpr bool kPacked = std::is_same_v<E, Half>;
  constexpr bool kVector = Of<V>::kLanes > 1;
  const std::uint64_t columns = job.computation.columns;
  fetcher.fetch(r, kRows, !kPacked);
  Rows<E> rows = fetcher.template rows<E>();
  rows.scratch = fetcher.room(0);
  rows.scratch_stride = fetcher.stride();
  if constexpr (kPacked) {
    rows.x = reinterpret_cast<const Half*>(row_of(job.computation.operands[0], r, sizeof(Half)));
    rows.stride = columns;
    rows.result = reinterpret_cast<Half*>(job.staging);
    rows.result_stride = columns;
  } else {
    rows.x = fetcher.room(0);
    rows.result = reduced != nullptr ? reduced + r : fetcher.room(0);
    rows.result_stride = rows.stride;
  }
  Watch<kA, V> trial = watch;
  Op::template rows<kA, V, kRows>(rows, trial);
  if constexpr (kVector) {
    if (trial.nonfinite) {
      for (unsigned k = 0; k < kRows; ++k) {
        if constexpr (kRows > 1) {
          run_block<Op, kA, V, 1, E>(job, fetcher, r + k, reduced, watch);
        } else {
          Watch<kA, float> lane_by_lane;
          run_block<Op, kA, float, 1, float>(job, fetcher, r, reduced, lane_by_lane);
          add(job.writes, lane_by_lane.writes);
        }
      }
      return;
    }
  }
  watch = trial;
  if (reduced != nullptr) return;
  for (unsigned k = 0; k < kRows; ++k) {
    if constexpr (kPacked) {
      job.append(job, job.staging + k * columns * sizeof(Half), columns * sizeof(Half));
    } else {
      append(job, rows.result + k * rows.result_stride, columns);
    }
  }
}

template <class Op, AccumulatorFormat kA, class V, unsigned kRows, class E = float>
void run_rows_as(Job& job) {
  const Computation& c = job.computation;
  constexpr bool kReduction = traits_of(Op::kKernel).shape == KernelShape::kRowReduction;
  float* const reduced =
      kReduction ? job.scratch + kMaxOperands * kMostRows * row_stride(c.columns) : nullptr;
  RowFetcher fetcher(job);
  Watch<kA, V> watch;
  std::uint32_t r = 0;
  if constexpr (kRows > 1) {
    for (; r + kRows <= c.rows; r += kRows) {
      run_block<Op, kA, V, kRows, E>(job, fetcher, r, reduced, watch);
    }
  }
  for (; r < c.rows; ++r) run_block<Op, kA, V, 1, E>(job, fetcher, r, reduced, watch);
  if (kReduction) append(job, reduced, c.rows);
  add(job.writes, writes_of(watch));
}

#if defined(OPD_LANES_AVX2)
/// Row sums on V, kRows rows at a time. FP16 rows that go in and out as they are stay packed: their
/// binary32 numbers would fill the L1 cache.
template <class Op, AccumulatorFormat kA, class V, unsigned kRows>
void run_vector_rows(Job& job) {
  if constexpr (kA == AccumulatorFormat::kFp16 &&
                traits_of(Op::kKernel).shape == KernelShape::kRow) {
    const Computation& c = job.computation;
    if (c.operands[0].format == Format::kFp16 && c.operands[0].rows == c.rows &&
        !(traits_of(c.kernel).operands[1] == "mask" && c.has(1)) &&
        job.plan.status.format == Format::kFp16 && !job.plan.status.saturating &&
        c.columns % Of<V>::kLanes == 0) {
      return run_rows_as<Op, kA, V, kRows, Half>(job);
    }
  }
  run_rows_as<Op, kA, V, kRows>(job);
}
#endif

template <class Op>
void run_rows(Job& job) {
  with_accumulator(job.plan.status.accumulator, [&job]<AccumulatorFormat kA>() {
    // As many rows at a time as hide the roundings of their accumulators, within the registers: the
    // exponential of a softmax and the sums of FP64 need them for one row alone.
    [[maybe_unused]] constexpr unsigned kAtATime =
        kA == AccumulatorFormat::kFp64 || Op::kKernel == Kernel::kSoftmax ? 1 : 2;
#if defined(OPD_LANES_AVX512)
    if (has_vector_sums<F16>(job.plan.lanes)) return run_vector_rows<Op, kA, F16, kAtATime>(job);
#elif defined(OPD_LANES_AVX2)
    if (has_vector_sums<F8>(job.plan.lanes)) return run_vector_rows<Op, kA, F8, kAtATime>(job);
#endif
    run_rows_as<Op, kA, float, 1>(job);
  });
}

/// One output lane by lane.
template <AccumulatorFormat kA>
float single_dot(Job& job, const float* a, const float* b) {
  Watch<kA, float> watch;
  const Scalar<kA> sum = dot<kA>(a, b, job.computation.depth, watch);
  add(job.writes, watch.writes);
  return expanded<kA>(sum, job.plan.shift[0] + job.plan.shift[1]);
}

#if defined(OPD_LANES_AVX2)
/// kRows rows of a with eight columns, whose depths lie side by side in `panel`.
template <AccumulatorFormat kA, unsigned kRows>
void dot_block(Job& job, const float* a, const float* b, const float* panel, unsigned columns,
               float* result, std::uint64_t result_stride) {
  const std::uint32_t depth = job.computation.depth;
  Accumulator<kA, F8> accumulator[kRows];
  Watch<kA, F8> watch[kRows];
  for (auto& one : accumulator) one.clear();
  for (std::uint32_t k = 0; k < depth; ++k) {
    const F8 w = load<F8>(panel + 8 * k);
#pragma GCC unroll 4
    for (unsigned r = 0; r < kRows; ++r) {
      accumulator[r].take_product(every<F8>(a[std::uint64_t{r} * depth + k]), w);
      watch[r].see(accumulator[r]);
    }
  }
  for (unsigned r = 0; r < kRows; ++r) {
    Scalar<kA> sum[8];
    double largest[8];
    store(sum, accumulator[r].value());
    watch[r].largest_of_lanes(largest);
    for (unsigned j = 0; j < columns; ++j) {
      float& out = result[r * result_stride + j];
      if (finite(sum[j])) {
        add(job.writes, {largest[j], depth, 0});
        out = expanded<kA>(sum[j], job.plan.shift[0] + job.plan.shift[1]);
      } else {
        out = single_dot<kA>(job, a + std::uint64_t{r} * depth, b + std::uint64_t{j} * depth);
      }
    }
  }
}
#endif

/// All dot products of one batch: a [rows, depth], b [columns, depth].
template <AccumulatorFormat kA>
void all_dots(Job& job, const float* a, const float* b, float* panel, float* result) {
  const Computation& c = job.computation;
  const std::uint64_t depth = c.depth;
#if defined(OPD_LANES_AVX2)
  for (std::uint32_t first = 0; first < c.columns; first += 8) {
    const unsigned columns = c.columns - first < 8 ? c.columns - first : 8;
    const float* block = b + first * depth;
    for (std::uint64_t k = 0; k < depth; ++k) {
      for (unsigned j = 0; j < 8; ++j) panel[8 * k + j] = j < columns ? block[j * depth + k] : 0;
    }
    std::uint32_t r = 0;
    for (; r + 4 <= c.rows; r += 4) {
      dot_block<kA, 4>(job, a + r * depth, block, panel, columns,
                       result + std::uint64_t{r} * c.columns + first, c.columns);
    }
    for (; r < c.rows; ++r) {
      dot_block<kA, 1>(job, a + r * depth, block, panel, columns,
                       result + std::uint64_t{r} * c.columns + first, c.columns);
    }
  }
#else
  (void)panel;
  for (std::uint32_t r = 0; r < c.rows; ++r) {
    for (std::uint32_t j = 0; j < c.columns; ++j) {
      result[std::uint64_t{r} * c.columns + j] = single_dot<kA>(job, a + r * depth, b + j * depth);
    }
  }
#endif
}

template <class Op>
void run_matrix(Job& job) {
  const Computation& c = job.computation;
  const std::uint64_t a_count = std::uint64_t{c.rows} * c.depth;
  const std::uint64_t b_count = std::uint64_t{c.columns} * c.depth;
  float* const a = job.scratch;
  float* const b = a + a_count;
  float* const panel = b + b_count;
  float* const bias = panel + 8 * std::uint64_t{c.depth};
  float* const result = bias + c.columns;
  const std::uint64_t output_count = std::uint64_t{c.rows} * c.columns;
  if (c.has(2)) {
    decode_row<Vector>(c.operands[2].format, c.operands[2].elements.data(), c.columns, bias);
  }
  for (std::uint32_t batch = 0; batch < c.batch; ++batch) {
    const auto fetch = [&](std::size_t i, std::uint64_t count, float* to) {
      const Operand& operand = c.operands[i];
      decode_row<Vector>(operand.format,
                         operand.elements.data() + batch * count * element_bytes(operand.format),
                         count, to);
      compress(to, count, job.plan.shift[i]);
    };
    fetch(0, a_count, a);
    fetch(1, b_count, b);
    with_accumulator(job.plan.status.accumulator,
                     [&]<AccumulatorFormat kA>() { all_dots<kA>(job, a, b, panel, result); });
    for (std::uint64_t k = 0; k < output_count; ++k) {
      result[k] = Op::write_back(result[k], c.has(2) ? bias + k % c.columns : nullptr, c.attribute);
    }
    append(job, result, output_count);
  }
}

/// The way to run an operator, by the shape of its kernel.
template <class Op>
struct RunOf {
  static constexpr void (*choose())(Job&) {
    constexpr KernelShape kShape = traits_of(Op::kKernel).shape;
    if constexpr (kShape == KernelShape::kElementwise) {
      return &run_elementwise<Op>;
    } else if constexpr (kShape == KernelShape::kMatrix) {
      return &run_matrix<Op>;
    } else {
      return &run_rows<Op>;
    }
  }
  static constexpr auto kValue = choose();
};

inline void run(Job& job) {
  static constexpr auto kRun = table_of<RunOf, void (*)(Job&)>(kOperatorIndices);
  kRun[static_cast<std::size_t>(job.computation.kernel)](job);
}

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
