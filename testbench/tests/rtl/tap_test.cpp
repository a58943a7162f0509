// The tap: every format's extremes in every lane, element index, saturating counters, interleaved
// operators; then random beats against a model that looks at one element at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "Vopd_top.h"
#include "Vopd_top_small.h"
#include "pins.hpp"
#include "seed.hpp"

namespace opd::tb {
namespace {

struct DefaultTap {
  using Model = Vopd_top;
  static constexpr unsigned kWidth = 512, kStreams = 4, kOps = 256;
  static constexpr std::uint32_t kCounterMax = 0xFFFFFFFFu;
};
struct SmallTap {
  using Model = Vopd_top_small;
  static constexpr unsigned kWidth = 96, kStreams = 2, kOps = 5;
  static constexpr std::uint32_t kCounterMax = 31;  // 2^5 - 1
};

/// Adds one element to a summary: the definitions of docs/numerics.md, "Tap", one by one.
void add_element(TapSummary& s, const FormatRow& row, std::uint32_t bits, std::uint64_t index,
                 std::uint32_t counter_max) {
  const auto count = [&](std::uint32_t& n) { n += n < counter_max ? 1 : 0; };
  const std::uint32_t magnitude = bits & (0x7FFFFFFFu >> (32 - row.width));
  count(s.element_count);
  if (magnitude >= row.first_nonfinite) {
    count(s.nonfinite_count);
    const auto reported = std::min<std::uint64_t>(index, counter_max - 1);
    s.first_nonfinite = std::min(s.first_nonfinite, static_cast<std::uint32_t>(reported));
    return;
  }
  s.max_mag = std::max(s.max_mag, magnitude);
  if (magnitude == row.largest) count(s.saturated_count);
  if (magnitude == 0) count(s.zero_count);
  if (magnitude > 0 && magnitude < row.smallest_normal) count(s.subnormal_count);
}

void expect_summary(const Seen& seen, const TapSummary& want) {
  const TapSummary got = {.max_mag = seen.record.max_mag,
                          .element_count = seen.counts.element_count,
                          .nonfinite_count = seen.record.nonfinite_count,
                          .first_nonfinite = seen.record.first_nonfinite,
                          .saturated_count = seen.record.saturated_count,
                          .subnormal_count = seen.counts.subnormal_count,
                          .zero_count = seen.counts.zero_count};
  EXPECT_EQ(got.max_mag, want.max_mag);
  EXPECT_EQ(got.element_count, want.element_count);
  EXPECT_EQ(got.nonfinite_count, want.nonfinite_count);
  EXPECT_EQ(got.first_nonfinite, want.first_nonfinite);
  EXPECT_EQ(got.saturated_count, want.saturated_count);
  EXPECT_EQ(got.subnormal_count, want.subnormal_count);
  EXPECT_EQ(got.zero_count, want.zero_count);
}

template <class Tap>
class TapTest : public testing::Test {};
using Taps = testing::Types<DefaultTap, SmallTap>;
TYPED_TEST_SUITE(TapTest, Taps);

// Each extreme alone in each lane, both signs; all other lanes are disabled and hold all ones (a
// NaN).
TYPED_TEST(TapTest, ClassifiesExtremesInEveryLane) {
  Pins<typename TypeParam::Model> pins;
  int compared = 0;
  for (const FormatRow& row : kFormatRows) {
    const std::uint32_t sign = 1u << (row.width - 1);
    const unsigned lanes = TypeParam::kWidth / row.width;
    const std::uint32_t extremes[] = {0,
                                      1,
                                      row.smallest_normal - 1,
                                      row.smallest_normal,
                                      row.largest - 1,
                                      row.largest,
                                      row.first_nonfinite,
                                      sign - 1};
    for (const std::uint32_t magnitude : extremes) {
      for (unsigned lane = 0; lane < lanes; ++lane) {
        for (const std::uint32_t s : {0u, sign}) {
          CycleInput input;
          input.beat_valid = true;
          input.beat.descriptor.format = row.format;
          input.beat.last = true;
          input.beat.lane_enable = 1ull << lane;
          input.beat.data.fill(0xFF);
          set_element(input.beat, row.width, lane, s | magnitude);
          pins.edge(input);
          for (int i = 0; i < 12; ++i) pins.edge();

          TapSummary want;
          add_element(want, row, magnitude, lane, TypeParam::kCounterMax);
          ASSERT_EQ(pins.seen().size(), static_cast<std::size_t>(compared) + 1);
          SCOPED_TRACE(testing::Message() << "format " << int(row.format) << " magnitude "
                                          << magnitude << " lane " << lane);
          expect_summary(pins.seen().back(), want);
          ++compared;
        }
      }
    }
  }
  // 16-bit formats twice, 8-bit formats twice, FP32 once; 8 extremes, 2 signs.
  EXPECT_EQ(compared, 16 * static_cast<int>(TypeParam::kWidth / 16 * 2 + TypeParam::kWidth / 8 * 2 +
                                            TypeParam::kWidth / 32));
}

// The definitions above, checked by hand once: FP16 {Inf, 65504, smallest subnormal, -0, 1.0} in
// one beat.
TEST(TapByHand, OneOfEachClass) {
  Pins<Vopd_top> pins;
  CycleInput input;
  input.beat_valid = true;
  input.beat.last = true;
  input.beat.lane_enable = 0b11111;
  const std::uint32_t elements[] = {0x7C00, 0xFBFF, 0x0001, 0x8000, 0x3C00};
  for (unsigned lane = 0; lane < 5; ++lane) set_element(input.beat, 16, lane, elements[lane]);
  pins.edge(input);
  pins.drain();
  ASSERT_EQ(pins.seen().size(), 1u);
  expect_summary(pins.seen()[0], {.max_mag = 0x7BFF,
                                  .element_count = 5,
                                  .nonfinite_count = 1,
                                  .first_nonfinite = 0,
                                  .saturated_count = 1,
                                  .subnormal_count = 1,
                                  .zero_count = 1});
}

// A disabled lane keeps its index; beats without enabled lanes count in the index as well.
TEST(TapByHand, ElementIndexIsAPosition) {
  Pins<Vopd_top> pins;
  int compared = 0;
  for (const FormatRow& row : kFormatRows) {
    const unsigned lanes = 512 / row.width;
    for (unsigned beat = 0; beat < 3; ++beat) {
      CycleInput input;
      input.beat_valid = true;
      input.beat.descriptor.format = row.format;
      input.beat.last = beat == 2;
      // Beat 0 is disabled as a whole; NaN in the last two lanes of beat 1, the lower of them
      // disabled.
      input.beat.data.fill(beat == 2 ? 0 : 0xFF);
      input.beat.lane_enable = beat == 1 ? 1ull << (lanes - 1) : 0;
      pins.edge(input);
    }
    pins.drain();
    ASSERT_EQ(pins.seen().size(), static_cast<std::size_t>(compared) + 1);
    EXPECT_EQ(pins.seen().back().record.first_nonfinite, 2 * lanes - 1);
    EXPECT_EQ(pins.seen().back().counts.element_count, 1u);
    ++compared;
  }
  EXPECT_EQ(compared, 5);
}

TEST(TapByHand, NoLaneEnabledIsTheEmptyStatistic) {
  Pins<Vopd_top> pins;
  CycleInput input;
  input.beat_valid = true;
  input.beat.last = true;
  input.beat.data.fill(0xFF);
  pins.edge(input);
  pins.drain();
  ASSERT_EQ(pins.seen().size(), 1u);
  expect_summary(pins.seen()[0], TapSummary{});
}

// Five counter bits: 40 zeros, then Inf at index 40. Counters stop at 31, the index at 30.
TEST(TapByHand, CountersAndIndexSaturate) {
  Pins<Vopd_top_small> pins;
  CycleInput input;
  input.beat_valid = true;
  input.beat.descriptor.format = Format::kE5m2;
  input.beat.lane_enable = 0xFF;
  for (int beat = 0; beat < 5; ++beat) pins.edge(input);
  set_element(input.beat, 8, 0, 0x7C);
  input.beat.last = true;
  pins.edge(input);
  pins.drain();
  ASSERT_EQ(pins.seen().size(), 1u);
  expect_summary(pins.seen()[0], {.max_mag = 0,
                                  .element_count = 31,
                                  .nonfinite_count = 1,
                                  .first_nonfinite = 30,
                                  .saturated_count = 0,
                                  .subnormal_count = 0,
                                  .zero_count = 31});
}

// Sideband statistics are clamped by the same rule; of max_mag the bits of its format count.
TEST(TapByHand, SidebandIsClamped) {
  Pins<Vopd_top_small> pins;
  Statistic s = finite(0, 0, 0xABCDBC00);
  s.summary = {.max_mag = 0xABCDBC00,
               .element_count = 32,
               .nonfinite_count = 31,
               .first_nonfinite = 31,
               .saturated_count = 1000,
               .subnormal_count = 0xFFFFFFFF,
               .zero_count = 30};
  pins.sample(s);
  expect_summary(pins.seen().back(), {.max_mag = 0x3C00,
                                      .element_count = 31,
                                      .nonfinite_count = 31,
                                      .first_nonfinite = 30,
                                      .saturated_count = 31,
                                      .subnormal_count = 31,
                                      .zero_count = 30});
  s.summary.first_nonfinite = kNoElement;
  pins.sample(s);
  EXPECT_EQ(pins.seen().back().record.first_nonfinite, kNoElement);
}

// Random operators on all streams at once, elements near every boundary.
TYPED_TEST(TapTest, AgreesWithElementwiseModelOnInterleavedOperators) {
  const std::uint64_t seed = case_seed(20240611);
  SCOPED_TRACE("reproduce: OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  Pins<typename TypeParam::Model> pins;

  struct Open {
    bool open = false;
    Beat beat;
    const FormatRow* row = nullptr;
    std::int64_t beats_left = 0;
    std::uint64_t index = 0;
    TapSummary want;
  };
  std::vector<Open> streams(TypeParam::kStreams);
  std::map<std::uint32_t, TapSummary> expected;  // by step, which is unique per operator here
  std::uint32_t step = 0;
  // One completion per ten clocks at most: no drops.
  int since_completion = 10;

  for (int cycle = 0; cycle < 40000; ++cycle) {
    const auto s = static_cast<unsigned>(draw(rng, 0, TypeParam::kStreams - 1));
    Open& o = streams[s];
    if (!o.open) {
      o = Open{};
      o.open = true;
      o.row = &kFormatRows[draw(rng, 0, 4)];
      o.beats_left = draw(rng, 1, 12);
      o.beat.stream = static_cast<std::uint8_t>(s);
      o.beat.descriptor = {.op = static_cast<std::uint16_t>(draw(rng, 0, TypeParam::kOps - 1)),
                           .format = o.row->format,
                           .step = step++,
                           .scale_log2 = static_cast<std::int8_t>(draw(rng, -128, 127))};
    }
    ++since_completion;
    if (o.beats_left == 1 && since_completion < 10) ++o.beats_left;  // too early: it goes on
    const FormatRow& row = *o.row;
    const unsigned lanes = TypeParam::kWidth / row.width;
    o.beat.lane_enable =
        draw(rng, 0, 3) != 0 ? ~0ull : rng() & rng();  // bits past the last lane are ignored
    for (unsigned lane = 0; lane < lanes; ++lane) {
      const std::uint32_t anchors[] = {0, row.smallest_normal, row.largest, row.largest / 2,
                                       static_cast<std::uint32_t>(rng())};
      const std::uint32_t bits = anchors[draw(rng, 0, draw(rng, 0, 9) == 0 ? 4 : 1)] +
                                 static_cast<std::uint32_t>(draw(rng, -1, 1)) +
                                 (static_cast<std::uint32_t>(draw(rng, 0, 1)) << (row.width - 1));
      set_element(o.beat, row.width, lane, bits);
      if ((o.beat.lane_enable >> lane & 1) != 0) {
        add_element(o.want, row, bits, o.index + lane, TypeParam::kCounterMax);
      }
    }
    o.index += lanes;
    o.beat.last = --o.beats_left == 0;
    CycleInput input;
    input.beat_valid = true;
    input.beat = o.beat;
    pins.edge(input);
    if (o.beat.last) {
      since_completion = 0;
      expected[o.beat.descriptor.step] = o.want;
      o.open = false;
    }
  }
  pins.drain();
  ASSERT_EQ(pins.seen().size(), expected.size());
  ASSERT_GT(expected.size(), 2000u);
  for (const Seen& seen : pins.seen()) {
    SCOPED_TRACE(testing::Message() << "step " << seen.record.step);
    ASSERT_TRUE(expected.contains(seen.record.step));
    expect_summary(seen, expected[seen.record.step]);
    if (testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace opd::tb
