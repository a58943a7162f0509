#pragma once
// One thread's share of a chunk of elements, read 16 bytes at a time and classified several
// elements per 32-bit word. It is what the GPU kernel runs; being plain integer code it is tested
// thread by thread on the CPU.
//
// A magnitude leaves the top bit of its lane free, so mag + (2^(w-1) - t) sets that bit exactly
// when mag >= t: one addition compares all lanes of a word, and no carry leaves a lane.
//
//   cost   : 6 to 14 integer operations per 32-bit word (docs/performance.md "Instructions of the
//            device's kernels"); a tile that touches the limit is gone over once more, lane-wise too
//   exact  : the slices of a chunk, combined in any order, equal the serial summary
//   source : docs/numerics.md "Tap"
#include <cstddef>
#include <cstdint>

#include "opd/reference/tap.hpp"

namespace opd::ref {

/// One 16-byte load.
struct alignas(16) Quad {
  std::uint32_t word[4];
};

/// Lanes of a 32-bit word, one element each: 4, 2 or 1.
template <Format kFormat>
struct Packed {
  static constexpr FormatLayout kLayout = layout_of(kFormat);
  static constexpr unsigned kWidth = kLayout.width();
  static constexpr unsigned kLanes = 32 / kWidth;
  static constexpr std::uint32_t kLaneMask = 0xFFFFFFFFu >> (32 - kWidth);
  static constexpr std::uint32_t kOnes = 0xFFFFFFFFu / kLaneMask;  ///< 1 in every lane
  static constexpr std::uint32_t kTops = kOnes << (kWidth - 1);    ///< top bit of every lane

  /// Top bit of every lane whose magnitude is at least kThreshold.
  template <std::uint32_t kThreshold>
  OPD_HOST_DEVICE static constexpr std::uint32_t at_least(std::uint32_t magnitudes) {
    return (magnitudes + kOnes * ((std::uint32_t{1} << (kWidth - 1)) - kThreshold)) & kTops;
  }

  /// All bits of every lane whose top bit is set in `tops`, and no others.
  OPD_HOST_DEVICE static constexpr std::uint32_t fill(std::uint32_t tops) {
    return tops | (tops - (tops >> (kWidth - 1)));
  }

  /// Sum of the lanes; it must fit one lane.
  OPD_HOST_DEVICE static constexpr std::uint32_t lane_sum(std::uint32_t counts) {
    return (counts * kOnes) >> (32 - kWidth);
  }

  OPD_HOST_DEVICE static constexpr std::uint32_t lane(std::uint32_t word, unsigned index) {
    return (word >> (index * kWidth % 32)) & kLaneMask;
  }
};

/// Two lanes of 16 bits, the larger of each.
OPD_HOST_DEVICE inline std::uint32_t larger_pair(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return __vmaxu2(a, b);
#else
  const std::uint32_t low_a = a & 0xFFFF, low_b = b & 0xFFFF;
  return ((a >> 16) > (b >> 16) ? a & 0xFFFF0000 : b & 0xFFFF0000) |
         (low_a > low_b ? low_a : low_b);
#endif
}

/// Largest magnitude of words, with one maximum of the target for as many lanes as it takes. A lane
/// that is the top one of a maximum needs no mask: what lies below it decides only among equals.
template <Format kFormat>
class LaneMaximum {
 public:
  OPD_HOST_DEVICE inline void add(std::uint32_t magnitudes) {
    if constexpr (P::kLanes == 1) {
      top_ = max(top_, magnitudes);
    } else if constexpr (P::kLanes == 2 && kPairs) {
      top_ = larger_pair(top_, magnitudes);
    } else if constexpr (P::kLanes == 2) {
      top_ = max(top_, magnitudes);
      rest_ = max(rest_, magnitudes & P::kLaneMask);
    } else if constexpr (kPairs) {
      top_ = larger_pair(top_, magnitudes);
      rest_ = larger_pair(rest_, magnitudes & 0x00FF00FF);
    } else {
      const std::uint32_t wins = ((magnitudes | P::kTops) - top_) & P::kTops;
      const std::uint32_t mask = P::fill(wins);
      top_ = (magnitudes & mask) | (top_ & ~mask);
    }
  }

