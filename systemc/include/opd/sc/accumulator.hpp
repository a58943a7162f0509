#pragma once
// Accumulators of the vector unit: one per lane, narrow, binary32 or compensated binary64, and the
// statistic of what is written into them.
//
//   narrow, FP32 : a = RNA(RN32(a + v))
//   FP64         : Kahan's sum, two binary64 numbers per lane
//   tree         : after a row the upper half of the accumulators is taken in by the lower one
//   watched      : every write is one element of the statistic
//   source       : docs/numerics.md, "Modes" from "An accumulator" on, "Accumulators are watched"
#include <algorithm>

#include "opd/sc/lane_arithmetic.hpp"
#include "opd/types/computation.hpp"

namespace opd::sc {
inline namespace OPD_LANES {

/// Statistic of the writes, per lane while an execution runs.
class AccumulatorWatch {
 public:
  void write(std::size_t lane, float value) {
    const std::uint32_t magnitude = bits_of(value) & ~kSignBit;
    const bool finite = magnitude < kInfinityBits;
    const std::uint32_t counted = choose(finite, magnitude, 0u);
    largest_[lane] = largest_[lane] > counted ? largest_[lane] : counted;
    nonfinite_[lane] += static_cast<std::uint32_t>(!finite);
  }
  void write(std::size_t lane, double value) {
    const std::uint64_t magnitude = std::bit_cast<std::uint64_t>(value) & ~(std::uint64_t{1} << 63);
    const bool finite = magnitude < std::uint64_t{0x7FF} << 52;
    const std::uint64_t counted = finite ? magnitude : 0;
    largest_wide_[lane] = largest_wide_[lane] > counted ? largest_wide_[lane] : counted;
    nonfinite_[lane] += static_cast<std::uint32_t>(!finite);
  }
  /// What writes to lanes from `first` on have found.
  void merge(std::size_t first, const std::uint32_t* largest, const std::uint32_t* nonfinite,
             std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      largest_[first + i] = std::max(largest_[first + i], largest[i]);
      nonfinite_[first + i] += nonfinite[i];
    }
  }
  /// `count` writes have been made, none of a lane more than 2^31 times since the last call.
  void add(std::uint64_t count) {
    writes_ += count;
    unfolded_ += count;
    if (unfolded_ < std::uint64_t{1} << 31) return;
    fold_();
  }

  /// Of accumulators in `format`; FP64 counts as binary32.
  TapSummary summary(AccumulatorFormat format) {
    fold_();
    const std::uint32_t largest = *std::max_element(largest_, largest_ + kMaxLanes);
    const auto clamped = [](std::uint64_t count) {
      return static_cast<std::uint32_t>(std::min<std::uint64_t>(count, UINT32_MAX));
    };
    TapSummary summary;
    summary.element_count = clamped(writes_);
    summary.nonfinite_count = clamped(nonfinite_writes_);
    summary.first_nonfinite = nonfinite_writes_ > 0 ? 0 : kNoElement;
    if (format == AccumulatorFormat::kFp64) {
      const auto wide =
          std::bit_cast<double>(*std::max_element(largest_wide_, largest_wide_ + kMaxLanes));
      summary.max_mag = std::min(bits_of(static_cast<float>(wide)), kInfinityBits - 1);
    } else {
      with_format(static_cast<Format>(format),
                  [&]<Format kFormat>() { summary.max_mag = encode<kFormat>(float_of(largest)); });
    }
    return summary;
  }

 private:
  void fold_() {
    for (std::uint32_t& count : nonfinite_) {
      nonfinite_writes_ += count;
      count = 0;
    }
    unfolded_ = 0;
  }

  alignas(64) std::uint32_t largest_[kMaxLanes] = {};
  alignas(64) std::uint32_t nonfinite_[kMaxLanes] = {};
  alignas(64) std::uint64_t largest_wide_[kMaxLanes] = {};
  std::uint64_t writes_ = 0;
  std::uint64_t unfolded_ = 0;
  std::uint64_t nonfinite_writes_ = 0;
};

/// The accumulators of all lanes.
class Accumulators {
 public:
  Accumulators(AccumulatorFormat format, AccumulatorWatch& watch)
      : format_(format), watch_(watch) {}

  bool wide() const { return format_ == AccumulatorFormat::kFp64; }

  /// All to +0.
  void clear(std::size_t lanes) {
    if (wide()) {
      std::fill_n(sum_, lanes, 0.0);
      std::fill_n(correction_, lanes, 0.0);
    } else {
      std::fill_n(narrow_, lanes, 0.0f);
    }
  }

