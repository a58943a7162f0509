#pragma once
// How many operators are in which mode, what the training loop should do about it, and the last
// step that ended clean. Source: docs/controller.md, "Events and hints".
#include <cstdint>
#include <optional>

#include "opd/types/record.hpp"

namespace opd::sc {

/// STABLE_OPS and SAFE_OPS.
struct ModeCounts {
  std::uint32_t stable = 0;
  std::uint32_t safe = 0;
  bool operator==(const ModeCounts&) const = default;

  /// An operator goes from one mode to another. A count that an earlier double upset left too small
  /// stays at 0.
  void move(Mode from, Mode to) {
    if (from == to) return;
    if (from == Mode::kStable && stable > 0) --stable;
    if (from == Mode::kSafe && safe > 0) --safe;
    if (to == Mode::kStable) ++stable;
    if (to == Mode::kSafe) ++safe;
  }
};

constexpr Hints hints(const Config& config, const ModeCounts& counts) {
  Hints hints;
  if (counts.stable > 0 || counts.safe > 0) {
    hints.loss_scale_shift = config.hint_loss_scale_shift;
    hints.clip_shift = config.hint_clip_shift;
  }
  if (counts.safe > 0) hints.learning_rate_factor = config.hint_learning_rate_factor;
  return hints;
}

/// The latest step that has ended without a non-finite sample. A step has ended when a sample of
/// another step comes.
class LastCleanStep {
 public:
  void sample(std::uint32_t step, bool nonfinite) {
    if (running_ && *running_ != step) {
      if (!dirty_) clean_ = running_;
      dirty_ = false;
    }
    running_ = step;
    dirty_ = dirty_ || nonfinite;
  }

  /// Empty while no step has ended clean since reset.
  std::optional<std::uint32_t> step() const { return clean_; }

 private:
  std::optional<std::uint32_t> running_;  ///< step of the last sample
  bool dirty_ = false;                    ///< it had a non-finite sample
  std::optional<std::uint32_t> clean_;
};

}  // namespace opd::sc
