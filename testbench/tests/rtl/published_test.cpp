// Published engine: cases worked by hand from docs/numerics.md, then random histories against the same
// page written down in the host's float arithmetic. The operator's state is read back by commands.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <random>

#include "Vopd_top.h"
#include "Vopd_top_forecast.h"
#include "Vopd_top_published.h"
#include "Vopd_top_small.h"
#include "pins.hpp"
#include "seed.hpp"

namespace opd::tb {
namespace {

constexpr std::uint16_t kPublishedFlags =
    flag_bit(Flag::kZ) | flag_bit(Flag::kZHalf) | flag_bit(Flag::kD2);
constexpr std::uint16_t kZ = flag_bit(Flag::kZ), kZHalf = flag_bit(Flag::kZHalf),
                        kD2 = flag_bit(Flag::kD2);

std::uint16_t published_flags(const OpRecord& record) {
  return static_cast<std::uint16_t>(record.flags & kPublishedFlags);
}
std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

/// alpha = 1/4, z threshold 2, no floors: numbers that a person can follow.
Config easy_config() {
  Config config;
  config.published_alpha = 0.25f;
  config.published_min_samples = 2;
  config.z_threshold = 2;
  config.z_threshold_desensitised = 3;
  config.d2_threshold = 3;
  config.d2_threshold_desensitised = 4;
  config.published_d2_floor_shift = 7;
  config.variance_floor = 0;
  return config;
}
constexpr std::uint32_t kOne = 0x3F800000, kTwo = 0x40000000, kThree = 0x40400000;

Statistic fp32(std::uint32_t step, std::uint32_t max_mag) {
  return finite(4, step, max_mag, Format::kFp32);
}

// The seed is 1.0, so the operator's unit is 1. y = 1, 2:
// delta = 1, m' = 1.25, square = 1, v' = 0.75 * (0 + 0.25) = 0.1875, slope' = 1.
TEST(Published, SeedAndFirstUpdateByHand) {
  Pins<Vopd_top> pins(easy_config());
  EXPECT_EQ(published_flags(pins.sample(fp32(0, kOne))), 0);
  OpState state = pins.state(4);
  EXPECT_EQ(state.anchor, 127);
  EXPECT_EQ(state.mean, bits(1.0f));
  EXPECT_EQ(state.variance, 0u);
  EXPECT_EQ(state.last, bits(1.0f));
  EXPECT_EQ(state.slope, 0u);
  EXPECT_EQ(published_flags(pins.sample(fp32(1, kTwo))), 0);
  state = pins.state(4);
  EXPECT_EQ(state.mean, bits(1.25f));
  EXPECT_EQ(state.variance, bits(0.1875f));
  EXPECT_EQ(state.last, bits(2.0f));
  EXPECT_EQ(state.slope, bits(1.0f));
}

// Third sample y after 1, 2 (m = 1.25, v = 0.1875): BEFORE compares (y - 1.25)^2 with T^2 * 0.1875.
// With T = 2: 0.75, so z > 2 from y - 1.25 > 0.8660. With T/2: 0.1875, from y - 1.25 > 0.4330.
TEST(Published, ZBeforeTheUpdateByHand) {
  struct Row {
    float y;
    std::uint16_t flags;
  };
  const Row rows[] = {
      {1.0f, 0}, {1.6875f, kZHalf}, {1.68f, 0}, {2.11f, kZHalf}, {2.125f, kZ | kZHalf}};
  for (const Row& row : rows) {
    Pins<Vopd_top> pins(easy_config());
    pins.sample(fp32(0, kOne));
    pins.sample(fp32(1, kTwo));
    EXPECT_EQ(published_flags(pins.sample(fp32(2, bits(row.y)))), row.flags) << row.y;
  }
}

// AFTER: with alpha = 1/4 z never passes sqrt((1 - alpha) / alpha) = 1.732 after a steady signal, and
// comes close to it. After 1, 1: m = 1, v = 0. y = 100: d = 0.75 * 99, v' = 0.1875 * 99^2, z = 1.732.
TEST(Published, ZAfterTheUpdateIsCapped) {
  for (const float threshold : {1.73f, 1.74f}) {
    Config config = easy_config();
    config.published_order = static_cast<std::uint8_t>(Order::kAfter);
    config.z_threshold = threshold;
    Pins<Vopd_top> pins(config);
    for (std::uint32_t step = 0; step < 2; ++step) pins.sample(fp32(step, kOne));
    EXPECT_EQ(published_flags(pins.sample(fp32(2, bits(100.0f)))) & (kZ | kZHalf),
              threshold < 1.735f ? kZ | kZHalf : kZHalf);
  }
  // BEFORE has v = 0 there and says nothing: a variance of 0 scores nothing.
  Pins<Vopd_top> before(easy_config());
  for (std::uint32_t step = 0; step < 2; ++step) before.sample(fp32(step, kOne));
  EXPECT_EQ(published_flags(before.sample(fp32(2, bits(100.0f)))) & (kZ | kZHalf), 0);
}

TEST(Published, MinSamplesAndTheVarianceFloor) {
  Config config = easy_config();
  config.published_min_samples = 3;
  Pins<Vopd_top> young(config);
  young.sample(fp32(0, kOne));
  young.sample(fp32(1, kTwo));
  EXPECT_EQ(published_flags(young.sample(fp32(2, bits(9.0f)))), 0);
  // w >= floor: the floor is in the operand's unit squared. Seed 4.0: the unit is 4, so v = 0.1875
  // after 4, 8 stands for 3.
  for (const float floor : {3.0f, 3.001f}) {
    config = easy_config();
    config.variance_floor = floor;
    Pins<Vopd_top> pins(config);
    pins.sample(fp32(0, bits(4.0f)));
    pins.sample(fp32(1, bits(8.0f)));
    EXPECT_EQ(pins.state(4).variance, bits(0.1875f));
    EXPECT_EQ(published_flags(pins.sample(fp32(2, bits(20.0f)))), floor == 3.0f ? kZ | kZHalf : 0);
  }
}

// FP16, largest 65504: with D2_FLOOR_SHIFT 1 the sample must reach 32752 (0x77FF). 16384, 16384, then y:
// curve = y - 16384, in the operand's unit.
TEST(Published, SecondDifferenceAndItsFloor) {
  struct Row {
    std::uint32_t max_mag;
    float threshold;
    bool raised;
  };
  const Row rows[] = {
      {0x77FF, 16367.0f, true},   // 32752 - 16384 = 16368
      {0x77FF, 16368.0f, false},  // not larger
      {0x77FE, 100.0f, false},    // below the floor
      {0x7BFF, 49119.0f, true},   // 65504 - 16384 = 49120
      {0x7BFF, 49120.0f, false},
  };
  for (const Row& row : rows) {
    Config config = easy_config();
    config.published_d2_floor_shift = 1;
    config.d2_threshold = row.threshold;
    Pins<Vopd_top> pins(config);
    for (std::uint32_t step = 0; step < 2; ++step) pins.sample(finite(4, step, 0x7400));
    EXPECT_EQ((pins.sample(finite(4, 2, row.max_mag)).flags & kD2) != 0, row.raised)
        << row.max_mag << " " << row.threshold;
  }
  // Slope needs two samples, whatever MIN_SAMPLES says.
  Config config = easy_config();
  config.published_min_samples = 0;
  Pins<Vopd_top> pins(config);
  pins.sample(finite(4, 0, 0x3C00));
  EXPECT_EQ(pins.sample(finite(4, 1, 0x7BFF)).flags & kD2, 0);
  EXPECT_NE(pins.sample(finite(4, 2, 0x7400)).flags & kD2, 0);  // falls: the amount counts
}

TEST(Published, DesensitisedUsesTheOtherThresholds) {
  Config config = easy_config();
  config.desensitise_steps = 10;
  struct Row {
    std::uint32_t step;
    bool desensitised;
  };
  for (const Row& row : {Row{99, false}, Row{100, true}, Row{109, true}, Row{110, false}}) {
    Pins<Vopd_top> pins(config);
    pins.sample(fp32(0, kOne));
    pins.sample(fp32(1, kTwo));
    pins.write(reg::kLearningRateChange, 100);
    // y = 2.25: z = 1 / sqrt(0.1875) = 2.31, between the thresholds 2 and 3, above half of both.
    EXPECT_EQ(published_flags(pins.sample(fp32(row.step, bits(2.25f)))),
              row.desensitised ? kZHalf : kZ | kZHalf)
        << row.step;
  }
  // Nothing was announced: step 0 is not soon after a change.
  Pins<Vopd_top> pins(config);
  pins.sample(fp32(0, kOne));
  pins.sample(fp32(0, kTwo));
  EXPECT_EQ(published_flags(pins.sample(fp32(0, bits(2.25f)))), kZ | kZHalf);
}

TEST(Published, UnusableSamplesFreezeAndARunReseeds) {
  Config config = easy_config();
  config.baseline_reseed_run = 2;
  Pins<Vopd_top> pins(config);
  pins.sample(fp32(0, kOne));
  pins.sample(fp32(1, kTwo));
  OpState before = pins.state(4);
  Statistic bad = fp32(2, bits(1e30f));
  bad.summary.nonfinite_count = 1;
  EXPECT_EQ(published_flags(pins.sample(bad)), 0);
  EXPECT_EQ(published_flags(pins.sample(fp32(3, 0))), 0);
  OpState after = pins.state(4);
  EXPECT_EQ(after.mean, before.mean);
  EXPECT_EQ(after.variance, before.variance);
  EXPECT_EQ(after.last, before.last);
  EXPECT_EQ(after.slope, before.slope);
  EXPECT_EQ(after.age, 2u);
  for (int i = 0; i < 2; ++i) pins.sample(bad);
  EXPECT_EQ(pins.state(4).age, 0u);
  EXPECT_EQ(published_flags(pins.sample(fp32(6, bits(24.0f)))), 0);
  after = pins.state(4);
  EXPECT_EQ(after.anchor, 131);  // 16 <= 24 < 32
  EXPECT_EQ(after.mean, bits(1.5f));
  EXPECT_EQ(after.variance, 0u);
  EXPECT_EQ(after.slope, 0u);
}

/// X of every format: smallest subnormal, largest subnormal, smallest normal, 1.5, largest. The seed's
/// y is X with exponent 0, the anchor its biased exponent minus the scale.
TEST(Published, ValueOfEveryFormat) {
  struct Row {
    Format format;
    std::uint32_t max_mag;
    float y;
    std::int32_t anchor;
  };
  const Row rows[] = {
      {Format::kFp16, 0x0001, 1.0f, 127 - 24},
      {Format::kFp16, 0x03FF, 1023.0f / 512, 127 - 15},
      {Format::kFp16, 0x0400, 1.0f, 127 - 14},
      {Format::kFp16, 0x3E00, 1.5f, 127},
      {Format::kFp16, 0x7BFF, 2047.0f / 1024, 127 + 15},
      {Format::kBf16, 0x0001, 0.0f, 1},
      {Format::kBf16, 0x007F, 0.0f, 1},
      {Format::kBf16, 0x0080, 1.0f, 1},
      {Format::kBf16, 0x3FC0, 1.5f, 127},
      {Format::kBf16, 0x7F7F, 255.0f / 128, 254},
      {Format::kE4m3, 0x01, 1.0f, 127 - 9},
      {Format::kE4m3, 0x07, 1.75f, 127 - 7},
      {Format::kE4m3, 0x08, 1.0f, 127 - 6},
      {Format::kE4m3, 0x3C, 1.5f, 127},
      {Format::kE4m3, 0x7E, 1.75f, 127 + 8},
      {Format::kE5m2, 0x01, 1.0f, 127 - 16},
      {Format::kE5m2, 0x03, 1.5f, 127 - 15},
      {Format::kE5m2, 0x04, 1.0f, 127 - 14},
      {Format::kE5m2, 0x3E, 1.5f, 127},
      {Format::kE5m2, 0x7B, 1.75f, 127 + 15},
      {Format::kFp32, 0x00000001, 0.0f, 1},
      {Format::kFp32, 0x007FFFFF, 0.0f, 1},
      {Format::kFp32, 0x00800000, 1.0f, 1},
      {Format::kFp32, 0x3FC00000, 1.5f, 127},
      {Format::kFp32, 0x7F7FFFFF, 0x1.fffffep+0f, 254},
  };
  int compared = 0;
  for (const Row& row : rows) {
    for (const int scale : {0, 7, -128, 127}) {
      Pins<Vopd_top_published> pins;
      Statistic s = finite(4, 0, row.max_mag, row.format);
      s.descriptor.scale_log2 = static_cast<std::int8_t>(scale);
      pins.sample(s);
      const OpState state = pins.state(4);
      EXPECT_EQ(state.mean, bits(row.y)) << int(row.format) << " " << row.max_mag;
      EXPECT_EQ(state.last, bits(row.y)) << int(row.format) << " " << row.max_mag;
      EXPECT_EQ(state.anchor, row.anchor - scale) << int(row.format) << " " << row.max_mag;
      EXPECT_EQ(state.baseline, 0);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 100);
}

TEST(Published, SampleFarAboveItsSeed) {
  Pins<Vopd_top> pins(easy_config());
  pins.sample(fp32(0, 0x00800000));  // 2^-126
  pins.sample(fp32(1, 0x7F7FFFFF));
  EXPECT_EQ(pins.state(4).last, bits(0x1p48f));
  pins.sample(fp32(2, bits(0x1.8p-78f)));  // exactly 1.5 * 2^48: as high as it gets
  EXPECT_EQ(pins.state(4).last, bits(0x1p48f));
  pins.sample(fp32(3, bits(0x1.fffffep-79f)));
  EXPECT_EQ(pins.state(4).last, bits(0x1.fffffep+47f));
  // And below: 2^-126 seen from a seed of 2^100 is 2^-226.
  Pins<Vopd_top> high(easy_config());
  high.sample(fp32(0, bits(0x1p100f)));
  high.sample(fp32(1, bits(0x1p-26f)));  // 2^-126 in its unit: the smallest normal number
  EXPECT_EQ(high.state(4).last, 0x00800000u);
  high.sample(fp32(2, bits(0x1p-27f)));
  EXPECT_EQ(high.state(4).last, 0u);
}

// ---- The text of docs/numerics.md in the host's arithmetic (binary32, round to nearest, not fused).

float scaled(float c, int n) {
  const int e = static_cast<int>(bits(c) >> 23);
  if (e == 0 || e - n < 1) return 0;
  if (e - n > 254) return INFINITY;
  return std::ldexp(c, -n);  // normal to normal: exact
}

/// Largest magnitude as a number. Double holds every one, subnormals of binary32 included.
double number(const FormatRow& row, std::uint32_t magnitude) {
  const std::uint32_t fraction = magnitude & (row.smallest_normal - 1);
  const auto exponent = static_cast<int>(magnitude / row.smallest_normal);
  const int bias = row.format == Format::kE4m3                                  ? 7
                   : row.format == Format::kFp16 || row.format == Format::kE5m2 ? 15
                                                                                : 127;
  const double unit = row.smallest_normal;
  return exponent == 0 ? std::ldexp(fraction / unit, 1 - bias)
                       : std::ldexp(1 + fraction / unit, exponent - bias);
}

struct Oracle {
  int age = 0, run = 0, anchor = 0;
  float m = 0, v = 0, last = 0, slope = 0;

  /// Flags of the published engine.
  std::uint16_t see(const Config& config, const Statistic& s, bool desensitised) {
    const FormatRow& row = kFormatRows[static_cast<unsigned>(s.descriptor.format)];
    if (s.summary.nonfinite_count > 0) {
      run = std::min(run + 1, 255);
      if (config.baseline_reseed_run > 0 && run >= config.baseline_reseed_run) age = 0;
      return 0;
    }
    run = 0;
    if (s.summary.max_mag == 0) return 0;
    const auto x = static_cast<float>(number(row, s.summary.max_mag));
    const int e = static_cast<int>(bits(x) >> 23);
    const int scale = s.descriptor.scale_log2;
    const int before = age;
    age = std::min(age + 1, 255);
    if (before == 0) anchor = std::max(e, 1) - scale;
    const int shift = anchor + scale - 127;
    const float y = e == 0 ? 0.0f : std::min(scaled(x, shift), 0x1p48f);
    if (before == 0) {
      m = last = y;
      v = slope = 0;
      return 0;
    }
    const float t = desensitised ? config.z_threshold_desensitised : config.z_threshold;
    const float t2 = desensitised ? config.d2_threshold_desensitised : config.d2_threshold;
    const float alpha = config.published_alpha;
    const float beta = 1.0f - alpha;
    const float delta = y - m;
    const float step = alpha * delta;
    const float mean = m + step;
    const float square = delta * delta;
    const float part = alpha * square;
    const float sum = v + part;
    const float variance = beta * sum;
    const float slope_now = y - last;
    const float curve = slope_now - slope;
    const bool after = config.published_order == static_cast<std::uint8_t>(Order::kAfter);
    const float d = after ? y - mean : delta;
    const float dd = after ? d * d : square;
    const float w = after ? variance : v;
    const float tt = t * t;
    const float limit = tt * w;
    const bool scored = before >= config.published_min_samples && w > 0 &&
                        w >= scaled(config.variance_floor, 2 * shift);
    std::uint16_t flags = 0;
    if (scored && d > 0 && dd > limit) flags |= kZ;
    if (scored && d > 0 && dd > scaled(limit, 2)) flags |= kZHalf;
    if (before >= std::max<int>(2, config.published_min_samples) &&
        std::fabs(curve) > scaled(t2, shift) &&
        s.summary.max_mag >= row.largest - config.published_d2_floor_shift * row.smallest_normal) {
      flags |= kD2;
    }
    m = mean;
    v = variance;
    last = y;
    slope = slope_now;
    return flags;
  }
};

Config random_config(std::mt19937_64& rng) {
  Config config;
  constexpr float kAlphas[] = {2.0f / 129, 2.0f / 33, 0.25f, 1.0f, 0x1p-126f, 0.999f};
  config.published_alpha = kAlphas[draw(rng, 0, 5)];
  config.published_order = static_cast<std::uint8_t>(draw(rng, 0, 1));
  config.published_min_samples = static_cast<std::uint8_t>(draw(rng, 0, 6));
  config.published_d2_floor_shift = static_cast<std::uint8_t>(draw(rng, 0, 7));
  config.z_threshold =
      std::ldexp(static_cast<float>(draw(rng, 256, 511)) / 256, static_cast<int>(draw(rng, -1, 3)));
  config.z_threshold_desensitised = config.z_threshold * 1.25f;
  config.d2_threshold = std::ldexp(1.0f, static_cast<int>(draw(rng, -126, 120)));
  if (draw(rng, 0, 2) != 0) config.d2_threshold = static_cast<float>(draw(rng, 0, 30000));
  config.d2_threshold_desensitised = config.d2_threshold * 1.5f;
  constexpr float kFloors[] = {0, 1e-24f, 1e-3f, 100.0f, 3e38f};
  config.variance_floor = kFloors[draw(rng, 0, 4)];
  config.baseline_reseed_run = static_cast<std::uint8_t>(draw(rng, 0, 3));
  config.desensitise_steps = static_cast<std::uint8_t>(draw(rng, 0, 255));
  return config;
}

/// Walks, plateaus, outliers, zeros, non-finite samples, now and then any magnitude at all.
class Signal {
 public:
  Statistic next(std::mt19937_64& rng, std::uint16_t op, std::uint32_t step) {
    const auto kind = draw(rng, 0, 99);
    if (kind < 2) format_ = static_cast<unsigned>(draw(rng, 0, 4));
    if (kind < 4) scale_ = static_cast<int>(draw(rng, -128, 127));
    if (kind == 4) scale_ = 0;
    const FormatRow& row = kFormatRows[format_];
    std::int64_t next = magnitude_ % (row.largest + std::int64_t{1});
    const std::int64_t octave = row.smallest_normal;
    if (kind >= 5 && kind < 70) next += draw(rng, -octave / 4, octave / 4);
    if (kind >= 70 && kind < 85) next += draw(rng, -4 * octave, 5 * octave);
    if (kind >= 85 && kind < 92) next = draw(rng, 0, row.largest);
    if (kind >= 92 && kind < 96) next = row.largest - draw(rng, 0, octave);
    magnitude_ = std::clamp<std::int64_t>(next, 0, row.largest);
    Statistic s = finite(op, step, static_cast<std::uint32_t>(magnitude_), row.format);
    s.descriptor.scale_log2 = static_cast<std::int8_t>(scale_);
    if (kind == 96) s.summary.max_mag = 0;
    if (kind >= 97) s.summary.nonfinite_count = 1;
    return s;
  }

 private:
  unsigned format_ = 0;
  int scale_ = 0;
  std::int64_t magnitude_ = 0x3C00;
};

template <class Model>
void expect_oracle(std::uint64_t fixed_seed, int configs, int samples) {
  const std::uint64_t seed = case_seed(fixed_seed);
  SCOPED_TRACE(fmt::format("OPD_SEED={}", seed));
  std::mt19937_64 rng(seed);
  std::map<std::uint16_t, int> seen;  // by flags
  int states = 0;
  for (int c = 0; c < configs; ++c) {
    const Config config = random_config(rng);
    Pins<Model> pins(config);
    Oracle oracles[5];
    Signal signals[5];
    bool announced = false;
    std::uint32_t change = 0, step = static_cast<std::uint32_t>(rng());
    for (int i = 0; i < samples; ++i) {
      if (draw(rng, 0, 30) == 0) {
        announced = true;
        change = step + static_cast<std::uint32_t>(draw(rng, -300, 3));
        pins.write(reg::kLearningRateChange, change);
      }
      step += static_cast<std::uint32_t>(draw(rng, 0, 3));
      const auto op = static_cast<std::uint16_t>(draw(rng, 0, 4));
      const Statistic s = signals[op].next(rng, op, step);
      const bool desensitised = announced && step - change < config.desensitise_steps;
      const std::uint16_t want = oracles[op].see(config, s, desensitised);
      const OpRecord record = pins.sample(s);
      ASSERT_EQ(published_flags(record), want) << "config " << c << " sample " << i;
      ++seen[want];
      if (draw(rng, 0, 7) == 0) {
        const OpState state = pins.state(op);
        const Oracle& o = oracles[op];
        ASSERT_EQ(state.age, static_cast<std::uint32_t>(o.age));
        ASSERT_EQ(state.nonfinite_run, static_cast<std::uint32_t>(o.run));
        ASSERT_EQ(state.anchor, o.anchor) << "config " << c << " sample " << i;
        ASSERT_EQ(state.mean, bits(o.m)) << "config " << c << " sample " << i;
        ASSERT_EQ(state.variance, bits(o.v)) << "config " << c << " sample " << i;
        ASSERT_EQ(state.last, bits(o.last)) << "config " << c << " sample " << i;
        ASSERT_EQ(state.slope, bits(o.slope)) << "config " << c << " sample " << i;
        ++states;
      }
    }
  }
  int total = 0;
  for (const auto& [flags, count] : seen) {
    fmt::print("flags {:03X}: {} samples\n", flags, count);
    total += count;
  }
  fmt::print("{} samples, {} states compared\n", total, states);
  EXPECT_EQ(total, configs * samples);
  EXPECT_GT(states, total / 16);
  // Both kinds of alarm, z between its half and itself, and none at all, each often.
  for (const std::uint16_t flags : {std::uint16_t{0}, kZHalf, std::uint16_t{kZ | kZHalf}, kD2}) {
    EXPECT_GT(seen[flags], total / 200) << flags;
  }
}
TEST(Published, RandomHistories) { expect_oracle<Vopd_top>(0x9B115, 60, 1000); }
TEST(Published, RandomHistoriesSmall) { expect_oracle<Vopd_top_small>(0x9B116, 60, 500); }
TEST(Published, RandomHistoriesAlone) { expect_oracle<Vopd_top_published>(0x9B117, 60, 500); }

TEST(Published, AbsentEngineRaisesNothing) {
  Pins<Vopd_top_forecast> pins(easy_config());
  int samples = 0;
  for (std::uint32_t step = 0; step < 40; ++step) {
    const OpRecord record = pins.sample(fp32(step, step % 2 == 0 ? kOne : kThree));
    EXPECT_EQ(published_flags(record), 0);
    ++samples;
  }
  EXPECT_EQ(samples, 40);
}

}  // namespace
}  // namespace opd::tb
