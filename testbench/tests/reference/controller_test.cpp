// The controller's table, row by row: the rows are data here, the first that applies decides.
#include "opd/reference/controller.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <vector>

#include "oracle.hpp"

namespace opd {
namespace {

using ref::ControllerState;

/// One completion with the last step known, as complete() does it.
Cause controller_step(std::uint32_t step, std::uint16_t flags, std::uint8_t risk,
                      const Config& config, ControllerState& state) {
  return ref::controller_step(step, ref::elapsed_steps(step, state.last_step), flags, risk, config,
                              state);
}

/// "Quiet" in the words of docs/controller.md, by the names of the flags.
bool quiet_by_names(unsigned flags, const Config& config) {
  for (std::size_t flag = 0; flag < 8; ++flag) {
    const std::string field = "weight_" + [flag] {
      std::string name(kFlagNames[flag]);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      return name;
    }();
    const auto entry = std::find_if(kConfigFields.begin(), kConfigFields.end(),
                                    [&](const ConfigField& f) { return f.name == field; });
    if (entry == kConfigFields.end()) throw std::logic_error("no field " + field);
    if ((flags >> flag & 1u) != 0 && entry->get(config) != 0) return false;
  }
  return config.weight_z == 0 || (flags & flag_bit(Flag::kZHalf)) == 0;
}

struct Situation {
  bool locked;
  bool nonfinite;
  bool quiet;
  int risk;
  int advanced;  ///< min(255, timer + e)
};

struct Row {
  std::optional<Mode> mode;  ///< none: any
  std::function<bool(const Situation&, const Config&)> applies;
  std::optional<Mode> new_mode;  ///< none: as it is
  bool keeps_timer;              ///< new timer is `advanced`, else 0
  Cause cause;
};

const std::vector<Row>& table() {
  static const auto kNonfinite = [](const Situation& s, const Config&) { return s.nonfinite; };
  static const auto kOtherwise = [](const Situation&, const Config&) { return true; };
  static const auto kLocked = [](const Situation& s, const Config&) { return s.locked; };
  static const std::vector<Row> kRows = {
      {Mode::kSafe, [](const Situation& s, const Config&) { return s.locked && s.nonfinite; },
       Mode::kSafe, false, Cause::kEscalate},
      {std::nullopt, kLocked, std::nullopt, false, Cause::kNone},
      {Mode::kFast, kNonfinite, Mode::kStable, false, Cause::kNonfinite},
      {Mode::kFast, [](const Situation& s, const Config& c) { return s.risk >= c.risk_stable; },
       Mode::kStable, false, Cause::kRisk},
      {Mode::kFast, kOtherwise, Mode::kFast, false, Cause::kNone},
      {Mode::kStable, kNonfinite, Mode::kSafe, false, Cause::kNonfinite},
      {Mode::kStable, [](const Situation& s, const Config& c) { return s.risk >= c.risk_safe; },
       Mode::kSafe, false, Cause::kRisk},
      {Mode::kStable,
       [](const Situation& s, const Config& c) { return s.quiet && s.advanced >= c.quiet_steps; },
       Mode::kFast, false, Cause::kRecovered},
      {Mode::kStable, [](const Situation& s, const Config&) { return s.quiet; }, Mode::kStable,
       true, Cause::kNone},
      {Mode::kStable, kOtherwise, Mode::kStable, false, Cause::kNone},
      {Mode::kSafe, kNonfinite, Mode::kSafe, false, Cause::kEscalate},
      {Mode::kSafe, [](const Situation& s, const Config& c) { return s.advanced >= c.safe_steps; },
       Mode::kStable, false, Cause::kSafeExpired},
      {Mode::kSafe, kOtherwise, Mode::kSafe, true, Cause::kNone},
  };
  return kRows;
}

TEST(ReferenceController, EveryRowOfTheTable) {
  std::mt19937_64 rng(tb::case_seed(9));
  std::vector<std::size_t> taken(table().size());
  std::size_t compared = 0;
  const auto flags_of = {0,      1 << 7,
                         1 << 5, 1 << 2,
                         1 << 6, (1 << 5) | (1 << 7),
                         1 << 8, (1 << 3) | (1 << 7),
                         1 << 9, (1 << 0) | (1 << 8),
                         0x3FF};
  for (int k = 0; k < 60; ++k) {
    Config config = k == 0 ? Config{} : tb::draw_config(rng);
    if (k % 2 == 1) {  // weights of 0, so that every flag is sometimes loud and sometimes not
      for (const ConfigField& field : kConfigFields) {
        if (field.name.starts_with("weight_") && rng() % 2 == 0) field.set(config, 0);
      }
    }
    const auto step = static_cast<std::uint32_t>(rng());
    for (unsigned mode = 0; mode < 3; ++mode) {
      for (const int flags : flags_of) {
        for (const int risk : {0, config.risk_stable - 1, +config.risk_stable, config.risk_safe - 1,
                               +config.risk_safe, 255}) {
          for (const int timer : {0, 1, config.quiet_steps - 1, config.safe_steps - 1, 254, 255}) {
            for (const int elapsed : {-128, -1, 0, 1, 2, 127}) {
              const bool locked = rng() % 4 == 0;
              ControllerState state{.mode = static_cast<Mode>(mode),
                                    .timer = static_cast<std::uint8_t>(timer),
                                    .last_step = static_cast<std::uint8_t>(
                                        step - static_cast<std::uint32_t>(elapsed)),
                                    .locked = locked};
              const Mode before = state.mode;
              const Situation situation{
                  .locked = locked,
                  .nonfinite = (flags & 1 << 5) != 0,
                  .quiet = quiet_by_names(static_cast<unsigned>(flags), config),
                  .risk = risk,
                  .advanced = std::min(255, timer + std::max(elapsed, 0))};
              std::size_t row = 0;
              while (table()[row].mode.value_or(before) != before ||
                     !table()[row].applies(situation, config))
                ++row;
              const Row& expected = table()[row];
              const Cause cause = controller_step(step, static_cast<std::uint16_t>(flags),
                                                  static_cast<std::uint8_t>(risk), config, state);
              ASSERT_EQ(cause, expected.cause) << "row " << row;
              ASSERT_EQ(state.mode, expected.new_mode.value_or(before)) << "row " << row;
              ASSERT_EQ(state.timer, expected.keeps_timer ? situation.advanced : 0)
                  << "row " << row;
              ASSERT_EQ(state.last_step, static_cast<std::uint8_t>(step));
              ASSERT_EQ(state.locked, locked);
              ++taken[row];
              ++compared;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(compared, 60u * 3 * 11 * 6 * 6 * 6);
  for (std::size_t row = 0; row < taken.size(); ++row) EXPECT_GT(taken[row], 100u) << "row " << row;
}

TEST(ReferenceController, ElapsedStepsAreASignedByte) {
  EXPECT_EQ(ref::elapsed_steps(5, 5), 0u);       // several executions inside one step
  EXPECT_EQ(ref::elapsed_steps(12, 5), 7u);      // a probe sampled every 7 steps
  EXPECT_EQ(ref::elapsed_steps(260, 250), 10u);  // across 256
  EXPECT_EQ(ref::elapsed_steps(4, 5), 0u);       // a roll-back
  EXPECT_EQ(ref::elapsed_steps(127, 0), 127u);
  EXPECT_EQ(ref::elapsed_steps(128, 0), 0u);  // -128
  EXPECT_EQ(ref::elapsed_steps(0xFFFFFFFFu, 0xF0), 15u);
}

TEST(ReferenceController, RecoversAfterQuietStepsAndNeverFromSafeToFast) {
  const Config config;
  ControllerState state;
  const auto nonfinite = flag_bit(Flag::kNonfinite);
  EXPECT_EQ(controller_step(10, nonfinite, 255, config, state), Cause::kNonfinite);
  EXPECT_EQ(controller_step(11, nonfinite, 255, config, state), Cause::kNonfinite);
  EXPECT_EQ(state.mode, Mode::kSafe);
  EXPECT_EQ(controller_step(12, nonfinite, 255, config, state), Cause::kEscalate);
  std::uint32_t step = 12;
  std::vector<Mode> modes;
  while (state.mode != Mode::kFast && step < 200) {
    controller_step(++step, flag_bit(Flag::kWarmup), 0, config, state);
    if (modes.empty() || modes.back() != state.mode) modes.push_back(state.mode);
  }
  EXPECT_EQ(modes, (std::vector<Mode>{Mode::kSafe, Mode::kStable, Mode::kFast}));
  EXPECT_EQ(step, 12u + config.safe_steps + config.quiet_steps);
}

TEST(ReferenceController, QuietIsWhatTheWeightsSay) {
  std::mt19937_64 rng(tb::case_seed(15));
  std::size_t compared = 0, quiet = 0;
  for (int k = 0; k < 200; ++k) {
    Config config;
    for (const ConfigField& field : kConfigFields) {
      if (field.name.starts_with("weight_"))
        field.set(config, rng() % 2 == 0 ? 0 : static_cast<std::int32_t>(rng() % 256));
    }
    for (unsigned flags = 0; flags < 1024; ++flags) {
      const bool expected = quiet_by_names(flags, config);
      ASSERT_EQ(ref::is_quiet(static_cast<std::uint16_t>(flags), config), expected) << flags;
      quiet += expected;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 204800u);
  EXPECT_GT(quiet, 10000u);
}

TEST(ReferenceController, ZCountsUntilItIsBelowHalfItsThreshold) {
  Config config;
  config.quiet_steps = 2;
  ControllerState state{.mode = Mode::kStable};
  const auto half = flag_bit(Flag::kZHalf);
  for (std::uint32_t step = 1; step < 3; ++step) controller_step(step, half, 0, config, state);
  EXPECT_EQ(state.mode, Mode::kFast);  // Z has no weight in the default profile

  config.weight_z = 1;
  state = {.mode = Mode::kStable};
  for (std::uint32_t step = 1; step < 9; ++step) controller_step(step, half, 0, config, state);
  EXPECT_EQ(state, (ControllerState{.mode = Mode::kStable, .timer = 0, .last_step = 8}));
  controller_step(9, 0, 0, config, state);
  EXPECT_EQ(controller_step(10, 0, 0, config, state), Cause::kRecovered);
}

TEST(ReferenceController, LockedModesStay) {
  const Config config;
  const auto nonfinite = flag_bit(Flag::kNonfinite);
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    ControllerState state{.mode = mode, .timer = 200, .locked = true};
    EXPECT_EQ(controller_step(5, nonfinite, 255, config, state),
              mode == Mode::kSafe ? Cause::kEscalate : Cause::kNone);
    EXPECT_EQ(state, (ControllerState{.mode = mode, .timer = 0, .last_step = 5, .locked = true}));
    EXPECT_EQ(controller_step(105, 0, 0, config, state), Cause::kNone);
    EXPECT_EQ(state, (ControllerState{.mode = mode, .timer = 0, .last_step = 105, .locked = true}));
  }
}

TEST(ReferenceController, AnAlarmRestartsTheQuietTime) {
  Config config;
  config.quiet_steps = 3;
  ControllerState state{.mode = Mode::kStable};
  controller_step(1, 0, 0, config, state);
  controller_step(2, 0, 0, config, state);
  controller_step(3, flag_bit(Flag::kCritical), 1, config, state);
  EXPECT_EQ(state.timer, 0);
  controller_step(4, 0, 0, config, state);
  controller_step(5, 0, 0, config, state);
  EXPECT_EQ(state.mode, Mode::kStable);
  EXPECT_EQ(controller_step(6, 0, 0, config, state), Cause::kRecovered);
}

}  // namespace
}  // namespace opd
