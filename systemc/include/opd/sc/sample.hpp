#pragma once
// One completion as the engines see it, and the history of an operator that both engines share.
// Source: docs/numerics.md, "Samples" and "Status flags".
#include <algorithm>
#include <cstdint>
#include <optional>

#include "opd/types/record.hpp"

namespace opd::sc {

/// What an operator's baselines hold; zero after reset.
struct History {
  std::uint8_t age = 0;            ///< usable samples since the baselines were seeded, saturating
  std::uint8_t nonfinite_run = 0;  ///< non-finite samples in a row, saturating
  bool operator==(const History&) const = default;
};

/// A usable sample: finite, with a magnitude. Precondition of both engines: is_format(format).
struct Sample {
  OpDescriptor descriptor;
  std::uint32_t max_mag = 0;  ///< above 0
  unsigned age = 0;           ///< from before the sample; with 0 it seeds the baselines
  bool desensitised = false;
};

constexpr bool is_nonfinite(const TapSummary& summary) { return summary.nonfinite_count > 0; }
constexpr bool is_usable(const TapSummary& summary) {
  return !is_nonfinite(summary) && summary.max_mag > 0;
}

/// `change` is the first step with the new learning rate, if one was announced.
constexpr bool is_desensitised(const Config& config, std::optional<std::uint32_t> change,
                               std::uint32_t step) {
  return change && step - *change < config.desensitise_steps;  // mod 2^32
}

/// NONFINITE, SATURATED and WARMUP; `history` is from before the sample.
constexpr std::uint16_t status_flags(const Config& config, const TapSummary& summary,
                                     const History& history) {
  unsigned flags = 0;
  if (is_nonfinite(summary)) flags |= flag_bit(Flag::kNonfinite);
  if (summary.saturated_count > 0) flags |= flag_bit(Flag::kSaturated);
  if (history.age < config.baseline_warmup_samples) flags |= flag_bit(Flag::kWarmup);
  return static_cast<std::uint16_t>(flags);
}

/// The history after the sample.
constexpr History advanced(const Config& config, const TapSummary& summary, History history) {
  const auto increment = [](std::uint8_t value) {
    return static_cast<std::uint8_t>(std::min(value + 1, 255));
  };
  if (is_nonfinite(summary)) {
    history.nonfinite_run = increment(history.nonfinite_run);
    const unsigned reseed_run = config.baseline_reseed_run;
    if (reseed_run > 0 && history.nonfinite_run >= reseed_run) history.age = 0;
    return history;
  }
  history.nonfinite_run = 0;
  if (is_usable(summary)) history.age = increment(history.age);
  return history;
}

}  // namespace opd::sc
