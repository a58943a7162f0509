// Vectorised tap statistics. With magnitudes as signed integers every class is one comparison,
// whose result (-1 or 0) is subtracted from a counter in vector lanes. Lane counters are as narrow
// as the elements, so a block ends before an 8-bit one can wrap.
//
// A block keeps the maximum of all magnitudes and counts what is common: zeros and subnormals. Only
// a block whose maximum reaches the largest finite value is read again, from the L1 cache, to tell
// saturated from non-finite elements.
//
//   cost   : 7 vector operations per vector of elements, 6 more in a block at the limit, and 4 more
//            where such a block has non-finite elements and none that is saturated
//   source : docs/numerics.md "Tap"
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "opd/reference/cpu.hpp"

namespace opd::ref {
namespace {

// 255 additions of at most 1 fit an 8-bit lane. The same block serves the wider lanes: 16 KiB at most
// stay in the L1 cache for the second reading.
constexpr std::size_t kBlockVectors = 255;

// Bytes. Far enough to keep the memory busy while a block is widened or read again; measured.
constexpr std::size_t kPrefetchDistance = 2048;

template <class Lane, std::size_t Bytes>
using Vector [[gnu::vector_size(Bytes)]] = Lane;

template <std::size_t Size>
using SignedLane = std::conditional_t<Size == 1, std::int8_t,
                                      std::conditional_t<Size == 2, std::int16_t, std::int32_t>>;
template <std::size_t Size>
using UnsignedLane = std::conditional_t<
    Size == 1, std::uint8_t,
    std::conditional_t<Size == 2, std::uint16_t,
                       std::conditional_t<Size == 4, std::uint32_t, std::uint64_t>>>;

/// Adds lane counters to 64-bit totals, doubling the lane width until it is 64.
template <class Lane, std::size_t Bytes>
[[gnu::always_inline]] inline void widen_into(Vector<std::uint64_t, Bytes>& total,
                                              const Vector<Lane, Bytes>& counts) {
  if constexpr (sizeof(Lane) == 8) {
    total += counts;
  } else {
    using Wide = UnsignedLane<2 * sizeof(Lane)>;
    constexpr int kBits = 8 * sizeof(Lane);
    const auto pairs = reinterpret_cast<Vector<Wide, Bytes>>(counts);
    widen_into<Wide, Bytes>(total,
                            (pairs >> kBits) + (pairs & static_cast<Wide>((Wide{1} << kBits) - 1)));
  }
}

template <std::size_t Bytes>
[[gnu::always_inline]] inline std::uint64_t lane_sum(const Vector<std::uint64_t, Bytes>& lanes) {
  std::uint64_t sum = 0;
  for (std::size_t lane = 0; lane < Bytes / 8; ++lane) sum += lanes[lane];
  return sum;
}

/// Asks for the line that many bytes ahead; past the end of the buffer this has no effect.
[[gnu::always_inline]] inline void prefetch(const std::byte* address, std::size_t distance) {
  const auto ahead = reinterpret_cast<std::uintptr_t>(address) + distance;
  __builtin_prefetch(reinterpret_cast<const void*>(ahead));
}

std::uint32_t load(const std::byte* element, std::size_t size) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, element, size);
  return bits;
}

/// Serial part: elements [begin, end) of the output.
void accumulate_range(TapSummary& summary, Format format, const std::byte* elements,
                      std::size_t begin, std::size_t end, unsigned counter_width) {
  const std::size_t size = layout_of(format).bytes();
  for (std::size_t k = begin; k < end; ++k) {
    accumulate(summary, format, load(elements + k * size, size), k, true, counter_width);
  }
}

/// True when some lane of a comparison result is set.
template <std::size_t Bytes, class Mask>
[[gnu::always_inline]] inline bool any_lane(const Mask& mask) {
  const auto words = reinterpret_cast<Vector<std::uint64_t, Bytes>>(mask);
  std::uint64_t bits = 0;
  for (std::size_t lane = 0; lane < Bytes / 8; ++lane) bits |= words[lane];
  return bits != 0;
}

template <class Lanes, class Lane>
[[gnu::always_inline]] inline void load_magnitudes(Lanes& mag, const std::byte* address,
                                                   Lane mask) {
  std::memcpy(&mag, address, sizeof mag);
  mag &= mask;
}

