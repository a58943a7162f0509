// The published engine against values worked by hand, against the same text in native binary32, and
// the cap that the published order of update puts on z.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>

#include "binary32_vectors.hpp"
#include "elements.hpp"
#include "fixed_config.hpp"
#include "opd/sc/published_engine.hpp"

namespace opd::sc {
namespace {

using tb::kFixedConfig;

constexpr std::uint16_t kZ = flag_bit(Flag::kZ);
constexpr std::uint16_t kZHalf = flag_bit(Flag::kZHalf);
constexpr std::uint16_t kD2 = flag_bit(Flag::kD2);

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t to_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

// --- Binary32 arithmetic -------------------------------------------------------------------------

/// Operands from all strata: any pattern, neighbours in exponent, subnormals.
std::pair<float, float> operands(std::mt19937_64& rng) {
  const auto a = static_cast<std::uint32_t>(rng());
  auto b = static_cast<std::uint32_t>(rng());
  switch (tb::draw(rng, 0, 3)) {
    case 0:
      b = (b & 0x807FFFFFu) | (a & 0x7F800000u);  // same exponent: cancellation
      break;
    case 1:  // exponents that sum to the edge of the normal range: subnormal products
      b = (b & 0x807FFFFFu) |
          static_cast<std::uint32_t>(std::clamp<std::int64_t>(
              127 - static_cast<std::int64_t>(a >> 23 & 255) + tb::draw(rng, -26, 3), 0, 254))
              << 23;
      break;
    case 2:  // exponents a significand apart: ties
      b = (b & 0x80400000u) |
          static_cast<std::uint32_t>(std::clamp<std::int64_t>(
              static_cast<std::int64_t>(a >> 23 & 255) - tb::draw(rng, 0, 27), 0, 254))
              << 23;
      break;
    default:
      break;
  }
  return {from_bits(a), from_bits(b)};
}

/// What the processor makes of the operation, when both operands and the result are finite numbers.
template <class Operation>
bool agrees_with_processor(Operation operation, float a, float b, std::uint32_t* got,
                           std::uint32_t* expected, bool* subnormal) {
  volatile const float native = operation(a, b);
  if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(native)) return false;
  *got = to_bits(operation(Number::of(a), Number::of(b)).to_float());
  *expected = native == 0 ? 0 : to_bits(native);  // a Number has no sign of zero
  *subnormal = std::fpclassify(native) == FP_SUBNORMAL;
  return true;
}

TEST(SystemcNumber, EqualsTheProcessorsArithmetic) {
  const std::uint64_t seed = tb::case_seed(21);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  int compared = 0, subnormals = 0;
  const auto expect = [&](auto operation, float a, float b) {
    std::uint32_t got = 0, expected = 0;
    bool subnormal = false;
    if (!agrees_with_processor(operation, a, b, &got, &expected, &subnormal)) return;
    ASSERT_EQ(got, expected) << std::hexfloat << a << " and " << b;
    subnormals += subnormal;
    ++compared;
  };
  for (int i = 0; i < 500'000; ++i) {
    const auto [a, b] = operands(rng);
    expect([](auto x, auto y) { return x + y; }, a, b);
    expect([](auto x, auto y) { return x - y; }, a, b);
    expect([](auto x, auto y) { return x * y; }, a, b);
    if (std::isfinite(a) && std::isfinite(b)) {
      ASSERT_EQ(Number::of(a) < Number::of(b), a < b) << std::hexfloat << a << " and " << b;
      ASSERT_EQ(Number::of(a) == Number::of(b), a == b) << std::hexfloat << a << " and " << b;
      ASSERT_EQ(to_bits(Number::of(a).to_float()), a == 0 ? 0 : to_bits(a));
    }
  }
  EXPECT_GT(compared, 1'200'000);
  EXPECT_GT(subnormals, 50'000);
}

TEST(SystemcNumber, EqualsSoftFloat) {
  int compared = 0;
  const auto finite = [](std::uint32_t bits) { return (bits & 0x7F800000u) != 0x7F800000u; };
  const auto unsigned_zero = [](std::uint32_t bits) { return bits == 0x80000000u ? 0 : bits; };
  for (const tb::Binary32Vector& v : tb::binary32_vectors()) {
    if (!finite(v.a) || !finite(v.b)) continue;
    const Number a = Number::of(from_bits(v.a)), b = Number::of(from_bits(v.b));
    EXPECT_EQ(a > b, v.greater);
    if (finite(v.sum)) {
      EXPECT_EQ(to_bits((a + b).to_float()), unsigned_zero(v.sum));
    }
    if (finite(v.product)) {
      EXPECT_EQ(to_bits((a * b).to_float()), unsigned_zero(v.product));
    }
    ++compared;
  }
  EXPECT_GT(compared, 3800);
}

TEST(SystemcNumber, WorkedValues) {
  const auto sum = [](float a, float b) { return (Number::of(a) + Number::of(b)).to_float(); };
  const auto product = [](float a, float b) { return (Number::of(a) * Number::of(b)).to_float(); };
  EXPECT_EQ(sum(0x1p24f, 1.0f), 0x1p24f);         // a tie goes to the even one
  EXPECT_EQ(sum(0x1p24f, 3.0f), 0x1p24f + 4.0f);  // and up where that is even
  EXPECT_EQ(sum(0x1.fffffep0f, 0x1p-24f), 2.0f);  // the rounding carries into the exponent
  EXPECT_EQ(sum(0x1p127f, 0x1p-149f), 0x1p127f);
  EXPECT_EQ(sum(0x1p127f, -0x1p127f), 0.0f);
  EXPECT_EQ(product(0x1p-75f, 0x1p-75f), 0.0f);  // half of the least subnormal, a tie
  EXPECT_EQ(product(0x1p-149f, 0x1p-149f), 0.0f);
  EXPECT_EQ(product(0x1p-75f, 0x1p-74f), from_bits(1));
  EXPECT_EQ(product(0x1.8p-75f, 0x1p-75f), from_bits(1));
}

TEST(SystemcNumber, PowersOfTwoMoveTheExponentAndNeverRound) {
  const auto scaled = [](float value, int n) { return Number::of(value).times_power_of_two(-n); };
  EXPECT_EQ(scaled(1.5f, 1).to_float(), 0.75f);
  EXPECT_EQ(scaled(1.5f, -4).to_float(), 24.0f);
  EXPECT_EQ(scaled(1.0f, 126).to_float(), 0x1p-126f);  // the least normal number
  EXPECT_EQ(scaled(1.0f, 127).to_float(), 0.0f);       // would be subnormal
  EXPECT_EQ(scaled(1.0f, -127).to_float(), 0x1p127f);
  EXPECT_EQ(scaled(0.0f, -1000).to_float(), 0.0f);
  EXPECT_EQ(scaled(from_bits(1), -100).to_float(), 0.0f);  // a subnormal counts as 0
  const Number largest = Number::of(0x1.fffffep127f);
  int compared = 0;
  for (int exponent = -126; exponent <= 127; ++exponent) {
    for (int n = -400; n <= 400; ++n, ++compared) {
      const float value = std::ldexp(1.25f, exponent);
      const Number got = scaled(value, n);
      if (exponent - n > 127) {
        ASSERT_GT(got, largest) << exponent << ' ' << n;
      } else {
        ASSERT_EQ(got.to_float(), exponent - n < -126 ? 0.0f : std::ldexp(1.25f, exponent - n))
            << exponent << ' ' << n;
      }
    }
  }
  EXPECT_EQ(compared, 254 * 801);
}

TEST(SystemcNumber, EveryMagnitudeOfTheNarrowFormatsIsExact) {
  int compared = 0;
  for (const Format format : tb::kAllFormats) {
    if (format == Format::kFp32) continue;
    for (std::uint32_t magnitude = 0; magnitude <= properties(format).largest_finite;
         ++magnitude, ++compared) {
      ASSERT_EQ(static_cast<double>(Number::of_magnitude(format, magnitude).to_float()),
                tb::value_of(format, magnitude));
    }
  }
  EXPECT_EQ(compared, 0x7C00 + 0x7F80 + 0x7F + 0x7C);
  EXPECT_EQ(to_bits(Number::of_magnitude(Format::kFp32, 0x7F7FFFFF).to_float()), 0x7F7FFFFFu);
  EXPECT_EQ(to_bits(Number::of_magnitude(Format::kFp32, 1).to_float()), 1u);
}

// --- Worked by hand ------------------------------------------------------------------------------

Sample fp16(std::uint32_t max_mag, unsigned age, std::int8_t scale_log2 = 0) {
  return {{.format = Format::kFp16, .scale_log2 = scale_log2}, max_mag, age, false};
}

/// alpha 1/4, z 2, D2 3, no minimum age, no variance floor: every value below is a short dyadic.
Config by_hand() {
  Config config = kFixedConfig;
  config.published_alpha = 0.25f;
  config.z_threshold = 2;
  config.published_min_samples = 0;
  config.variance_floor = 0;
  return config;
}

TEST(SystemcPublishedEngine, TheFirstSampleSeeds) {
  PublishedState state{.anchor = 5, .mean = 9, .variance = 9, .last = 9, .slope = 9};
  // 3.0 = 2^1 * 1.5, exponent field 128; the scale of 2^4 is taken out of the anchor.
  EXPECT_EQ(published_engine(by_hand(), fp16(0x4200, 0, 4), state), 0);
  EXPECT_EQ(state, (PublishedState{.anchor = 124, .mean = 1.5f, .last = 1.5f}));
}

TEST(SystemcPublishedEngine, OneUpdateByHand) {
  PublishedState state;
  published_engine(by_hand(), fp16(0x3C00, 0), state);  // 1.0: shift 0, m = 1
  // 3.0: delta 2, m' = 1.5, square 4, v' = 3/4 * (0 + 1) = 0.75, slope 2. w = v = 0: not scored.
  EXPECT_EQ(published_engine(by_hand(), fp16(0x4200, 1), state), 0);
  EXPECT_EQ(state, (PublishedState{127, 1.5f, 0.75f, 3.0f, 2.0f}));
  // 3.0 again: delta 1.5, m' = 1.875, square 2.25, v' = 3/4 * (0.75 + 0.5625) = 0.984375.
  // BEFORE: dd 2.25 against 4 * 0.75 = 3 and a quarter of it: z is between 1 and 2.
  EXPECT_EQ(published_engine(by_hand(), fp16(0x4200, 2), state), kZHalf);
  EXPECT_EQ(state, (PublishedState{127, 1.875f, 0.984375f, 3.0f, 0.0f}));
  // 5.0: delta 3.125, square 9.765625 > 4 * 0.984375: Z.
  EXPECT_EQ(published_engine(by_hand(), fp16(0x4500, 3), state), kZ | kZHalf);
  // -: below the mean nothing is raised, whatever the distance.
  EXPECT_EQ(published_engine(by_hand(), fp16(0x0001, 4), state), 0);
}

TEST(SystemcPublishedEngine, AfterScoresAgainstWhatTheSampleHasChanged) {
  Config config = by_hand();
  config.published_order = static_cast<std::uint8_t>(Order::kAfter);
  config.z_threshold = 1.5f;
  PublishedState state;
  published_engine(config, fp16(0x3C00, 0), state);
  // 3.0: d = 3 - 1.5, dd = 2.25, w = v' = 0.75: limit 2.25 * 0.75 = 1.6875 < 2.25.
  EXPECT_EQ(published_engine(config, fp16(0x4200, 1), state), kZ | kZHalf);
  config.z_threshold = 2;  // z = sqrt(3) = 1.73, the cap for alpha = 1/4
  state = {};
  published_engine(config, fp16(0x3C00, 0), state);
  EXPECT_EQ(published_engine(config, fp16(0x4200, 1), state), kZHalf);
}

TEST(SystemcPublishedEngine, AThresholdIsPassedNotReached) {
  const PublishedState at{.anchor = 127, .mean = 1, .variance = 1, .last = 1, .slope = 0};
  const Config config = by_hand();
  PublishedState state = at;
  EXPECT_EQ(published_engine(config, fp16(0x4200, 9), state), kZHalf);  // 3.0: z = 2 exactly
  state = at;
  EXPECT_EQ(published_engine(config, fp16(0x4201, 9), state), kZ | kZHalf);
  state = at;
  EXPECT_EQ(published_engine(config, fp16(0x4000, 9), state), 0);  // 2.0: z = 1 exactly
  state = at;
  EXPECT_EQ(published_engine(config, fp16(0x4001, 9), state), kZHalf);
}

TEST(SystemcPublishedEngine, MinimumAgeAndVarianceFloor) {
  const PublishedState at{.anchor = 127, .mean = 1, .variance = 1, .last = 1, .slope = 0};
  Config config = by_hand();
  config.published_min_samples = 32;
  PublishedState state = at;
  EXPECT_EQ(published_engine(config, fp16(0x4500, 31), state), 0);
  state = at;
  EXPECT_EQ(published_engine(config, fp16(0x4500, 32), state), kZ | kZHalf);

  // The floor is in the operand's unit: with an anchor of 2^3 a variance of 1 stands for 64.
  PublishedState scaled{.anchor = 130, .mean = 1, .variance = 1, .last = 1, .slope = 0};
  config.variance_floor = 64;
  state = scaled;
  EXPECT_EQ(published_engine(config, fp16(0x5500, 32), state), kZ | kZHalf);  // 80 / 8 = 10
  config.variance_floor = std::nextafter(64.0f, 100.0f);
  state = scaled;
  EXPECT_EQ(published_engine(config, fp16(0x5500, 32), state), 0);
}

TEST(SystemcPublishedEngine, D2NeedsHalfOfTheLargestValueAndTwoSamples) {
  Config config = by_hand();
  config.z_threshold = 0x1p15f;  // no Z
  config.weight_z = 0;
  // In units of 2^15 (exponent field 142): 1.0 = 32768 = 0x7800. The floor is 0x7BFF - 0x400 =
  // 0x77FF; D2 when |curve| > 3 / 32768.
  const PublishedState at{.anchor = 142, .mean = 1, .variance = 0, .last = 1, .slope = 0};
  PublishedState state = at;
  EXPECT_EQ(published_engine(config, fp16(0x7801, 2), state), kD2);  // curve = 2^-10
  state = at;
  EXPECT_EQ(published_engine(config, fp16(0x77FF, 2), state), kD2);  // downwards, at the floor
  state = at;
  EXPECT_EQ(published_engine(config, fp16(0x77FE, 2), state), 0);  // below the floor
  state = at;
  EXPECT_EQ(published_engine(config, fp16(0x7801, 1), state), 0);  // no slope yet
  state = at;
  EXPECT_EQ(published_engine(config, fp16(0x7800, 2), state), 0);  // no curve
  config.d2_threshold = 32;
  state = at;
  EXPECT_EQ(published_engine(config, fp16(0x7801, 2), state), 0);  // 32 is not more than 32
  config.published_d2_floor_shift = 7;
  const PublishedState low{.anchor = 128, .mean = 1, .variance = 0, .last = 1, .slope = 0};
  state = low;
  EXPECT_EQ(published_engine(config, fp16(0x5FFF, 2), state), kD2);  // 0x7BFF - 7 * 0x400
  state = low;
  EXPECT_EQ(published_engine(config, fp16(0x5FFE, 2), state), 0);
}

TEST(SystemcPublishedEngine, DesensitisedSamplesHaveTheirOwnThresholds) {
  const PublishedState at{.anchor = 127, .mean = 1, .variance = 1, .last = 1, .slope = 0};
  Config config = by_hand();
  config.z_threshold_desensitised = 4;
  Sample sample = fp16(0x4500, 9);  // 5.0: z = 4
  PublishedState state = at;
  EXPECT_EQ(published_engine(config, sample, state), kZ | kZHalf);
  sample.desensitised = true;
  state = at;
  EXPECT_EQ(published_engine(config, sample, state), kZHalf);
}

TEST(SystemcPublishedEngine, AsHighAsItGets) {
  PublishedState state;
  const Sample tiny{{.format = Format::kFp32}, 0x00800000, 0, false};  // 2^-126
  published_engine(by_hand(), tiny, state);
  EXPECT_EQ(state.anchor, 1);
  Sample huge{{.format = Format::kFp32}, 0x7F7FFFFF, 1, false};
  published_engine(by_hand(), huge, state);
  EXPECT_EQ(state.last, 0x1p48f);
  // A subnormal FP32 sample is 0 in every unit; as a seed its anchor is that of the least normal.
  Sample subnormal{{.format = Format::kFp32}, 1, 0, false};
  published_engine(by_hand(), subnormal, state);
  EXPECT_EQ(state, (PublishedState{.anchor = 1}));
}

// --- Against native binary32 ---------------------------------------------------------------------

/// The text of docs/numerics.md, "Published engine", in the processor's own float, with exponents
/// by ilogb and scaling by ldexp.
struct Oracle {
  int age = 0, anchor = 0;
  float m = 0, v = 0, last = 0, slope = 0;

  static int field_of(float x) { return x < 0x1p-126f ? 0 : std::ilogb(x) + 127; }
  static float scaled(float c, int n) {
    if (c < 0x1p-126f) return 0;
    const int exponent = std::ilogb(c) - n;
    if (exponent < -126) return 0;
    return exponent > 127 ? INFINITY : std::ldexp(c, -n);
  }

  std::uint16_t sample(const Config& config, const OpDescriptor& op, std::uint32_t max_mag,
                       bool desensitised) {
    const auto x = static_cast<float>(tb::value_of(op.format, max_mag));
    const int field = field_of(x);
    if (age == 0) anchor = std::max(field, 1) - op.scale_log2;
    const int shift = anchor + op.scale_log2 - 127;
    const float y = field == 0 ? 0 : std::fmin(scaled(x, shift), 0x1p48f);
    if (age == 0) {
      m = last = y;
      v = slope = 0;
      age = 1;
      return 0;
    }
    const float alpha = config.published_alpha, beta = 1 - alpha;
    const float delta = y - m;
    const float step = alpha * delta;
    const float new_m = m + step;
    const float square = delta * delta;
    const float weighted = alpha * square;
    const float sum = v + weighted;
    const float new_v = beta * sum;
    const float new_slope = y - last;
    const float curve = new_slope - slope;
    float d = delta, dd = square, w = v;
    if (config.published_order == 1) {
      d = y - new_m;
      dd = d * d;
      w = new_v;
    }
    const float t = desensitised ? config.z_threshold_desensitised : config.z_threshold;
    const float t2 = desensitised ? config.d2_threshold_desensitised : config.d2_threshold;
    const float tt = t * t;
    const float bound = tt * w;
    const bool scored = age >= config.published_min_samples && w > 0 &&
                        w >= scaled(config.variance_floor, 2 * shift);
    const tb::Layout layout = tb::layout_of(op.format);
    const std::uint32_t largest[] = {0x7BFF, 0x7F7F, 0x7E, 0x7B, 0x7F7FFFFF};
    unsigned flags = 0;
    if (scored && d > 0 && dd > bound) flags |= 1;
    if (scored && d > 0 && dd > scaled(bound, 2)) flags |= 256;
    if (age >= 2 && age >= config.published_min_samples && std::fabs(curve) > scaled(t2, shift) &&
        max_mag >= largest[static_cast<int>(op.format)] -
                       static_cast<std::uint32_t>(config.published_d2_floor_shift
                                                  << layout.significand_bits)) {
      flags |= 2;
    }
    m = new_m;
    v = new_v;
    last = y;
    slope = new_slope;
    age = std::min(age + 1, 255);
    return static_cast<std::uint16_t>(flags);
  }
};

/// Magnitudes of one operator over its steps: a level with noise, now and then a ramp, an outlier,
/// a fall, or anything at all.
class Magnitudes {
 public:
  Magnitudes(std::mt19937_64& rng, Format format) : rng_(rng), format_(format) {
    largest_ = static_cast<std::int64_t>(properties(format).largest_finite);
    level_ = tb::draw(rng, 1, largest_);
    noise_ = std::max<std::int64_t>(1, largest_ >> tb::draw(rng, 4, 14));
  }
  std::uint32_t next() {
    if (tb::draw(rng_, 0, 60) == 0) ramp_ = tb::draw(rng_, -noise_, 2 * noise_);
    if (tb::draw(rng_, 0, 80) == 0) level_ = largest_ - tb::draw(rng_, 0, 3 * noise_);
    level_ = std::clamp<std::int64_t>(level_ + ramp_, 1, largest_);
    std::int64_t magnitude = level_ + tb::draw(rng_, -noise_, noise_);
    if (tb::draw(rng_, 0, 30) == 0) magnitude = tb::draw(rng_, 1, largest_);
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(magnitude, 1, largest_));
  }

 private:
  std::mt19937_64& rng_;
  Format format_;
  std::int64_t largest_, level_, noise_, ramp_ = 0;
};

class SystemcPublishedOracle : public testing::TestWithParam<Order> {};

TEST_P(SystemcPublishedOracle, FlagsAndStateOverRandomStreams) {
  const auto order = static_cast<std::uint8_t>(GetParam());
  const std::uint64_t seed = tb::case_seed(30 + order);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  int compared = 0, z = 0, half_only = 0, d2 = 0;
  for (int stream = 0; stream < 1000; ++stream) {
    Config config = kFixedConfig;
    config.published_order = order;
    if (stream % 3 != 0) {  // else the reset values
      config.published_min_samples = static_cast<std::uint8_t>(tb::draw(rng, 0, 40));
      config.published_alpha = std::ldexp(1.0f + 0.01f * static_cast<float>(tb::draw(rng, 0, 99)),
                                          static_cast<int>(tb::draw(rng, -10, -1)));
      config.z_threshold = 0.25f * static_cast<float>(tb::draw(rng, 0, 40));
      config.d2_threshold = std::ldexp(1.7f, static_cast<int>(tb::draw(rng, -126, 126)));
      config.d2_threshold_desensitised = config.d2_threshold * 1.5f;
      config.variance_floor = std::ldexp(1.1f, static_cast<int>(tb::draw(rng, -126, 40)));
      config.published_d2_floor_shift = static_cast<std::uint8_t>(tb::draw(rng, 0, 7));
    }
    if (stream % 50 == 1) config.published_alpha = 1;
    if (stream % 50 == 2) config.published_alpha = 0x1p-126f;
    if (stream % 50 == 4) config.z_threshold = 0x1p15f;
    const Format format = tb::kAllFormats[static_cast<std::size_t>(stream % 5)];
    Magnitudes magnitudes(rng, format);
    Oracle oracle;
    PublishedState state;
    const int samples = stream % 7 == 0 ? 400 : 120;
    const auto scale = static_cast<std::int8_t>(stream % 4 == 0 ? tb::draw(rng, -128, 127) : 0);
    for (int i = 0; i < samples; ++i, ++compared) {
      // Now and then the loss scale doubles or the baseline is re-seeded.
      const auto now = static_cast<std::int8_t>(
          std::clamp<int>(scale + (stream % 4 == 0 && i > 60 ? 1 : 0), -128, 127));
      if (tb::draw(rng, 0, 150) == 0) oracle.age = 0;
      const OpDescriptor op{.format = format, .scale_log2 = now};
      const std::uint32_t magnitude = magnitudes.next();
      const bool desensitised = i % 64 > 50;
      const auto age = static_cast<unsigned>(oracle.age);
      const std::uint16_t expected = oracle.sample(config, op, magnitude, desensitised);
      const std::uint16_t flags =
          published_engine(config, {op, magnitude, age, desensitised}, state);
      ASSERT_EQ(flags, expected) << "stream " << stream << " sample " << i;
      ASSERT_EQ(state.anchor, oracle.anchor) << "stream " << stream << " sample " << i;
      ASSERT_EQ(to_bits(state.mean), to_bits(oracle.m)) << "stream " << stream << " sample " << i;
      ASSERT_EQ(to_bits(state.variance), to_bits(oracle.v)) << "stream " << stream;
      ASSERT_EQ(to_bits(state.last), to_bits(oracle.last)) << "stream " << stream;
      ASSERT_EQ(to_bits(state.slope), to_bits(oracle.slope)) << "stream " << stream;
      ASSERT_LE(state.variance, 0x1p96f);
      z += (flags & kZ) != 0;
      half_only += (flags & (kZ | kZHalf)) == kZHalf;
      d2 += (flags & kD2) != 0;
    }
  }
  EXPECT_GT(compared, 150'000);
  EXPECT_GT(z, 1000);
  EXPECT_GT(half_only, 500);
  EXPECT_GT(d2, 1000);
}

INSTANTIATE_TEST_SUITE_P(Orders, SystemcPublishedOracle,
                         testing::Values(Order::kBefore, Order::kAfter));

// --- The cap of the published order --------------------------------------------------------------

/// How often Z is raised over random and adversarial streams with a window of 32 and a threshold of
/// 4, above the cap of sqrt(31 / 2) = 3.94.
int count_of_z(Order order, int& samples) {
  Config config = kFixedConfig;
  config.published_order = static_cast<std::uint8_t>(order);
  config.published_alpha = 2.0f / 33.0f;
  config.z_threshold = 4;
  config.published_min_samples = 2;
  config.variance_floor = 0;
  const std::uint64_t seed = tb::case_seed(41);
  std::mt19937_64 rng(seed);
  int raised = 0;
  const auto feed = [&](Format format, const std::vector<std::uint32_t>& magnitudes) {
    PublishedState state;
    unsigned age = 0;
    for (const std::uint32_t magnitude : magnitudes) {
      const Sample sample{{.format = format}, magnitude, age, false};
      raised += (published_engine(config, sample, state) & kZ) != 0;
      age = std::min(age + 1, 255u);
      ++samples;
    }
  };
  // FP32 streams keep 11 significand bits: deviations of a few units in the last place of the mean
  // are lost in its rounding, and with them the bound.
  constexpr std::uint32_t kKeep = 0xFFFFE000u;
  for (int stream = 0; stream < 1500; ++stream) {
    const Format format = tb::kAllFormats[static_cast<std::size_t>(stream % 5)];
    const std::uint32_t largest = properties(format).largest_finite;
    const std::uint32_t keep = format == Format::kFp32 ? kKeep : ~0u;
    Magnitudes random(rng, format);
    std::vector<std::uint32_t> magnitudes;
    for (int i = 0; i < 200; ++i)
      magnitudes.push_back(std::max(random.next() & keep, properties(format).smallest_normal()));
    feed(format, magnitudes);
    // Steady, then one outlier of any height; then again.
    const auto level =
        static_cast<std::uint32_t>(tb::draw(rng, properties(format).smallest_normal(), largest)) &
        keep;
    magnitudes.assign(100, level);
    for (int i = 0; i < 4; ++i) {
      magnitudes.push_back(static_cast<std::uint32_t>(tb::draw(rng, level, largest)) & keep);
      magnitudes.insert(magnitudes.end(), static_cast<std::size_t>(tb::draw(rng, 1, 60)), level);
    }
    feed(format, magnitudes);
  }
  // Every height, step by step.
  for (std::uint32_t field = 127; field < 255; ++field) {
    std::vector<std::uint32_t> magnitudes(60, 0x3F800000u);
    magnitudes.push_back(field << 23 | 0x00400000u);
    feed(Format::kFp32, magnitudes);
  }
  return raised;
}

TEST(SystemcPublishedCap, AfterNeverPassesTheCap) {
  int samples = 0;
  EXPECT_EQ(count_of_z(Order::kAfter, samples), 0);
  EXPECT_GT(samples, 500'000);
}

TEST(SystemcPublishedCap, BeforeHasNone) {
  int samples = 0;
  EXPECT_GT(count_of_z(Order::kBefore, samples), 3000);
  EXPECT_GT(samples, 500'000);
}

}  // namespace
}  // namespace opd::sc
