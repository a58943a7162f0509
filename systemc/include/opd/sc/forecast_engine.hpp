#pragma once
// The forecast engine: from one operator's summary and its baseline to flags.
//
//   arithmetic : integers only, exact; widths are in the comments
//   non-finite : FORECAST, CRITICAL and JUMP are 0 and the baseline is frozen; a long run of such
//                samples re-seeds it
//   empty      : a sample without a magnitude (all zeros, no element) leaves the baseline as it is
//   first      : the first usable sample seeds the baseline; its deviation is 0
//   source     : docs/numerics.md, "Samples" and "Forecast engine"
#include <algorithm>
#include <cstdint>

#include "opd/sc/format.hpp"
#include "opd/types/record.hpp"

namespace opd::sc {

/// Detector state of one operator; zero after reset.
struct ForecastState {
  std::int32_t baseline = 0;  ///< m, 1/128 bit (5 fraction bits + 2 guard bits), 17 bits signed
  std::uint8_t age = 0;       ///< usable samples in the baseline, saturating
  std::uint8_t nonfinite_run = 0;  ///< consecutive non-finite samples, saturating
  bool operator==(const ForecastState&) const = default;
};

class ForecastEngine {
 public:
  explicit ForecastEngine(const Config& config) : config_(config) {}

  /// Flags of one completion (bit i is Flag i); advances `state`.
  /// Precondition: is_format(descriptor.format).
  std::uint16_t detect(const OpDescriptor& descriptor, const TapSummary& summary,
                       ForecastState& state) const {
    std::uint16_t flags = 0;
    if (state.age < config_.baseline_warmup_samples) flags |= flag_bit(Flag::kWarmup);
    if (summary.saturated_count > 0) flags |= flag_bit(Flag::kSaturated);

    if (summary.nonfinite_count > 0) {
      freeze_(state);
      return static_cast<std::uint16_t>(flags | flag_bit(Flag::kNonfinite));
    }
    state.nonfinite_run = 0;
    if (summary.max_mag == 0) return flags;
    return static_cast<std::uint16_t>(flags | judge_(descriptor, summary.max_mag, state));
  }

 private:
  static constexpr std::int32_t kGuard = 4;  ///< 1/32 bit to 1/128 bit

  void freeze_(ForecastState& state) const {
    state.nonfinite_run = static_cast<std::uint8_t>(std::min(state.nonfinite_run + 1, 255));
    const unsigned reseed_run = config_.baseline_reseed_run;
    if (reseed_run > 0 && state.nonfinite_run >= reseed_run) state.age = 0;
  }

  /// A usable sample: FORECAST, CRITICAL and JUMP from the state before it, then the baseline.
  std::uint16_t judge_(const OpDescriptor& descriptor, std::uint32_t max_mag,
                       ForecastState& state) const {
    const std::int32_t x = log2_code(descriptor.format, max_mag);
    const std::int32_t unscaled = x - 32 * descriptor.scale_log2;  // -8127..8192
    const bool seeded = state.age > 0;
    const std::int32_t deviation =
        seeded ? kGuard * unscaled - state.baseline : 0;                  // 18 bits signed
    const std::int32_t headroom = limit(config_, descriptor.format) - x;  // the scale stays in it

    std::uint16_t flags = 0;
    if (headroom < config_.forecast_headroom &&
        (deviation << config_.forecast_shift) > kGuard * headroom) {
      flags |= flag_bit(Flag::kForecast);
    }
    if (headroom <= config_.critical_headroom) flags |= flag_bit(Flag::kCritical);
    if (state.age >= config_.jump_min_samples && deviation > kGuard * config_.jump_threshold) {
      flags |= flag_bit(Flag::kJump);
    }

    const int shift = config_.baseline_shift;
    const std::int32_t half = std::int32_t{1} << (shift - 1);
    // >> is arithmetic: with `half` it rounds to nearest, ties up. The step never passes the
    // sample, so 17 bits stay enough.
    state.baseline = seeded ? state.baseline + ((deviation + half) >> shift) : kGuard * unscaled;
    state.age = static_cast<std::uint8_t>(std::min(state.age + 1, 255));
    return flags;
  }

  Config config_;
};

}  // namespace opd::sc
