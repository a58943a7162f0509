// History, forecast engine and risk: a second formulation in floating point, and the properties
// that docs/numerics.md names. The engine is driven through the detection unit, alone in it.
#include <gtest/gtest.h>

#include <cmath>

#include "opd/reference/detector.hpp"
#include "oracle.hpp"

namespace opd {
namespace {

/// What a device with the forecast engine alone remembers of an operator, but for its mode.
struct ForecastOp {
  std::int32_t baseline = 0;
  std::uint8_t age = 0;
  std::uint8_t nonfinite_run = 0;
  bool operator==(const ForecastOp&) const = default;
};

unsigned forecast_step(const OpDescriptor& descriptor, const TapSummary& summary,
                       const Config& config, ForecastOp& op,
                       const ref::LearningRateChange& change = {}) {
  const ref::DetectorSetup setup{
      .config = config, .published_engine = false, .learning_rate_change = change};
  ref::OpState state;
  state.forecast.baseline = op.baseline;
  state.history = {op.age, op.nonfinite_run};
  const ref::Detection detection =
      ref::complete(0, descriptor, summary, setup, ref::Upset::kNone, state);
  EXPECT_EQ(state.published, ref::PublishedState{});  // an absent engine has no state
  EXPECT_EQ(detection.score, ref::PublishedScore{});
  op = {state.forecast.baseline, state.history.age, state.history.nonfinite_run};
  return detection.record.flags;
}

bool raised(unsigned flags, Flag flag) { return (flags & flag_bit(flag)) != 0; }

/// FP32 magnitude whose log2 is `log2_value`.
TapSummary sample_at(double log2_value) {
  const auto value = static_cast<float>(std::exp2(log2_value));
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return {.max_mag = bits, .element_count = 1};
}

constexpr OpDescriptor kFp32{.op = 0, .format = Format::kFp32, .step = 0, .scale_log2 = 0};

/// The engine in doubles (exact: all values are multiples of 1/256 below 2^20) with floor in place
/// of shifts.
struct RealEngine {
  double baseline = 0, age = 0, run = 0;
  std::size_t held = 0;  // baselines that MAX_LAG has moved
  // Without and under a loss scale: what the headroom alone has kept back, and what it let pass.
  std::array<std::size_t, 2> withheld_forecasts{}, withheld_jumps{}, raised_forecasts{},
      raised_jumps{};

