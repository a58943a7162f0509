#pragma once
// The forecast engine: from one usable sample and the operator's baseline to flags.
//
//   arithmetic : integers only, exact; widths are in the comments
//   first      : with age 0 the sample seeds the baseline; its deviation is 0
//   source     : docs/numerics.md, "Forecast engine"
#include <algorithm>
#include <cstdint>

#include "opd/sc/format.hpp"
#include "opd/sc/sample.hpp"

namespace opd::sc {

/// FORECAST, CRITICAL and JUMP of one usable sample; advances `baseline` (m in 1/128 bit: 5
/// fraction bits and 2 guard bits; 17 bits signed, zero after reset).
inline std::uint16_t forecast_engine(const Config& config, const Sample& sample,
                                     std::int32_t& baseline) {
  constexpr std::int32_t kGuard = 4;  // 1/32 bit to 1/128 bit
  const Format format = sample.descriptor.format;
  const bool seeded = sample.age > 0;

  const std::int32_t x = log2_code(format, sample.max_mag);
  const std::int32_t unscaled = x - 32 * sample.descriptor.scale_log2;       // -8127..8192
  const std::int32_t deviation = seeded ? kGuard * unscaled - baseline : 0;  // 18 bits signed
  const std::int32_t headroom = limit(config, format) - x;                   // the scale stays
  const bool is_fp8 = properties(format).element_bits() == 8;
  const int longer = is_fp8 ? config.forecast_shift_fp8 : config.forecast_shift;
  const int shorter = sample.desensitised ? config.desensitise_horizon : 0;
  const std::int32_t jump =
      config.jump_threshold + (sample.desensitised ? config.desensitise_jump : 0);

  // An operand under a loss scale lives near its limit: it has headrooms of its own.
  const bool under_scale = sample.descriptor.scale_log2 != 0;
  const std::int32_t near_forecast =
      under_scale ? config.forecast_headroom_scaled : config.forecast_headroom;
  const std::int32_t near_jump = under_scale ? config.jump_headroom_scaled : config.jump_headroom;

  unsigned flags = 0;
  if (headroom < near_forecast && (deviation << longer) > (kGuard * headroom << shorter)) {
    flags |= flag_bit(Flag::kForecast);
  }
  if (headroom <= config.critical_headroom) flags |= flag_bit(Flag::kCritical);
  if (headroom < near_jump && sample.age >= config.jump_min_samples && deviation > kGuard * jump) {
    flags |= flag_bit(Flag::kJump);
  }

  // >> is arithmetic: with half of the divisor added it rounds to nearest, ties up. The step never
  // passes the sample, so 17 bits stay enough.
  const int shift = config.baseline_shift;
  const std::int32_t half = std::int32_t{1} << (shift - 1);
  baseline = seeded ? baseline + ((deviation + half) >> shift) : kGuard * unscaled;

  // What a sample is further above it than MAX_LAG bits it follows at once.
  if (seeded && config.baseline_max_lag > 0) {
    baseline = std::max(baseline, kGuard * (unscaled - 32 * config.baseline_max_lag));
  }
  return static_cast<std::uint16_t>(flags);
}

}  // namespace opd::sc
