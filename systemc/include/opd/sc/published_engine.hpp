#pragma once
// The published engine: moving mean and variance of max|x|, z-score and second difference, in
// binary32, from one usable sample to flags.
//
//   unit   : every operator is seen in units of a power of two near the sample that seeded it, so
//            squares neither overflow nor vanish; thresholds are moved into that unit
//   first  : with age 0 the sample seeds the state and raises no flag
//   means  : exact integers, rounded after each operation (number.hpp)
//   source : docs/numerics.md, "Published engine"; names are the ones of that text
#include <algorithm>
#include <cstdint>

#include "opd/sc/number.hpp"
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

namespace published {

/// The operator's unit as a power of two: log2 of the operand's value of 1 in it, negated.
constexpr int unit_log2(int anchor, const OpDescriptor& descriptor) {
  return anchor + descriptor.scale_log2 - 127;
}

/// The sample in the operator's unit, bounded so that squares and thresholds times them stay finite.
constexpr Number in_unit(Number sample, int unit) {
  return std::min(sample.times_power_of_two(-unit), Number::of(0x1p48f));
}

/// Deviation from a mean, and the variance that it is held against.
struct Deviation {
  Number signed_;
  Number squared;
  Number variance;
};

/// T² w of docs/numerics.md: the square of the deviation at which z = T.
constexpr Number squared_limit(float threshold, Number variance) {
  const Number t = Number::of(threshold);
  return t * t * variance;
}

/// From this magnitude on an operand is near enough to its format's largest for D2.
constexpr std::uint32_t second_difference_floor(Format format, unsigned octaves) {
  const FormatProperties& layout = properties(format);
  return layout.largest_finite - octaves * layout.smallest_normal();
}

}  // namespace published

/// Z, Z_HALF and D2 of one usable sample; advances `state`.
inline std::uint16_t published_engine(const Config& config, const Sample& sample,
                                      PublishedState& state) {
  using namespace published;
  const OpDescriptor& descriptor = sample.descriptor;
  const Number operand = Number::of_magnitude(descriptor.format, sample.max_mag);

  if (sample.age == 0) {
    const int anchor = std::max(1, operand.exponent_field()) - descriptor.scale_log2;
    const float seed = in_unit(operand, unit_log2(anchor, descriptor)).to_float();
    state = {.anchor = static_cast<std::int16_t>(anchor), .mean = seed, .last = seed};
    return 0;
  }

  const int unit = unit_log2(state.anchor, descriptor);
  const Number y = in_unit(operand, unit);
  const Number alpha = Number::of(config.published_alpha);
  const Number old_mean = Number::of(state.mean), old_variance = Number::of(state.variance);

  const Number delta = y - old_mean, square = delta * delta;
  const Number mean = old_mean + alpha * delta;
  const Number variance = (Number::of(1.0f) - alpha) * (old_variance + alpha * square);
  const Number slope = y - Number::of(state.last);
  const Number curve = slope - Number::of(state.slope);
  state = {.anchor = state.anchor,
           .mean = mean.to_float(),
           .variance = variance.to_float(),
           .last = y.to_float(),
           .slope = slope.to_float()};

  unsigned flags = 0;
  if (sample.age < config.published_min_samples) return 0;
  const Deviation deviation = [&]() -> Deviation {
    if (config.published_order != static_cast<std::uint8_t>(Order::kAfter))
      return {delta, square, old_variance};
    const Number after = y - mean;
    return {after, after * after, variance};
  }();
  const Number zero, floor = Number::of(config.variance_floor).times_power_of_two(-2 * unit);
  if (deviation.variance > zero && deviation.variance >= floor && deviation.signed_ > zero) {
    const Number limit =
        squared_limit(sample.desensitised ? config.z_threshold_desensitised : config.z_threshold,
                      deviation.variance);
    if (deviation.squared > limit) flags |= flag_bit(Flag::kZ);
    if (deviation.squared > limit.times_power_of_two(-2)) flags |= flag_bit(Flag::kZHalf);
  }

  const bool near_largest =
      sample.max_mag >= second_difference_floor(descriptor.format, config.published_d2_floor_shift);
  if (sample.age >= 2 && near_largest) {
    const Number threshold =
        Number::of(sample.desensitised ? config.d2_threshold_desensitised : config.d2_threshold)
            .times_power_of_two(-unit);
    if (std::max(curve, -curve) > threshold) flags |= flag_bit(Flag::kD2);
  }
  return static_cast<std::uint16_t>(flags);
}

}  // namespace opd::sc
