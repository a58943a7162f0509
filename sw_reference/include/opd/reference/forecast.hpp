#pragma once
// Forecast engine: one usable sample in, flags out. The baseline is an exponential moving average
// of the log2 code; how far a sample stands above it is a rate, and rate against headroom is the
// forecast.
//
//   range  : |baseline| <= 32,896 (17 bits), |deviation| <= 65,404 (18 bits), both in 1/128 bit
//   source : docs/numerics.md "Forecast engine"
#include <cstdint>

#include "opd/reference/flags.hpp"
#include "opd/reference/log2_code.hpp"
#include "opd/types/record.hpp"

namespace opd::ref {

/// Per-operator state, all zero after reset.
struct ForecastState {
  std::int32_t baseline = 0;  ///< m, 1/128 bit, loss scale taken out
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

/// FORECAST.SHIFT, or SHIFT_FP8 of the 8-bit formats.
OPD_HOST_DEVICE constexpr int forecast_shift_of(const Config& config, Format format) {
  const bool fp8 = format == Format::kE4m3 || format == Format::kE5m2;
  return fp8 ? config.forecast_shift_fp8 : config.forecast_shift;
}

/// Advances `state` by one usable sample and returns FORECAST, CRITICAL and JUMP (bit i = Flag i).
/// age: samples in the baseline before this one; 0 seeds it. The format must be known.
OPD_HOST_DEVICE constexpr std::uint16_t forecast_step(const OpDescriptor& descriptor,
                                                      std::uint32_t max_mag, unsigned age,
                                                      bool desensitised, const Config& config,
                                                      ForecastState& state) {
  const std::int32_t x = log2_code(descriptor.format, max_mag);
  const std::int32_t target = 4 * (x - 32 * descriptor.scale_log2);  // 1/128 bit
  const std::int32_t deviation = age == 0 ? 0 : target - state.baseline;
  const std::int32_t headroom =
      limit_of(config, descriptor.format) - x;  // the scale is not taken out
  const std::int32_t jump = config.jump_threshold + (desensitised ? config.desensitise_jump : 0);
  const int horizon = desensitised ? config.desensitise_horizon : 0;
  const bool scaled = descriptor.scale_log2 != 0;
  const std::int32_t forecast_headroom =
      scaled ? config.forecast_headroom_scaled : config.forecast_headroom;
  const std::int32_t jump_headroom = scaled ? config.jump_headroom_scaled : config.jump_headroom;

  unsigned flags = 0;
  if (headroom < forecast_headroom &&
      deviation * (1 << forecast_shift_of(config, descriptor.format)) >
          4 * headroom * (1 << horizon))
    flags |= bit_of(Flag::kForecast);
  if (headroom <= config.critical_headroom) flags |= bit_of(Flag::kCritical);
  if (headroom < jump_headroom && age >= config.jump_min_samples && deviation > 4 * jump)
    flags |= bit_of(Flag::kJump);

  // Arithmetic shift: rounds half up, so the baseline stalls only within 1/16 bit of the sample.
  const std::int32_t half = 1 << (config.baseline_shift - 1);
  const std::int32_t moved = state.baseline + ((deviation + half) >> config.baseline_shift);
  const std::int32_t lowest = target - 128 * config.baseline_max_lag;
  const bool lags = config.baseline_max_lag != 0 && moved < lowest;
  state.baseline = age == 0 ? target : lags ? lowest : moved;
  return static_cast<std::uint16_t>(flags);
}

}  // namespace opd::ref
