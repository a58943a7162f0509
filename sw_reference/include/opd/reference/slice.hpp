#pragma once
// One thread's share of a chunk of elements, read 16 bytes at a time and classified several
// elements per 32-bit word. It is what the GPU kernel runs; being plain integer code it is tested
// thread by thread on the CPU.
//
// A magnitude leaves the top bit of its lane free, so mag + (2^(w-1) - t) sets that bit exactly
// when mag >= t: one addition compares all lanes of a word, and no carry leaves a lane.
//
//   cost   : about 17 integer operations per 32-bit word; a tile that touches the limit is read
//            element by element instead (the definition, tap.hpp)
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

  /// Lane by lane the larger magnitude.
  OPD_HOST_DEVICE static constexpr std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
    const std::uint32_t a_wins = ((a | kTops) - b) & kTops;
    const std::uint32_t mask =
        a_wins - (a_wins >> (kWidth - 1));  // all magnitude bits of those lanes
    return (a & mask) | (b & ~mask);
  }

  /// Sum of the lanes; it must fit one lane.
  OPD_HOST_DEVICE static constexpr std::uint32_t lane_sum(std::uint32_t counts) {
    return (counts * kOnes) >> (32 - kWidth);
  }

  OPD_HOST_DEVICE static constexpr std::uint32_t lane(std::uint32_t word, unsigned index) {
    return (word >> (index * kWidth % 32)) & kLaneMask;
  }
};

/// Adds kQuads loads to `summary`. The first element of load q has index first_index + q * stride.
/// Counters do not saturate: a slice holds fewer than 2^32 elements.
template <Format kFormat, unsigned kQuads>
OPD_HOST_DEVICE constexpr void accumulate_tile(TapSummary& summary, const Quad (&quads)[kQuads],
                                               std::uint64_t first_index, std::uint64_t stride) {
  using P = Packed<kFormat>;
  constexpr unsigned kElements = kQuads * 4 * P::kLanes;
  static_assert(kElements <= P::kLaneMask, "lane_sum would overflow");
  std::uint32_t maxima = 0, normal = 0, nonzero = 0;
  OPD_UNROLL_DEVICE
  for (unsigned q = 0; q < kQuads; ++q) {
    OPD_UNROLL_DEVICE
    for (unsigned w = 0; w < 4; ++w) {
      const std::uint32_t magnitudes = quads[q].word[w] & ~P::kTops;
      maxima = P::larger(magnitudes, maxima);
      normal += P::template at_least<P::kLayout.min_normal()>(magnitudes) >> (P::kWidth - 1);
      nonzero += P::template at_least<1>(magnitudes) >> (P::kWidth - 1);
    }
  }
  if (P::template at_least<P::kLayout.max_finite>(maxima) != 0) {
    OPD_UNROLL_DEVICE
    for (unsigned q = 0; q < kQuads; ++q) {
      OPD_UNROLL_DEVICE
      for (unsigned w = 0; w < 4; ++w) {
        for (unsigned k = 0; k < P::kLanes; ++k) {
          accumulate(summary, kFormat, P::lane(quads[q].word[w], k),
                     first_index + q * stride + w * P::kLanes + k, true, 32);
        }
      }
    }
    return;
  }
  for (unsigned k = 0; k < P::kLanes; ++k) {
    const std::uint32_t magnitude = P::lane(maxima, k);
    if (magnitude > summary.max_mag) summary.max_mag = magnitude;
  }
  const std::uint32_t normals = P::lane_sum(normal);
  const std::uint32_t nonzeros = P::lane_sum(nonzero);
  summary.element_count += kElements;
  summary.subnormal_count += nonzeros - normals;
  summary.zero_count += kElements - nonzeros;
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
