#pragma once
// What the tap's lanes find out about a run of elements: one beat, or a whole tensor.
// Source: docs/numerics.md, "Tap".
#include <cstddef>
#include <cstdint>

#include "opd/sc/format.hpp"
#include "opd/types/record.hpp"

namespace opd::sc {

/// first_nonfinite when every element is finite.
inline constexpr std::uint64_t kNoIndex = ~std::uint64_t{0};

/// Statistic over a run of elements, before counters saturate.
struct ElementStatistics {
  std::uint32_t max_mag = 0;  ///< largest finite magnitude; 0 when no element is finite
  std::uint64_t element_count = 0;
  std::uint64_t nonfinite_count = 0;
  std::uint64_t first_nonfinite = kNoIndex;  ///< position in the run
  std::uint64_t saturated_count = 0;
  std::uint64_t subnormal_count = 0;
  std::uint64_t zero_count = 0;
  bool operator==(const ElementStatistics&) const = default;
};

/// Statistic of `count` elements.
///
/// Shape : `elements` holds count * element_bytes bytes, packed, little endian, at any alignment.
/// Empty : count = 0 gives the default value.
/// Format: an element of an unknown format is no element: the result is the default value.
/// Cost  : one pass over the bytes, in loops that the compiler vectorises; a second one over those
///         blocks that hold a saturated or non-finite element.
ElementStatistics element_statistics(Format format, const std::byte* elements, std::size_t count);

/// As above for one beat: elements whose lane_enable bit is 0 take no part but keep their index.
/// lane_enable bits from `count` up are ignored.
/// Precondition: count <= 64 and count * element_bytes <= kMaxBeatBytes.
ElementStatistics beat_statistics(Format format, const std::byte* elements, std::size_t count,
                                  std::uint64_t lane_enable);

/// Counter saturation. With counters of C bits, counts stop at 2^C - 1 and indices at 2^C - 2,
/// because 2^C - 1 cannot be told from "none" in a C-bit register.
class CounterLimit {
 public:
  /// counter_width = C, 2..32.
  explicit constexpr CounterLimit(unsigned counter_width)
      : count_max_((std::uint64_t{1} << counter_width) - 1) {}

  constexpr std::uint32_t count(std::uint64_t value) const {
    return static_cast<std::uint32_t>(value < count_max_ ? value : count_max_);
  }
  constexpr std::uint32_t index(std::uint64_t value) const {
    return static_cast<std::uint32_t>(value < count_max_ ? value : count_max_ - 1);
  }

  /// The counters of a whole operator output as the device reports them.
  constexpr TapSummary clamp(const ElementStatistics& statistics) const {
    return {.max_mag = statistics.max_mag,
            .element_count = count(statistics.element_count),
            .nonfinite_count = count(statistics.nonfinite_count),
            .first_nonfinite = statistics.first_nonfinite == kNoIndex
                                   ? kNoElement
                                   : index(statistics.first_nonfinite),
            .saturated_count = count(statistics.saturated_count),
            .subnormal_count = count(statistics.subnormal_count),
            .zero_count = count(statistics.zero_count)};
  }

  /// A statistic from the sideband: bits of max_mag that its format does not have are dropped.
  constexpr TapSummary clamp(Format format, const TapSummary& summary) const {
    return {.max_mag = is_format(format) ? summary.max_mag & properties(format).magnitude_mask()
                                         : summary.max_mag,
            .element_count = count(summary.element_count),
            .nonfinite_count = count(summary.nonfinite_count),
            .first_nonfinite =
                summary.first_nonfinite == kNoElement ? kNoElement : index(summary.first_nonfinite),
            .saturated_count = count(summary.saturated_count),
            .subnormal_count = count(summary.subnormal_count),
            .zero_count = count(summary.zero_count)};
  }

 private:
  std::uint64_t count_max_;
};

}  // namespace opd::sc
