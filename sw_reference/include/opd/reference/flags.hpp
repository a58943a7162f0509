#pragma once
// Flags as bits of a word, and what their weights make of them.
//
//   source : docs/numerics.md "Risk", docs/controller.md "Quiet"
#include <cstdint>

#include "opd/reference/host_device.hpp"
#include "opd/types/registers.hpp"

namespace opd::ref {

/// The bit of a flag (flag_bit) for the GPU as well.
OPD_HOST_DEVICE constexpr std::uint16_t bit_of(Flag flag) {
  return static_cast<std::uint16_t>(1u << static_cast<unsigned>(flag));
}

/// Calls visit(flag, weight) for every flag that has a weight.
template <class Visit>
OPD_HOST_DEVICE constexpr void for_each_weight(const Config& config, Visit visit) {
  visit(Flag::kZ, config.weight_z);
  visit(Flag::kD2, config.weight_d2);
  visit(Flag::kForecast, config.weight_forecast);
  visit(Flag::kCritical, config.weight_critical);
  visit(Flag::kJump, config.weight_jump);
  visit(Flag::kNonfinite, config.weight_nonfinite);
  visit(Flag::kSaturated, config.weight_saturated);
  visit(Flag::kWarmup, config.weight_warmup);
}

/// Sum of the weights of the raised flags, at most 255.
OPD_HOST_DEVICE constexpr std::uint8_t risk_of(std::uint16_t flags, const Config& config) {
  unsigned risk = 0;
  for_each_weight(config, [&](Flag flag, std::uint8_t weight) {
    if ((flags & bit_of(flag)) != 0) risk += weight;
  });
  return static_cast<std::uint8_t>(risk < 255 ? risk : 255);
}

/// No flag whose weight is not 0 is raised; while Z has a weight, z is below half its threshold as
/// well.
OPD_HOST_DEVICE constexpr bool is_quiet(std::uint16_t flags, const Config& config) {
  unsigned loud = config.weight_z != 0 ? bit_of(Flag::kZHalf) : 0;
  for_each_weight(config, [&](Flag flag, std::uint8_t weight) {
    if (weight != 0) loud |= bit_of(flag);
  });
  return (flags & loud) == 0;
}

}  // namespace opd::ref