  /// Lane i takes in values[i].
  template <class Count>
  void take(const float* values, Count count) {
    if (wide()) {
      for (std::size_t i = 0; i < count; ++i) kahan_(i, static_cast<double>(values[i]));
    } else {
      alignas(64) float sums[kMaxLanes];
      for (std::size_t i = 0; i < count; ++i) sums[i] = narrow_[i] + values[i];
      put_(sums, count);
    }
    watch_.add(count);
  }

  /// Lane i takes in the product of a[i] and b[i], in binary32 a rounded one.
  template <class Count>
  void take_products(const float* a, const float* b, Count count) {
    if (wide()) {
      for (std::size_t i = 0; i < count; ++i) {
        kahan_(i, static_cast<double>(a[i]) * static_cast<double>(b[i]));
      }
    } else {
      alignas(64) float sums[kMaxLanes];
      for (std::size_t i = 0; i < count; ++i) sums[i] = narrow_[i] + a[i] * b[i];
      put_(sums, count);
    }
    watch_.add(count);
  }

  /// Lane j takes in row[k] * columns[k * kMaxLanes + j], k from 0 to depth - 1, fused in binary32.
  void dot(const float* row, const float* columns, std::size_t depth, std::size_t count) {
    if (wide()) {
      for (std::size_t k = 0; k < depth; ++k) {
        for (std::size_t j = 0; j < count; ++j) {
          kahan_(j, static_cast<double>(row[k]) * static_cast<double>(columns[k * kMaxLanes + j]));
        }
      }
    } else if (format_ == AccumulatorFormat::kFp32) {
      std::size_t j = 0;
#if defined(OPD_LANES_AVX2)
      for (; j + 32 <= count; j += 32) dot_registers_<4>(row, columns, depth, j);
      for (; j + 8 <= count; j += 8) dot_registers_<1>(row, columns, depth, j);
#endif
      for (; j + kBlock <= count; j += kBlock) dot_block_(row, columns, depth, j);
      for (; j < count; ++j) {
        float sum = narrow_[j];
        for (std::size_t k = 0; k < depth; ++k) {
          sum = fma(row[k], columns[k * kMaxLanes + j], sum);
          watch_.write(j, sum);
        }
        narrow_[j] = sum;
      }
    } else {
      for (std::size_t k = 0; k < depth; ++k) {
        alignas(64) float sums[kMaxLanes];
        for (std::size_t j = 0; j < count; ++j) {
          sums[j] = fma(row[k], columns[k * kMaxLanes + j], narrow_[j]);
        }
        put_(sums, count);
      }
    }
    watch_.add(depth * count);
  }

  /// The tree over `lanes` accumulators, those that a row did not reach included.
  void reduce(std::size_t lanes) {
    for (std::size_t n = lanes; n > 1;) {
      const std::size_t half = (n + 1) / 2, count = n - half;
      if (wide()) {
        for (std::size_t j = 0; j < count; ++j) kahan_(j, sum_[j + half]);
        for (std::size_t j = 0; j < count; ++j) kahan_(j, -correction_[j + half]);
        watch_.add(2 * count);
      } else {
        take(narrow_ + half, count);
      }
      n = half;
    }
  }

  /// What accumulator `lane` holds; of a narrow one the number that it is.
  double value(std::size_t lane = 0) const {
    return wide() ? sum_[lane] : static_cast<double>(narrow_[lane]);
  }

 private:
  static constexpr std::size_t kBlock = 8;

#if defined(OPD_LANES_AVX2)
  /// kCount registers of eight lanes of a dot product in binary32.
  template <std::size_t kCount>
  void dot_registers_(const float* row, const float* columns, std::size_t depth,
                      std::size_t first) {
    const __m256i magnitude_mask = _mm256_set1_epi32(0x7FFFFFFF);
    const __m256i largest_finite = _mm256_set1_epi32(0x7F7FFFFF);
    __m256 sum[kCount];
    __m256i largest[kCount], nonfinite[kCount];
    for (std::size_t i = 0; i < kCount; ++i) {
      sum[i] = _mm256_loadu_ps(narrow_ + first + 8 * i);
      largest[i] = nonfinite[i] = _mm256_setzero_si256();
    }
    for (std::size_t k = 0; k < depth; ++k) {
      const __m256 a = _mm256_set1_ps(row[k]);
      for (std::size_t i = 0; i < kCount; ++i) {
        const __m256 b = _mm256_loadu_ps(columns + k * kMaxLanes + first + 8 * i);
        sum[i] = _mm256_fmadd_ps(a, b, sum[i]);
        const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(sum[i]), magnitude_mask);
        const __m256i infinite = _mm256_cmpgt_epi32(magnitude, largest_finite);
        nonfinite[i] = _mm256_sub_epi32(nonfinite[i], infinite);
        largest[i] = _mm256_max_epi32(largest[i], _mm256_andnot_si256(infinite, magnitude));
      }
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      alignas(32) std::uint32_t found[2][8];
      _mm256_storeu_ps(narrow_ + first + 8 * i, sum[i]);
      _mm256_store_si256(reinterpret_cast<__m256i*>(found[0]), largest[i]);
      _mm256_store_si256(reinterpret_cast<__m256i*>(found[1]), nonfinite[i]);
      watch_.merge(first + 8 * i, found[0], found[1], 8);
    }
  }
#endif

