// The model's arithmetic against docs/numerics.md and docs/controller.md: values worked out by hand
// or from the formula, and statistics by value in floating point.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "elements.hpp"
#include "fixed_config.hpp"
#include "opd/sc/downshift_controller.hpp"
#include "opd/sc/element_statistics.hpp"
#include "opd/sc/forecast_engine.hpp"
#include "opd/sc/format.hpp"
#include "opd/sc/op_queue.hpp"
#include "opd/sc/parameters.hpp"
#include "opd/sc/risk.hpp"
#include "opd/types/device.hpp"

namespace opd::sc {
namespace {

using tb::kAllFormats;
using tb::kFixedConfig;

constexpr std::uint16_t bits(std::initializer_list<Flag> flags) {
  unsigned sum = 0;
  for (const Flag flag : flags) sum |= flag_bit(flag);
  return static_cast<std::uint16_t>(sum);
}

TEST(SystemcFormat, TableGivesTheLimitsOfTheSpecifications) {
  int compared = 0;
  for (const Format format : kAllFormats) {
    const FormatProperties& layout = properties(format);
    EXPECT_EQ(layout.element_bytes(), static_cast<unsigned>(tb::layout_of(format).bytes));
    EXPECT_EQ(tb::value_of(format, layout.largest_finite), tb::largest_of(format));
    EXPECT_EQ(tb::value_of(format, layout.smallest_normal()), tb::smallest_normal_of(format));
    EXPECT_FALSE(std::isfinite(tb::value_of(format, layout.largest_finite + 1)));
    EXPECT_EQ(layout.magnitude_mask() + 1, 1u << (layout.element_bits() - 1));
    ++compared;
  }
  EXPECT_EQ(compared, 5);
  EXPECT_FALSE(is_format(static_cast<Format>(5)));
  EXPECT_FALSE(is_format(static_cast<Format>(255)));
}

TEST(SystemcLog2Code, OfTheLargestFiniteMagnitudeIsTheLimitRegister) {
  EXPECT_EQ(log2_code(Format::kFp16, 0x7BFF), 512);
  EXPECT_EQ(log2_code(Format::kBf16, 0x7F7F), 4096);
  EXPECT_EQ(log2_code(Format::kE4m3, 0x7E), 282);
  EXPECT_EQ(log2_code(Format::kE5m2, 0x7B), 506);
  EXPECT_EQ(log2_code(Format::kFp32, 0x7F7FFFFF), 4096);
  for (const Format format : kAllFormats) {
    EXPECT_EQ(log2_code(format, properties(format).largest_finite), limit(Config{}, format));
  }
}

TEST(SystemcLog2Code, WorkedValues) {
  EXPECT_EQ(log2_code(Format::kFp16, 0x3C00), 1);            // 1.0: f = 0
  EXPECT_EQ(log2_code(Format::kFp16, 0x4200), 32 + 16 + 3);  // 3.0 = 2 * 1.5: f = 16, third quarter
  EXPECT_EQ(log2_code(Format::kE4m3, 0x01),
            -7 * 32 + 4 + 2);                          // subnormal: f = 1 << 2, second eighth
  EXPECT_EQ(log2_code(Format::kFp32, 1), -4063);       // the least code of all
  EXPECT_EQ(log2_code(Format::kFp16, 0xFFFF3C00), 1);  // bits above the magnitude are ignored
}

/// Every magnitude of a format up to 16 bits wide.
void check_all_magnitudes(Format format) {
  const FormatProperties& layout = properties(format);
  int previous = -5000;
  std::uint32_t compared = 0;
  for (std::uint32_t magnitude = 1; magnitude <= layout.largest_finite; ++magnitude, ++compared) {
    const int code = log2_code(format, magnitude);
    ASSERT_GE(code, previous) << "magnitude " << magnitude;
    previous = code;
    if (magnitude < layout.smallest_normal()) continue;
    ASSERT_NEAR(code / 32.0, std::log2(tb::value_of(format, magnitude)), 0.045)
        << "magnitude " << magnitude;
  }
  EXPECT_EQ(compared, layout.largest_finite);
}

TEST(SystemcLog2Code, AllFp16Magnitudes) { check_all_magnitudes(Format::kFp16); }
TEST(SystemcLog2Code, AllBf16Magnitudes) { check_all_magnitudes(Format::kBf16); }
TEST(SystemcLog2Code, AllE4m3Magnitudes) { check_all_magnitudes(Format::kE4m3); }
TEST(SystemcLog2Code, AllE5m2Magnitudes) { check_all_magnitudes(Format::kE5m2); }

TEST(SystemcLog2Code, Fp32MagnitudesAtEveryExponent) {
  int compared = 0;
  int previous = -5000;
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (std::uint32_t top = 0; top < 64; ++top, ++compared) {
      const std::uint32_t magnitude = exponent << 23 | top << 17 | 0x1FFFF;
      const int code = log2_code(Format::kFp32, magnitude);
      ASSERT_GE(code, previous) << magnitude;
      previous = code;
      if (exponent == 0) continue;
      ASSERT_NEAR(code / 32.0, std::log2(tb::value_of(Format::kFp32, magnitude)), 0.045)
          << magnitude;
    }
  }
  EXPECT_EQ(compared, 255 * 64);
}

TapSummary clamped(const ElementStatistics& statistics) {
  return CounterLimit(32).clamp(statistics);
}

TEST(SystemcElementStatistics, EqualsTheSummaryByValue) {
  const std::uint64_t seed = tb::case_seed(11);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  int compared = 0;
  // Around the lengths of a vector register, a block of bytes and a block of words.
  for (const std::size_t count :
       {0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 191, 192, 193, 4095, 4096, 4097, 9000}) {
    for (const Format format : kAllFormats) {
      for (const bool tame : {false, true}) {
        const std::size_t offset = static_cast<std::size_t>(tb::draw(rng, 0, 3));  // any alignment
        std::vector<std::byte> bytes(offset);
        const std::vector<std::byte> elements = tb::random_elements(rng, format, count, tame);
        bytes.insert(bytes.end(), elements.begin(), elements.end());
        ASSERT_EQ(clamped(element_statistics(format, bytes.data() + offset, count)),
                  tb::summary_by_value(format, elements))
            << "format " << static_cast<int>(format) << " count " << count;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 17 * 5 * 2);
}

TEST(SystemcElementStatistics, FirstNonfiniteIsAPositionInTheWholeRun) {
  int compared = 0;
  for (const Format format : kAllFormats) {
    const auto width = static_cast<std::size_t>(tb::layout_of(format).bytes);
    for (const std::size_t position : {191, 192, 4095, 4096, 9999}) {
      std::vector<std::byte> elements(10000 * width);
      std::memset(elements.data() + position * width, 0xFF, width);  // NaN in every format
      const ElementStatistics statistics = element_statistics(format, elements.data(), 10000);
      EXPECT_EQ(statistics.first_nonfinite, position);
      EXPECT_EQ(statistics.nonfinite_count, 1u);
      EXPECT_EQ(statistics.zero_count, 9999u);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 25);
}

TEST(SystemcElementStatistics, EveryBitPatternOfTheNarrowFormats) {
  int compared = 0;
  for (const Format format : {Format::kFp16, Format::kBf16, Format::kE4m3, Format::kE5m2}) {
    const std::uint32_t patterns = 1u << (8 * tb::layout_of(format).bytes);
    for (std::uint32_t pattern = 0; pattern < patterns; ++pattern, ++compared) {
      const auto* bytes = reinterpret_cast<const std::byte*>(&pattern);
      ASSERT_EQ(clamped(element_statistics(format, bytes, 1)),
                tb::summary_by_value(
                    format, {bytes, static_cast<std::size_t>(tb::layout_of(format).bytes)}))
          << pattern;
    }
  }
  EXPECT_EQ(compared, 2 * 65536 + 2 * 256);
}

TEST(SystemcElementStatistics, DisabledLanesTakeNoPartButKeepTheirIndex) {
  const std::uint64_t seed = tb::case_seed(12);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  int compared = 0;
  for (int round = 0; round < 400; ++round) {
    for (const Format format : kAllFormats) {
      const std::size_t slots = 64 / static_cast<std::size_t>(tb::layout_of(format).bytes);
      const std::size_t count =
          static_cast<std::size_t>(tb::draw(rng, 1, static_cast<std::int64_t>(slots)));
      const std::vector<std::byte> elements = tb::random_elements(rng, format, count, false);
      const std::uint64_t enable = round == 0 ? 0 : round % 3 == 0 ? ~std::uint64_t{0} : rng();
      ASSERT_EQ(clamped(beat_statistics(format, elements.data(), count, enable)),
                tb::summary_by_value(format, elements,
                                     [&](std::size_t k) { return (enable >> k & 1) != 0; }));
      ++compared;
    }
  }
  EXPECT_EQ(compared, 2000);
}

TEST(SystemcElementStatistics, AnUnknownFormatHasNoElements) {
  const std::vector<std::byte> bytes(64, std::byte{0x11});
  EXPECT_EQ(element_statistics(static_cast<Format>(5), bytes.data(), 64), ElementStatistics{});
  EXPECT_EQ(beat_statistics(static_cast<Format>(255), bytes.data(), 64, ~0ull),
            ElementStatistics{});
}

TEST(SystemcCounterLimit, CountsStopAtAllOnesAndIndicesOneBelow) {
  const CounterLimit narrow(4);
  EXPECT_EQ(narrow.count(14), 14u);
  EXPECT_EQ(narrow.count(15), 15u);
  EXPECT_EQ(narrow.count(16), 15u);
  EXPECT_EQ(narrow.index(14), 14u);
  EXPECT_EQ(narrow.index(15), 14u);
  EXPECT_EQ(narrow.index(1000), 14u);
  const CounterLimit full(32);
  EXPECT_EQ(full.count(0x1'0000'0000), 0xFFFFFFFFu);
  EXPECT_EQ(full.index(0xFFFFFFFF), 0xFFFFFFFEu);

  const TapSummary wide{0xFFFFFFFF, 99, 98, 97, 96, 95, 94};
  EXPECT_EQ(narrow.clamp(Format::kFp32, wide), (TapSummary{0x7FFFFFFF, 15, 15, 14, 15, 15, 15}));
  const TapSummary finite{1, 99, 0, kNoElement, 0, 0, 0};
  EXPECT_EQ(narrow.clamp(Format::kFp16, finite), (TapSummary{1, 15, 0, kNoElement, 0, 0, 0}));
}

TEST(SystemcCounterLimit, OfAStatisticTheMagnitudeBitsOfItsFormatCount) {
  const auto kept = [](unsigned format) {
    return CounterLimit(32).clamp(static_cast<Format>(format), {.max_mag = 0xFFFFFFFF}).max_mag;
  };
  EXPECT_EQ(kept(0), 0x7FFFu);
  EXPECT_EQ(kept(1), 0x7FFFu);
  EXPECT_EQ(kept(2), 0x7Fu);
  EXPECT_EQ(kept(3), 0x7Fu);
  EXPECT_EQ(kept(4), 0x7FFFFFFFu);
  for (const unsigned illegal : {5u, 7u, 255u}) EXPECT_EQ(kept(illegal), 0xFFFFFFFFu);
}

// --- Forecast engine ---------------------------------------------------------------------------

/// What the forecast engine depends on: baseline, age, non-finite run.
struct ForecastState {
  std::int32_t baseline = 0;
  std::uint8_t age = 0;
  std::uint8_t nonfinite_run = 0;
  bool operator==(const ForecastState&) const = default;
};

/// Status flags, history and forecast engine, put together as the detection unit does.
class ForecastEngine {
 public:
  explicit ForecastEngine(const Config& config) : config_(config) {}

  std::uint16_t detect(const OpDescriptor& descriptor, const TapSummary& summary,
                       ForecastState& state, bool desensitised = false) const {
    const History before{state.age, state.nonfinite_run};
    unsigned flags = status_flags(config_, summary, before);
    if (is_usable(summary)) {
      flags |= forecast_engine(config_, {descriptor, summary.max_mag, before.age, desensitised},
                               state.baseline);
    }
    const History after = advanced(config_, summary, before);
    state.age = after.age;
    state.nonfinite_run = after.nonfinite_run;
    return static_cast<std::uint16_t>(flags);
  }

 private:
  Config config_;
};

constexpr OpDescriptor kFp16{.op = 0, .format = Format::kFp16, .step = 0, .scale_log2 = 0};

TapSummary finite(std::uint32_t max_mag) { return {.max_mag = max_mag, .element_count = 1}; }
TapSummary nonfinite() {
  return {.max_mag = 0x3C00, .element_count = 2, .nonfinite_count = 1, .first_nonfinite = 0};
}

TEST(SystemcForecastEngine, BaselineByHand) {
  const ForecastEngine engine{kFixedConfig};
  ForecastState state;
  EXPECT_EQ(engine.detect(kFp16, finite(0x3C00), state), bits({Flag::kWarmup}));  // 1.0: x = 1
  EXPECT_EQ(state, (ForecastState{4, 1, 0}));                                     // seeded with 4x
  engine.detect(kFp16, finite(0x4000),
                state);  // 2.0: x = 33, d = 132 - 4 = 128, (128 + 8) >> 4 = 8
  EXPECT_EQ(state, (ForecastState{12, 2, 0}));
  engine.detect(kFp16, finite(0x3C00),
                state);  // d = 4 - 12 = -8, (-8 + 8) >> 4 = 0: a tie rounds up
  EXPECT_EQ(state, (ForecastState{12, 3, 0}));
  state.baseline = 13;
  engine.detect(kFp16, finite(0x3C00), state);  // d = -9, (-9 + 8) >> 4 = -1
  EXPECT_EQ(state, (ForecastState{12, 4, 0}));
}

/// How far the baseline is below the last of many samples, each a doubling above the one before.
int lag_of_a_ramp(std::uint8_t max_lag) {
  Config config = kFixedConfig;
  config.baseline_max_lag = max_lag;
  const ForecastEngine engine{config};
  ForecastState state;
  OpDescriptor fp32 = kFp16;
  fp32.format = Format::kFp32;
  int x = 0;
  for (std::uint32_t exponent = 1; exponent <= 200; ++exponent) {
    engine.detect(fp32, finite(exponent << 23), state);
    x = log2_code(Format::kFp32, exponent << 23);
  }
  return 4 * x - state.baseline;
}

TEST(SystemcForecastEngine, ASteadyRampLeavesALagOfFifteenStepsOrWhatIsAllowed) {
  // Rounding of 8/128 bit at most per step, over 16 steps.
  EXPECT_NEAR(lag_of_a_ramp(0), 15 * 128, 8);
  for (const int bits : {1, 3, 14}) {
    EXPECT_EQ(lag_of_a_ramp(static_cast<std::uint8_t>(bits)), 128 * bits);
  }
}

TEST(SystemcForecastEngine, TheBaselineIsHeldBelowASampleAndNotAboveIt) {
  struct Row {
    int baseline, after;
  };
  // 2.0: x = 33, 4x = 132, and 132 - 384 = -252.
  const Row rows[] = {
      {132 - 409, -251},   // d = 409: (409 + 8) >> 4 = 26, -277 + 26
      {132 - 410, -252},   // 26: just there
      {132 - 411, -252},   // 26: -253 would be left
      {132 - 424, -252},   // 27: -265 would be left
      {-30000, -252},      //
      {132 - 384, -228},   // 24
      {132 + 411, 517},    // -403 / 16 = -25.2, down to -26
      {132 + 9999, 9506},  // -9991 / 16 = -624.4, down to -625
  };
  const ForecastEngine engine{kFixedConfig};
  for (const Row& row : rows) {
    ForecastState state{row.baseline, 1, 0};
    engine.detect(kFp16, finite(0x4000), state);
    EXPECT_EQ(state.baseline, row.after) << row.baseline;
  }
  ForecastState seeded{-30000, 0, 0};  // the first sample: nothing to hold
  engine.detect(kFp16, finite(0x4000), seeded);
  EXPECT_EQ(seeded.baseline, 132);
}

TEST(SystemcForecastEngine, TheEightBitFormatsHaveAHorizonOfTheirOwn) {
  struct Row {
    Format format;
    std::uint32_t magnitude;
    int code;  ///< 25 below the limit: 4h = 100
    bool eight_bits;
  };
  const Row rows[] = {{Format::kFp16, 0x78A0, 487, false},
                      {Format::kBf16, 0x7F14, 4071, false},
                      {Format::kE4m3, 0x78, 257, true},
                      {Format::kE5m2, 0x78, 481, true},
                      {Format::kFp32, 0x7F140000, 4071, false}};
  int compared = 0;
  for (const Row& row : rows) {
    ASSERT_EQ(log2_code(row.format, row.magnitude), row.code);
    for (const int shift : {0, 1, 2, 3}) {
      Config config = kFixedConfig;
      config.forecast_shift = static_cast<std::uint8_t>(row.eight_bits ? 3 - shift : shift);
      config.forecast_shift_fp8 = static_cast<std::uint8_t>(row.eight_bits ? shift : 3 - shift);
      const int enough = 100 / (1 << shift);  // d << s > 100: 100, 50, 25, 12
      for (const int above : {0, 1}) {
        ForecastState state{4 * row.code - enough - above, 1, 0};
        const OpDescriptor descriptor{.format = row.format};
        const auto flags = ForecastEngine{config}.detect(descriptor, finite(row.magnitude), state);
        EXPECT_EQ((flags & flag_bit(Flag::kForecast)) != 0, above == 1) << shift;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 40);
}

TEST(SystemcForecastEngine, ForecastNeedsMoreThanTwiceTheDeviation) {
  const ForecastEngine engine{kFixedConfig};
  // 0x7000: x = 13 * 32 + 1 = 417, h = 95: FORECAST when 2d > 380.
  ForecastState at{4 * 417 - 190, 1, 0};
  EXPECT_EQ(engine.detect(kFp16, finite(0x7000), at), bits({Flag::kWarmup}));
  ForecastState above{4 * 417 - 191, 1, 0};
  EXPECT_EQ(engine.detect(kFp16, finite(0x7000), above), bits({Flag::kWarmup, Flag::kForecast}));
}

TEST(SystemcForecastEngine, ForecastNeedsAHeadroomBelowFourBits) {
  const ForecastEngine engine{kFixedConfig};
  ForecastState low{-2000, 1, 0};
  EXPECT_EQ(engine.detect(kFp16, finite(0x6BFF), low), bits({Flag::kWarmup}));  // x = 384, h = 128
  low = {-2000, 1, 0};
  EXPECT_EQ(engine.detect(kFp16, finite(0x6C00), low),
            bits({Flag::kWarmup, Flag::kForecast}));  // h = 127
}

TEST(SystemcForecastEngine, TheFirstSampleHasNoDeviation) {
  const ForecastEngine engine{kFixedConfig};
  ForecastState state{-30000, 0, 0};  // a stale baseline after a re-seed
  EXPECT_EQ(engine.detect(kFp16, finite(0x7000), state), bits({Flag::kWarmup}));
  EXPECT_EQ(state, (ForecastState{4 * 417, 1, 0}));

  // With the limit below x, even a deviation of 0 is more than a negative headroom.
  Config config = kFixedConfig;
  config.limit_fp16 = 400;
  ForecastState fresh;
  EXPECT_EQ(ForecastEngine{config}.detect(kFp16, finite(0x7000), fresh),
            bits({Flag::kWarmup, Flag::kForecast, Flag::kCritical}));
}

TEST(SystemcForecastEngine, CriticalAtOneBitOfHeadroom) {
  const ForecastEngine engine{kFixedConfig};
  ForecastState state{4 * 479, 1, 0};
  EXPECT_EQ(engine.detect(kFp16, finite(0x77C0), state),
            bits({Flag::kWarmup}));  // f = 30: x = 479, h = 33
  EXPECT_EQ(engine.detect(kFp16, finite(0x77E0), state),
            bits({Flag::kWarmup, Flag::kCritical}));  // h = 32
}

TEST(SystemcForecastEngine, JumpNeedsAnAgeAndThreeBits) {
  const ForecastEngine engine{kFixedConfig};
  // 1.0: x = 1, 4x = 4. JUMP when d > 384.
  ForecastState young{4 - 385, 15, 0};
  EXPECT_EQ(engine.detect(kFp16, finite(0x3C00), young), bits({Flag::kWarmup}));
  ForecastState old{4 - 385, 16, 0};
  EXPECT_EQ(engine.detect(kFp16, finite(0x3C00), old), bits({Flag::kJump}));
  ForecastState at{4 - 384, 16, 0};
  EXPECT_EQ(engine.detect(kFp16, finite(0x3C00), at), 0);
}

TEST(SystemcForecastEngine, TheScaleIsTakenOutOfTheBaselineOnly) {
  const ForecastEngine engine{kFixedConfig};
  OpDescriptor scaled = kFp16;
  scaled.scale_log2 = 10;
  ForecastState state;
  EXPECT_EQ(engine.detect(scaled, finite(0x7BFF), state), bits({Flag::kWarmup, Flag::kCritical}));
  EXPECT_EQ(state.baseline, 4 * (512 - 320));
  // Extremes of the width: 17 bits signed.
  OpDescriptor wide{.op = 0, .format = Format::kFp32, .step = 0, .scale_log2 = -128};
  ForecastState high;
  engine.detect(wide, finite(0x7F7FFFFF), high);
  EXPECT_EQ(high.baseline, 32768);
  wide.scale_log2 = 127;
  engine.detect(wide, finite(1), high);  // d = 4 * (-4063 - 4064) - 32768 = -65276
  EXPECT_EQ(high.baseline, 32768 + (-65276 + 8) / 16 - 1);  // -65268 / 16 is not whole: floor
}

TEST(SystemcForecastEngine, NonfiniteFreezesAndReseeds) {
  Config config = kFixedConfig;
  config.baseline_reseed_run = 3;
  const ForecastEngine engine{config};
  ForecastState state{100, 20, 0};
  EXPECT_EQ(engine.detect(kFp16, nonfinite(), state), bits({Flag::kNonfinite}));
  EXPECT_EQ(state, (ForecastState{100, 20, 1}));
  engine.detect(kFp16, nonfinite(), state);
  EXPECT_EQ(state, (ForecastState{100, 20, 2}));
  EXPECT_EQ(engine.detect(kFp16, nonfinite(), state),
            bits({Flag::kNonfinite}));  // WARMUP is from before
  EXPECT_EQ(state, (ForecastState{100, 0, 3}));
  EXPECT_EQ(engine.detect(kFp16, nonfinite(), state), bits({Flag::kNonfinite, Flag::kWarmup}));
  engine.detect(kFp16, finite(0x3C00), state);
  EXPECT_EQ(state, (ForecastState{4, 1, 0}));
}

TEST(SystemcForecastEngine, ARunOfZeroNeverReseedsAndTheRunSaturates) {
  Config config = kFixedConfig;
  config.baseline_reseed_run = 0;
  const ForecastEngine engine{config};
  ForecastState state{100, 20, 0};
  for (int i = 0; i < 300; ++i) engine.detect(kFp16, nonfinite(), state);
  EXPECT_EQ(state, (ForecastState{100, 20, 255}));
}

TEST(SystemcForecastEngine, AnEmptySampleChangesTheRunOnly) {
  const ForecastEngine engine{kFixedConfig};
  ForecastState state{100, 20, 7};
  EXPECT_EQ(engine.detect(kFp16, TapSummary{}, state), 0);
  EXPECT_EQ(state, (ForecastState{100, 20, 0}));
}

TEST(SystemcForecastEngine, WarmupAndAgeEnd) {
  const ForecastEngine engine{kFixedConfig};
  ForecastState state;
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(engine.detect(kFp16, finite(0x3C00), state), i < 16 ? bits({Flag::kWarmup}) : 0) << i;
  }
  EXPECT_EQ(state.age, 255);
}

TEST(SystemcForecastEngine, DesensitisedJumpsAreHigherAndTheHorizonShorter) {
  const ForecastEngine engine{kFixedConfig};
  // 1.0: 4x = 4. JUMP when d > 384, desensitised when d > 4 * (96 + 32) = 512.
  ForecastState at{4 - 512, 16, 0};
  EXPECT_EQ(engine.detect(kFp16, finite(0x3C00), at, true), 0);
  ForecastState above{4 - 513, 16, 0};
  EXPECT_EQ(engine.detect(kFp16, finite(0x3C00), above, true), bits({Flag::kJump}));
  // 0x7000: h = 95. FORECAST when 2d > 380, desensitised when 2d > 760.
  at = {4 * 417 - 380, 1, 0};
  EXPECT_EQ(engine.detect(kFp16, finite(0x7000), at, true), bits({Flag::kWarmup}));
  above = {4 * 417 - 381, 1, 0};
  EXPECT_EQ(engine.detect(kFp16, finite(0x7000), above, true),
            bits({Flag::kWarmup, Flag::kForecast}));
}

/// One sample of an operator with 16 samples in its baseline: magnitude, its code x, what it stands
/// above the baseline in 1/128 bit, and the flags.
struct GateRow {
  Format format;
  std::uint32_t magnitude;
  int code;
  int deviation;
  bool desensitised;
  std::uint16_t flags;
};

constexpr std::uint16_t kC = flag_bit(Flag::kCritical);
constexpr std::uint16_t kF = flag_bit(Flag::kForecast);
constexpr std::uint16_t kJ = flag_bit(Flag::kJump);
constexpr int kFar = 9999;  // more than any threshold

// FORECAST below 128, JUMP below 256. With a shift of 2 FORECAST when 4d > 4h: the number d in 1/128
// bit is then compared with the number h in 1/32 bit.
constexpr GateRow kWithoutScale[] = {
    {Format::kFp16, 0x6BFF, 384, kFar, false, kJ},             // h = 128
    {Format::kFp16, 0x6C00, 385, kFar, false, kF | kJ},        // h = 127
    {Format::kFp16, 0x6C00, 385, 127, false, 0},               // 508 > 508
    {Format::kFp16, 0x6C00, 385, 128, false, kF},              // 512 > 508
    {Format::kFp16, 0x5BFF, 256, kFar, false, 0},              // h = 256
    {Format::kFp16, 0x5C00, 257, kFar, false, kJ},             // h = 255
    {Format::kFp16, 0x5C00, 257, 385, false, kJ},              // 385 > 4 * 96
    {Format::kFp16, 0x5C00, 257, 384, false, 0},               //
    {Format::kFp16, 0x7920, 492, kFar, false, kF | kC | kJ},   // h = 20
    {Format::kFp16, 0x7920, 492, 20, false, kC},               // 80 > 80
    {Format::kFp16, 0x7920, 492, 21, false, kF | kC},          //
    {Format::kFp16, 0x6BFF, 384, kFar, true, kJ},              //
    {Format::kFp16, 0x6C00, 385, 254, true, 0},                // 1016 > 2 * 508
    {Format::kFp16, 0x6C00, 385, 255, true, kF},               //
    {Format::kFp16, 0x5BFF, 256, kFar, true, 0},               //
    {Format::kFp16, 0x5C00, 257, 512, true, 0},                // 512 > 4 * (96 + 32)
    {Format::kFp16, 0x5C00, 257, 513, true, kJ},               //
    {Format::kBf16, 0x7B7C, 3840, kFar, false, 0},             // h = 256
    {Format::kBf16, 0x7B80, 3841, kFar, false, kJ},            // h = 255
    {Format::kBf16, 0x7D7C, 3968, kFar, false, kJ},            // h = 128
    {Format::kBf16, 0x7D80, 3969, kFar, false, kF | kJ},       // h = 127
    {Format::kBf16, 0x7F24, 4076, kFar, false, kF | kC | kJ},  // h = 20
};

// FORECAST below 20, JUMP below 64.
constexpr GateRow kUnderScale[] = {
    {Format::kFp16, 0x7920, 492, kFar, false, kC | kJ},        // h = 20
    {Format::kFp16, 0x7940, 493, kFar, false, kF | kC | kJ},   // h = 19
    {Format::kFp16, 0x7940, 493, 19, false, kC},               // 76 > 76
    {Format::kFp16, 0x7940, 493, 20, false, kF | kC},          //
    {Format::kFp16, 0x6C00, 385, kFar, false, 0},              // h = 127
    {Format::kFp16, 0x73FF, 448, kFar, false, 0},              // h = 64
    {Format::kFp16, 0x7400, 449, kFar, false, kJ},             // h = 63
    {Format::kFp16, 0x7400, 449, 385, false, kJ},              //
    {Format::kFp16, 0x7400, 449, 384, false, 0},               //
    {Format::kFp16, 0x7920, 492, kFar, true, kC | kJ},         //
    {Format::kFp16, 0x7940, 493, 38, true, kC},                // 152 > 2 * 76
    {Format::kFp16, 0x7940, 493, 39, true, kF | kC},           //
    {Format::kFp16, 0x73FF, 448, kFar, true, 0},               //
    {Format::kFp16, 0x7400, 449, 512, true, 0},                //
    {Format::kFp16, 0x7400, 449, 513, true, kJ},               //
    {Format::kBf16, 0x7F24, 4076, kFar, false, kC | kJ},       // h = 20
    {Format::kBf16, 0x7F28, 4077, kFar, false, kF | kC | kJ},  // h = 19
    {Format::kBf16, 0x7B80, 3841, kFar, false, 0},             // h = 255
};

/// Flags of one row under a loss scale.
std::uint16_t flags_of(const Config& config, const GateRow& row, int scale_log2) {
  EXPECT_EQ(log2_code(row.format, row.magnitude), row.code);
  ForecastState state{4 * (row.code - 32 * scale_log2) - row.deviation, 16, 0};
  const OpDescriptor descriptor{.format = row.format,
                                .scale_log2 = static_cast<std::int8_t>(scale_log2)};
  return ForecastEngine{config}.detect(descriptor, finite(row.magnitude), state, row.desensitised);
}

TEST(SystemcForecastEngine, HeadroomsOfOperandsWithoutAndUnderALossScale) {
  Config config = kFixedConfig;
  config.forecast_shift = 2;
  config.jump_headroom = 256;
  int compared = 0;
  for (const GateRow& row : kWithoutScale) {
    EXPECT_EQ(flags_of(config, row, 0), row.flags) << row.code << " + " << row.deviation;
    ++compared;
  }
  for (const int scale_log2 : {1, -1, 16, 127, -128}) {
    for (const GateRow& row : kUnderScale) {
      EXPECT_EQ(flags_of(config, row, scale_log2), row.flags)
          << row.code << " + " << row.deviation << " at scale " << scale_log2;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 22 + 5 * 18);
}

TEST(SystemcForecastEngine, EachHeadroomActsOnItsOwnFlagAndKindOfOperand) {
  Config closed = kFixedConfig;
  closed.forecast_headroom = closed.forecast_headroom_scaled = 0;
  closed.jump_headroom = closed.jump_headroom_scaled = 0;
  const GateRow at_limit{Format::kFp16, 0x7BFF, 512, kFar, false, 0};  // h = 0
  for (const int scale_log2 : {0, 1, -1}) EXPECT_EQ(flags_of(closed, at_limit, scale_log2), kC);

  struct Gate {
    std::uint16_t Config::*headroom;
    unsigned without_scale, under_scale;  ///< flags when this one is open
  };
  const Gate gates[] = {{&Config::forecast_headroom, kF | kC, kC},
                        {&Config::forecast_headroom_scaled, kC, kF | kC},
                        {&Config::jump_headroom, kC | kJ, kC},
                        {&Config::jump_headroom_scaled, kC, kC | kJ}};
  for (const Gate& gate : gates) {
    Config open = closed;
    open.*gate.headroom = 1;
    EXPECT_EQ(flags_of(open, at_limit, 0), gate.without_scale) << &gate - gates;
    EXPECT_EQ(flags_of(open, at_limit, 1), gate.under_scale) << &gate - gates;
    EXPECT_EQ(flags_of(open, at_limit, -1), gate.under_scale) << &gate - gates;
  }

  // A limit below the sample: a headroom of -1 is below every gate, that of 0 too.
  closed.limit_fp16 = 511;
  for (const int scale_log2 : {0, 1, -1}) {
    EXPECT_EQ(flags_of(closed, at_limit, scale_log2), kF | kC | kJ);
  }
}

TEST(SystemcForecastEngine, TheLargestJumpHeadroomIsAboveEveryHeadroom) {
  Config config = kFixedConfig;
  config.limit_fp32 = 8191;  // the largest: h = 8191 + 4063 = 12254 at the least magnitude
  const GateRow least{Format::kFp32, 1, -4063, 385, false, 0};
  for (const auto& [gate, expected] :
       {std::pair{12254, std::uint16_t{0}}, {12255, kJ}, {16383, kJ}}) {
    Config plain = config, scaled = config;
    plain.jump_headroom = static_cast<std::uint16_t>(gate);
    plain.jump_headroom_scaled = 0;
    scaled.jump_headroom = 0;
    scaled.jump_headroom_scaled = static_cast<std::uint16_t>(gate);
    EXPECT_EQ(flags_of(plain, least, 0), expected) << gate;
    EXPECT_EQ(flags_of(scaled, least, 0), 0) << gate;
    EXPECT_EQ(flags_of(plain, least, -128), 0) << gate;
    EXPECT_EQ(flags_of(scaled, least, -128), expected) << gate;
  }
}

TEST(SystemcForecastEngine, SaturatedStandsBesideEveryOtherFlag) {
  const ForecastEngine engine{kFixedConfig};
  ForecastState state{2048, 20, 0};
  TapSummary summary = finite(0x7BFF);
  summary.saturated_count = 1;
  EXPECT_EQ(engine.detect(kFp16, summary, state), bits({Flag::kSaturated, Flag::kCritical}));
  summary.nonfinite_count = 1;
  EXPECT_EQ(engine.detect(kFp16, summary, state), bits({Flag::kSaturated, Flag::kNonfinite}));
}

TEST(SystemcRisk, IsTheSaturatingSumOfWeights) {
  const Config config = kFixedConfig;
  EXPECT_EQ(risk(config, 0), 0);
  EXPECT_EQ(risk(config, bits({Flag::kWarmup})), 0);
  EXPECT_EQ(risk(config, bits({Flag::kCritical})), 127);
  EXPECT_EQ(risk(config, bits({Flag::kForecast})), 128);
  EXPECT_EQ(risk(config, bits({Flag::kForecast, Flag::kCritical})), 255);
  EXPECT_EQ(risk(config, bits({Flag::kForecast, Flag::kCritical, Flag::kJump, Flag::kSaturated})),
            255);

  Config distinct;  // one power of two per flag: each weight belongs to its own bit
  for (const ConfigField& field : kConfigFields) {
    if (field.name.starts_with("weight_")) field.set(distinct, 0);
  }
  std::uint8_t* const weights[] = {&distinct.weight_z,         &distinct.weight_d2,
                                   &distinct.weight_forecast,  &distinct.weight_critical,
                                   &distinct.weight_jump,      &distinct.weight_nonfinite,
                                   &distinct.weight_saturated, &distinct.weight_warmup};
  for (unsigned flag = 0; flag < 8; ++flag) *weights[flag] = static_cast<std::uint8_t>(1u << flag);
  int compared = 0;
  for (unsigned flags = 0; flags < 256; ++flags, ++compared) {
    EXPECT_EQ(risk(distinct, static_cast<std::uint16_t>(flags)), flags);
  }
  EXPECT_EQ(compared, 256);
}

// --- Downshift controller: the table of docs/controller.md -------------------------------------

struct Row {
  const char* what;
  Mode mode;
  std::uint8_t timer;
  std::uint8_t elapsed;
  std::uint16_t flags;
  std::uint8_t risk;
  Mode new_mode;
  std::uint8_t new_timer;
  Cause cause;
};

constexpr std::uint16_t kQuiet = flag_bit(Flag::kWarmup);  // a status does not break a quiet period
constexpr std::uint16_t kAlarm = flag_bit(Flag::kCritical);
constexpr std::uint16_t kInf = flag_bit(Flag::kNonfinite);

// With risk_stable 128, risk_safe 255, quiet_steps 64, safe_steps 8:
constexpr Row kRows[] = {
    {"FAST nonfinite", Mode::kFast, 0, 1, kInf, 0, Mode::kStable, 0, Cause::kNonfinite},
    {"FAST risk", Mode::kFast, 0, 1, kAlarm, 128, Mode::kStable, 0, Cause::kRisk},
    {"FAST risk 255 is one arrow", Mode::kFast, 0, 1, kAlarm, 255, Mode::kStable, 0, Cause::kRisk},
    {"FAST below", Mode::kFast, 0, 1, kAlarm, 127, Mode::kFast, 0, Cause::kNone},
    {"STABLE nonfinite", Mode::kStable, 9, 1, kInf, 255, Mode::kSafe, 0, Cause::kNonfinite},
    {"STABLE risk", Mode::kStable, 9, 1, kAlarm, 255, Mode::kSafe, 0, Cause::kRisk},
    {"STABLE recovered", Mode::kStable, 63, 1, kQuiet, 0, Mode::kFast, 0, Cause::kRecovered},
    {"STABLE recovered over", Mode::kStable, 60, 100, 0, 0, Mode::kFast, 0, Cause::kRecovered},
    {"STABLE quiet", Mode::kStable, 62, 1, kQuiet, 0, Mode::kStable, 63, Cause::kNone},
    {"STABLE quiet, same step", Mode::kStable, 62, 0, 0, 0, Mode::kStable, 62, Cause::kNone},
    {"STABLE alarm", Mode::kStable, 62, 1, kAlarm, 254, Mode::kStable, 0, Cause::kNone},
    {"STABLE alarm at the end", Mode::kStable, 63, 1, kAlarm, 127, Mode::kStable, 0, Cause::kNone},
    {"SAFE nonfinite", Mode::kSafe, 7, 1, kInf, 255, Mode::kSafe, 0, Cause::kEscalate},
    {"SAFE expired", Mode::kSafe, 7, 1, 0, 0, Mode::kStable, 0, Cause::kSafeExpired},
    {"SAFE expired with an alarm", Mode::kSafe, 7, 1, kAlarm, 255, Mode::kStable, 0,
     Cause::kSafeExpired},
    {"SAFE", Mode::kSafe, 6, 1, kAlarm, 255, Mode::kSafe, 7, Cause::kNone},
    {"SAFE, roll-back", Mode::kSafe, 6, 255, 0, 0, Mode::kSafe, 6, Cause::kNone},
};

TEST(SystemcDownshiftController, EveryRowOfTheTable) {
  int compared = 0;
  for (const Row& row : kRows) {
    ControllerState state{row.timer, 200};
    const std::uint32_t step =
        0xABCD00u + static_cast<std::uint8_t>(200 + row.elapsed);  // wraps past 255
    EXPECT_EQ(advance_controller(kFixedConfig, row.mode, step, row.flags, row.risk, state),
              (Transition{row.new_mode, row.cause}))
        << row.what;
    EXPECT_EQ(state, (ControllerState{row.new_timer, static_cast<std::uint8_t>(step)})) << row.what;
    ++compared;
  }
  EXPECT_EQ(compared, 17);
}

TEST(SystemcDownshiftController, TheTimerSaturates) {
  Config config = kFixedConfig;
  config.quiet_steps = 255;
  config.safe_steps = 255;
  ControllerState state{200, 0};
  EXPECT_EQ(advance_controller(config, Mode::kStable, 127, 0, 0, state).mode,
            Mode::kFast);  // min(255, 327) >= 255
  state = {200, 0};
  EXPECT_EQ(advance_controller(config, Mode::kSafe, 54, 0, 0, state).mode, Mode::kSafe);
  EXPECT_EQ(state.timer, 254);
}

TEST(SystemcDownshiftController, ElapsedStepsAreASignedByte) {
  int compared = 0;
  for (int last = 0; last < 256; ++last) {
    for (int difference = -128; difference < 128; ++difference, ++compared) {
      const auto step = static_cast<std::uint32_t>(512 + last + difference);
      ASSERT_EQ(elapsed_steps(step, static_cast<std::uint8_t>(last)),
                static_cast<unsigned>(std::max(0, difference)));
    }
  }
  EXPECT_EQ(compared, 65536);
}

TEST(SystemcDownshiftController, OnlyFlagsWithAWeightBreakAQuietPeriod) {
  int compared = 0;
  for (unsigned weighted = 0; weighted < 256; ++weighted) {
    Config config = kFixedConfig;
    std::uint8_t* const weights[] = {&config.weight_z,         &config.weight_d2,
                                     &config.weight_forecast,  &config.weight_critical,
                                     &config.weight_jump,      &config.weight_nonfinite,
                                     &config.weight_saturated, &config.weight_warmup};
    for (unsigned flag = 0; flag < 8; ++flag) *weights[flag] = weighted >> flag & 1u;
    for (unsigned flag = 0; flag < 10; ++flag, ++compared) {
      if (flag == static_cast<unsigned>(Flag::kNonfinite)) continue;  // it moves the mode
      // Z_HALF counts while Z has a weight; UPSET never.
      const bool breaks = flag < 8    ? (weighted >> flag & 1u) != 0
                          : flag == 8 ? (weighted & 1u) != 0
                                      : false;
      ControllerState state{10, 0};
      advance_controller(config, Mode::kStable, 1, static_cast<std::uint16_t>(1u << flag), 0,
                         state);
      ASSERT_EQ(state.timer, breaks ? 0 : 11) << "weights " << weighted << " flag " << flag;
    }
  }
  EXPECT_EQ(compared, 2560);
}

TEST(SystemcDownshiftController, ALockedOperatorKeepsItsMode) {
  int compared = 0;
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    for (const std::uint16_t flags : {std::uint16_t{0}, kAlarm, kInf}) {
      ControllerState state{.timer = 63, .last_step = 7, .locked = true};
      const Cause cause = mode == Mode::kSafe && flags == kInf ? Cause::kEscalate : Cause::kNone;
      EXPECT_EQ(advance_controller(kFixedConfig, mode, 0x109, flags, 255, state),
                (Transition{mode, cause}));
      EXPECT_EQ(state, (ControllerState{.timer = 0, .last_step = 9, .locked = true}));
      ++compared;
    }
  }
  EXPECT_EQ(compared, 9);
}

// --- Parameters ----------------------------------------------------------------------------------

TEST(SystemcParameters, EveryRangeIsChecked) {
  EXPECT_FALSE(parameter_error(DeviceParameters{}));
  EXPECT_FALSE(parameter_error({.num_ops = 1,
                                .datapath_width = 32,
                                .num_streams = 1,
                                .queue_depth = 1,
                                .counter_width = 2,
                                .event_depth = 1,
                                .forecast_engine = false}));
  EXPECT_FALSE(parameter_error({.num_ops = 65536,
                                .datapath_width = 512,
                                .num_streams = 256,
                                .queue_depth = 255,
                                .counter_width = 32,
                                .event_depth = 255,
                                .published_engine = false}));
  const struct {
    unsigned DeviceParameters::*field;
    unsigned value;
    const char* message;
  } bad[] = {
      {&DeviceParameters::num_ops, 0, "num_ops = 0: must be 1..65536"},
      {&DeviceParameters::num_ops, 65537, "num_ops = 65537: must be 1..65536"},
      {&DeviceParameters::datapath_width, 0, "datapath_width = 0: must be 32..512"},
      {&DeviceParameters::datapath_width, 544, "datapath_width = 544: must be 32..512"},
      {&DeviceParameters::datapath_width, 48,
       "datapath_width = 48: must be a multiple of 32, 32..512"},
      {&DeviceParameters::num_streams, 0, "num_streams = 0: must be 1..256"},
      {&DeviceParameters::num_streams, 257, "num_streams = 257: must be 1..256"},
      {&DeviceParameters::queue_depth, 0, "queue_depth = 0: must be 1..255"},
      {&DeviceParameters::queue_depth, 256, "queue_depth = 256: must be 1..255"},
      {&DeviceParameters::counter_width, 1, "counter_width = 1: must be 2..32"},
      {&DeviceParameters::counter_width, 33, "counter_width = 33: must be 2..32"},
      {&DeviceParameters::event_depth, 0, "event_depth = 0: must be 1..255"},
      {&DeviceParameters::event_depth, 256, "event_depth = 256: must be 1..255"},
  };
  int compared = 0;
  for (const auto& row : bad) {
    DeviceParameters parameters;
    parameters.*row.field = row.value;
    EXPECT_EQ(parameter_error(parameters).value_or("accepted"), row.message);
    ++compared;
  }
  EXPECT_EQ(compared, 13);
  EXPECT_EQ(
      parameter_error({.forecast_engine = false, .published_engine = false}).value_or("accepted"),
      "forecast_engine = 0, published_engine = 0: one engine at least must be present");
}

}  // namespace
}  // namespace opd::sc