/// Counts the lanes that are set in a comparison result. AVX-512 compares into a mask, which masks an
/// addition at no cost; elsewhere the result is the -1 to subtract.
template <std::size_t Bytes, class Counts, class Mask>
[[gnu::always_inline]] inline void count_lanes(Counts& counts, const Mask& mask) {
  if constexpr (Bytes == 64) {
    counts = mask ? counts + 1 : counts;
  } else {
    counts -= reinterpret_cast<Counts>(mask);
  }
}

template <Format kFormat, std::size_t Bytes>
[[gnu::always_inline]] inline TapSummary scan(const std::byte* elements, std::size_t count,
                                              unsigned counter_width) {
  constexpr FormatLayout kLayout = layout_of(kFormat);
  constexpr std::size_t kSize = kLayout.bytes();
  using Signed = SignedLane<kSize>;
  using Unsigned = UnsignedLane<kSize>;
  using Lanes = Vector<Signed, Bytes>;
  using Counts = Vector<Unsigned, Bytes>;
  using Totals = Vector<std::uint64_t, Bytes>;
  constexpr std::size_t kLanes = Bytes / kSize;
  constexpr auto kMask = static_cast<Signed>(kLayout.magnitude_mask());
  constexpr auto kMaxFinite = static_cast<Signed>(kLayout.max_finite);
  constexpr auto kMaxSubnormal = static_cast<Signed>(kLayout.min_normal() - 1);

  Lanes max_mag{};
  Totals normal_total{}, zero_total{}, nonfinite_total{}, saturated_total{};
  std::uint32_t first_nonfinite = kNoElement;
  const std::size_t vectors = count / kLanes;

  for (std::size_t block = 0; block < vectors; block += kBlockVectors) {
    const std::size_t block_end = std::min(block + kBlockVectors, vectors);
    Lanes block_max{};
    Counts normal{}, zero{};
#pragma GCC unroll 4
    for (std::size_t v = block; v < block_end; ++v) {
      prefetch(elements + v * Bytes, kPrefetchDistance);
      Lanes mag;
      load_magnitudes(mag, elements + v * Bytes, kMask);
      block_max = mag > block_max ? mag : block_max;
      count_lanes<Bytes>(normal, mag > kMaxSubnormal);
      count_lanes<Bytes>(zero, mag == 0);
    }
    widen_into<Unsigned, Bytes>(normal_total, normal);
    widen_into<Unsigned, Bytes>(zero_total, zero);

    if (any_lane<Bytes>(block_max >= kMaxFinite)) {
      Counts nonfinite{}, saturated{};
#pragma GCC unroll 4
      for (std::size_t v = block; v < block_end; ++v) {
        prefetch(elements + v * Bytes, kBlockVectors * Bytes + 2 * kPrefetchDistance);
        Lanes mag;
        load_magnitudes(mag, elements + v * Bytes, kMask);
        count_lanes<Bytes>(nonfinite, mag > kMaxFinite);
        count_lanes<Bytes>(saturated, mag == kMaxFinite);
      }
      block_max = Lanes{} + kMaxFinite;
      if (!any_lane<Bytes>(saturated)) {  // non-finite elements beside smaller ones
        block_max = Lanes{};
        for (std::size_t v = block; v < block_end; ++v) {
          Lanes mag;
          load_magnitudes(mag, elements + v * Bytes, kMask);
          const Lanes finite = mag & ~(mag > kMaxFinite);
          block_max = finite > block_max ? finite : block_max;
        }
      }
      widen_into<Unsigned, Bytes>(nonfinite_total, nonfinite);
      widen_into<Unsigned, Bytes>(saturated_total, saturated);
      if (first_nonfinite == kNoElement && any_lane<Bytes>(nonfinite)) {  // once per output
        std::size_t k = block * kLanes;
        while (!classify(kFormat, load(elements + k * kSize, kSize)).nonfinite) ++k;
        first_nonfinite = clamp_index(k, counter_width);
      }
    }
    max_mag = block_max > max_mag ? block_max : max_mag;
  }

  Signed largest = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane)
    largest = std::max(largest, Signed{max_mag[lane]});
  const std::uint64_t elements_seen = vectors * kLanes;
  const std::uint64_t zeros = lane_sum<Bytes>(zero_total);
  const TapSummary body{
      .max_mag = static_cast<std::uint32_t>(largest),
      .element_count = clamp_count(elements_seen, counter_width),
      .nonfinite_count = clamp_count(lane_sum<Bytes>(nonfinite_total), counter_width),
      .first_nonfinite = first_nonfinite,
      .saturated_count = clamp_count(lane_sum<Bytes>(saturated_total), counter_width),
      .subnormal_count =
          clamp_count(elements_seen - lane_sum<Bytes>(normal_total) - zeros, counter_width),
      .zero_count = clamp_count(zeros, counter_width)};
  TapSummary tail;
  accumulate_range(tail, kFormat, elements, vectors * kLanes, count, counter_width);
  return combine(body, tail, counter_width);
}

