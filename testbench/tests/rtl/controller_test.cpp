// The table of docs/controller.md, row by row, with both sides of every comparison.
#include <gtest/gtest.h>

#include "Vopd_top.h"
#include "pins.hpp"

namespace opd::tb {
namespace {

constexpr std::uint16_t kOp = 200;

/// Short timers, and two weights that put risk on both sides of both thresholds (128 and 255).
Config controller_config() {
  Config config;
  config.baseline_warmup_samples = 0;
  config.weight_critical = 127;
  config.weight_saturated = 128;
  config.weight_forecast = 0;
  config.weight_jump = 0;
  config.risk_stable = 128;
  config.risk_safe = 255;
  config.quiet_steps = 10;
  config.safe_steps = 5;
  return config;
}
Statistic quiet(std::uint32_t step) { return finite(kOp, step, 0x3C00); }
Statistic critical(std::uint32_t step) { return finite(kOp, step, 0x7BFE); }  // risk 127
Statistic saturated(std::uint32_t step) {                                     // risk 128
  Statistic s = quiet(step);
  s.summary.saturated_count = 1;
  return s;
}
Statistic critical_and_saturated(std::uint32_t step) {  // risk 255
  Statistic s = critical(step);
  s.summary.saturated_count = 1;
  return s;
}
Statistic inf(std::uint32_t step) { return nonfinite(kOp, step); }

void expect(const OpRecord& record, Mode mode, Cause cause) {
  EXPECT_EQ(static_cast<Mode>(record.mode), mode) << "step " << record.step;
  EXPECT_EQ(static_cast<Cause>(record.cause), cause) << "step " << record.step;
}

TEST(Controller, FastNonfinite) {
  Pins<Vopd_top> pins(controller_config());
  expect(pins.sample(inf(0)), Mode::kStable, Cause::kNonfinite);
}

TEST(Controller, FastRiskAtThreshold) {
  Pins<Vopd_top> pins(controller_config());
  expect(pins.sample(critical(0)), Mode::kFast, Cause::kNone);  // 127 < 128
  expect(pins.sample(saturated(1)), Mode::kStable, Cause::kRisk);
}

TEST(Controller, FastMovesOneArrowAtMost) {
  Pins<Vopd_top> pins(controller_config());
  expect(pins.sample(critical_and_saturated(0)), Mode::kStable,
         Cause::kRisk);  // 255 >= risk_safe too
}

TEST(Controller, NonfiniteWinsOverRisk) {
  Pins<Vopd_top> pins(controller_config());
  Statistic both = inf(0);
  both.summary.saturated_count = 1;
  expect(pins.sample(both), Mode::kStable, Cause::kNonfinite);
  both.descriptor.step = 1;
  expect(pins.sample(both), Mode::kSafe, Cause::kNonfinite);
}

TEST(Controller, StableNonfinite) {
  Pins<Vopd_top> pins(controller_config());
  pins.sample(inf(0));
  expect(pins.sample(inf(1)), Mode::kSafe, Cause::kNonfinite);
}

TEST(Controller, StableRiskAtThreshold) {
  Config config = controller_config();
  config.weight_critical = 126;
  Pins<Vopd_top> below(config);
  below.sample(inf(0));
  expect(below.sample(critical_and_saturated(1)), Mode::kStable, Cause::kNone);  // 254
  Pins<Vopd_top> pins(controller_config());
  pins.sample(inf(0));
  expect(pins.sample(critical_and_saturated(1)), Mode::kSafe, Cause::kRisk);  // 255
}

TEST(Controller, StableRecoversAfterQuietSteps) {
  Pins<Vopd_top> pins(controller_config());
  pins.sample(inf(100));
  for (std::uint32_t step = 101; step < 110; ++step) {
    expect(pins.sample(quiet(step)), Mode::kStable, Cause::kNone);
  }
  expect(pins.sample(quiet(110)), Mode::kFast, Cause::kRecovered);
}

TEST(Controller, AnAlarmRestartsTheQuietPeriod) {
  Pins<Vopd_top> pins(controller_config());
  pins.sample(inf(100));
  expect(pins.sample(quiet(109)), Mode::kStable, Cause::kNone);  // timer 9
  expect(pins.sample(critical(110)), Mode::kStable,
         Cause::kNone);  // 127 changes no mode, but is not quiet
  expect(pins.sample(quiet(119)), Mode::kStable, Cause::kNone);  // timer 9
  expect(pins.sample(quiet(120)), Mode::kFast, Cause::kRecovered);
}

TEST(Controller, WarmupIsQuiet) {
  Config config = controller_config();
  config.baseline_warmup_samples = 255;
  Pins<Vopd_top> pins(config);
  pins.sample(inf(0));
  const OpRecord record = pins.sample(quiet(10));
  EXPECT_EQ(record.flags, flag_bit(Flag::kWarmup));
  expect(record, Mode::kFast, Cause::kRecovered);
}

TEST(Controller, AFlagWithoutWeightIsQuiet) {
  Config config = controller_config();
  config.weight_critical = 0;
  Pins<Vopd_top> pins(config);
  pins.sample(inf(0));
  const OpRecord record = pins.sample(critical(10));
  EXPECT_EQ(record.flags, flag_bit(Flag::kCritical));
  expect(record, Mode::kFast, Cause::kRecovered);

  config.baseline_warmup_samples = 255;
  config.weight_warmup = 1;
  Pins<Vopd_top> warmup(config);
  warmup.sample(inf(0));
  expect(warmup.sample(quiet(10)), Mode::kStable, Cause::kNone);
}

// m = 1.25, v = 0.1875 after 1, 2 (published_test.cpp): 1.6875 is z = 1.01, between 2 and its half.
TEST(Controller, ZMustFallBelowHalfItsThresholdWhileItHasWeight) {
  for (const unsigned weight : {0u, 1u}) {
    for (const std::uint32_t max_mag : {0x3FD80000u, 0x3FD70A3Du}) {  // 1.6875, 1.68
      Config config = controller_config();
      config.published_alpha = 0.25f;
      config.published_min_samples = 2;
      config.z_threshold = 2;
      config.variance_floor = 0;
      config.weight_z = static_cast<std::uint8_t>(weight);
      Pins<Vopd_top> pins(config);
      pins.sample(finite(kOp, 0, 0x3F800000, Format::kFp32));
      pins.sample(finite(kOp, 1, 0x40000000, Format::kFp32));
      pins.sample(inf(2));
      const OpRecord record = pins.sample(finite(kOp, 12, max_mag, Format::kFp32));
      const bool half = max_mag == 0x3FD80000u;
      EXPECT_EQ(record.flags, half ? flag_bit(Flag::kZHalf) : 0);
      expect(record, half && weight != 0 ? Mode::kStable : Mode::kFast,
             half && weight != 0 ? Cause::kNone : Cause::kRecovered);
    }
  }
}

TEST(Controller, SafeExpiresWithStepsQuietOrNot) {
  Pins<Vopd_top> pins(controller_config());
  pins.sample(inf(0));
  pins.sample(inf(1));
  expect(pins.sample(critical_and_saturated(3)), Mode::kSafe, Cause::kNone);  // 2
  expect(pins.sample(quiet(5)), Mode::kSafe, Cause::kNone);                   // 4
  expect(pins.sample(critical_and_saturated(6)), Mode::kStable,
         Cause::kSafeExpired);                                  // 5; never straight to FAST
  expect(pins.sample(quiet(15)), Mode::kStable, Cause::kNone);  // the timer began at 0: 9
  expect(pins.sample(quiet(16)), Mode::kFast, Cause::kRecovered);
}

TEST(Controller, SafeNonfiniteEscalatesAndRestarts) {
  Pins<Vopd_top> pins(controller_config());
  pins.sample(inf(0));
  pins.sample(inf(1));
  expect(pins.sample(quiet(5)), Mode::kSafe, Cause::kNone);  // 4
  expect(pins.sample(inf(6)), Mode::kSafe, Cause::kEscalate);
  expect(pins.sample(quiet(10)), Mode::kSafe, Cause::kNone);  // 4
  expect(pins.sample(quiet(11)), Mode::kStable, Cause::kSafeExpired);
}

TEST(Controller, ElapsedStepsOfOneStepCountOnce) {
  Pins<Vopd_top> pins(controller_config());
  pins.sample(inf(100));
  for (int execution = 0; execution < 30; ++execution) {
    expect(pins.sample(quiet(109)), Mode::kStable, Cause::kNone);
  }
  expect(pins.sample(quiet(110)), Mode::kFast, Cause::kRecovered);
}

TEST(Controller, ElapsedStepsNeverNegative) {
  Pins<Vopd_top> pins(controller_config());
  pins.sample(inf(1000));
  expect(pins.sample(quiet(1009)), Mode::kStable, Cause::kNone);  // 9
  expect(pins.sample(quiet(900)), Mode::kStable, Cause::kNone);   // a roll-back adds nothing
  expect(pins.sample(quiet(901)), Mode::kFast, Cause::kRecovered);
}

TEST(Controller, ElapsedStepsAreASignedByte) {
  Config config = controller_config();
  config.quiet_steps = 127;
  Pins<Vopd_top> pins(config);
  pins.sample(inf(0));
  expect(pins.sample(quiet(128)), Mode::kStable, Cause::kNone);     // 128 mod 256 is -128
  expect(pins.sample(quiet(255)), Mode::kFast, Cause::kRecovered);  // 127
}

TEST(Controller, TimerSaturates) {
  Config config = controller_config();
  config.quiet_steps = 255;
  Pins<Vopd_top> pins(config);
  pins.sample(inf(0));
  expect(pins.sample(quiet(127)), Mode::kStable, Cause::kNone);
  expect(pins.sample(quiet(254)), Mode::kStable, Cause::kNone);  // 254
  expect(pins.sample(quiet(381)), Mode::kFast,
         Cause::kRecovered);  // min(255, 381), not 381 mod 256
}

TEST(Controller, AnIdleOperatorKeepsItsMode) {
  Pins<Vopd_top> pins(controller_config());
  pins.sample(inf(0));
  for (std::uint32_t step = 0; step < 50; ++step) {
    Statistic other = quiet(step);
    other.descriptor.op = kOp + 1;
    expect(pins.sample(other), Mode::kFast, Cause::kNone);
  }
  CycleInput read;
  read.mode_op = kOp;
  EXPECT_EQ(pins.edge(read).mode, Mode::kStable);
}

}  // namespace
}  // namespace opd::tb