  /// Eight lanes of a dot product in binary32, all of it in registers.
  void dot_block_(const float* row, const float* columns, std::size_t depth, std::size_t first) {
    alignas(32) float sum[kBlock];
    alignas(32) std::uint32_t largest[kBlock] = {}, nonfinite[kBlock] = {};
    std::copy_n(narrow_ + first, kBlock, sum);
    for (std::size_t k = 0; k < depth; ++k) {
      const float* column = columns + k * kMaxLanes + first;
      for (std::size_t j = 0; j < kBlock; ++j) {
        sum[j] = fma(row[k], column[j], sum[j]);
        const std::uint32_t magnitude = bits_of(sum[j]) & ~kSignBit;
        const bool finite = magnitude < kInfinityBits;
        const std::uint32_t counted = choose(finite, magnitude, 0u);
        largest[j] = largest[j] > counted ? largest[j] : counted;
        nonfinite[j] += static_cast<std::uint32_t>(!finite);
      }
    }
    std::copy_n(sum, kBlock, narrow_ + first);
    watch_.merge(first, largest, nonfinite, kBlock);
  }

  template <class Count>
  void put_(float* sums, Count count) {
    if (format_ != AccumulatorFormat::kFp32) {
      round_lanes(static_cast<Format>(format_), sums, count);
    }
    for (std::size_t i = 0; i < count; ++i) {
      narrow_[i] = sums[i];
      watch_.write(i, sums[i]);
    }
  }

  void kahan_(std::size_t lane, double value) {
    const double y = value - correction_[lane];
    const double t = sum_[lane] + y;
    const double correction = (t - sum_[lane]) - y;
    const bool finite = __builtin_fabs(t) <= std::numeric_limits<double>::max();
    correction_[lane] = finite ? correction : 0.0;
    sum_[lane] = t;
    watch_.write(lane, t);
  }

  AccumulatorFormat format_;
  AccumulatorWatch& watch_;
  alignas(64) float narrow_[kMaxLanes] = {};
  alignas(64) double sum_[kMaxLanes] = {};
  alignas(64) double correction_[kMaxLanes] = {};
};

/// The largest element of a row, in one register per lane: magnitudes as integers that sort like
/// the numbers, +0 above -0. A NaN wins.
class RowMaximum {
 public:
  void clear() {
    std::fill_n(key_, kMaxLanes, key_of_(float_of(kInfinityBits | kSignBit)));
    std::fill_n(nan_, kMaxLanes, 0u);
  }
  template <class Count>
  void take(const float* values, Count count) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t key = key_of_(values[i]);
      key_[i] = key_[i] > key ? key_[i] : key;
      nan_[i] |= static_cast<std::uint32_t>((bits_of(values[i]) & ~kSignBit) > kInfinityBits);
    }
  }
  float value() const {
    std::int32_t key = key_[0];
    std::uint32_t nan = nan_[0];
    for (std::size_t i = 1; i < kMaxLanes; ++i) {
      key = std::max(key, key_[i]);
      nan |= nan_[i];
    }
    return nan != 0 ? float_of(kCanonicalNan) : value_of_(key);
  }

 private:
  static std::int32_t key_of_(float x) {
    const auto bits = static_cast<std::int32_t>(bits_of(x));
    return bits ^ (bits >> 31 & 0x7FFFFFFF);
  }
  static float value_of_(std::int32_t key) {
    return std::bit_cast<float>(key ^ (key >> 31 & 0x7FFFFFFF));
  }

  alignas(64) std::int32_t key_[kMaxLanes];
  alignas(64) std::uint32_t nan_[kMaxLanes];
};

}  // namespace OPD_LANES
}  // namespace opd::sc