  unsigned step(double x, double limit, double scale, bool fp8, const TapSummary& summary,
                const Config& c, bool desensitised) {
    unsigned flags = 0;
    if (summary.nonfinite_count != 0) flags |= 1u << 5;
    if (summary.saturated_count != 0) flags |= 1u << 6;
    if (age < c.baseline_warmup_samples) flags |= 1u << 7;
    if (summary.nonfinite_count != 0) {
      run = std::fmin(run + 1, 255);
      if (c.baseline_reseed_run != 0 && run >= c.baseline_reseed_run) age = 0;
      return flags;
    }
    run = 0;
    if (summary.max_mag == 0) return flags;
    const double target = x - 32 * scale;                       // 1/32 bit
    const double deviation = age == 0 ? 0 : target - baseline;  // 1/32 bit, quarters
    const double headroom = limit - x;
    const double horizon = (fp8 ? c.forecast_shift_fp8 : c.forecast_shift) -
                           (desensitised ? c.desensitise_horizon : 0);
    const double jump = c.jump_threshold + (desensitised ? c.desensitise_jump : 0);
    const bool rises = deviation * std::exp2(horizon) > headroom;
    const bool jumps = age >= c.jump_min_samples && deviation > jump;
    if (rises && headroom < (scale == 0 ? c.forecast_headroom : c.forecast_headroom_scaled))
      flags |= 1u << 2;
    if (headroom <= c.critical_headroom) flags |= 1u << 3;
    if (jumps && headroom < (scale == 0 ? c.jump_headroom : c.jump_headroom_scaled))
      flags |= 1u << 4;
    const std::size_t kind = scale == 0 ? 0 : 1;
    withheld_forecasts[kind] += rises && (flags & 1u << 2) == 0;
    withheld_jumps[kind] += jumps && (flags & 1u << 4) == 0;
    raised_forecasts[kind] += (flags & 1u << 2) != 0;
    raised_jumps[kind] += (flags & 1u << 4) != 0;
    baseline = age == 0
                   ? target
                   : baseline + std::floor(4 * deviation / std::exp2(c.baseline_shift) + 0.5) / 4;
    if (c.baseline_max_lag != 0 && target - baseline > 32 * c.baseline_max_lag) {
      baseline = target - 32 * c.baseline_max_lag;
      ++held;
    }
    age = std::fmin(age + 1, 255);
    return flags;
  }
};

TEST(ReferenceForecast, AgreesWithARealValuedEngine) {
  const std::uint64_t seed = tb::case_seed(7);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  std::size_t compared = 0, judged_softly = 0, held = 0;
  std::array<std::size_t, 8> seen{};
  std::array<std::array<std::size_t, 4>, 2> seen_at_gate{};
  for (int run = 0; run < 400; ++run) {
    Config config = run % 4 == 0 ? Config{} : tb::draw_config(rng);
    config.control_enable = 1;
    const ref::LearningRateChange change{run % 3 != 0, static_cast<std::uint32_t>(rng())};
    if (run % 2 == 0) {  // small run lengths, so that re-seeding is reached
      config.baseline_reseed_run = static_cast<std::uint8_t>(rng() % 4);
      config.jump_threshold = static_cast<std::uint16_t>(rng() % 64);
      config.jump_min_samples = static_cast<std::uint8_t>(rng() % 20);
    }
    if (run % 3 == 0) {  // headrooms that the samples below lie on both sides of
      config.forecast_headroom = static_cast<std::uint16_t>(rng() % 64);
      config.forecast_headroom_scaled = static_cast<std::uint16_t>(rng() % 64);
      config.jump_headroom = static_cast<std::uint16_t>(rng() % 1024);
      config.jump_headroom_scaled = static_cast<std::uint16_t>(rng() % 1024);
    }
    ForecastOp state;
    RealEngine real;
    for (int k = 0; k < 400; ++k) {
      const Format format = tb::kFormats[rng() % 5];
      const std::int64_t since = tb::draw(rng, -60, 300);  // steps since the change
      const OpDescriptor descriptor{
          .format = format,
          .step = static_cast<std::uint32_t>(change.step + since),
          .scale_log2 = static_cast<std::int8_t>(tb::draw(rng, -128, 127))};
      const bool desensitised = change.announced && since >= 0 && since < config.desensitise_steps;
      const bool calm = rng() % 2 == 0;
      TapSummary summary{.max_mag = tb::draw_element(
                             rng, format, calm ? tb::Content::kNearLimit : tb::Content::kModerate),
                         .nonfinite_count = static_cast<std::uint32_t>(rng() % 5 == 0 ? rng() : 0),
                         .saturated_count = static_cast<std::uint32_t>(rng() % 5 == 0 ? rng() : 0)};
      summary.max_mag &= ~(1u << (8 * tb::element_size(format) - 1));
      if (rng() % 8 == 0) summary.max_mag = 0;
      OpDescriptor used = descriptor;
      const std::int64_t kind = calm ? tb::draw(rng, 0, 3) : 3;
      if (kind < 3) used.scale_log2 = static_cast<std::int8_t>(kind == 2 ? -1 : kind);
      const std::array<std::int16_t, 5> limits = {config.limit_fp16, config.limit_bf16,
                                                  config.limit_e4m3, config.limit_e5m2,
                                                  config.limit_fp32};
      const unsigned expected = real.step(
          ref::log2_code(format, summary.max_mag), limits[static_cast<std::size_t>(format)],
          used.scale_log2, tb::element_size(format) == 1, summary, config, desensitised);
      ASSERT_EQ(forecast_step(used, summary, config, state, change), expected)
          << "run " << run << " sample " << k;
      ASSERT_EQ(state.baseline, static_cast<std::int32_t>(4 * real.baseline));
      ASSERT_EQ(state.age, real.age);
      ASSERT_EQ(state.nonfinite_run, real.run);
      ASSERT_LT(std::abs(state.baseline), 1 << 16);  // 17 bits signed
      for (unsigned flag = 0; flag < 8; ++flag) seen[flag] += (expected >> flag) & 1u;
      judged_softly += desensitised && summary.nonfinite_count == 0;
      ++compared;
    }
    held += real.held;
    for (const std::size_t kind : {0u, 1u}) {
      seen_at_gate[kind][0] += real.withheld_forecasts[kind];
      seen_at_gate[kind][1] += real.raised_forecasts[kind];
      seen_at_gate[kind][2] += real.withheld_jumps[kind];
      seen_at_gate[kind][3] += real.raised_jumps[kind];
    }
  }
  EXPECT_EQ(compared, 160000u);
  EXPECT_GT(judged_softly, 10000u);
  EXPECT_GT(held, 10000u);
  for (const Flag flag : {Flag::kForecast, Flag::kCritical, Flag::kJump, Flag::kNonfinite,
                          Flag::kSaturated, Flag::kWarmup}) {
    EXPECT_GT(seen[static_cast<std::size_t>(flag)], 1000u)
        << kFlagNames[static_cast<std::size_t>(flag)];
  }
  for (const std::size_t kind : {0u, 1u}) {
    for (const std::size_t count : seen_at_gate[kind]) EXPECT_GT(count, 100u) << kind;
  }
}

// The lag after a sample: d less the step of the average, and 3 bits at most. Downwards without
// bound.
TEST(ReferenceForecast, TheBaselineLagsThreeBitsAtMost) {
  struct Row {
    int max_lag, shift, deviation, lag;
  };
  const Row rows[] = {
      {3, 4, 409, 383},     // (409 + 8) >> 4 = 26
      {3, 4, 410, 384},     // 26
      {3, 4, 411, 384},     // 26, and 385 would be left
      {3, 4, 1536, 384},    // 96, and 1440 would be left
      {3, 4, 30000, 384},   //
      {3, 4, 384, 360},     // (384 + 8) >> 4 = 24: a sample that stays lets the average go on
      {3, 4, -411, -385},   // -26
      {3, 1, 768, 384},     // (768 + 1) >> 1 = 384
      {3, 1, 769, 384},     // 385
      {3, 1, 770, 384},     // 385, and 385 would be left
      {3, 8, 386, 384},     // (386 + 128) >> 8 = 2
      {3, 8, 385, 383},     // 2
      {1, 4, 1536, 128},    //
      {15, 4, 1536, 1440},  // below 15 bits: the average alone
      {15, 4, 9999, 1920},  //
      {0, 4, 1536, 1440},   // no bound
      {0, 4, 30000, 28125},
  };
  const std::int32_t target = 4 * ref::log2_code(Format::kFp32, sample_at(100).max_mag);
  for (const Row& row : rows) {
    Config config;
    config.baseline_max_lag = static_cast<std::uint8_t>(row.max_lag);
    config.baseline_shift = static_cast<std::uint8_t>(row.shift);
    ForecastOp state{.baseline = target - row.deviation, .age = 20};
    forecast_step(kFp32, sample_at(100), config, state);
    EXPECT_EQ(target - state.baseline, row.lag)
        << row.deviation << " with " << row.max_lag << ", " << row.shift;
  }
  EXPECT_EQ(Config{}.baseline_max_lag, 3);
}

// An operand that goes up by 6 bits and stays near the limit jumps once, and is forecast while the
// 3 bits fade. Without the bound both last until the 6 bits have, about 10 samples longer.
TEST(ReferenceForecast, AStepThatStaysIsAJumpOnce) {
  struct Count {
    int jumps = 0, forecasts = 0;
  };
  const auto after_the_step = [](int max_lag) {
    Config config;
    config.baseline_max_lag = static_cast<std::uint8_t>(max_lag);
    ForecastOp state;
    for (int k = 0; k < 40; ++k) forecast_step(kFp32, sample_at(119.5), config, state);
    Count count;
    for (int k = 0; k < 200; ++k) {
      const unsigned flags = forecast_step(kFp32, sample_at(125.5), config, state);
      count.jumps += raised(flags, Flag::kJump) ? 1 : 0;
      count.forecasts += raised(flags, Flag::kForecast) ? 1 : 0;
    }
    return count;
  };
  // d falls by a sixteenth a sample, (15/16)^11 = 0.49; bounded, it has fallen by half after one.
  // FORECAST while 4d > h = 2.5 bits.
  const Count bounded = after_the_step(3), unbounded = after_the_step(0);
  EXPECT_EQ(bounded.jumps, 1);
  EXPECT_NEAR(unbounded.jumps, 11, 1);
  EXPECT_GT(bounded.forecasts, 15);
  EXPECT_NEAR(unbounded.forecasts - bounded.forecasts, 10, 1);
}

// A steady ramp of s bits per step: FORECAST about 64 steps before the limit, as long as that is
// inside forecast_headroom (3 bits), and never before the headroom is. x is within 0.045 bit of the
// logarithm, and the baseline within 1/16 bit; four times the error of the deviation and once that
// of the headroom are less than 0.5 bit.
TEST(ReferenceForecast, RampIsForecastAboutSixtySteps) {
  const Config config;
  std::size_t ramps = 0;
  for (const double slope : {0.02, 0.025, 0.03, 0.035, 0.04}) {
    ForecastOp state;
    int first = -1, last = 0;
    const double start = 128 - 250 * slope;
    for (int step = 0; start + step * slope < 127.99; ++step) {
      const unsigned flags = forecast_step(kFp32, sample_at(start + step * slope), config, state);
      if (first < 0 && raised(flags, Flag::kForecast)) first = step;
      last = step;
    }
    ASSERT_GE(first, 0) << slope;
    EXPECT_GE(last - first, 56) << slope;
    EXPECT_LE(last - first, 64 + 0.5 / slope) << slope;
    ++ramps;
  }
  EXPECT_EQ(ramps, 5u);
}

TEST(ReferenceForecast, SteepRampIsForecastAtTheHeadroom) {
  const Config config;
  ForecastOp state;
  double first = -1;
  for (double x = 28; x < 128; x += 0.5) {
    if (raised(forecast_step(kFp32, sample_at(x), config, state), Flag::kForecast)) {
      first = x;
      break;
    }
  }
  EXPECT_NEAR(first, 125, 0.6);
}

TEST(ReferenceForecast, ConstantOrFallingMagnitudeIsNeverForecast) {
  const Config config;
  std::size_t compared = 0;
  for (const double slope : {0.0, -0.01, -0.5}) {
    ForecastOp state;
    for (int step = 0; step < 200; ++step) {
      const unsigned flags = forecast_step(kFp32, sample_at(127.5 + step * slope), config, state);
      EXPECT_FALSE(raised(flags, Flag::kForecast));
      EXPECT_FALSE(raised(flags, Flag::kJump));
      ++compared;
    }
  }
  EXPECT_EQ(compared, 600u);
}

TEST(ReferenceForecast, DeadBandIsBelowOneSixteenthBit) {
  const Config config;
  std::size_t compared = 0;
  for (std::int32_t offset = -200; offset <= 200; ++offset) {
    // 127.5 bits: x = 4080 + 1; the baseline starts `offset` / 128 bit below the sample.
    ForecastOp state{.baseline = 4 * ref::log2_code(Format::kFp32, sample_at(100).max_mag) - offset,
                     .age = 100};
    const std::int32_t before = state.baseline;
    forecast_step(kFp32, sample_at(100), config, state);
    EXPECT_EQ(state.baseline == before, offset >= -8 && offset < 8) << offset;
    ++compared;
  }
  EXPECT_EQ(compared, 401u);
}

TEST(ReferenceForecast, CriticalIsInclusiveAndForecastIsNot) {
  Config config;
  const std::int32_t x = ref::log2_code(Format::kFp32, sample_at(100).max_mag);
  ForecastOp state{.baseline = -100000 / 4, .age = 10};
  config.limit_fp32 = static_cast<std::int16_t>(x + config.critical_headroom);
  EXPECT_TRUE(raised(forecast_step(kFp32, sample_at(100), config, state), Flag::kCritical));
  config.limit_fp32 = static_cast<std::int16_t>(x + config.critical_headroom + 1);
  EXPECT_FALSE(raised(forecast_step(kFp32, sample_at(100), config, state), Flag::kCritical));

  state = {.baseline = 0, .age = 10};  // far below: only the headroom decides
  config.limit_fp32 = static_cast<std::int16_t>(x + config.forecast_headroom);
  EXPECT_FALSE(raised(forecast_step(kFp32, sample_at(100), config, state), Flag::kForecast));
  config.limit_fp32 = static_cast<std::int16_t>(x + config.forecast_headroom - 1);
  state = {.baseline = 0, .age = 10};
  EXPECT_TRUE(raised(forecast_step(kFp32, sample_at(100), config, state), Flag::kForecast));
}

// The headroom of an operand is that of its kind, whatever its scale is.
TEST(ReferenceForecast, UnderALossScaleOnlyTheLastDoublingIsForecast) {
  Config config;  // 96 and 20
  std::size_t compared = 0;
  for (const Format format : tb::kFormats) {
    const std::uint32_t one = format == Format::kFp16   ? 0x3C00
                              : format == Format::kBf16 ? 0x3F80
                              : format == Format::kE4m3 ? 0x38
                              : format == Format::kE5m2 ? 0x3C
                                                        : 0x3F800000;  // 1.0: x = 1
    for (const int scale : {0, 1, -1, 16, 127, -128}) {
      const OpDescriptor descriptor{.format = format,
                                    .scale_log2 = static_cast<std::int8_t>(scale)};
      const auto forecast = [&](int headroom, int deviation) {
        const auto limit = static_cast<std::int16_t>(1 + headroom);
        config.limit_fp16 = config.limit_bf16 = config.limit_e4m3 = limit;
        config.limit_e5m2 = config.limit_fp32 = limit;
        ForecastOp state{.baseline = 4 * (1 - 32 * scale) - deviation, .age = 1};
        return raised(forecast_step(descriptor, {.max_mag = one}, config, state), Flag::kForecast);
      };
      const int gate = scale == 0 ? 96 : 20;
      EXPECT_FALSE(forecast(gate, 5000)) << scale;
      EXPECT_TRUE(forecast(gate - 1, 5000)) << scale;
      // 4d > 4h, of 8-bit formats 2d > 4h: the deviation of h / 4 or h / 2 bits, the scale taken
      // out, is not enough, one more is.
      const int enough = (tb::element_size(format) == 1 ? 2 : 1) * (gate - 1);
      EXPECT_FALSE(forecast(gate - 1, enough)) << scale;
      EXPECT_TRUE(forecast(gate - 1, enough + 1)) << scale;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 30u);
}

TEST(ReferenceForecast, AJumpCountsBelowTheHeadroomOfItsKind) {
  const auto jump = [](Format format, std::uint32_t max_mag, int scale, const Config& config) {
    const int target = 4 * (ref::log2_code(format, max_mag) - 32 * scale);
    ForecastOp state{.baseline = target - 4 * 96 - 1, .age = 16};
    const OpDescriptor descriptor{.format = format, .scale_log2 = static_cast<std::int8_t>(scale)};
    return raised(forecast_step(descriptor, {.max_mag = max_mag}, config, state), Flag::kJump);
  };
  const Config reset;                                   // 256 and 0
  EXPECT_FALSE(jump(Format::kFp16, 0x5BFF, 0, reset));  // x = 256, h = 512 - 256
  EXPECT_TRUE(jump(Format::kFp16, 0x5C00, 0, reset));   // x = 257
  EXPECT_FALSE(jump(Format::kBf16, 0x7B7F, 0, reset));  // x = 3840, h = 4096 - 3840
  EXPECT_TRUE(jump(Format::kBf16, 0x7B80, 0, reset));   // x = 3841
  EXPECT_FALSE(jump(Format::kE4m3, 0x3E, 0, reset));    // 1.75: x = 26, h = 282 - 26 = 256
  EXPECT_TRUE(jump(Format::kE4m3, 0x3F, 0, reset));     // 1.875: x = 29, h = 253
  for (const int scale : {1, -1, 127, -128}) {
    EXPECT_FALSE(jump(Format::kFp16, 0x7BFF, scale, reset)) << scale;  // at the limit itself
  }

  Config config;
  config.jump_headroom = 0;
  config.jump_headroom_scaled = 33;
  EXPECT_FALSE(jump(Format::kFp16, 0x7BFF, 0, config));  // h = 0
  for (const int scale : {1, -1, 127, -128}) {
    EXPECT_FALSE(jump(Format::kFp16, 0x77C0, scale, config)) << scale;  // x = 479, h = 33
    EXPECT_TRUE(jump(Format::kFp16, 0x77E0, scale, config)) << scale;   // x = 480, h = 32
  }
  config.jump_headroom = config.jump_headroom_scaled = 16383;
  config.limit_fp32 = 8191;  // with the least magnitude, x = -4063, the largest headroom: 12254
  for (const int scale : {0, 1, -128}) EXPECT_TRUE(jump(Format::kFp32, 1, scale, config)) << scale;
  config.jump_headroom = config.jump_headroom_scaled = 12254;
  for (const int scale : {0, 1, -128}) EXPECT_FALSE(jump(Format::kFp32, 1, scale, config)) << scale;
  // A limit below the sample: a headroom of -1 is less than 0.
  config.jump_headroom = config.jump_headroom_scaled = 0;
  config.limit_fp16 = 511;
  for (const int scale : {0, 1, -1})
    EXPECT_TRUE(jump(Format::kFp16, 0x7BFF, scale, config)) << scale;
}

TEST(ReferenceForecast, JumpNeedsAgeAndThreshold) {
  Config config;
  config.jump_headroom = 16383;  // anywhere
  const std::int32_t x = ref::log2_code(Format::kFp32, sample_at(10).max_mag);
  const auto jump = [&](std::int32_t deviation, std::uint8_t age) {
    ForecastOp state{.baseline = 4 * x - deviation, .age = age};
    return raised(forecast_step(kFp32, sample_at(10), config, state), Flag::kJump);
  };
  EXPECT_FALSE(jump(4 * config.jump_threshold, 16));
  EXPECT_TRUE(jump(4 * config.jump_threshold + 1, 16));
  EXPECT_FALSE(jump(4 * config.jump_threshold + 1, 15));
  EXPECT_FALSE(jump(-5000, 16));
}

TEST(ReferenceForecast, NonfiniteFreezesTheBaseline) {
  const Config config;
  ForecastOp state;
  for (int k = 0; k < 20; ++k) forecast_step(kFp32, sample_at(3), config, state);
  const ForecastOp before = state;
  const unsigned flags = forecast_step(
      kFp32, {.max_mag = sample_at(127.9).max_mag, .nonfinite_count = 1}, config, state);
  EXPECT_EQ(flags, flag_bit(Flag::kNonfinite));  // no rate flag from a sample that is not usable
  EXPECT_EQ(state.baseline, before.baseline);
  EXPECT_EQ(state.age, before.age);
  EXPECT_EQ(state.nonfinite_run, 1);
  forecast_step(kFp32, sample_at(3), config, state);
  EXPECT_EQ(state.nonfinite_run, 0);
}

TEST(ReferenceForecast, ALongRunSeedsTheBaselineAfresh) {
  const Config config;
  ForecastOp state;
  for (int k = 0; k < 40; ++k) forecast_step(kFp32, sample_at(3), config, state);
  const TapSummary nonfinite{.nonfinite_count = 1};
  for (int k = 1; k < config.baseline_reseed_run; ++k)
    forecast_step(kFp32, nonfinite, config, state);
  EXPECT_EQ(state.age, 40);
  forecast_step(kFp32, nonfinite, config, state);
  EXPECT_EQ(state.age, 0);
  EXPECT_TRUE(raised(forecast_step(kFp32, nonfinite, config, state), Flag::kWarmup));
  const unsigned flags = forecast_step(kFp32, sample_at(125), config, state);
  EXPECT_FALSE(raised(flags, Flag::kJump));  // the first sample is the baseline
  EXPECT_FALSE(raised(flags, Flag::kForecast));
  EXPECT_EQ(state.baseline, 4 * ref::log2_code(Format::kFp32, sample_at(125).max_mag));
  EXPECT_EQ(state.age, 1);
}

TEST(ReferenceForecast, ReseedRunZeroNeverSeedsAfresh) {
  Config config;
  config.baseline_reseed_run = 0;
  ForecastOp state{.baseline = 77, .age = 9};
  for (int k = 0; k < 300; ++k) forecast_step(kFp32, {.nonfinite_count = 1}, config, state);
  EXPECT_EQ(state, (ForecastOp{.baseline = 77, .age = 9, .nonfinite_run = 255}));
}

TEST(ReferenceForecast, AnAllZeroOutputOnlyEndsTheRun) {
  const Config config;
  ForecastOp state{.baseline = 77, .age = 20, .nonfinite_run = 3};
  EXPECT_EQ(forecast_step(kFp32, {.element_count = 5, .zero_count = 5}, config, state), 0);
  EXPECT_EQ(state, (ForecastOp{.baseline = 77, .age = 20, .nonfinite_run = 0}));
}

TEST(ReferenceForecast, LossScaleLeavesTheBaselineButNotTheHeadroom) {
  Config config;
  config.jump_headroom_scaled = 16383;
  ForecastOp state;
  OpDescriptor gradient = kFp32;
  for (int k = 0; k < 100; ++k) {
    gradient.scale_log2 =
        static_cast<std::int8_t>(k);  // the scale doubles each step, the gradient stays
    const unsigned flags = forecast_step(gradient, sample_at(20 + k), config, state);
    EXPECT_EQ(state.baseline, 4 * ref::log2_code(Format::kFp32, sample_at(20).max_mag));
    EXPECT_FALSE(raised(flags, Flag::kJump));
  }
  gradient.scale_log2 = 107;
  EXPECT_TRUE(raised(forecast_step(gradient, sample_at(127.5), config, state), Flag::kCritical));
}

TEST(ReferenceForecast, DesensitisedNeedsMoreDeviation) {
  Config config;
  config.jump_headroom = 16383;  // anywhere
  const std::int32_t x = ref::log2_code(Format::kFp32, sample_at(10).max_mag);
  const auto jump = [&](std::int32_t deviation, std::uint32_t step, bool announced) {
    ForecastOp state{.baseline = 4 * x - deviation, .age = 16};
    OpDescriptor descriptor = kFp32;
    descriptor.step = step;
    return raised(forecast_step(descriptor, sample_at(10), config, state, {announced, 100}),
                  Flag::kJump);
  };
  EXPECT_TRUE(jump(4 * 96 + 1, 99, true));  // the step before the change
  EXPECT_FALSE(jump(4 * 96 + 1, 100, true));
  EXPECT_FALSE(jump(4 * 128, 139, true));
  EXPECT_TRUE(jump(4 * 128 + 1, 139, true));
  EXPECT_TRUE(jump(4 * 96 + 1, 140, true));
  EXPECT_TRUE(jump(4 * 96 + 1, 100, false));  // step 100 of a device that was told nothing

  // FORECAST with SHIFT 2 and HORIZON 1: deviation > headroom / 2 where deviation > headroom / 4 does
  // without the change. Headroom is 90/32 bit, under a loss scale 19/32, deviations are in 1/128 bit.
  const auto forecast = [&](std::int32_t deviation, std::uint32_t step, std::int8_t scale = 0) {
    Config near = config;
    near.limit_fp32 = static_cast<std::int16_t>(x + (scale == 0 ? 90 : 19));
    ForecastOp state{.baseline = 4 * (x - 32 * scale) - deviation, .age = 1};
    OpDescriptor descriptor = kFp32;
    descriptor.step = step;
    descriptor.scale_log2 = scale;
    return raised(forecast_step(descriptor, sample_at(10), near, state, {true, 100}),
                  Flag::kForecast);
  };
  EXPECT_FALSE(forecast(90, 99));
  EXPECT_TRUE(forecast(91, 99));
  EXPECT_FALSE(forecast(180, 100));
  EXPECT_TRUE(forecast(181, 100));
  for (const std::int8_t scale : {std::int8_t{-7}, std::int8_t{9}}) {
    EXPECT_FALSE(forecast(19, 99, scale));
    EXPECT_TRUE(forecast(20, 99, scale));
    EXPECT_FALSE(forecast(38, 100, scale));
    EXPECT_TRUE(forecast(39, 100, scale));
  }
}

TEST(ReferenceForecast, ALearningRateChangeWrapsWithTheSteps) {
  const Config config;  // 40 steps
  const ref::LearningRateChange change{true, 0xFFFFFFF0u};
  std::size_t desensitised = 0, compared = 0;
  for (std::uint32_t step = 0xFFFFFF00u; step != 0x100; ++step) {
    const bool is = ref::is_desensitised(step, change, config);
    EXPECT_EQ(is, step >= 0xFFFFFFF0u || step < 24) << step;
    desensitised += is;
    ++compared;
  }
  EXPECT_EQ(desensitised, 40u);
  EXPECT_EQ(compared, 512u);
}

TEST(ReferenceForecast, AgeSaturates) {
  const Config config;
  ForecastOp state{.baseline = 0, .age = 253};
  for (const unsigned expected : {254u, 255u, 255u, 255u}) {
    forecast_step(kFp32, sample_at(3), config, state);
    EXPECT_EQ(state.age, expected);
  }
}

TEST(ReferenceRisk, SumOfWeightsSaturates) {
  std::mt19937_64 rng(tb::case_seed(8));
  std::size_t compared = 0;
  for (int k = 0; k < 50; ++k) {
    const Config c = tb::draw_config(rng);
    const std::array<unsigned, 8> weights = {c.weight_z,         c.weight_d2,    c.weight_forecast,
                                             c.weight_critical,  c.weight_jump,  c.weight_nonfinite,
                                             c.weight_saturated, c.weight_warmup};
    for (unsigned flags = 0; flags < 256; ++flags) {
      unsigned sum = 0;
      for (unsigned bit = 0; bit < 8; ++bit) sum += (flags >> bit & 1u) * weights[bit];
      ASSERT_EQ(ref::risk_of(static_cast<std::uint16_t>(flags), c), std::min(sum, 255u));
      ++compared;
    }
  }
  EXPECT_EQ(compared, 12800u);
  EXPECT_EQ(ref::risk_of(flag_bit(Flag::kZHalf) | flag_bit(Flag::kUpset), Config{}), 0);
}

}  // namespace
}  // namespace opd
