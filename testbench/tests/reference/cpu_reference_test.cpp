// The detection unit of all operators: records, events, hints, commands, upsets, independence of
// operators, illegal completions, bad arguments.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "opd/reference/cpu.hpp"
#include "oracle.hpp"

namespace opd {
namespace {

using ref::CpuReference;

template <class Exception, class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(ReferenceCpu, RecordOfAnOverflow) {
  CpuReference reference;
  const OpDescriptor descriptor{.op = 3, .format = Format::kFp16, .step = 70000, .scale_log2 = 0};
  const TapSummary summary{.max_mag = 0x7BFF,
                           .element_count = 100,
                           .nonfinite_count = 2,
                           .first_nonfinite = 17,
                           .saturated_count = 1,
                           .subnormal_count = 4,
                           .zero_count = 5};
  const auto detection = reference.complete(9, descriptor, summary);
  ASSERT_TRUE(detection.has_value());
  const OpRecord expected{.seq = 9,
                          .step = 70000,
                          .op = 3,
                          .format = 0,
                          .mode = static_cast<std::uint8_t>(Mode::kStable),
                          .max_mag = 0x7BFF,
                          .nonfinite_count = 2,
                          .first_nonfinite = 17,
                          .saturated_count = 1,
                          .flags = 0b11100000,
                          .risk = 255,
                          .cause = static_cast<std::uint8_t>(Cause::kNonfinite)};
  EXPECT_EQ(detection->record, expected);
  const Event event{.step = 70000,
                    .op = 3,
                    .old_mode = Mode::kFast,
                    .new_mode = Mode::kStable,
                    .cause = Cause::kNonfinite,
                    .flags = 0b11100000,
                    .risk = 255};
  EXPECT_EQ(detection->event(), event);
  EXPECT_EQ(reference.mode(3), Mode::kStable);
  EXPECT_EQ(reference.mode(2), Mode::kFast);
}

TEST(ReferenceCpu, TheBytesOfARecord) {
  const OpRecord record{.seq = 0x04030201,
                        .step = 0x08070605,
                        .op = 0x0A09,
                        .format = 0x0B,
                        .mode = 0x0C,
                        .max_mag = 0x100F0E0D,
                        .nonfinite_count = 0x14131211,
                        .first_nonfinite = 0x18171615,
                        .saturated_count = 0x1C1B1A19,
                        .flags = 0x1E1D,
                        .risk = 0x1F,
                        .cause = 0x20};
  std::array<std::uint8_t, 32> bytes;
  std::memcpy(bytes.data(), &record, sizeof record);
  for (std::size_t k = 0; k < bytes.size(); ++k) EXPECT_EQ(bytes[k], k + 1);
}

TEST(ReferenceCpu, OperatorsAreIndependent) {
  std::mt19937_64 rng(tb::case_seed(10));
  const DeviceParameters parameters{.num_ops = 8};
  CpuReference together(parameters);
  std::vector<CpuReference> alone(8, CpuReference(parameters));
  std::size_t compared = 0;
  for (std::uint32_t seq = 0; seq < 20000; ++seq) {
    const Format format = tb::kFormats[rng() % 5];
    const OpDescriptor descriptor{
        .op = static_cast<std::uint16_t>(rng() % 8), .format = format, .step = seq / 8};
    const std::vector<std::byte> bytes =
        tb::draw_elements(rng, format, static_cast<tb::Content>(rng() % 5), 16, 0);
    const TapSummary summary = ref::summarise(format, bytes);
    ASSERT_EQ(together.complete(seq, descriptor, summary)->record,
              alone[descriptor.op].complete(seq, descriptor, summary)->record);
    ASSERT_EQ(together.mode(descriptor.op), alone[descriptor.op].mode(descriptor.op));
    ++compared;
  }
  EXPECT_EQ(compared, 20000u);
}

TEST(ReferenceCpu, IllegalCompletionsAreUnseen) {
  CpuReference reference({.num_ops = 4});
  EXPECT_FALSE(reference.complete(0, {.op = 4}, {.nonfinite_count = 1}).has_value());
  EXPECT_FALSE(
      reference.complete(1, {.op = 0, .format = static_cast<Format>(5)}, {.nonfinite_count = 1})
          .has_value());
  EXPECT_FALSE(
      reference.complete(2, {.op = 9, .format = static_cast<Format>(255)}, {}).has_value());
  EXPECT_EQ(reference.unseen_count(), 3u);
  for (const ref::OpState& state : reference.states()) EXPECT_EQ(state, ref::OpState{});
  EXPECT_TRUE(reference.complete(3, {.op = 3}, {}).has_value());
  EXPECT_EQ(reference.unseen_count(), 3u);
}

TEST(ReferenceCpu, SummariesAreClampedToCounterWidth) {
  CpuReference reference({.counter_width = 4});
  const auto detection = reference.complete(0, {},
                                            {.max_mag = 0xFFFFFFFFu,
                                             .nonfinite_count = 1000,
                                             .first_nonfinite = 500,
                                             .saturated_count = 16});
  ASSERT_TRUE(detection.has_value());
  EXPECT_EQ(detection->record.nonfinite_count, 15u);
  EXPECT_EQ(detection->record.first_nonfinite, 14u);
  EXPECT_EQ(detection->record.saturated_count, 15u);
  EXPECT_EQ(detection->record.max_mag, 0x7FFFu);  // FP16 has 15 bits of magnitude
}

TEST(ReferenceCpu, BadParametersAreNamed) {
  using E = std::invalid_argument;
  EXPECT_EQ(error_of<E>([] { CpuReference({.num_ops = 0}); }), "num_ops: 0 must be 1..65536");
  EXPECT_EQ(error_of<E>([] { CpuReference({.num_ops = 65537}); }),
            "num_ops: 65537 must be 1..65536");
  EXPECT_EQ(error_of<E>([] { CpuReference({.datapath_width = 544}); }),
            "datapath_width: 544 must be 32..512");
  EXPECT_EQ(error_of<E>([] { CpuReference({.datapath_width = 48}); }),
            "datapath_width: 48 must be a multiple of 32, 32..512");
  EXPECT_EQ(error_of<E>([] { CpuReference({.num_streams = 257}); }),
            "num_streams: 257 must be 1..256");
  EXPECT_EQ(error_of<E>([] { CpuReference({.queue_depth = 256}); }),
            "queue_depth: 256 must be 1..255");
  EXPECT_EQ(error_of<E>([] { CpuReference({.counter_width = 1}); }),
            "counter_width: 1 must be 2..32");
  EXPECT_EQ(error_of<E>([] { CpuReference({.counter_width = 33}); }),
            "counter_width: 33 must be 2..32");
  EXPECT_EQ(error_of<E>([] { CpuReference({.event_depth = 0}); }), "event_depth: 0 must be 1..255");
  EXPECT_EQ(
      error_of<E>([] { CpuReference({.forecast_engine = false, .published_engine = false}); }),
      "forecast_engine, published_engine: both are false, one must be true");
  EXPECT_EQ(
      error_of<std::out_of_range>([] { static_cast<void>(CpuReference({.num_ops = 2}).mode(2)); }),
      "op: 2 must be 0..1");
  EXPECT_EQ(CpuReference({.num_ops = 65536}).mode(65535), Mode::kFast);
}

TEST(ReferenceCpu, BadConfigurationIsNamed) {
  std::size_t checked = 0;
  for (const ConfigField& field : kConfigFields) {
    if (field.is_float) continue;
    for (const std::int32_t value : {field.minimum - 1, field.maximum + 1}) {
      Config config;
      field.set(config, value);
      if (field.get(config) != value) continue;  // the C++ type cannot hold it
      const std::string message =
          error_of<std::invalid_argument>([&] { CpuReference({}, config); });
      EXPECT_EQ(message, std::string(field.name) + " (" + std::string(field.path) +
                             "): " + std::to_string(value) + " must be " +
                             std::to_string(field.minimum) + ".." + std::to_string(field.maximum));
      ++checked;
    }
  }
  EXPECT_GE(checked, 20u);
}

TEST(ReferenceCpu, BadNumbersAreNamedAsNumbers) {
  const auto error_with = [](auto change) {
    Config config;
    change(config);
    return error_of<std::invalid_argument>([&] { CpuReference({}, config); });
  };
  EXPECT_EQ(error_with([](Config& c) { c.published_alpha = 1.5f; }),
            "published_alpha (PUBLISHED_ALPHA.VALUE): 1.5 must be 1.17549435e-38..1");
  EXPECT_EQ(error_with([](Config& c) { c.published_alpha = 0; }),
            "published_alpha (PUBLISHED_ALPHA.VALUE): 0 must be 1.17549435e-38..1");
  std::size_t refused = 0, floats = 0;
  for (const ConfigField& field : kConfigFields) {
    if (!field.is_float) continue;
    ++floats;
    for (const float value : {-1.0f, -0.0f, std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
      const std::string message =
          error_with([&](Config& c) { field.set(c, std::bit_cast<std::int32_t>(value)); });
      refused += message.starts_with(std::string(field.name) + " (");
    }
  }
  EXPECT_EQ(floats, 6u);
  EXPECT_EQ(refused, 4 * floats);
  CpuReference reference;
  Config bad;
  bad.risk_safe = 0;
  EXPECT_THROW(reference.configure(bad), std::invalid_argument);
}

// ---- Events, hints, clean steps -----------------------------------------------------------------

constexpr TapSummary kCalm{.max_mag = 0x3C00, .element_count = 1};
constexpr TapSummary kInfinite{
    .max_mag = 0x3C00, .element_count = 1, .nonfinite_count = 1, .first_nonfinite = 0};

TEST(ReferenceCpu, HintsFollowTheWorstOperator) {
  CpuReference reference({.num_ops = 4});
  const Hints none;
  const Hints stable{.loss_scale_shift = -8, .clip_shift = -1, .learning_rate_factor = 65536};
  const Hints safe{.loss_scale_shift = -8, .clip_shift = -1, .learning_rate_factor = 6554};
  EXPECT_EQ(reference.hints(), none);
  reference.complete(0, {.op = 1}, kInfinite);
  EXPECT_EQ(reference.hints(), stable);
  reference.complete(1, {.op = 2}, kInfinite);
  reference.complete(2, {.op = 2}, kInfinite);
  EXPECT_EQ(reference.stable_ops(), 1u);
  EXPECT_EQ(reference.safe_ops(), 1u);
  EXPECT_EQ(reference.hints(), safe);
  reference.command(2, Command::kClear);
  EXPECT_EQ(reference.hints(), stable);
  reference.command(1, Command::kSet, {.mode = Mode::kFast});
  EXPECT_EQ(reference.hints(), none);
  EXPECT_EQ(reference.stable_ops() + reference.safe_ops(), 0u);

  Config config;
  config.hint_loss_scale_shift = 3;
  config.hint_learning_rate_factor = 0;
  reference.configure(config);
  reference.command(0, Command::kSet, {.mode = Mode::kSafe});
  EXPECT_EQ(reference.hints(),
            (Hints{.loss_scale_shift = 3, .clip_shift = -1, .learning_rate_factor = 0}));
}

// Random operators, commands and upsets: the counts are those of the states, an event tells the
// change of its operator's mode.
TEST(ReferenceCpu, CountsAndEventsAgreeWithTheModes) {
  const std::uint64_t seed = tb::case_seed(31);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  Config config;
  config.quiet_steps = 3;
  config.safe_steps = 2;
  CpuReference reference({.num_ops = 12}, config);
  std::size_t events = 0, upsets = 0, silent = 0;
  for (std::uint32_t seq = 0; seq < 30000; ++seq) {
    const auto op = static_cast<std::uint16_t>(rng() % 12);
    if (rng() % 40 == 0) reference.inject_upset(op, static_cast<ref::Upset>(1 + rng() % 3));
    if (rng() % 20 == 0) {
      const ref::OpState after =
          reference.command(op, static_cast<Command>(rng() % 4),
                            {.mode = static_cast<Mode>(rng() % 3), .locked = rng() % 4 == 0});
      ASSERT_EQ(after, reference.states()[op]);
      ASSERT_EQ(reference.mode(op), after.controller.mode);
    }
    const Mode seen = reference.mode(op);
    const auto detection =
        reference.complete(seq, {.op = op, .step = seq / 12}, rng() % 6 == 0 ? kInfinite : kCalm);
    const std::optional<Event> event = detection->event();
    const bool upset = (detection->record.flags & flag_bit(Flag::kUpset)) != 0;
    const Mode now = reference.mode(op);
    if (event) {
      ASSERT_EQ(event->new_mode, now);
      ASSERT_EQ(event->op, op);
      ASSERT_EQ(event->step, seq / 12);
      ASSERT_TRUE(upset || event->old_mode == seen);
      ASSERT_TRUE(upset || event->cause != Cause::kNone);
      ++events;
      upsets += upset;
    } else {
      ASSERT_EQ(now, seen);
      ++silent;
    }
    std::uint32_t stable = 0, safe = 0;
    for (const ref::OpState& state : reference.states()) {
      stable += state.controller.mode == Mode::kStable;
      safe += state.controller.mode == Mode::kSafe;
    }
    ASSERT_EQ(reference.stable_ops(), stable);
    ASSERT_EQ(reference.safe_ops(), safe);
  }
  EXPECT_GT(events, 5000u);
  EXPECT_GT(upsets, 300u);
  EXPECT_GT(silent, 5000u);
}

TEST(ReferenceCpu, TheLastCleanStepHasEnded) {
  CpuReference reference;
  reference.command(7, Command::kSet, {.disabled = true});
  using Step = std::optional<std::uint32_t>;
  const auto after = [&](std::uint16_t op, std::uint32_t step, const TapSummary& summary) {
    reference.complete(0, {.op = op, .step = step}, summary);
    return reference.last_clean_step();
  };
  EXPECT_EQ(reference.last_clean_step(), Step());
  EXPECT_EQ(after(0, 0, kCalm), Step());
  EXPECT_EQ(after(1, 0, kCalm), Step());
  EXPECT_EQ(after(0, 1, kCalm), Step(0));
  EXPECT_EQ(after(1, 1, kInfinite), Step(0));
  EXPECT_EQ(after(2, 1, kCalm), Step(0));
  EXPECT_EQ(after(0, 2, kCalm), Step(0));      // step 1 was not clean
  EXPECT_EQ(after(7, 2, kInfinite), Step(0));  // a disabled operator counts
  EXPECT_EQ(after(0, 5, kCalm), Step(0));
  EXPECT_EQ(after(300, 6, kCalm), Step(0));  // illegal: not recorded
  EXPECT_EQ(after(0, 6, kInfinite), Step(5));
  EXPECT_EQ(after(0, 3, kCalm), Step(5));  // rolled back
  EXPECT_EQ(after(0, 4, kCalm), Step(3));
  EXPECT_EQ(after(0, 0xFFFFFFFFu, kCalm), Step(4));
  EXPECT_EQ(after(0, 0, kCalm), Step(0xFFFFFFFFu));
}

// ---- Disabled, engines, learning rate -----------------------------------------------------------

TEST(ReferenceCpu, DisabledOperatorsAreRecordedAndNotJudged) {
  for (const bool device : {false, true}) {  // the operator, the whole device
    Config config;
    CpuReference reference({}, config);
    for (std::uint32_t k = 0; k < 20; ++k) reference.complete(k, {.op = 4, .step = k}, kCalm);
    reference.complete(20, {.op = 4, .step = 20}, kInfinite);
    if (device) {
      config.control_enable = 0;
      reference.configure(config);
    } else {
      reference.command(4, Command::kSet, {.mode = Mode::kStable, .disabled = true});
    }
    const ref::OpState before = reference.states()[4];
    const auto detection = reference.complete(21, {.op = 4, .step = 77}, kInfinite);
    const OpRecord expected{.seq = 21,
                            .step = 77,
                            .op = 4,
                            .mode = 1,
                            .max_mag = 0x3C00,
                            .nonfinite_count = 1,
                            .first_nonfinite = 0};
    EXPECT_EQ(detection->record, expected);
    EXPECT_EQ(detection->event(), std::nullopt);
    EXPECT_EQ(reference.states()[4], before);
  }
}

TEST(ReferenceCpu, AnAbsentEngineRaisesAndKeepsNothing) {
  std::mt19937_64 rng(tb::case_seed(32));
  Config config;
  config.published_min_samples = 4;
  config.z_threshold = 0.5f;
  config.d2_threshold = 0;
  config.forecast_headroom = 1023;
  config.jump_min_samples = 1;
  config.jump_threshold = 1;
  CpuReference both({}, config), forecast({.published_engine = false}, config),
      published({.forecast_engine = false}, config);
  const unsigned published_flags =
      flag_bit(Flag::kZ) | flag_bit(Flag::kD2) | flag_bit(Flag::kZHalf);
  const unsigned forecast_flags =
      flag_bit(Flag::kForecast) | flag_bit(Flag::kCritical) | flag_bit(Flag::kJump);
  unsigned seen = 0;
  for (std::uint32_t seq = 0; seq < 3000; ++seq) {
    const OpDescriptor descriptor{.step = seq};
    const TapSummary summary{.max_mag = static_cast<std::uint32_t>(0x7000 + rng() % 0xC00)};
    const unsigned all = both.complete(seq, descriptor, summary)->record.flags;
    EXPECT_EQ(forecast.complete(seq, descriptor, summary)->record.flags, all & ~published_flags);
    const auto detection = published.complete(seq, descriptor, summary);
    EXPECT_EQ(detection->record.flags, all & ~forecast_flags);
    const ref::OpState& state = both.states()[0];
    ASSERT_EQ(forecast.states()[0].forecast, state.forecast);
    ASSERT_EQ(forecast.states()[0].published, ref::PublishedState{});
    ASSERT_EQ(published.states()[0].published, state.published);
    ASSERT_EQ(published.states()[0].forecast, ref::ForecastState{});
    seen |= all;
  }
  EXPECT_EQ(seen & (published_flags | forecast_flags), published_flags | forecast_flags);
}

TEST(ReferenceCpu, ALearningRateChangeIsToldOnce) {
  const auto jumps_at = [](std::uint32_t step, bool announce) {
    CpuReference reference;
    for (std::uint32_t k = 0; k < 30; ++k) {
      reference.complete(k, {.step = k}, {.max_mag = 0x5000, .element_count = 1});
    }
    if (announce) reference.announce_learning_rate(30);
    // From 32 to 320, 10 times: 3.3 bits, over the threshold of 3 and under that of 3 + 1. 320 is
    // 7.7 bits below the limit of FP16, and jumps count within 8.
    const auto detection = reference.complete(30, {.step = step}, {.max_mag = 0x5D00});
    return (detection->record.flags & flag_bit(Flag::kJump)) != 0;
  };
  EXPECT_TRUE(jumps_at(30, false));
  EXPECT_FALSE(jumps_at(30, true));
  EXPECT_FALSE(jumps_at(69, true));
  EXPECT_TRUE(jumps_at(70, true));
  EXPECT_TRUE(jumps_at(29, true));
}

// ---- Commands -----------------------------------------------------------------------------------

TEST(ReferenceCpu, CommandsOnOneOperator) {
  CpuReference reference;
  for (std::uint32_t k = 0; k < 40; ++k) reference.complete(k, {.op = 9, .step = k}, kCalm);
  reference.complete(40, {.op = 9, .step = 40}, kInfinite);
  reference.complete(41, {.op = 9, .step = 42}, {.max_mag = 0x3E00});
  const ref::OpState before = reference.states()[9];
  EXPECT_EQ(before.history, (ref::History{.age = 41}));
  EXPECT_EQ(before.controller,
            (ref::ControllerState{.mode = Mode::kStable, .timer = 2, .last_step = 42}));
  EXPECT_NE(before.published.slope, 0);

  EXPECT_EQ(reference.command(9, Command::kRead), before);
  EXPECT_EQ(reference.states()[9], before);

  const ref::OpState reseeded = reference.command(9, Command::kReseed);
  EXPECT_EQ(reseeded.controller, before.controller);
  EXPECT_EQ(reseeded.history, ref::History{});
  EXPECT_EQ(reseeded.forecast, ref::ForecastState{});
  EXPECT_EQ(reseeded.published, ref::PublishedState{});

  const ref::OpState set =
      reference.command(9, Command::kSet, {.mode = Mode::kSafe, .locked = true});
  EXPECT_EQ(set.controller, (ref::ControllerState{
                                .mode = Mode::kSafe, .timer = 0, .last_step = 42, .locked = true}));
  EXPECT_EQ(reference.mode(9), Mode::kSafe);
  const auto detection = reference.complete(42, {.op = 9, .step = 60}, kInfinite);
  EXPECT_EQ(detection->event()->cause, Cause::kEscalate);

  EXPECT_EQ(reference.command(9, Command::kClear), ref::OpState{});
  EXPECT_EQ(reference.mode(9), Mode::kFast);
  EXPECT_EQ(error_of<std::out_of_range>([&] { reference.command(256, Command::kRead); }),
            "op: 256 must be 0..255");
  EXPECT_EQ(error_of<std::invalid_argument>(
                [&] { reference.command(0, Command::kSet, {.mode = static_cast<Mode>(3)}); }),
            "mode (OP_SETTING.MODE): 3 must be 0..2");
}

// ---- Upsets -------------------------------------------------------------------------------------

/// Operator 2 in STABLE with a timer of 3 and 30 samples in its baselines.
CpuReference in_stable() {
  CpuReference reference;
  for (std::uint32_t k = 0; k < 30; ++k) reference.complete(k, {.op = 2, .step = k}, kCalm);
  reference.complete(30, {.op = 2, .step = 30}, kInfinite);
  reference.complete(31, {.op = 2, .step = 33}, kCalm);
  return reference;
}

TEST(ReferenceCpu, ACorruptWordSeedsTheOperatorAfresh) {
  CpuReference reference = in_stable();
  reference.inject_upset(2, ref::Upset::kMemory);
  EXPECT_EQ(reference.mode(2), Mode::kStable);  // the mode register is sound
  EXPECT_EQ(reference.upset_count(), 0u);       // nothing was found yet
  const auto detection = reference.complete(32, {.op = 2, .step = 50}, {.max_mag = 0x5000});
  EXPECT_EQ(detection->record.flags, flag_bit(Flag::kUpset) | flag_bit(Flag::kWarmup));
  EXPECT_EQ(detection->record.risk, 0);
  EXPECT_EQ(detection->event(), (Event{.step = 50,
                                       .op = 2,
                                       .old_mode = Mode::kStable,
                                       .new_mode = Mode::kStable,
                                       .cause = Cause::kNone,
                                       .flags = detection->record.flags,
                                       .risk = 0}));
  const ref::OpState& state = reference.states()[2];
  EXPECT_EQ(state.history, (ref::History{.age = 1}));
  EXPECT_EQ(state.published.mean, 1.0f);  // 0x5000 = 32
  EXPECT_EQ(state.controller,             // e counts as 0
            (ref::ControllerState{.mode = Mode::kStable, .timer = 0, .last_step = 50}));
  EXPECT_EQ(reference.upset_count(), 1u);
  EXPECT_EQ(reference.complete(33, {.op = 2, .step = 51}, kCalm)->record.flags,
            flag_bit(Flag::kWarmup));
  EXPECT_EQ(reference.states()[2].controller.timer, 1);
  EXPECT_EQ(reference.upset_count(), 1u);
}

TEST(ReferenceCpu, ACorruptModeRegisterTakesItsCopy) {
  CpuReference reference = in_stable(), sound = in_stable();
  reference.inject_upset(2, ref::Upset::kModeRegister);
  EXPECT_EQ(reference.mode(2), Mode::kSafe);  // until it is repaired
  EXPECT_EQ(reference.stable_ops(), 1u);
  const auto detection = reference.complete(32, {.op = 2, .step = 34}, kCalm);
  OpRecord expected = sound.complete(32, {.op = 2, .step = 34}, kCalm)->record;
  expected.flags |= flag_bit(Flag::kUpset);
  EXPECT_EQ(detection->record, expected);
  EXPECT_EQ(detection->old_mode, Mode::kStable);
  EXPECT_TRUE(detection->event().has_value());
  EXPECT_EQ(reference.states()[2], sound.states()[2]);
  EXPECT_EQ(reference.mode(2), Mode::kStable);
}

TEST(ReferenceCpu, BothCorruptIsSafe) {
  CpuReference reference = in_stable();
  reference.inject_upset(2, ref::Upset::kMemory);
  reference.inject_upset(2, ref::Upset::kModeRegister);
  const auto detection = reference.complete(32, {.op = 2, .step = 90}, kCalm);
  EXPECT_EQ(detection->record.mode, static_cast<std::uint8_t>(Mode::kSafe));
  EXPECT_EQ(detection->event()->old_mode, Mode::kSafe);
  EXPECT_EQ(reference.states()[2].controller,
            (ref::ControllerState{.mode = Mode::kSafe, .timer = 0, .last_step = 90}));
  EXPECT_EQ(reference.upset_count(), 1u);
}

TEST(ReferenceCpu, ACommandFindsAnUpset) {
  CpuReference reference = in_stable();
  reference.inject_upset(2, ref::Upset::kMemory);
  const ref::OpState state = reference.command(2, Command::kRead);
  EXPECT_EQ(state, (ref::OpState{.controller = {.mode = Mode::kStable}}));
  EXPECT_EQ(reference.upset_count(), 1u);
  EXPECT_EQ(reference.complete(32, {.op = 2, .step = 34}, kCalm)->record.flags,
            flag_bit(Flag::kWarmup));
  // A disabled operator whose word is lost is enabled again.
  reference.command(2, Command::kSet, {.mode = Mode::kFast, .disabled = true});
  reference.inject_upset(2, ref::Upset::kMemory);
  EXPECT_EQ(reference.complete(33, {.op = 2, .step = 35}, kInfinite)->event()->cause,
            Cause::kNonfinite);
  EXPECT_THROW(reference.inject_upset(256, ref::Upset::kBoth), std::out_of_range);
}

TEST(ReferenceCpu, AnUpsetOfASwitchedOffDeviceIsRepairedAndNoMore) {
  Config config;
  config.control_enable = 0;
  CpuReference reference = in_stable();
  reference.configure(config);
  reference.inject_upset(2, ref::Upset::kMemory);
  const auto detection = reference.complete(32, {.op = 2, .step = 90}, kInfinite);
  EXPECT_EQ(detection->record.flags, flag_bit(Flag::kUpset));
  EXPECT_EQ(detection->record.cause, 0);
  EXPECT_EQ(reference.states()[2], (ref::OpState{.controller = {.mode = Mode::kStable}}));
}

// ---- Size of the state --------------------------------------------------------------------------

/// Appends the low `width` bits of a field.
void pack(std::vector<bool>& word, std::uint32_t value, unsigned width) {
  for (unsigned bit = 0; bit < width; ++bit) word.push_back((value >> bit & 1u) != 0);
}

/// Takes `width` bits from `at` on.
std::uint32_t unpack(const std::vector<bool>& word, std::size_t& at, unsigned width,
                     bool is_signed = false) {
  std::uint32_t value = 0;
  for (unsigned bit = 0; bit < width; ++bit) value |= std::uint32_t{word.at(at++)} << bit;
  if (is_signed && (value >> (width - 1) & 1u) != 0) value |= ~0u << (width - 1);
  return value;
}

// Whatever happens to an operator, its state survives in kStateBits bits.
TEST(ReferenceCpu, StateFitsTheBitsOfTheHardware) {
  static_assert(ref::kStateBits == 191);
  static_assert(ref::state_bits(true, false) == 53);
  static_assert(ref::state_bits(false, true) == 174);
  static_assert(ref::kStateBits <= 8 * 32);
  std::mt19937_64 rng(tb::case_seed(33));
  std::size_t compared = 0;
  for (int run = 0; run < 200; ++run) {
    Config config = tb::draw_config(rng);
    config.control_enable = 1;
    CpuReference reference({.num_ops = 1}, config);
    const Format format = tb::kFormats[rng() % 5];
    for (std::uint32_t seq = 0; seq < 200; ++seq) {
      if (rng() % 50 == 0)
        reference.command(0, Command::kSet,
                          {static_cast<Mode>(rng() % 3), rng() % 2 == 0, rng() % 8 == 0});
      reference.complete(
          seq,
          {.format = format,
           .step = static_cast<std::uint32_t>(rng()),
           .scale_log2 = static_cast<std::int8_t>(rng() % 2 == 0 ? 0 : tb::draw(rng, -128, 127))},
          {.max_mag = static_cast<std::uint32_t>(rng()), .nonfinite_count = rng() % 9 == 0});
      const ref::OpState state = reference.states()[0];
      std::vector<bool> word;
      pack(word, state.history.age, 8);
      pack(word, state.history.nonfinite_run, 8);
      pack(word, static_cast<std::uint32_t>(state.controller.mode), 2);
      pack(word, state.controller.timer, 8);
      pack(word, state.controller.last_step, 8);
      pack(word, state.controller.locked, 1);
      pack(word, state.controller.disabled, 1);
      pack(word, static_cast<std::uint32_t>(state.forecast.baseline), 17);
      pack(word, static_cast<std::uint32_t>(state.published.anchor), 10);
      for (const float value : {state.published.mean, state.published.variance,
                                state.published.last, state.published.slope})
        pack(word, std::bit_cast<std::uint32_t>(value), 32);
      ASSERT_EQ(word.size(), ref::kStateBits);

      std::size_t at = 0;
      ref::OpState back;
      back.history.age = static_cast<std::uint8_t>(unpack(word, at, 8));
      back.history.nonfinite_run = static_cast<std::uint8_t>(unpack(word, at, 8));
      back.controller.mode = static_cast<Mode>(unpack(word, at, 2));
      back.controller.timer = static_cast<std::uint8_t>(unpack(word, at, 8));
      back.controller.last_step = static_cast<std::uint8_t>(unpack(word, at, 8));
      back.controller.locked = unpack(word, at, 1) != 0;
      back.controller.disabled = unpack(word, at, 1) != 0;
      back.forecast.baseline = static_cast<std::int32_t>(unpack(word, at, 17, true));
      back.published.anchor = static_cast<std::int16_t>(unpack(word, at, 10, true));
      for (float* value : {&back.published.mean, &back.published.variance, &back.published.last,
                           &back.published.slope})
        *value = std::bit_cast<float>(unpack(word, at, 32));
      ASSERT_EQ(back, state);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 40000u);
}

}  // namespace
}  // namespace opd
