#pragma once
// Published engine: the rule of the literature (moving mean and variance of max|x|, z-score, second
// difference) in binary32. An operator is seen in units of a power of two near the sample that
// seeded its mean, so that squares of BF16 and FP32 operands neither overflow nor vanish.
//
//   cost   : 12 additions and multiplications (14 for AFTER), 18 bytes of state per operator; no division, no root
//   range  : sample <= 2^48, variance <= 2^96; no intermediate is NaN
//   source : docs/numerics.md "Published engine"
#include <cmath>
#include <cstdint>
#include <limits>

#include "opd/reference/binary32.hpp"
#include "opd/reference/flags.hpp"
#include "opd/types/record.hpp"

namespace opd::ref {

/// Per-operator state in the operator's unit 2^(anchor - 127), all zero after reset.
struct PublishedState {
  float mean = 0;           ///< m
  float variance = 0;       ///< v
  float last = 0;           ///< last sample y
  float slope = 0;          ///< last first difference, with sign
  std::int16_t anchor = 0;  ///< biased exponent of the seed, loss scale taken out; -126..383
  bool operator==(const PublishedState&) const = default;
};

/// What a sample was scored against: for reports, not for decisions. All zero when nothing was.
struct PublishedScore {
  float deviation = 0;  ///< d, in the operator's unit
  float variance = 0;   ///< w, in the operator's unit squared
  bool scored = false;  ///< enough samples, and w above the floor: Z could be raised
  bool operator==(const PublishedScore&) const = default;

  /// z in double precision; NaN while w is 0.
  double z() const {
    return variance > 0 ? static_cast<double>(deviation) / std::sqrt(static_cast<double>(variance))
                        : std::numeric_limits<double>::quiet_NaN();
  }
};

/// Largest sample in the operator's unit, 2^48: its square and T^2 times that stay finite.
inline constexpr float kLargestSample = 0x1p48f;

/// Advances `state` by one usable sample, tells in `score` what it was scored against, and returns
/// Z, D2 and Z_HALF (bit i = Flag i).
/// age: samples in the mean before this one; 0 seeds it. The format must be known.
OPD_HOST_DEVICE inline std::uint16_t published_step(const OpDescriptor& descriptor,
                                                    std::uint32_t max_mag, unsigned age,
                                                    bool desensitised, const Config& config,
                                                    PublishedState& state, PublishedScore& score) {
  const float x = to_binary32(descriptor.format, max_mag);
  const std::int32_t exponent = exponent_field(x);
  if (age == 0) {
    state.anchor = static_cast<std::int16_t>((exponent > 1 ? exponent : 1) - descriptor.scale_log2);
  }
  const std::int32_t shift = state.anchor + descriptor.scale_log2 - 127;
  const float unbounded = scaled(x, shift);
  const float y = unbounded < kLargestSample ? unbounded : kLargestSample;
  if (age == 0) {
    state = {.mean = y, .variance = 0, .last = y, .slope = 0, .anchor = state.anchor};
    return 0;
  }

  const float alpha = config.published_alpha;
  const float delta = subtract(y, state.mean);
  const float square = multiply(delta, delta);
  const float mean = add(state.mean, multiply(alpha, delta));
  const float variance =
      multiply(subtract(1.0f, alpha), add(state.variance, multiply(alpha, square)));
  const float slope = subtract(y, state.last);
  const float curve = subtract(slope, state.slope);

  const bool after = config.published_order == static_cast<std::uint8_t>(Order::kAfter);
  const float d = after ? subtract(y, mean) : delta;
  const float dd = after ? multiply(d, d) : square;
  const float w = after ? variance : state.variance;
  const float threshold = desensitised ? config.z_threshold_desensitised : config.z_threshold;
  const float limit = multiply(multiply(threshold, threshold), w);
  const float curve_limit =
      scaled(desensitised ? config.d2_threshold_desensitised : config.d2_threshold, shift);
  score = {.deviation = d,
           .variance = w,
           .scored = age >= config.published_min_samples && w > 0 &&
                     w >= scaled(config.variance_floor, 2 * shift)};

  const FormatLayout layout = layout_of(descriptor.format);
  const std::uint32_t d2_floor = layout.max_finite - (std::uint32_t{config.published_d2_floor_shift}
                                                      << layout.significand_bits);
  const unsigned d2_samples = config.published_min_samples > 2 ? config.published_min_samples : 2;
  unsigned flags = 0;
  if (score.scored && d > 0 && dd > limit) flags |= bit_of(Flag::kZ);
  if (score.scored && d > 0 && dd > scaled(limit, 2)) flags |= bit_of(Flag::kZHalf);
  if (age >= d2_samples && (curve > curve_limit || -curve > curve_limit) && max_mag >= d2_floor)
    flags |= bit_of(Flag::kD2);

  state = {.mean = mean, .variance = variance, .last = y, .slope = slope, .anchor = state.anchor};
  return static_cast<std::uint16_t>(flags);
}

}  // namespace opd::ref
