// Log2 code, forecast engine and risk against values worked out by hand from docs/numerics.md. The
// device shows neither x nor m, so both are pinned between two comparisons: the limit register is
// set to where a flag must be raised, and one unit further, where it must not.
#include <gtest/gtest.h>

#include <span>

#include "Vopd_top.h"
#include "pins.hpp"

namespace opd::tb {
namespace {

bool raised(const OpRecord& record, Flag flag) { return (record.flags & flag_bit(flag)) != 0; }

void set_limit(Config& config, Format format, int limit) {
  const auto value = static_cast<std::int16_t>(limit);
  switch (format) {
    case Format::kFp16:
      config.limit_fp16 = value;
      break;
    case Format::kBf16:
      config.limit_bf16 = value;
      break;
    case Format::kE4m3:
      config.limit_e4m3 = value;
      break;
    case Format::kE5m2:
      config.limit_e5m2 = value;
      break;
    case Format::kFp32:
      config.limit_fp32 = value;
      break;
  }
}

struct CodeRow {
  Format format;
  std::uint32_t max_mag;
  int code;  ///< x, 1/32 bit
};
constexpr CodeRow kCodes[] = {
    // 1.0: exponent field = bias, f = 0, correction 1.
    {Format::kFp16, 0x3C00, 1},
    {Format::kBf16, 0x3F80, 1},
    {Format::kE4m3, 0x38, 1},
    {Format::kE5m2, 0x3C, 1},
    {Format::kFp32, 0x3F800000, 1},
    // Every eighth of [1, 2): f = 4t, corrections 1 2 3 3 3 3 2 1.
    {Format::kFp16, 0x3C80, 6},
    {Format::kFp16, 0x3D00, 11},
    {Format::kFp16, 0x3D80, 15},
    {Format::kFp16, 0x3E00, 19},
    {Format::kFp16, 0x3E80, 23},
    {Format::kFp16, 0x3F00, 26},
    {Format::kFp16, 0x3F80, 29},
    {Format::kFp16, 0x3FE0, 32},
    // Only the upper five significand bits count.
    {Format::kFp16, 0x3C1F, 1},
    {Format::kFp16, 0x3C20, 2},
    {Format::kBf16, 0x3F83, 1},
    {Format::kBf16, 0x3F84, 2},
    {Format::kFp32, 0x3F83FFFF, 1},
    {Format::kFp32, 0x3F840000, 2},
    // Fewer than five: padded below. 1.125 -> f = 4, t = 1; 1.25 -> f = 8, t = 2.
    {Format::kE4m3, 0x39, 6},
    {Format::kE5m2, 0x3D, 11},
    // Largest finite magnitude: the reset values of the limits.
    {Format::kFp16, 0x7BFF, 512},
    {Format::kBf16, 0x7F7F, 4096},
    {Format::kE4m3, 0x7E, 282},
    {Format::kE5m2, 0x7B, 506},
    {Format::kFp32, 0x7F7FFFFF, 4096},
    // Smallest magnitude: exponent field 0 is read like any other.
    {Format::kFp16, 0x0001, -479},
    {Format::kBf16, 0x0001, -4063},
    {Format::kE4m3, 0x01, -218},
    {Format::kE5m2, 0x01, -469},
    {Format::kFp32, 0x00000001, -4063},
};

TEST(Log2Code, HandTable) {
  int compared = 0;
  for (const CodeRow& row : kCodes) {
    for (const int excess : {0, 1}) {  // headroom 0 is critical, headroom 1 is not
      Config config;
      config.critical_headroom = 0;
      set_limit(config, row.format, row.code + excess);
      Pins<Vopd_top> pins(config);
      const OpRecord record = pins.sample(finite(0, 0, row.max_mag, row.format));
      EXPECT_EQ(raised(record, Flag::kCritical), excess == 0)
          << "format " << int(row.format) << " magnitude " << row.max_mag << " excess " << excess;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 2 * static_cast<int>(std::size(kCodes)));
}

/// One sample of a history: FP16 magnitude with its code, and the scale.
struct Step {
  std::uint32_t max_mag;
  int code;
  int scale_log2;
};
// Codes of FP16 magnitudes around 1.0 (see kCodes): f = 30, 31 below it, f = 0..3 above.
constexpr std::uint32_t kMinus1 = 0x3BC0, kZero = 0x3BE0, kOne = 0x3C00, kTwo = 0x3C20,
                        kThree = 0x3C40, kFour = 0x3C60;

/// The baseline m after `history` is exactly `baseline`: with x = 4, FORECAST with shift 2 means
/// 4*d > 4*h, i.e. 16 - m > limit - 4.
void expect_baseline(const std::vector<Step>& history, int baseline, Config config = {}) {
  const int deviation = 4 * 4 - baseline;
  for (const int excess : {-1, 0}) {
    config.forecast_shift = 2;
    config.forecast_headroom = 1023;
    config.limit_fp16 = static_cast<std::int16_t>(4 + deviation + excess);
    Pins<Vopd_top> pins(config);
    std::uint32_t step = 0;
    for (const Step& s : history) {
      Statistic statistic = finite(9, step++, s.max_mag);
      statistic.descriptor.scale_log2 = static_cast<std::int8_t>(s.scale_log2);
      pins.sample(statistic);
    }
    EXPECT_EQ(raised(pins.sample(finite(9, step, kFour)), Flag::kForecast), excess < 0)
        << "baseline is not " << baseline;
  }
}

TEST(Baseline, FirstSampleSeeds) {
  expect_baseline({{kOne, 1, 0}}, 4);
  expect_baseline({{0x3FE0, 32, 1}}, 0);  // xb = 32 - 32*1
  expect_baseline({{kOne, 1, -1}}, 132);  // xb = 1 + 32
  expect_baseline({{kOne, 1, 2}}, -252);  // xb = 1 - 64
}

TEST(Baseline, RoundsHalfUp) {
  expect_baseline({{kOne, 1, 0}, {kThree, 3, 0}}, 5);                    // d =  8: (8+8)>>4 = 1
  expect_baseline({{kOne, 1, 0}, {kMinus1, -1, 0}}, 4);                  // d = -8: (-8+8)>>4 = 0
  expect_baseline({{kOne, 1, 0}, {kThree, 3, 0}, {kMinus1, -1, 0}}, 4);  // d = -9: (-9+8)>>4 = -1
  expect_baseline({{kOne, 1, 0}, {kThree, 3, 0}, {kTwo, 2, 0}}, 5);      // d =  3: dead band
  expect_baseline({{kOne, 1, 0}, {kThree, 3, 0}, {kZero, 0, 0}}, 5);     // d = -5: dead band
}

TEST(Baseline, ShiftIsTheWeight) {
  Config config;
  config.baseline_shift = 1;
  expect_baseline({{kOne, 1, 0}, {kThree, 3, 0}}, 8, config);  // d = 8: (8+1)>>1 = 4
  config.baseline_shift = 8;
  expect_baseline({{kOne, 1, 0}, {0x4400, 65, 0}}, 5, config);  // d = 256: (256+128)>>8 = 1
}

/// 0x3F00 under a scale of 2^4: xb = 26 - 128 = -102, so m = -408. kOne under 2^16: m = -2044.
TEST(Baseline, LagsThreeBitsAtMost) {
  EXPECT_EQ(Config{}.baseline_max_lag, 3);
  expect_baseline({{0x3F00, 26, 4}, {kZero, 0, 0}}, -382);  // d = 408: 26, and 382 are left
  expect_baseline({{0x3F00, 26, 4}, {kOne, 1, 0}}, -380);   // d = 412: 26, and 386 would be
  expect_baseline({{kOne, 1, 16}, {kTwo, 2, 0}}, -376);     // 8 - 384
  expect_baseline({{kOne, 1, 16}, {kTwo, 2, 0}, {kTwo, 2, 0}}, -352);  // d = 384: 24
  // Downwards without bound: m = 2052, d = -2044: -127.75, rounded half up to -128.
  expect_baseline({{kOne, 1, -16}, {kTwo, 2, 0}}, 1924);
  Config config;
  config.baseline_max_lag = 1;
  expect_baseline({{kOne, 1, 16}, {kTwo, 2, 0}}, -120, config);  // 8 - 128
  config.baseline_max_lag = 7;
  expect_baseline({{kOne, 1, 16}, {kTwo, 2, 0}}, -888, config);  // 8 - 896
  // kOne under 2^7: m = -892, d = 900: 56. The average alone, below 15 bits or without a bound.
  expect_baseline({{kOne, 1, 7}, {kTwo, 2, 0}}, -376);
  for (const int max_lag : {15, 0}) {
    config.baseline_max_lag = static_cast<std::uint8_t>(max_lag);
    expect_baseline({{kOne, 1, 7}, {kTwo, 2, 0}}, -836, config);
  }
}

/// A jump is judged against the baseline before it, and one that stays is no jump any more.
TEST(Jump, AStepThatStaysIsAJumpOnce) {
  for (const int max_lag : {3, 0}) {
    Config config;
    config.baseline_max_lag = static_cast<std::uint8_t>(max_lag);
    Pins<Vopd_top> pins(config);
    for (std::uint32_t i = 0; i < 16; ++i) pins.sample(finite(9, i, kOne));
    EXPECT_TRUE(raised(pins.sample(finite(9, 16, 0x5C00)), Flag::kJump));
    EXPECT_EQ(raised(pins.sample(finite(9, 17, 0x5C00)), Flag::kJump), max_lag == 0);
  }
}

TEST(Baseline, NonfiniteAndAllZeroFreezeIt) {
  Config config;
  Pins<Vopd_top> pins(config);
  expect_baseline({{kOne, 1, 0}, {0, 0, 0}, {0, 0, 5}}, 4);  // not usable
  // A non-finite sample, even with a finite maximum far away, leaves m at 4.
  for (const int excess : {-1, 0}) {
    config.forecast_shift = 2;
    config.forecast_headroom = 1023;
    config.limit_fp16 = static_cast<std::int16_t>(4 + 12 + excess);
    Pins<Vopd_top> frozen(config);
    frozen.sample(finite(9, 0, kOne));
    Statistic bad = nonfinite(9, 1);
    bad.summary.max_mag = 0x7BFF;
    const OpRecord record = frozen.sample(bad);
    EXPECT_EQ(record.flags, flag_bit(Flag::kNonfinite) | flag_bit(Flag::kWarmup));
    EXPECT_EQ(raised(frozen.sample(finite(9, 2, kFour)), Flag::kForecast), excess < 0);
  }
}

TEST(Forecast, NeedsLittleHeadroomAndEnoughDeviation) {
  struct Row {
    std::uint32_t first, second;
    bool forecast;
  };
  const Row rows[] = {
      {0x6CE0, 0x7000, true},   // x 393 then 417: h = 95 < 96, 4d = 384 > 4h = 380
      {0x6D00, 0x7000, false},  // x 395 then 417: 4d = 352
      {0x3C00, 0x6FE0, false},  // x 1 then 416: h = 96 is not below 96
      {0x3C00, 0x7000, true},   // x 1 then 417
      {0x7000, 0x7000, false},  // d = 0
  };
  for (const Row& row : rows) {
    Pins<Vopd_top> pins;
    pins.sample(finite(0, 0, row.first));
    EXPECT_EQ(raised(pins.sample(finite(0, 1, row.second)), Flag::kForecast), row.forecast)
        << row.first;
  }
}

/// E4M3 and E5M2 have FORECAST.SHIFT_FP8, the other formats FORECAST.SHIFT. h = 25 in each row: d << s > 100.
TEST(Forecast, TheEightBitFormatsHaveAHorizonOfTheirOwn) {
  struct Row {
    Format format;
    std::uint32_t first, second;
    int deviation;
    bool eight_bits;
  };
  const Row rows[] = {
      {Format::kE4m3, 0x77, 0x78, 16, true},       // x 253 then 257, limit 282
      {Format::kE4m3, 0x75, 0x78, 40, true},       // 247
      {Format::kE4m3, 0x74, 0x78, 56, true},       // 243
      {Format::kE5m2, 0x77, 0x78, 28, true},       // x 474 then 481, limit 506
      {Format::kE5m2, 0x76, 0x78, 56, true},       // 467
      {Format::kFp16, 0x7820, 0x78A0, 20, false},  // x 482 then 487, limit 512
      {Format::kFp16, 0x7760, 0x78A0, 40, false},  // 477
      {Format::kBf16, 0x7F04, 0x7F14, 20, false},  // x 4066 then 4071, limit 4096
      {Format::kFp32, 0x7F040000, 0x7F140000, 20, false},
  };
  int compared = 0;
  for (const Row& row : rows) {
    for (const int shift : {0, 1, 2, 3}) {
      Config config;
      config.forecast_shift = static_cast<std::uint8_t>(row.eight_bits ? 3 - shift : shift);
      config.forecast_shift_fp8 = static_cast<std::uint8_t>(row.eight_bits ? shift : 3 - shift);
      Pins<Vopd_top> pins(config);
      pins.sample(finite(0, 0, row.first, row.format));
      EXPECT_EQ(raised(pins.sample(finite(0, 1, row.second, row.format)), Flag::kForecast),
                row.deviation << shift > 100)
          << int(row.format) << " " << row.first << " shift " << shift;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 36);
  EXPECT_EQ(Config{}.forecast_shift, 2);
  EXPECT_EQ(Config{}.forecast_shift_fp8, 1);
}

/// The baseline of the jumps below: x = 193.
constexpr std::uint32_t kLevel = 0x5400;

TEST(Jump, NeedsSixteenSamplesAndMoreThanTheThreshold) {
  struct Row {
    int samples;
    std::uint32_t last;
    bool jump;
  };
  const Row rows[] = {
      {16, 0x6020, true},   // x 290 - 193 = 97 > 96, and h = 222 < 256
      {16, 0x6000, false},  // x 289 - 193 = 96
      {15, 0x6020, false},
  };
  for (const Row& row : rows) {
    Pins<Vopd_top> pins;
    for (int i = 0; i < row.samples; ++i)
      pins.sample(finite(0, static_cast<std::uint32_t>(i), kLevel));
    EXPECT_EQ(raised(pins.sample(finite(0, 99, row.last)), Flag::kJump), row.jump) << row.samples;
  }
}

/// Reset registers: a jump counts when it ends less than 256 below the limit of its format.
TEST(Jump, CountsWithinEightBitsOfTheLimit) {
  struct Row {
    Format format;
    std::uint32_t level, last;
    bool jump;
  };
  const Row rows[] = {
      {Format::kFp16, 0x3C00, 0x5C00, true},           // x 257: h = 512 - 257 = 255
      {Format::kFp16, 0x3C00, 0x5BE0, false},          // x 256: h = 256
      {Format::kBf16, 0x3F80, 0x7B80, true},           // x 3841: h = 4096 - 3841 = 255
      {Format::kBf16, 0x3F80, 0x7B7C, false},          // x 3840: h = 256
      {Format::kE4m3, 0x20, 0x3F, true},               // x -95, 29: h = 282 - 29 = 253
      {Format::kE4m3, 0x20, 0x3E, false},              // x -95, 26: h = 256
      {Format::kE5m2, 0x3C, 0x5C, true},               // x 257: h = 506 - 257 = 249
      {Format::kE5m2, 0x3C, 0x5B, false},              // x 250: h = 256
      {Format::kFp32, 0x3F800000, 0x7B800000, true},   // x 3841: h = 255
      {Format::kFp32, 0x3F800000, 0x7B7C0000, false},  // x 3840: h = 256
  };
  for (const Row& row : rows) {
    Pins<Vopd_top> pins;
    for (std::uint32_t i = 0; i < 16; ++i) pins.sample(finite(0, i, row.level, row.format));
    EXPECT_EQ(raised(pins.sample(finite(0, 16, row.last, row.format)), Flag::kJump), row.jump)
        << row.last;
  }
}

Statistic under_scale(Statistic statistic, int scale_log2) {
  statistic.descriptor.scale_log2 = static_cast<std::int8_t>(scale_log2);
  return statistic;
}

/// Headrooms of both kinds of operands, a sample under a scale, and whether its flag is raised.
struct Kind {
  int unscaled, scaled;  ///< registers
  int scale_log2;
  int headroom;  ///< h of the sample
  bool raised;
};

/// `flag` of a sample with x = 385, `headroom` below the limit, after 16 with x = 1 and the same
/// scale: d = 4*384 = 1536, more than any threshold. The two registers are those of the flag.
void expect_kinds(std::span<const Kind> rows, Flag flag, std::uint16_t Config::*unscaled,
                  std::uint16_t Config::*scaled) {
  for (const Kind& row : rows) {
    Config config;
    config.*unscaled = static_cast<std::uint16_t>(row.unscaled);
    config.*scaled = static_cast<std::uint16_t>(row.scaled);
    config.limit_fp16 = static_cast<std::int16_t>(385 + row.headroom);
    Pins<Vopd_top> pins(config);
    for (std::uint32_t i = 0; i < 16; ++i)
      pins.sample(under_scale(finite(0, i, kOne), row.scale_log2));
    EXPECT_EQ(raised(pins.sample(under_scale(finite(0, 16, 0x6C00), row.scale_log2)), flag),
              row.raised)
        << row.unscaled << "/" << row.scaled << " scale " << row.scale_log2 << " headroom "
        << row.headroom;
  }
}

TEST(Forecast, EachKindOfOperandHasItsHeadroom) {
  const Kind rows[] = {
      // Reset. A scale below 1 is a scale too.
      {96, 20, 0, 95, true},
      {96, 20, 0, 96, false},
      {96, 20, 1, 19, true},
      {96, 20, 1, 20, false},
      {96, 20, -1, 19, true},
      {96, 20, -1, 20, false},
      {96, 20, 127, 19, true},
      {96, 20, 127, 20, false},
      {96, 20, -128, 19, true},
      {96, 20, -128, 20, false},
      // The other way round.
      {100, 200, 0, 99, true},
      {100, 200, 0, 100, false},
      {100, 200, 1, 199, true},
      {100, 200, -1, 199, true},
      {100, 200, 1, 200, false},
      // The ends of the range; a limit register may lie below a sample.
      {0, 1023, 0, 0, false},
      {0, 1023, 0, -1, true},
      {0, 1023, 1, 1022, true},
      {0, 1023, 1, 1023, false},
      {1023, 0, 0, 1022, true},
      {1023, 0, 0, 1023, false},
      {1023, 0, 1, 0, false},
      {1023, 0, 1, -1, true},
  };
  EXPECT_EQ(Config{}.forecast_headroom, 96);
  EXPECT_EQ(Config{}.forecast_headroom_scaled, 20);
  expect_kinds(rows, Flag::kForecast, &Config::forecast_headroom,
               &Config::forecast_headroom_scaled);
}

TEST(Jump, EachKindOfOperandHasItsHeadroom) {
  const Kind rows[] = {
      // Reset: with a limit that is not below the largest number, never under a scale.
      {256, 0, 0, 255, true},
      {256, 0, 0, 256, false},
      {256, 0, 1, 0, false},
      {256, 0, -1, 0, false},
      {256, 0, 127, 0, false},
      {256, 0, -128, 0, false},
      {256, 0, 1, -1, true},
      // The other way round.
      {0, 300, 0, 0, false},
      {0, 300, 0, -1, true},
      {0, 300, 1, 299, true},
      {0, 300, -1, 299, true},
      {0, 300, 127, 299, true},
      {0, 300, -128, 299, true},
      {0, 300, 1, 300, false},
      {0, 300, -1, 300, false},
      // All the headroom there is below the largest limit: 8191 - 385.
      {16383, 0, 0, 7806, true},
      {16383, 0, 1, 7806, false},
      {0, 16383, 1, 7806, true},
      {0, 16383, 0, 7806, false},
  };
  EXPECT_EQ(Config{}.jump_headroom, 256);
  EXPECT_EQ(Config{}.jump_headroom_scaled, 0);
  expect_kinds(rows, Flag::kJump, &Config::jump_headroom, &Config::jump_headroom_scaled);
}

/// Near zero in the formats with the widest exponent: the subnormal with x = -4063, then
/// 2^-124 * (1 + 1/32) with x = -32*124 + 2 = -3966, which is 97 more. The largest limit, 8191, is
/// 12157 away. 16383 is always.
TEST(Jump, TheLargestHeadrooms) {
  struct Row {
    Format format;
    std::uint32_t level, last;
  };
  const Row rows[] = {{Format::kBf16, 0x0001, 0x0184}, {Format::kFp32, 0x00000001, 0x01840000}};
  int compared = 0;
  for (const Row& row : rows) {
    for (const int scale_log2 : {0, 16}) {
      for (const int gate : {8192, 12157, 12158, 16383}) {
        Config config;
        set_limit(config, row.format, 8191);
        (scale_log2 == 0 ? config.jump_headroom : config.jump_headroom_scaled) =
            static_cast<std::uint16_t>(gate);
        Pins<Vopd_top> pins(config);
        for (std::uint32_t i = 0; i < 16; ++i)
          pins.sample(under_scale(finite(0, i, row.level, row.format), scale_log2));
        const Statistic last = under_scale(finite(0, 16, row.last, row.format), scale_log2);
        EXPECT_EQ(raised(pins.sample(last), Flag::kJump), gate > 12157)
            << int(row.format) << " scale " << scale_log2 << " gate " << gate;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 16);
}

/// The kind is that of the sample, whatever the baseline was made of.
TEST(Forecast, TheKindOfOperandIsThatOfTheSample) {
  struct Row {
    int before, scale_log2;
    int headroom;
    bool forecast, jump;
  };
  const Row rows[] = {
      // m = 4*1, xb = 385 - 32: d = 1408.
      {0, 1, 19, true, false},
      {0, 1, 20, false, false},
      // m = 4*(1 - 32), xb = 385: d = 1664.
      {1, 0, 95, true, true},
      {1, 0, 96, false, true},
      {1, 0, 255, false, true},
      {1, 0, 256, false, false},
  };
  for (const Row& row : rows) {
    Config config;
    config.limit_fp16 = static_cast<std::int16_t>(385 + row.headroom);
    Pins<Vopd_top> pins(config);
    for (std::uint32_t i = 0; i < 16; ++i) pins.sample(under_scale(finite(0, i, kOne), row.before));
    const OpRecord record = pins.sample(under_scale(finite(0, 16, 0x6C00), row.scale_log2));
    EXPECT_EQ(raised(record, Flag::kForecast), row.forecast) << row.headroom;
    EXPECT_EQ(raised(record, Flag::kJump), row.jump) << row.headroom;
  }
}

/// Steps around a learning-rate change at step 50 with DESENSITISE.STEPS = 40.
struct Around {
  std::uint32_t step;
  bool desensitised;
};
constexpr Around kAround[] = {{49, false}, {50, true}, {89, true}, {90, false}};

TEST(Desensitised, JumpNeedsMore) {
  struct Row {
    std::uint32_t last;
    bool jump, desensitised_jump;
  };
  const Row rows[] = {
      {0x6420, true, true},   // x 322 - 193 = 129 > 96 + 32
      {0x6400, true, false},  // x 321 - 193 = 128
      {0x6000, false, false},
  };
  int compared = 0;
  for (const Row& row : rows) {
    for (const Around& around : kAround) {
      Pins<Vopd_top> pins;
      for (std::uint32_t i = 0; i < 16; ++i) pins.sample(finite(0, i, kLevel));
      pins.write(reg::kLearningRateChange, 50);
      EXPECT_EQ(raised(pins.sample(finite(0, around.step, row.last)), Flag::kJump),
                around.desensitised ? row.desensitised_jump : row.jump)
          << row.last << " step " << around.step;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 12);
}

TEST(Desensitised, TheHorizonOfForecastIsHalf) {
  struct Row {
    std::uint32_t first;
    bool forecast, desensitised_forecast;
  };
  const Row rows[] = {
      {0x69C0, true, true},   // x 369 then 417: h = 95, 4d = 768 > 8h = 760
      {0x69E0, true, false},  // x 370: 4d = 752
      {0x6CE0, true, false},  // x 393: 4d = 384 > 4h = 380
      {0x6D00, false, false},
  };
  int compared = 0;
  for (const Row& row : rows) {
    for (const Around& around : kAround) {
      Pins<Vopd_top> pins;
      pins.sample(finite(0, 0, row.first));
      pins.write(reg::kLearningRateChange, 50);
      EXPECT_EQ(raised(pins.sample(finite(0, around.step, 0x7000)), Flag::kForecast),
                around.desensitised ? row.desensitised_forecast : row.forecast)
          << row.first << " step " << around.step;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 16);
}

TEST(Warmup, IsLoweredAfterSixteenUsableSamples) {
  Pins<Vopd_top> pins;
  for (std::uint32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(pins.sample(finite(0, i, kOne)).flags, flag_bit(Flag::kWarmup)) << i;
    pins.sample(finite(0, i, 0));  // not usable: does not count
  }
  EXPECT_EQ(pins.sample(finite(0, 16, kOne)).flags, 0);
}

TEST(Reseed, AfterARunOfNonfiniteSamplesOnly) {
  Config config;
  config.baseline_reseed_run = 3;
  config.baseline_warmup_samples = 1;
  Pins<Vopd_top> pins(config);
  const auto in_warmup = [&](std::uint32_t step) {
    return raised(pins.sample(finite(0, step, kOne)), Flag::kWarmup);
  };
  EXPECT_TRUE(in_warmup(0));
  pins.sample(nonfinite(0, 1));
  pins.sample(nonfinite(0, 2));
  pins.sample(finite(0, 3, 0));  // finite: ends the run
  pins.sample(nonfinite(0, 4));
  pins.sample(nonfinite(0, 5));
  EXPECT_FALSE(in_warmup(6));
  for (std::uint32_t step = 7; step < 10; ++step) pins.sample(nonfinite(0, step));
  EXPECT_TRUE(in_warmup(10));
  EXPECT_FALSE(in_warmup(11));

  config.baseline_reseed_run = 0;  // never
  Pins<Vopd_top> never(config);
  never.sample(finite(0, 0, kOne));
  for (std::uint32_t step = 1; step < 300; ++step) never.sample(nonfinite(0, step));
  EXPECT_FALSE(raised(never.sample(finite(0, 300, kOne)), Flag::kWarmup));
}

TEST(Risk, IsTheSaturatingSumOfWeights) {
  Config config;
  config.weight_critical = 100;
  config.weight_saturated = 7;
  config.weight_warmup = 30;
  config.weight_nonfinite = 200;
  Pins<Vopd_top> pins(config);
  Statistic s = finite(0, 0, 0x7BFF);
  s.summary.saturated_count = 1;
  EXPECT_EQ(pins.sample(s).risk, 137);  // CRITICAL, SATURATED, WARMUP
  s.summary.nonfinite_count = 1;
  EXPECT_EQ(pins.sample(s).risk,
            237);  // NONFINITE, SATURATED, WARMUP: no CRITICAL on a non-finite sample
  config.weight_warmup = 255;
  Pins<Vopd_top> saturating(config);
  EXPECT_EQ(saturating.sample(s).risk, 255);
}

TEST(State, IsPerOperator) {
  Pins<Vopd_top> pins;
  for (std::uint32_t i = 0; i < 16; ++i) {
    for (std::uint16_t op = 0; op < 256; op = static_cast<std::uint16_t>(op + 85)) {
      pins.sample(finite(op, i, op == 85 ? 0x6020 : kLevel));
    }
  }
  EXPECT_FALSE(raised(pins.sample(finite(85, 16, 0x6020)), Flag::kJump));
  EXPECT_TRUE(raised(pins.sample(finite(170, 16, 0x6020)), Flag::kJump));
  EXPECT_TRUE(raised(pins.sample(finite(84, 16, 0x6020)), Flag::kWarmup));
}

}  // namespace
}  // namespace opd::tb
