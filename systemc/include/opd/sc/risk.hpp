#pragma once
// Risk: one number from the raised flags. Source: docs/numerics.md, "Risk".
#include <algorithm>
#include <array>
#include <cstdint>

#include "opd/types/registers.hpp"

namespace opd::sc {

/// Weights of the flags Z..WARMUP, by flag number; the flags above have none.
constexpr std::array<std::uint8_t, 8> weights(const Config& config) {
  return {config.weight_z,         config.weight_d2,    config.weight_forecast,
          config.weight_critical,  config.weight_jump,  config.weight_nonfinite,
          config.weight_saturated, config.weight_warmup};
}

/// min(255, sum of the weights of the raised flags); bit i of `flags` is Flag i.
constexpr std::uint8_t risk(const Config& config, std::uint16_t flags) {
  const auto weight = weights(config);
  unsigned sum = 0;
  for (unsigned flag = 0; flag < weight.size(); ++flag) {
    if ((flags >> flag & 1u) != 0) sum += weight[flag];
  }
  return static_cast<std::uint8_t>(std::min(sum, 255u));
}

/// The flags whose weight is not 0.
constexpr std::uint16_t weighted_flags(const Config& config) {
  const auto weight = weights(config);
  unsigned flags = 0;
  for (unsigned flag = 0; flag < weight.size(); ++flag) {
    if (weight[flag] != 0) flags |= 1u << flag;
  }
  return static_cast<std::uint16_t>(flags);
}

}  // namespace opd::sc
