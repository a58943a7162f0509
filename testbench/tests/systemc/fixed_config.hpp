#pragma once
// The configuration that values worked out by hand depend on, so that tuning a reset value changes
// no expectation.
#include <cstdint>
#include <map>

#include "opd/types/registers.hpp"

namespace opd::tb {

inline constexpr Config kFixedConfig = {.limit_fp16 = 512,
                                        .limit_bf16 = 4096,
                                        .limit_e4m3 = 282,
                                        .limit_e5m2 = 506,
                                        .limit_fp32 = 4096,
                                        .baseline_shift = 4,
                                        .baseline_max_lag = 3,
                                        .baseline_reseed_run = 16,
                                        .baseline_warmup_samples = 16,
                                        .forecast_headroom = 128,
                                        .forecast_shift = 1,
                                        .forecast_shift_fp8 = 1,
                                        .forecast_headroom_scaled = 20,
                                        .critical_headroom = 32,
                                        .jump_threshold = 96,
                                        .jump_min_samples = 16,
                                        .jump_headroom = 16383,
                                        .jump_headroom_scaled = 64,
                                        .weight_z = 0,
                                        .weight_d2 = 0,
                                        .weight_forecast = 128,
                                        .weight_critical = 127,
                                        .weight_jump = 128,
                                        .weight_nonfinite = 255,
                                        .weight_saturated = 128,
                                        .weight_warmup = 0,
                                        .risk_stable = 128,
                                        .risk_safe = 255,
                                        .quiet_steps = 64,
                                        .safe_steps = 8,
                                        .desensitise_steps = 40,
                                        .desensitise_jump = 32,
                                        .desensitise_horizon = 1,
                                        .published_order = 0,
                                        .published_d2_floor_shift = 1,
                                        .published_min_samples = 32,
                                        .published_alpha = 0x1.fc07fp-7f,
                                        .z_threshold = 5,
                                        .z_threshold_desensitised = 6,
                                        .d2_threshold = 3,
                                        .d2_threshold_desensitised = 3.6f,
                                        .variance_floor = 1e-24f,
                                        .hint_loss_scale_shift = -8,
                                        .hint_clip_shift = -1,
                                        .hint_learning_rate_factor = 6554,
                                        .control_enable = 1};

/// Register values of a configuration by address: what software writes.
inline std::map<std::uint16_t, std::uint32_t> register_values(const Config& config) {
  std::map<std::uint16_t, std::uint32_t> values;
  for (const ConfigField& field : kConfigFields) {
    const std::uint64_t mask = (std::uint64_t{1} << field.width) - 1;
    values[field.address] |=
        static_cast<std::uint32_t>(static_cast<std::uint64_t>(field.get(config)) & mask)
        << field.low_bit;
  }
  return values;
}

}  // namespace opd::tb
