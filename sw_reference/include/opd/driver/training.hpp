#pragma once
// What a training loop does with the device's hints: three factors on its own settings, taken back
// when the hint ends.
#include "opd/types/record.hpp"

namespace opd::driver {

/// The three settings of a training loop that the device gives hints on.
struct TrainingSettings {
  double loss_scale = 1;
  double clip_threshold = 1;  ///< of the gradient norm
  double learning_rate = 1;
  bool operator==(const TrainingSettings&) const = default;
};

/// `normal` as `hints` want it now. Powers of two are exact; without a hint it is `normal` itself.
[[nodiscard]] TrainingSettings apply_hints(const TrainingSettings& normal, const Hints& hints);

/// Keeps the settings of a training loop between steps: the loop's own and those in force.
class HintPolicy {
 public:
  explicit HintPolicy(const TrainingSettings& normal) : normal_(normal), settings_(normal) {}

  /// What the loop's own schedule wants; factors of a hint in force stay in place.
  void set_normal(const TrainingSettings& normal);
  /// Takes the hints as read from the device; true when the settings in force changed.
  bool update(const Hints& hints);

  [[nodiscard]] const TrainingSettings& settings() const { return settings_; }  ///< in force
  [[nodiscard]] const TrainingSettings& normal() const { return normal_; }
  /// A hint is in force.
  [[nodiscard]] bool hinted() const { return hints_ != Hints{}; }

 private:
  TrainingSettings normal_;
  TrainingSettings settings_;
  Hints hints_;
};

}  // namespace opd::driver