template <Format kFormat>
TapSummary scan_baseline(const std::byte* elements, std::size_t count, unsigned counter_width) {
  return scan<kFormat, 16>(elements, count, counter_width);
}

#if defined(__x86_64__)
template <Format kFormat>
[[gnu::target("avx2")]] TapSummary scan_avx2(const std::byte* elements, std::size_t count,
                                             unsigned counter_width) {
  return scan<kFormat, 32>(elements, count, counter_width);
}

template <Format kFormat>
[[gnu::target("avx512bw,avx512vl,prefer-vector-width=512")]] TapSummary scan_avx512(
    const std::byte* elements, std::size_t count, unsigned counter_width) {
  return scan<kFormat, 64>(elements, count, counter_width);
}
#endif

template <Format kFormat>
TapSummary dispatch(const std::byte* elements, std::size_t count, unsigned counter_width, Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return scan_avx512<kFormat>(elements, count, counter_width);
  if (isa == Isa::kAvx2) return scan_avx2<kFormat>(elements, count, counter_width);
#endif
  static_cast<void>(isa);
  return scan_baseline<kFormat>(elements, count, counter_width);
}

/// Checks the arguments and returns the number of elements.
std::size_t checked_count(Format format, std::span<const std::byte> elements,
                          unsigned counter_width) {
  if (!is_known(format)) {
    throw std::invalid_argument("format: " + std::to_string(static_cast<unsigned>(format)) +
                                " is unknown, must be 0..4");
  }
  if (counter_width < 2 || counter_width > 32) {
    throw std::invalid_argument("counter_width: " + std::to_string(counter_width) +
                                " must be 2..32");
  }
  const std::size_t size = layout_of(format).bytes();
  if (elements.size() % size != 0) {
    throw std::invalid_argument("elements: " + std::to_string(elements.size()) +
                                " bytes must be a multiple of the element size " +
                                std::to_string(size));
  }
  return elements.size() / size;
}

}  // namespace

Isa best_isa() {
#if defined(__x86_64__)
  static const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0;
  static const bool kHasAvx512 =
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return kHasAvx512 ? Isa::kAvx512 : kHasAvx2 ? Isa::kAvx2 : Isa::kBaseline;
#else
  return Isa::kBaseline;
#endif
}

TapSummary summarise(Format format, std::span<const std::byte> elements, unsigned counter_width,
                     Isa isa) {
  const std::size_t count = checked_count(format, elements, counter_width);
  if (isa > best_isa())
    throw std::invalid_argument(best_isa() == Isa::kAvx2
                                    ? "isa: this machine has no AVX-512, must be AVX2 or baseline"
                                    : "isa: this machine has no AVX2, must be baseline");
  switch (format) {
    case Format::kFp16:
      return dispatch<Format::kFp16>(elements.data(), count, counter_width, isa);
    case Format::kBf16:
      return dispatch<Format::kBf16>(elements.data(), count, counter_width, isa);
    case Format::kE4m3:
      return dispatch<Format::kE4m3>(elements.data(), count, counter_width, isa);
    case Format::kE5m2:
      return dispatch<Format::kE5m2>(elements.data(), count, counter_width, isa);
    case Format::kFp32:
      break;
  }
  return dispatch<Format::kFp32>(elements.data(), count, counter_width, isa);
}

TapSummary summarise(Format format, std::span<const std::byte> elements, unsigned counter_width) {
  return summarise(format, elements, counter_width, best_isa());
}

TapSummary summarise_serial(Format format, std::span<const std::byte> elements,
                            std::span<const std::uint8_t> enabled, unsigned counter_width) {
  const std::size_t count = checked_count(format, elements, counter_width);
  if (!enabled.empty() && enabled.size() != count) {
    throw std::invalid_argument("enabled: " + std::to_string(enabled.size()) +
                                " entries, must be empty or " + std::to_string(count));
  }
  const std::size_t size = layout_of(format).bytes();
  TapSummary summary;
  for (std::size_t k = 0; k < count; ++k) {
    accumulate(summary, format, load(elements.data() + k * size, size), k,
               enabled.empty() || enabled[k] != 0, counter_width);
  }
  return summary;
}

}  // namespace opd::ref