  OPD_HOST_DEVICE inline std::uint32_t value() const {
    if constexpr (P::kLanes == 1) return top_;
    if constexpr (P::kLanes == 2 && kPairs) return max(top_ >> 16, top_ & 0xFFFF);
    if constexpr (P::kLanes == 2) return max(top_ >> 16, rest_);
    if constexpr (kPairs) {
      return max(max(top_ >> 24, top_ >> 8 & 0xFF), max(rest_ >> 16, rest_ & 0xFF));
    }
    const std::uint32_t pair = larger_pair(top_ & 0x00FF00FF, top_ >> 8 & 0x00FF00FF);
    return max(pair >> 16, pair & 0xFF);
  }

 private:
  using P = Packed<kFormat>;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr bool kPairs = false;
#else
  static constexpr bool kPairs = true;
#endif
  OPD_HOST_DEVICE static constexpr std::uint32_t max(std::uint32_t a, std::uint32_t b) {
    return a > b ? a : b;
  }
  std::uint32_t top_ = 0, rest_ = 0;
};

/// The part of a tile that only one at the limit needs: elements at it and beyond it, and the
/// largest magnitude below it.
template <Format kFormat, unsigned kQuads>
OPD_HOST_DEVICE inline void accumulate_limit(TapSummary& summary, const Quad (&quads)[kQuads],
                                             std::uint64_t first_index, std::uint64_t stride) {
  using P = Packed<kFormat>;
  LaneMaximum<kFormat> maximum;
  std::uint32_t saturated = 0, nonfinite = 0;
  OPD_UNROLL_DEVICE
  for (unsigned q = 0; q < kQuads; ++q) {
    OPD_UNROLL_DEVICE
    for (unsigned w = 0; w < 4; ++w) {
      const std::uint32_t magnitudes = quads[q].word[w] & ~P::kTops;
      const std::uint32_t beyond = P::template at_least<P::kLayout.max_finite + 1>(magnitudes);
      const std::uint32_t at = P::template at_least<P::kLayout.max_finite>(magnitudes) ^ beyond;
      maximum.add(magnitudes & ~P::fill(beyond));
      saturated += at >> (P::kWidth - 1);
      nonfinite += beyond >> (P::kWidth - 1);
      if (beyond != 0) {
        unsigned lane = 0;
        while ((beyond >> (lane * P::kWidth + P::kWidth - 1) & 1) == 0) ++lane;
        const std::uint32_t position =
            clamp_index(first_index + q * stride + w * P::kLanes + lane, 32);
        if (position < summary.first_nonfinite) summary.first_nonfinite = position;
      }
    }
  }
  if (maximum.value() > summary.max_mag) summary.max_mag = maximum.value();
  summary.saturated_count += P::lane_sum(saturated);
  summary.nonfinite_count += P::lane_sum(nonfinite);
}

/// Adds kQuads loads to `summary`. The first element of load q has index first_index + q * stride.
/// Counters do not saturate: a slice holds fewer than 2^32 elements.
template <Format kFormat, unsigned kQuads>
OPD_HOST_DEVICE inline void accumulate_tile(TapSummary& summary, const Quad (&quads)[kQuads],
                                            std::uint64_t first_index, std::uint64_t stride) {
  using P = Packed<kFormat>;
  constexpr unsigned kElements = kQuads * 4 * P::kLanes;
  static_assert(kElements <= P::kLaneMask, "lane_sum would overflow");
  LaneMaximum<kFormat> maximum;
  std::uint32_t normal = 0, nonzero = 0;
  OPD_UNROLL_DEVICE
  for (unsigned q = 0; q < kQuads; ++q) {
    OPD_UNROLL_DEVICE
    for (unsigned w = 0; w < 4; ++w) {
      const std::uint32_t magnitudes = quads[q].word[w] & ~P::kTops;
      maximum.add(magnitudes);
      normal += P::template at_least<P::kLayout.min_normal()>(magnitudes) >> (P::kWidth - 1);
      nonzero += P::template at_least<1>(magnitudes) >> (P::kWidth - 1);
    }
  }
  const std::uint32_t largest = maximum.value();
  if (largest >= P::kLayout.max_finite) {
    accumulate_limit<kFormat>(summary, quads, first_index, stride);
  } else if (largest > summary.max_mag) {
    summary.max_mag = largest;
  }
  const std::uint32_t normals = P::lane_sum(normal);
  const std::uint32_t nonzeros = P::lane_sum(nonzero);
  summary.element_count += kElements;
  summary.subnormal_count += nonzeros - normals;
  summary.zero_count += kElements - nonzeros;
}

/// Tells the compiler where `address` points: a load of memory that it does not know to be global
/// takes another way.
OPD_HOST_DEVICE inline const std::byte* global_memory(const std::byte* address) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(address));
#endif
  return address;
}

