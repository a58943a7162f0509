#pragma once
// What both engines share: which samples enter the baselines, how many did, and whether the
// learning rate has just changed.
//
//   empty  : an output without a finite non-zero element only ends a run of non-finite ones
//   source : docs/numerics.md "Samples"
#include <cstdint>

#include "opd/reference/host_device.hpp"
#include "opd/types/record.hpp"

namespace opd::ref {

enum class Sample : std::uint8_t {
  kNeither,
  kUsable,     ///< finite and not all zero
  kNonfinite,  ///< at least one Inf or NaN
};

OPD_HOST_DEVICE constexpr Sample sample_of(const TapSummary& summary) {
  if (summary.nonfinite_count > 0) return Sample::kNonfinite;
  return summary.max_mag > 0 ? Sample::kUsable : Sample::kNeither;
}

/// Per-operator history, all zero after reset.
struct History {
  std::uint8_t age = 0;            ///< usable samples since the baselines were seeded, saturating
  std::uint8_t nonfinite_run = 0;  ///< non-finite samples in a row, saturating
  bool operator==(const History&) const = default;
};

/// Advances `history` by one sample; the engines see it as it was before.
OPD_HOST_DEVICE constexpr void history_step(Sample sample, const Config& config, History& history) {
  if (sample != Sample::kNonfinite) {
    history.nonfinite_run = 0;
    if (sample == Sample::kUsable && history.age < 255) ++history.age;
    return;
  }
  if (history.nonfinite_run < 255) ++history.nonfinite_run;
  if (config.baseline_reseed_run > 0 && history.nonfinite_run >= config.baseline_reseed_run)
    history.age = 0;
}

/// The learning-rate change announced last.
struct LearningRateChange {
  bool announced = false;  ///< false: none since reset
  std::uint32_t step = 0;  ///< first training step with the new rate
  bool operator==(const LearningRateChange&) const = default;
};

/// True for the samples of `desensitise_steps` steps from the change on, modulo 2^32.
OPD_HOST_DEVICE constexpr bool is_desensitised(std::uint32_t step, const LearningRateChange& change,
                                               const Config& config) {
  return change.announced && step - change.step < config.desensitise_steps;
}

}  // namespace opd::ref
