#pragma once
// Forecast engine: one sample per completion in, flags out. The baseline is an exponential moving
// average of the log2 code; how far a sample stands above it is a rate, and rate against headroom
// is the forecast.
//
//   range  : |baseline| <= 32,896 (17 bits), |deviation| <= 65,404 (18 bits), both in 1/128 bit
//   empty  : an output without a finite non-zero element raises no rate flag and leaves the
//            baseline alone
//   source : docs/numerics.md "Samples", "Forecast engine", "Risk"
#include <cstdint>

#include "opd/reference/log2_code.hpp"
#include "opd/reference/tap.hpp"

namespace opd::ref {

/// Per-operator state, all zero after reset.
struct ForecastState {
  std::int32_t baseline = 0;       ///< m, 1/128 bit, loss scale taken out
  std::uint8_t age = 0;            ///< samples in the baseline, saturating
  std::uint8_t nonfinite_run = 0;  ///< non-finite samples in a row, saturating
  bool operator==(const ForecastState&) const = default;
};

/// LIMIT register of a known format, 1/32 bit.
OPD_HOST_DEVICE constexpr std::int32_t limit_of(const Config& config, Format format) {
  switch (format) {
    case Format::kFp16:
      return config.limit_fp16;
    case Format::kBf16:
      return config.limit_bf16;
    case Format::kE4m3:
      return config.limit_e4m3;
    case Format::kE5m2:
      return config.limit_e5m2;
    case Format::kFp32:
      break;
  }
  return config.limit_fp32;
}

/// Advances `state` by one completion and returns its flags (bit i = Flag i). The format must be
/// known.
OPD_HOST_DEVICE constexpr std::uint16_t forecast_step(const OpDescriptor& descriptor,
                                                      const TapSummary& summary,
                                                      const Config& config, ForecastState& state) {
  unsigned flags = 0;
  const auto raise = [&flags](Flag flag, bool condition) {
    if (condition) flags |= 1u << static_cast<unsigned>(flag);
  };
  raise(Flag::kNonfinite, summary.nonfinite_count > 0);
  raise(Flag::kSaturated, summary.saturated_count > 0);
  raise(Flag::kWarmup, state.age < config.baseline_warmup_samples);

  if (summary.nonfinite_count > 0) {
    // The baseline is frozen: one Inf in a moving average would poison it. After a long run it is
    // out of date.
    if (state.nonfinite_run < 255) ++state.nonfinite_run;
    if (config.baseline_reseed_run > 0 && state.nonfinite_run >= config.baseline_reseed_run)
      state.age = 0;
    return static_cast<std::uint16_t>(flags);
  }
  state.nonfinite_run = 0;
  if (summary.max_mag == 0) return static_cast<std::uint16_t>(flags);

  const std::int32_t x = log2_code(descriptor.format, summary.max_mag);
  const std::int32_t target = 4 * (x - 32 * descriptor.scale_log2);  // 1/128 bit
  const std::int32_t deviation = state.age == 0 ? 0 : target - state.baseline;
  const std::int32_t headroom =
      limit_of(config, descriptor.format) - x;  // the scale is not taken out
  raise(Flag::kForecast, headroom < config.forecast_headroom &&
                             deviation * (1 << config.forecast_shift) > 4 * headroom);
  raise(Flag::kCritical, headroom <= config.critical_headroom);
  raise(Flag::kJump, state.age >= config.jump_min_samples && deviation > 4 * config.jump_threshold);

  // Arithmetic shift: rounds half up, so the baseline stalls only within 1/16 bit of the sample.
  const std::int32_t half = 1 << (config.baseline_shift - 1);
  state.baseline =
      state.age == 0 ? target : state.baseline + ((deviation + half) >> config.baseline_shift);
  if (state.age < 255) ++state.age;
  return static_cast<std::uint16_t>(flags);
}

/// Sum of the weights of the raised flags, at most 255.
OPD_HOST_DEVICE constexpr std::uint8_t risk_of(std::uint16_t flags, const Config& config) {
  unsigned risk = 0;
  const auto add = [&](Flag flag, std::uint8_t weight) {
    if ((flags >> static_cast<unsigned>(flag)) & 1u) risk += weight;
  };
  add(Flag::kZ, config.weight_z);
  add(Flag::kD2, config.weight_d2);
  add(Flag::kForecast, config.weight_forecast);
  add(Flag::kCritical, config.weight_critical);
  add(Flag::kJump, config.weight_jump);
  add(Flag::kNonfinite, config.weight_nonfinite);
  add(Flag::kSaturated, config.weight_saturated);
  add(Flag::kWarmup, config.weight_warmup);
  return static_cast<std::uint8_t>(risk < 255 ? risk : 255);
}

}  // namespace opd::ref
