#include "opd/driver/training.hpp"

#include <cmath>

namespace opd::driver {

TrainingSettings apply_hints(const TrainingSettings& normal, const Hints& hints) {
  return {.loss_scale = std::ldexp(normal.loss_scale, hints.loss_scale_shift),
          .clip_threshold = std::ldexp(normal.clip_threshold, hints.clip_shift),
          .learning_rate = normal.learning_rate * hints.learning_rate_factor / 65536};
}

void HintPolicy::set_normal(const TrainingSettings& normal) {
  normal_ = normal;
  settings_ = apply_hints(normal_, hints_);
}

bool HintPolicy::update(const Hints& hints) {
  hints_ = hints;
  const TrainingSettings before = settings_;
  settings_ = apply_hints(normal_, hints_);
  return settings_ != before;
}

}  // namespace opd::driver
