// Testplan: DRV-04 (a training loop's settings by default and what each of them changes).
#include "opd/driver/training.hpp"

#include <gtest/gtest.h>

namespace {

using opd::Hints;
using opd::driver::HintPolicy;
using opd::driver::TrainingSettings;

TEST(HintPolicyDefaults, SettingsAreOne) {
  const TrainingSettings settings;
  EXPECT_EQ(settings.loss_scale, 1);
  EXPECT_EQ(settings.clip_threshold, 1);
  EXPECT_EQ(settings.learning_rate, 1);
}

TEST(HintPolicyDefaults, AHintIsInForceUntilItEnds) {
  HintPolicy policy{TrainingSettings{}};
  EXPECT_TRUE(policy.update(Hints{.loss_scale_shift = -1}));
  EXPECT_TRUE(policy.hinted());
  EXPECT_TRUE(policy.update(Hints{}));
  EXPECT_FALSE(policy.hinted());
  EXPECT_EQ(policy.settings(), TrainingSettings{});
}

}  // namespace
