// Accumulation, saturation and combination of tap summaries.
#include "opd/reference/tap.hpp"

#include <gtest/gtest.h>

#include "oracle.hpp"

namespace opd {
namespace {

using ref::accumulate;
using ref::combine;

/// A summary as `accumulate` could have left it, counters often at or near their limit.
TapSummary draw_summary(std::mt19937_64& rng, unsigned counter_width) {
  const std::uint32_t limit = ref::counter_limit(counter_width);
  const auto count = [&] {
    const auto wide = static_cast<std::uint32_t>(rng());
    return rng() % 4 == 0 ? limit - wide % 3 : wide & limit;
  };
  TapSummary summary{.max_mag = static_cast<std::uint32_t>(rng()),
                     .element_count = count(),
                     .nonfinite_count = count(),
                     .first_nonfinite = std::min(count(), limit - 1),
                     .saturated_count = count(),
                     .subnormal_count = count(),
                     .zero_count = count()};
  if (rng() % 3 == 0) summary.first_nonfinite = kNoElement;
  return summary;
}

TEST(ReferenceTap, CombineIsAssociativeCommutativeAndHasAnIdentity) {
  std::mt19937_64 rng(tb::case_seed(2));
  std::size_t compared = 0;
  for (const unsigned width : {2u, 3u, 8u, 16u, 31u, 32u}) {
    for (int k = 0; k < 5000; ++k) {
      const TapSummary a = draw_summary(rng, width), b = draw_summary(rng, width),
                       c = draw_summary(rng, width);
      ASSERT_EQ(combine(combine(a, b, width), c, width), combine(a, combine(b, c, width), width));
      ASSERT_EQ(combine(a, b, width), combine(b, a, width));
      ASSERT_EQ(combine(a, {}, width), a);
      ASSERT_EQ(combine({}, a, width), a);
      compared += 4;
    }
  }
  EXPECT_EQ(compared, 6u * 5000 * 4);
}

TEST(ReferenceTap, EveryReductionTreeGivesTheSerialResult) {
  std::mt19937_64 rng(tb::case_seed(3));
  std::size_t compared = 0;
  for (const Format format : tb::kFormats) {
    for (const unsigned width : {2u, 4u, 7u, 32u}) {
      for (int k = 0; k < 50; ++k) {
        const auto content =
            static_cast<tb::Content>(rng() % static_cast<unsigned>(tb::Content::kCount));
        const std::size_t count = 1 + rng() % 200;
        const std::vector<std::byte> bytes = tb::draw_elements(rng, format, content, count, 0);
        TapSummary serial;
        std::vector<TapSummary> parts(count);
        for (std::size_t i = 0; i < count; ++i) {
          const std::uint32_t bits = tb::load_bits(format, bytes, i);
          accumulate(serial, format, bits, i, true, width);
          accumulate(parts[i], format, bits, i, true, width);
        }
        while (parts.size() > 1) {  // two random parts become one
          std::swap(parts[rng() % parts.size()], parts.back());
          const TapSummary last = parts.back();
          parts.pop_back();
          TapSummary& other = parts[rng() % parts.size()];
          other = combine(last, other, width);
        }
        ASSERT_EQ(parts.front(), serial);
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 5u * 4 * 50);
}

TEST(ReferenceTap, CountersStopAtTheirLimit) {
  for (const unsigned width : {2u, 5u, 32u}) {
    const std::uint32_t limit = ref::counter_limit(width);
    TapSummary summary{.element_count = limit - 1, .zero_count = limit - 1};
    accumulate(summary, Format::kFp16, 0, 0, true, width);
    EXPECT_EQ(summary.zero_count, limit);
    accumulate(summary, Format::kFp16, 0, 1, true, width);
    EXPECT_EQ(summary.zero_count, limit);
    EXPECT_EQ(summary.element_count, limit);
  }
}

TEST(ReferenceTap, FirstNonfiniteStopsOneBelowTheCounters) {
  TapSummary narrow, wide, far;
  accumulate(narrow, Format::kE4m3, 0x7F, 100, true, 5);
  EXPECT_EQ(narrow.first_nonfinite, 30u);
  accumulate(wide, Format::kE4m3, 0x7F, 100, true, 32);
  EXPECT_EQ(wide.first_nonfinite, 100u);
  accumulate(far, Format::kE4m3, 0x7F, std::uint64_t{1} << 33, true, 32);
  EXPECT_EQ(far.first_nonfinite, 0xFFFFFFFEu);
}

TEST(ReferenceTap, ADisabledElementChangesNothing) {
  TapSummary summary;
  accumulate(summary, Format::kFp16, 0x7C00, 0, false, 32);
  EXPECT_EQ(summary, TapSummary{});
  accumulate(summary, Format::kFp16, 0x7C00, 1, true, 32);
  EXPECT_EQ(summary.first_nonfinite, 1u);  // a disabled lane keeps its index
}

TEST(ReferenceTap, CountersOfAStatisticAreClamped) {
  const TapSummary statistic{.max_mag = 0xFFFFFFFFu,
                             .element_count = 15,
                             .nonfinite_count = 16,
                             .first_nonfinite = 15,
                             .saturated_count = 99,
                             .subnormal_count = 0,
                             .zero_count = 0xFFFFFFFFu};
  EXPECT_EQ(ref::clamp_summary(statistic, 4), (TapSummary{.max_mag = 0xFFFFFFFFu,
                                                          .element_count = 15,
                                                          .nonfinite_count = 15,
                                                          .first_nonfinite = 14,
                                                          .saturated_count = 15,
                                                          .subnormal_count = 0,
                                                          .zero_count = 15}));
  EXPECT_EQ(ref::clamp_summary(TapSummary{}, 4).first_nonfinite, kNoElement);
  EXPECT_EQ(ref::clamp_summary(statistic, 32), statistic);
}

TEST(ReferenceTap, OfAStatisticTheMagnitudeBitsOfItsFormatCount) {
  const auto kept = [](unsigned format) {
    return ref::sideband_summary(static_cast<Format>(format), {.max_mag = 0xFFFFFFFFu}, 32).max_mag;
  };
  EXPECT_EQ(kept(0), 0x7FFFu);
  EXPECT_EQ(kept(1), 0x7FFFu);
  EXPECT_EQ(kept(2), 0x7Fu);
  EXPECT_EQ(kept(3), 0x7Fu);
  EXPECT_EQ(kept(4), 0x7FFFFFFFu);
  for (const unsigned illegal : {5u, 7u, 255u}) EXPECT_EQ(kept(illegal), 0xFFFFFFFFu);
  EXPECT_EQ(ref::sideband_summary(Format::kFp16, {.max_mag = 0x80000000u, .zero_count = 99}, 4),
            (TapSummary{.max_mag = 0, .zero_count = 15}));
}

}  // namespace
}  // namespace opd
