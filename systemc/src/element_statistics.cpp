#include "opd/sc/element_statistics.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "opd/sc/format.hpp"
#include "opd/types/device.hpp"

// Compiled once more for wider vectors; the loader takes what the processor has.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define OPD_VECTOR_WIDTHS [[gnu::target_clones("avx2", "default")]]
#else
#define OPD_VECTOR_WIDTHS
#endif

namespace opd::sc {
namespace {

// Elements are read as host integers; the pins and the tensors are little endian.
static_assert(std::endian::native == std::endian::little);

template <unsigned kBytes>
struct WordOfBytes;
template <>
struct WordOfBytes<1> {
  using Type = std::uint8_t;
};
template <>
struct WordOfBytes<2> {
  using Type = std::uint16_t;
};
template <>
struct WordOfBytes<4> {
  using Type = std::uint32_t;
};

/// The loops below count in the element's own width, so that a vector register counts as many
/// elements as it holds. A block is short enough for its counts to fit that width.
template <Format kFormat>
struct Lane {
  static constexpr FormatProperties kLayout = properties(kFormat);
  using Word = typename WordOfBytes<kLayout.element_bytes()>::Type;
  static constexpr Word kMask = static_cast<Word>(kLayout.magnitude_mask());
  static constexpr Word kLargestFinite = static_cast<Word>(kLayout.largest_finite);
  static constexpr Word kSmallestNormal = static_cast<Word>(kLayout.smallest_normal());
  static constexpr std::size_t kBlock = sizeof(Word) == 1 ? 192 : 4096;
  static_assert(kBlock <= std::numeric_limits<Word>::max());

  static Word magnitude(const std::byte* elements, std::size_t index) {
    Word bits;
    std::memcpy(&bits, elements + index * sizeof(Word), sizeof(Word));
    return static_cast<Word>(bits & kMask);
  }
};

/// Adds one block to `total`. `position` is the index of the block's first element in the run.
template <Format kFormat>
[[gnu::always_inline]] inline void add_block(const std::byte* elements, std::size_t count,
                                             std::uint64_t position, ElementStatistics& total) {
  using L = Lane<kFormat>;
  using Word = typename L::Word;

  Word largest = 0, zeros = 0, below_normal = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Word magnitude = L::magnitude(elements, i);
    largest = std::max(largest, magnitude);
    zeros = static_cast<Word>(zeros + (magnitude == 0));
    below_normal = static_cast<Word>(below_normal + (magnitude < L::kSmallestNormal));
  }
  total.element_count += count;
  total.zero_count += zeros;
  total.subnormal_count += static_cast<Word>(below_normal - zeros);
  if (largest < L::kLargestFinite) {  // the common case: nothing saturated, nothing non-finite
    total.max_mag = std::max<std::uint32_t>(total.max_mag, largest);
    return;
  }

  Word largest_finite = 0, nonfinite = 0, saturated = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Word magnitude = L::magnitude(elements, i);
    const bool finite = magnitude <= L::kLargestFinite;
    largest_finite = std::max(largest_finite, finite ? magnitude : Word{0});
    nonfinite = static_cast<Word>(nonfinite + !finite);
    saturated = static_cast<Word>(saturated + (magnitude == L::kLargestFinite));
  }
  total.max_mag = std::max<std::uint32_t>(total.max_mag, largest_finite);
  total.nonfinite_count += nonfinite;
  total.saturated_count += saturated;
  if (nonfinite > 0 && total.first_nonfinite == kNoIndex) {
    std::size_t first = 0;
    while (L::magnitude(elements, first) <= L::kLargestFinite) ++first;
    total.first_nonfinite = position + first;
  }
}

template <Format kFormat>
[[gnu::always_inline]] inline ElementStatistics statistics_of(const std::byte* elements,
                                                              std::size_t count) {
  using L = Lane<kFormat>;
  ElementStatistics total;
  for (std::size_t done = 0; done < count; done += L::kBlock) {
    add_block<kFormat>(elements + done * sizeof(typename L::Word),
                       std::min(L::kBlock, count - done), done, total);
  }
  return total;
}

}  // namespace

OPD_VECTOR_WIDTHS
ElementStatistics element_statistics(Format format, const std::byte* elements, std::size_t count) {
  switch (format) {
    case Format::kFp16:
      return statistics_of<Format::kFp16>(elements, count);
    case Format::kBf16:
      return statistics_of<Format::kBf16>(elements, count);
    case Format::kE4m3:
      return statistics_of<Format::kE4m3>(elements, count);
    case Format::kE5m2:
      return statistics_of<Format::kE5m2>(elements, count);
    case Format::kFp32:
      return statistics_of<Format::kFp32>(elements, count);
  }
  return {};
}

ElementStatistics beat_statistics(Format format, const std::byte* elements, std::size_t count,
                                  std::uint64_t lane_enable) {
  if (!is_format(format) || count == 0) return {};
  const std::uint64_t all_lanes = ~std::uint64_t{0} >> (64 - count);
  const std::uint64_t disabled = ~lane_enable & all_lanes;
  if (disabled == 0) return element_statistics(format, elements, count);

  // A disabled lane enters as +0, the identity of every field but two, which are corrected
  // afterwards.
  const std::size_t element_bytes = properties(format).element_bytes();
  std::byte lanes[kMaxBeatBytes];
  std::memcpy(lanes, elements, count * element_bytes);
  for (std::uint64_t rest = disabled; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::size_t>(std::countr_zero(rest));
    std::memset(lanes + lane * element_bytes, 0, element_bytes);
  }
  ElementStatistics result = element_statistics(format, lanes, count);
  const auto disabled_count = static_cast<std::uint64_t>(std::popcount(disabled));
  result.element_count -= disabled_count;
  result.zero_count -= disabled_count;
  return result;
}

}  // namespace opd::sc
