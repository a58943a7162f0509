#pragma once
// Risk: one number from the raised flags. Source: docs/numerics.md, "Risk".
#include <algorithm>
#include <array>
#include <cstdint>

#include "opd/types/registers.hpp"

namespace opd::sc {

/// min(255, sum of the weights of the raised flags); bit i of `flags` is Flag i.
constexpr std::uint8_t risk(const Config& config, std::uint16_t flags) {
  const std::array<std::uint8_t, 8> weights = {
      config.weight_z,    config.weight_d2,        config.weight_forecast,  config.weight_critical,
      config.weight_jump, config.weight_nonfinite, config.weight_saturated, config.weight_warmup};
  unsigned sum = 0;
  for (unsigned flag = 0; flag < weights.size(); ++flag) {
    if ((flags >> flag & 1u) != 0) sum += weights[flag];
  }
  return static_cast<std::uint8_t>(std::min(sum, 255u));
}

}  // namespace opd::sc
