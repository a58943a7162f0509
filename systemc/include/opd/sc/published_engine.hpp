#pragma once
// The published engine: moving mean and variance of max|x|, z-score and second difference, in
// binary32, from one usable sample to flags.
//
//   unit   : every operator is seen in units of a power of two near the sample that seeded it, so
//            squares neither overflow nor vanish; thresholds are moved into that unit
//   first  : with age 0 the sample seeds the state and raises no flag
//   source : docs/numerics.md, "Published engine"; names are the ones of that text
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "opd/sc/binary32.hpp"
#include "opd/sc/sample.hpp"

namespace opd::sc {

/// State of one operator; zero after reset.
struct PublishedState {
  std::int16_t anchor = 0;  ///< exponent field of the seed, loss scale taken out; 10 bits signed
  float mean = 0;
  float variance = 0;
  float last = 0;   ///< previous usable sample
  float slope = 0;  ///< previous first difference
  bool operator==(const PublishedState&) const = default;
};

/// Z, Z_HALF and D2 of one usable sample; advances `state`.
inline std::uint16_t published_engine(const Config& config, const Sample& sample,
                                      PublishedState& state) {
  using namespace binary32;
  constexpr float kHighest = 0x1p48f;
  const OpDescriptor& descriptor = sample.descriptor;

  const float value = from_magnitude(descriptor.format, sample.max_mag);
  const int exponent = exponent_field(value);
  const bool seeds = sample.age == 0;
  const int anchor = seeds ? std::max(exponent, 1) - descriptor.scale_log2 : state.anchor;
  const int shift = anchor + descriptor.scale_log2 - 127;
  const float y = exponent == 0 ? 0.0f : std::min(scaled(value, shift), kHighest);
  if (seeds) {
    state = {.anchor = static_cast<std::int16_t>(anchor), .mean = y, .last = y};
    return 0;
  }

  const float alpha = config.published_alpha;
  const float beta = subtract(1.0f, alpha);
  const float delta = subtract(y, state.mean);
  const float mean = add(state.mean, multiply(alpha, delta));
  const float square = multiply(delta, delta);
  const float variance = multiply(beta, add(state.variance, multiply(alpha, square)));
  const float slope = subtract(y, state.last);
  const float curve = subtract(slope, state.slope);

  const bool after = config.published_order == static_cast<std::uint8_t>(Order::kAfter);
  const float d = after ? subtract(y, mean) : delta;
  const float dd = after ? multiply(d, d) : square;
  const float w = after ? variance : state.variance;
  const float z_threshold =
      sample.desensitised ? config.z_threshold_desensitised : config.z_threshold;
  const float z_limit = multiply(multiply(z_threshold, z_threshold), w);

  unsigned flags = 0;
  const bool scored = sample.age >= config.published_min_samples && w > 0 &&
                      w >= scaled(config.variance_floor, 2 * shift);
  if (scored && d > 0 && dd > z_limit) flags |= flag_bit(Flag::kZ);
  if (scored && d > 0 && dd > scaled(z_limit, 2)) flags |= flag_bit(Flag::kZHalf);

  const float d2_threshold =
      sample.desensitised ? config.d2_threshold_desensitised : config.d2_threshold;
  const FormatProperties& layout = properties(descriptor.format);
  const std::uint32_t d2_floor =
      layout.largest_finite -
      (std::uint32_t{config.published_d2_floor_shift} << layout.significand_bits);
  if (sample.age >= std::max<unsigned>(2, config.published_min_samples) &&
      std::fabs(curve) > scaled(d2_threshold, shift) && sample.max_mag >= d2_floor) {
    flags |= flag_bit(Flag::kD2);
  }

  state.mean = mean;
  state.variance = variance;
  state.last = y;
  state.slope = slope;
  return static_cast<std::uint16_t>(flags);
}

}  // namespace opd::sc
