// The batch pipeline on Thrust's host back end, and the GPU kernel's slices thread by thread,
// against the CPU reference.
#include <gtest/gtest.h>
#include <thrust/execution_policy.h>

#include "opd/reference/cpu.hpp"
#include "opd/reference/segmented.hpp"
#include "oracle.hpp"

namespace opd {
namespace {

// All threads of a block, combined, are the serial summary: heads, tails, tiles and single loads.
TEST(ReferenceSlice, ABlockOfThreadsIsTheSerialSummary) {
  const std::uint64_t seed = tb::case_seed(11);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  std::size_t compared = 0;
  for (const Format format : tb::kFormats) {
    const std::size_t size = tb::element_size(format);
    for (int k = 0; k < 700; ++k) {
      const auto content = static_cast<tb::Content>(k % static_cast<int>(tb::Content::kCount));
      const std::size_t misalignment = rng() % 16 / size * size;
      const auto num_threads = std::array<unsigned, 3>{16, 32, 256}[rng() % 3];
      const std::size_t count =
          k < 100 ? static_cast<std::size_t>(k) : rng() % (k % 7 == 0 ? 20000 : 1500);
      const std::uint64_t first = rng() % 50;  // index of the chunk's first element
      const std::vector<std::byte> bytes =
          tb::draw_elements(rng, format, content, first + count, misalignment);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % 16, 0u);
      const std::span<const std::byte> elements = std::span(bytes).subspan(misalignment);
      const ref::Segment segment{
          .descriptor = {.format = format}, .elements = elements.data(), .count = first + count};
      const ref::Chunk chunk{.first = first, .count = static_cast<std::uint32_t>(count)};
      TapSummary block;
      for (unsigned thread = 0; thread < num_threads; ++thread) {
        block = ref::combine(ref::summarise_slice(segment, chunk, thread, num_threads), block, 32);
      }
      TapSummary expected = ref::summarise_serial(format, elements.subspan(first * size));
      if (expected.first_nonfinite != kNoElement)
        expected.first_nonfinite += static_cast<std::uint32_t>(first);
      ASSERT_EQ(block, expected) << kFormatNames[static_cast<std::size_t>(format)] << " count "
                                 << count << " threads " << num_threads << " misalignment "
                                 << misalignment;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 3500u);
}

// Every pattern of the narrow formats in every lane of a tile word, with neighbours that would
// catch a carry.
template <Format kFormat>
std::size_t every_pattern_in_every_lane() {
  using P = ref::Packed<kFormat>;
  std::size_t compared = 0;
  for (const std::uint32_t neighbours : {0u, 0x3F3F3F3Fu, 0x7BFF7BFFu, 0xFFFFFFFFu}) {
    for (unsigned lane = 0; lane < P::kLanes; ++lane) {
      for (std::uint32_t bits = 0; bits <= P::kLaneMask; ++bits) {
        const std::uint32_t word =
            (neighbours & ~(P::kLaneMask << (lane * P::kWidth))) | bits << (lane * P::kWidth);
        const ref::Quad tile[1] = {{{word, 0, neighbours, word}}};
        TapSummary packed;
        ref::accumulate_tile<kFormat>(packed, tile, 7, 0);
        std::array<std::byte, 16> bytes;
        std::memcpy(bytes.data(), tile, sizeof tile);
        TapSummary serial = ref::summarise_serial(kFormat, bytes);
        if (serial.first_nonfinite != kNoElement) serial.first_nonfinite += 7;
        EXPECT_EQ(packed, serial) << std::hex << word;
        if (packed != serial) return compared;
        ++compared;
      }
    }
  }
  return compared;
}

TEST(ReferenceSlice, EveryPatternInEveryLaneOfAWord) {
  EXPECT_EQ(every_pattern_in_every_lane<Format::kFp16>(), 4u * 2 * 65536);
  EXPECT_EQ(every_pattern_in_every_lane<Format::kBf16>(), 4u * 2 * 65536);
  EXPECT_EQ(every_pattern_in_every_lane<Format::kE4m3>(), 4u * 4 * 256);
  EXPECT_EQ(every_pattern_in_every_lane<Format::kE5m2>(), 4u * 4 * 256);
}

TEST(ReferenceBatch, PlanCoversEveryElementOnceAndKeepsSeqOrder) {
  std::mt19937_64 rng(tb::case_seed(12));
  std::size_t elements = 0;
  for (int k = 0; k < 100; ++k) {
    std::vector<ref::Segment> segments(rng() % 60);
    for (std::size_t s = 0; s < segments.size(); ++s) {
      segments[s].descriptor = {.op = static_cast<std::uint16_t>(rng() % 7),
                                .format = tb::kFormats[rng() % 5]};
      segments[s].seq = static_cast<std::uint32_t>(s);
      segments[s].count = rng() % 3 == 0 ? 0 : rng() % 200;
    }
    const ref::BatchPlan plan = ref::make_plan(segments, 64);
    ASSERT_EQ(plan.segments.size(), segments.size());
    ASSERT_EQ(plan.chunk_begin.size(), segments.size() + 1);
    for (std::size_t s = 0; s < segments.size(); ++s) {
      std::uint64_t next = 0;
      ASSERT_LT(plan.chunk_begin[s], plan.chunk_begin[s + 1]);
      for (std::uint32_t c = plan.chunk_begin[s]; c < plan.chunk_begin[s + 1]; ++c) {
        EXPECT_EQ(plan.chunks[c].segment, s);
        EXPECT_EQ(plan.chunks[c].first, next);
        next += plan.chunks[c].count;
      }
      EXPECT_EQ(next, plan.segments[s].count);
      elements += next;
    }
    for (std::size_t group = 0; group + 1 < plan.op_begin.size(); ++group) {
      ASSERT_LT(plan.op_begin[group], plan.op_begin[group + 1]);
      for (std::uint32_t s = plan.op_begin[group] + 1; s < plan.op_begin[group + 1]; ++s) {
        EXPECT_EQ(plan.segments[s].descriptor.op, plan.segments[s - 1].descriptor.op);
        EXPECT_GT(plan.segments[s].seq, plan.segments[s - 1].seq);
      }
    }
    EXPECT_EQ(plan.op_begin.back(), segments.size());
  }
  EXPECT_GT(elements, 100000u);
}

TEST(ReferenceBatch, ThrustHostPipelineEqualsCpuReference) {
  const std::uint64_t seed = tb::case_seed(13);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  std::size_t compared = 0;
  for (const unsigned counter_width : {2u, 6u, 32u}) {
    const DeviceParameters parameters{.num_ops = 5,
                                      .counter_width = counter_width,
                                      .forecast_engine = counter_width != 2,
                                      .published_engine = counter_width != 6};
    Config config = counter_width == 6 ? tb::draw_config(rng) : Config{};
    config.control_enable = 1;
    config.published_min_samples = 4;
    ref::CpuReference cpu(parameters, config);
    ref::DetectorSetup setup{.config = config,
                             .forecast_engine = parameters.forecast_engine,
                             .published_engine = parameters.published_engine};
    std::vector<ref::OpState> states(parameters.num_ops);
    std::uint32_t seq = 0;
    for (int batch = 0; batch < 120; ++batch) {
      std::vector<ref::Segment> segments(1 + rng() % 40);
      std::vector<std::vector<std::byte>> storage;
      std::vector<OpRecord> expected_records;
      std::vector<TapSummary> expected_summaries;
      const std::uint32_t first_seq = seq;
      if (batch == 30 || batch == 75) {
        cpu.announce_learning_rate(static_cast<std::uint32_t>(batch));
        setup.learning_rate_change = {true, static_cast<std::uint32_t>(batch)};
      }
      for (ref::Segment& segment : segments) {
        const Format format = tb::kFormats[rng() % 5];
        segment.descriptor = {
            .op = static_cast<std::uint16_t>(rng() % parameters.num_ops),
            .format = format,
            .step = static_cast<std::uint32_t>(batch),
            .scale_log2 = static_cast<std::int8_t>(rng() % 2 == 0 ? 0 : tb::draw(rng, -20, 20))};
        segment.seq = seq++;
        if (rng() % 4 == 0) {
          segment.statistic = {
              .max_mag = static_cast<std::uint32_t>(rng()),
              .element_count = static_cast<std::uint32_t>(rng()),
              .nonfinite_count = static_cast<std::uint32_t>(rng() % 3 == 0 ? rng() : 0),
              .first_nonfinite = static_cast<std::uint32_t>(rng()),
              .zero_count = static_cast<std::uint32_t>(rng())};
        } else {
          storage.push_back(tb::draw_elements(rng, format, static_cast<tb::Content>(rng() % 6),
                                              rng() % (rng() % 9 == 0 ? 900 : 90), 0));
          segment.elements = storage.back().data();
          segment.count = storage.back().size() / tb::element_size(format);
        }
        const std::span<const std::byte> elements(segment.elements,
                                                  segment.count * tb::element_size(format));
        const TapSummary summary =
            segment.elements != nullptr
                ? ref::summarise(format, elements, counter_width)
                : ref::sideband_summary(format, segment.statistic, counter_width);
        expected_summaries.push_back(summary);
        expected_records.push_back(cpu.complete(segment.seq, segment.descriptor, summary)->record);
      }
      const ref::BatchPlan plan =
          ref::make_plan(segments, 128);  // several chunks for the longer ones
      std::vector<TapSummary> summaries(segments.size());
      std::vector<OpRecord> records(segments.size());
      ref::summarise_segments(thrust::device, plan.chunks.data(), plan.chunks.size(),
                              plan.segments.data(), counter_width, summaries.data());
      ref::advance_ops(thrust::device,
                       ref::AdvanceOp{plan.segments.data(), summaries.data(), plan.op_begin.data(),
                                      states.data(), records.data(), &setup, counter_width},
                       plan.op_begin.size() - 1);
      for (std::size_t s = 0; s < records.size(); ++s) {
        const std::size_t k = records[s].seq - first_seq;
        ASSERT_EQ(records[s], expected_records.at(k)) << "seq " << records[s].seq;
        ASSERT_EQ(summaries[s], expected_summaries.at(k)) << "seq " << records[s].seq;
        ++compared;
      }
      for (std::size_t op = 0; op < states.size(); ++op) ASSERT_EQ(states[op], cpu.states()[op]);
    }
  }
  EXPECT_GT(compared, 3u * 120 * 15);
}

}  // namespace
}  // namespace opd
