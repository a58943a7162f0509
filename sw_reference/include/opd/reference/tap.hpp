#pragma once
// The tap's statistic of one operator output: `accumulate` element by element is the definition,
// `combine` merges two parts of it in any order.
//
//   exact  : min(a + b, cap), min and max are associative and commutative, and saturating the parts
//            first changes nothing, so every reduction tree gives the serial result
//   empty  : a default TapSummary is the identity of `combine`
//   source : docs/numerics.md "Tap"
#include <cstdint>

#include "opd/reference/element.hpp"
#include "opd/types/record.hpp"

namespace opd::ref {

/// Largest value of a counter, 2^C - 1. counter_width C: 2..32.
OPD_HOST_DEVICE constexpr std::uint32_t counter_limit(unsigned counter_width) {
  return 0xFFFFFFFFu >> (32 - counter_width);
}

OPD_HOST_DEVICE constexpr std::uint32_t clamp_count(std::uint64_t count, unsigned counter_width) {
  const std::uint32_t limit = counter_limit(counter_width);
  return count < limit ? static_cast<std::uint32_t>(count) : limit;
}

/// An element index stops one below the counters: at C = 32 all ones means "no element".
OPD_HOST_DEVICE constexpr std::uint32_t clamp_index(std::uint64_t index, unsigned counter_width) {
  const std::uint32_t limit = counter_limit(counter_width) - 1;
  return index < limit ? static_cast<std::uint32_t>(index) : limit;
}

/// Adds one element. index: its position in the operator's output; a disabled element changes
/// nothing.
OPD_HOST_DEVICE constexpr void accumulate(TapSummary& summary, Format format, std::uint32_t bits,
                                          std::uint64_t index, bool enabled,
                                          unsigned counter_width) {
  if (!enabled) return;
  const Element element = classify(format, bits);
  const auto count = [counter_width](std::uint32_t& counter, bool hit) {
    if (hit && counter < counter_limit(counter_width)) ++counter;
  };
  if (!element.nonfinite && element.magnitude > summary.max_mag)
    summary.max_mag = element.magnitude;
  if (element.nonfinite) {
    const std::uint32_t position = clamp_index(index, counter_width);
    if (position < summary.first_nonfinite) summary.first_nonfinite = position;
  }
  count(summary.element_count, true);
  count(summary.nonfinite_count, element.nonfinite);
  count(summary.saturated_count, element.saturated);
  count(summary.subnormal_count, element.subnormal);
  count(summary.zero_count, element.zero);
}

/// Summary of two disjoint sets of elements. The indices of both count from the same element 0.
OPD_HOST_DEVICE constexpr TapSummary combine(const TapSummary& a, const TapSummary& b,
                                             unsigned counter_width) {
  const auto add = [counter_width](std::uint32_t x, std::uint32_t y) {
    return clamp_count(std::uint64_t{x} + y, counter_width);
  };
  return {.max_mag = a.max_mag > b.max_mag ? a.max_mag : b.max_mag,
          .element_count = add(a.element_count, b.element_count),
          .nonfinite_count = add(a.nonfinite_count, b.nonfinite_count),
          .first_nonfinite =
              a.first_nonfinite < b.first_nonfinite ? a.first_nonfinite : b.first_nonfinite,
          .saturated_count = add(a.saturated_count, b.saturated_count),
          .subnormal_count = add(a.subnormal_count, b.subnormal_count),
          .zero_count = add(a.zero_count, b.zero_count)};
}

/// `combine` as a binary operator for reductions.
struct Combine {
  unsigned counter_width = 32;
  OPD_HOST_DEVICE constexpr TapSummary operator()(const TapSummary& a, const TapSummary& b) const {
    return combine(a, b, counter_width);
  }
};

/// The summary with counters of counter_width bits.
OPD_HOST_DEVICE constexpr TapSummary clamp_summary(TapSummary summary, unsigned counter_width) {
  if (summary.first_nonfinite != kNoElement) {
    summary.first_nonfinite = clamp_index(summary.first_nonfinite, counter_width);
  }
  summary.element_count = clamp_count(summary.element_count, counter_width);
  summary.nonfinite_count = clamp_count(summary.nonfinite_count, counter_width);
  summary.saturated_count = clamp_count(summary.saturated_count, counter_width);
  summary.subnormal_count = clamp_count(summary.subnormal_count, counter_width);
  summary.zero_count = clamp_count(summary.zero_count, counter_width);
  return summary;
}

/// A statistic from the sideband as the device takes it: counters saturate, bits of max_mag above
/// the magnitude of its format are dropped. Of an unknown format only the counters change.
OPD_HOST_DEVICE constexpr TapSummary sideband_summary(Format format, TapSummary statistic,
                                                      unsigned counter_width) {
  if (is_known(format)) statistic.max_mag &= layout_of(format).magnitude_mask();
  return clamp_summary(statistic, counter_width);
}

}  // namespace opd::ref
