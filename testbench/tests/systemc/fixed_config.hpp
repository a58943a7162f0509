#pragma once
// The configuration that values worked out by hand depend on, so that tuning a reset value changes
// no expectation.
#include "opd/types/registers.hpp"

namespace opd::tb {

inline constexpr Config kFixedConfig = {.limit_fp16 = 512,
                                        .limit_bf16 = 4096,
                                        .limit_e4m3 = 282,
                                        .limit_e5m2 = 506,
                                        .limit_fp32 = 4096,
                                        .baseline_shift = 4,
                                        .baseline_reseed_run = 16,
                                        .baseline_warmup_samples = 16,
                                        .forecast_headroom = 128,
                                        .forecast_shift = 1,
                                        .critical_headroom = 32,
                                        .jump_threshold = 96,
                                        .jump_min_samples = 16,
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
                                        .safe_steps = 8};

}  // namespace opd::tb