/// Bits of the element at an address that is a multiple of the element size.
template <Format kFormat>
OPD_HOST_DEVICE inline std::uint32_t load_element(const std::byte* address) {
  constexpr unsigned kBytes = layout_of(kFormat).bytes();
  if constexpr (kBytes == 1) return *reinterpret_cast<const std::uint8_t*>(address);
  if constexpr (kBytes == 2) return *reinterpret_cast<const std::uint16_t*>(address);
  if constexpr (kBytes == 4) return *reinterpret_cast<const std::uint32_t*>(address);
}

/// Summary of the elements that thread `thread` of `num_threads` reads: 16-byte loads side by side
/// with its neighbours', four in flight. What lies before and after the aligned middle is fewer
/// than 16 elements each, one per thread.
///
/// Shape : `count` elements (fewer than 2^32) at `elements`, a multiple of the element size; the
///         first has index first_index. num_threads >= 16.
/// Empty : the default TapSummary. Counters do not saturate; clamp_summary does that once, after
///         the reduction.
template <Format kFormat>
OPD_HOST_DEVICE inline TapSummary summarise_slice(const std::byte* elements, std::uint64_t count,
                                                  std::uint64_t first_index, unsigned thread,
                                                  unsigned num_threads) {
  constexpr unsigned kBytes = layout_of(kFormat).bytes();
  constexpr unsigned kPerQuad = sizeof(Quad) / kBytes;
  constexpr unsigned kInFlight = 4;
  TapSummary summary;
  elements = global_memory(elements);

  const std::uint64_t to_boundary =
      ((0 - reinterpret_cast<std::uintptr_t>(elements)) % sizeof(Quad)) / kBytes;
  const std::uint64_t head = to_boundary < count ? to_boundary : count;
  const std::uint64_t quad_count = (count - head) / kPerQuad;
  const std::uint64_t tail =
      head + quad_count * kPerQuad;  // first element after the aligned middle
  const auto add_single = [&](std::uint64_t k) {
    accumulate(summary, kFormat, load_element<kFormat>(elements + k * kBytes), first_index + k,
               true, 32);
  };
  if (thread < head) add_single(thread);
  if (tail + thread < count) add_single(tail + thread);

  const auto* quads = reinterpret_cast<const Quad*>(elements + head * kBytes);
  const std::uint64_t first_quad_index = first_index + head;
  const std::uint64_t stride = std::uint64_t{num_threads} * kPerQuad;
  std::uint64_t q = thread;
  for (; q + (kInFlight - 1) * std::uint64_t{num_threads} < quad_count;
       q += kInFlight * std::uint64_t{num_threads}) {
    Quad tile[kInFlight];
    OPD_UNROLL_DEVICE
    for (unsigned k = 0; k < kInFlight; ++k) tile[k] = quads[q + k * std::uint64_t{num_threads}];
    accumulate_tile<kFormat>(summary, tile, first_quad_index + q * kPerQuad, stride);
  }
  for (; q < quad_count; q += num_threads) {
    const Quad tile[1] = {quads[q]};
    accumulate_tile<kFormat>(summary, tile, first_quad_index + q * kPerQuad, stride);
  }
  return summary;
}

}  // namespace opd::ref
