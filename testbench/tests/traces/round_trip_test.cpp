// What is written is read back, at any alignment; the derived values follow docs/formats.md "Replay
// of a probe at a step".
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <stdexcept>
#include <tuple>

#include "sample_traces.hpp"
#include "seed.hpp"

namespace opd::tb {
namespace {

using trace::Trace;
using trace::TraceContent;

/// NaN is a value here: series are compared by their bits.
std::vector<std::uint32_t> bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

void expect_equal(const TraceContent& got, const TraceContent& want) {
  EXPECT_EQ(got.name, want.name);
  EXPECT_EQ(got.label, want.label);
  EXPECT_EQ(got.first_bad, want.first_bad);
  EXPECT_EQ(got.model, want.model);
  EXPECT_EQ(got.framework, want.framework);
  EXPECT_EQ(got.seed, want.seed);
  EXPECT_EQ(got.manifest, want.manifest);
  EXPECT_EQ(got.probes, want.probes);
  EXPECT_EQ(got.step, want.step);
  EXPECT_EQ(got.nonfinite, want.nonfinite);
  EXPECT_EQ(got.saturated, want.saturated);
  EXPECT_EQ(got.subnormal, want.subnormal);
  EXPECT_EQ(got.zero, want.zero);
  EXPECT_EQ(bits(got.max_abs), bits(want.max_abs));
  EXPECT_EQ(bits(got.min_abs), bits(want.min_abs));
  EXPECT_EQ(bits(got.mean), bits(want.mean));
  EXPECT_EQ(bits(got.var), bits(want.var));
  EXPECT_EQ(bits(got.loss), bits(want.loss));
  EXPECT_EQ(bits(got.grad_norm), bits(want.grad_norm));
  EXPECT_EQ(bits(got.lr), bits(want.lr));
  EXPECT_EQ(bits(got.loss_scale), bits(want.loss_scale));
  EXPECT_EQ(got.raw_step, want.raw_step);
  EXPECT_EQ(got.raw, want.raw);
  EXPECT_EQ(got.operators, want.operators);
  EXPECT_EQ(got.operand_step, want.operand_step);
  EXPECT_EQ(got.operands, want.operands);
  EXPECT_EQ(got.outputs, want.outputs);
}

TEST(RoundTrip, SampleAtEveryAlignment) {
  const TraceContent want = sample_trace();
  const std::vector<std::byte> bytes = trace::serialize(want, "sample");
  int compared = 0;
  for (std::size_t spaces = 0; spaces < 16; ++spaces) {
    SCOPED_TRACE(spaces);
    const auto shifted = with_header(bytes, header_of(bytes) + std::string(spaces, ' '));
    expect_equal(content_of(Trace::parse(shifted, "sample")), want);
    ++compared;
  }
  EXPECT_EQ(compared, 16);
}

TEST(RoundTrip, RandomTraces) {
  const std::uint64_t seed = case_seed(0x7ACE0001);
  SCOPED_TRACE("reproduce: OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  int compared = 0, with_raw = 0, with_first_bad = 0, with_operators = 0, with_operands = 0;
  for (int i = 0; i < 500 && !HasFailure(); ++i) {
    const TraceContent want = random_trace(rng);
    const std::vector<std::byte> bytes = trace::serialize(want, "random");
    const Trace trace = Trace::parse(bytes, "random");
    const TraceContent got = content_of(trace);
    expect_equal(got, want);
    EXPECT_EQ(trace.has_raw(), !want.raw.empty());
    EXPECT_EQ(trace::serialize(got, "random"), bytes);  // deterministic
    const std::string header = header_of(bytes);
    EXPECT_EQ(header.size() % 8, 0u);
    EXPECT_LT(header.size() - 1 - header.find_last_of('}'), 8u);  // no more spaces than needed
    ++compared;
    with_raw += trace.has_raw();
    with_operators += !trace.operators().empty();
    with_operands += !trace.operand_steps().empty();
    with_first_bad += trace.first_bad().has_value();
  }
  EXPECT_EQ(compared, 500);
  EXPECT_GT(with_raw, 100);
  EXPECT_GT(with_operators, 100);
  EXPECT_GT(with_operands, 100);
  EXPECT_GT(with_first_bad, 100);
}

TEST(RoundTrip, OperandsAtEveryAlignment) {
  const TraceContent want = operand_trace();
  const std::vector<std::byte> bytes = trace::serialize(want, "operands");
  for (std::size_t spaces = 0; spaces < 16; ++spaces) {
    SCOPED_TRACE(spaces);
    const auto shifted = with_header(bytes, header_of(bytes) + std::string(spaces, ' '));
    expect_equal(content_of(Trace::parse(shifted, "operands")), want);
  }
}

/// Attributes survive as decimals of JSON: every one is read back as the same binary32 number.
TEST(RoundTrip, EveryAttributeIsItself) {
  const std::uint64_t seed = case_seed(0x7ACE0004);
  SCOPED_TRACE("reproduce: OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  TraceContent c = operand_trace();
  std::vector<float> values = {0.0f,  -0.0f,   1e-45f,        1.17549435e-38f, 16777216.0f,
                               1e15f, 1.5e16f, 9.2233720e18f, -3.40282347e38f, 0.1f};
  while (values.size() < 2000) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(rng()));
    if (std::isfinite(value)) values.push_back(value);
  }
  for (const float value : values) {
    c.operators[0].attribute = value;
    const Trace t = Trace::parse(trace::serialize(c, "f"), "f");
    ASSERT_EQ(std::bit_cast<std::uint32_t>(t.operators()[0].attribute),
              std::bit_cast<std::uint32_t>(value))
        << value;
  }
}

TEST(Operands, ComputationOfAStep) {
  const TraceContent content = operand_trace();
  const Trace t = Trace::parse(trace::serialize(content, "operands"), "operands");
  EXPECT_EQ(t.operand_steps(), (std::vector<std::int64_t>{4, 9}));
  ASSERT_EQ(t.operators().size(), 4u);
  const std::vector<bool> has = {true, true, true, false};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(t.operators()[i].has_elements, has[i]) << i;

  EXPECT_FALSE(t.computation(0, 0));  // step 3 has no operands
  EXPECT_FALSE(t.computation(3, 1));  // shapes only
  EXPECT_FALSE(t.computation(4, 1));  // no operator
  EXPECT_FALSE(t.computation_shape(4));

  const auto qk = t.computation(0, 2);
  ASSERT_TRUE(qk);
  EXPECT_EQ(qk->kernel, Kernel::kMatmul);
  EXPECT_EQ(qk->format, Format::kFp16);
  EXPECT_EQ(std::tie(qk->batch, qk->rows, qk->columns, qk->depth), std::make_tuple(2, 2, 3, 4));
  EXPECT_EQ(qk->attribute, 1.0f);
  EXPECT_EQ(qk->output_elements(), 12u);
  ASSERT_TRUE(qk->has(0) && qk->has(1) && !qk->has(2));
  EXPECT_EQ(qk->operand(0).rows, 4u);
  EXPECT_EQ(qk->operand(1).rows, 6u);
  EXPECT_EQ(qk->operand(1).columns, 4u);
  EXPECT_TRUE(std::ranges::equal(qk->operand(0).elements,
                                 std::span(content.operands.at("attn.qk").at("a")).subspan(32)));
  EXPECT_TRUE(std::ranges::equal(t.computed_output(0, 2),
                                 std::span(content.outputs.at("attn.qk")).subspan(24)));
  EXPECT_TRUE(t.computed_output(0, 0).empty());
  EXPECT_TRUE(t.computed_output(1, 2).empty());
  EXPECT_TRUE(t.computed_output(4, 2).empty());

  const auto norm = t.computation(1, 1);
  ASSERT_TRUE(norm && norm->has(0) && norm->has(1) && norm->has(2));
  EXPECT_EQ(norm->attribute, 1e-6f);
  EXPECT_EQ(norm->depth, 0u);
  EXPECT_EQ(norm->operand(1).format, Format::kFp32);
  EXPECT_EQ(trace::load<float>(norm->operand(1).elements, 2), 1.5f);
  EXPECT_EQ(norm->operand(2).format, Format::kBf16);
  EXPECT_EQ(trace::load<std::uint16_t>(norm->operand(2).elements, 2), 0xBF80);

  const auto softmax = t.computation(2, 1);
  ASSERT_TRUE(softmax && softmax->has(0) && softmax->has(1));
  EXPECT_EQ(softmax->format, Format::kBf16);
  EXPECT_EQ(softmax->attribute, 0.125f);
  EXPECT_EQ(softmax->operand(1).rows, 2u);
  EXPECT_EQ(softmax->operand(1).elements.size(), 6u);
  EXPECT_EQ(softmax->operand(1).elements[2], std::byte{0});

  const auto variance = t.computation_shape(3);
  ASSERT_TRUE(variance);
  EXPECT_EQ(variance->attribute, 1.0f);
  EXPECT_EQ(variance->output_elements(), 4u);
  EXPECT_FALSE(variance->has(0));
  EXPECT_EQ(variance->operand(0).rows, 4u);
  EXPECT_EQ(variance->operand(0).columns, 7u);
  EXPECT_EQ(variance->operand(0).format, Format::kE4m3);
}

/// An optional operand keeps its place when the one before it is absent.
TEST(Operands, ABiasWithoutAGain) {
  TraceContent c = operand_trace();
  c.operators[2].operands.erase(c.operators[2].operands.begin() + 1);
  c.operands["norm"].erase("gain");
  const Trace t = Trace::parse(trace::serialize(c, "f"), "f");
  const auto norm = t.computation(1, 1);
  ASSERT_TRUE(norm);
  EXPECT_TRUE(norm->has(0) && !norm->has(1) && norm->has(2));
  EXPECT_EQ(norm->operand(1).rows, 0u);
}

TEST(Operands, CopiesAndMovesKeepTheData) {
  Trace first = Trace::parse(trace::serialize(operand_trace(), "f"), "f");
  const Trace copy = first;
  const Trace moved = std::move(first);
  expect_equal(content_of(copy), operand_trace());
  expect_equal(content_of(moved), operand_trace());
}

TEST(RoundTrip, CopiesAndMovesKeepTheData) {
  Trace first = Trace::parse(trace::serialize(sample_trace(), "sample"), "sample");
  const Trace copy = first;
  const Trace moved = std::move(first);
  expect_equal(content_of(copy), sample_trace());
  expect_equal(content_of(moved), sample_trace());
  EXPECT_EQ(copy.find_probe("loss"), 4u);
  EXPECT_EQ(moved.find_probe("layer.0/grad"), 2u);
  EXPECT_EQ(moved.find_probe("layer"), std::nullopt);
}

TEST(Replay, StatisticOfTheSample) {
  const Trace t = Trace::parse(trace::serialize(sample_trace(), "sample"), "sample");
  EXPECT_EQ(t.statistic(0, 0), (TapSummary{0x3C00, 6, 0, kNoElement, 0, 0, 1}));      // 1.0
  EXPECT_EQ(t.statistic(1, 0), (TapSummary{0x7BFF, 6, 0, kNoElement, 2, 0, 0}));      // 65504
  EXPECT_EQ(t.statistic(1, 1), (TapSummary{0x7F62, 4, 1, 0, 0, 0, 0}));               // 3e38
  EXPECT_EQ(t.statistic(1, 2), (TapSummary{0x7E, 3, 0, kNoElement, 1, 0, 0}));        // 448
  EXPECT_EQ(t.statistic(1, 3), (TapSummary{0x7B, 5, 0, kNoElement, 3, 0, 0}));        // 57344
  EXPECT_EQ(t.statistic(1, 4), (TapSummary{0x7F7FC99E, 1, 0, kNoElement, 0, 0, 0}));  // 3.4e38
  EXPECT_EQ(t.statistic(2, 0), (TapSummary{0, 6, 6, 0, 0, 0, 0}));           // nothing finite
  EXPECT_EQ(t.statistic(2, 1), (TapSummary{1, 4, 0, kNoElement, 0, 4, 0}));  // 1e-40: 1.09 units
}

TEST(Replay, MissingCountsAreZeroAndLargeOnesStop) {
  TraceContent c;
  c.name = "large";
  c.probes = {{"p", trace::ProbeKind::kWeight, Format::kFp16, {1u << 20, 1u << 20}, 0}};
  c.step = {3};
  c.max_abs = {2.0f};
  c.nonfinite = {std::int64_t{1} << 33};
  const Trace t = Trace::parse(trace::serialize(c, "large"), "large");
  EXPECT_EQ(t.probes()[0].elements, std::uint64_t{1} << 40);
  EXPECT_EQ(t.nonfinite(0, 0), std::uint64_t{1} << 33);
  EXPECT_EQ(t.statistic(0, 0), (TapSummary{0x4000, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0, 0, 0}));
  EXPECT_EQ(t.saturated(0, 0), std::nullopt);
  EXPECT_EQ(t.mean(0, 0), std::nullopt);
  EXPECT_TRUE(t.loss().empty());
  EXPECT_TRUE(t.raw(0, 0).empty());
  EXPECT_FALSE(t.has_raw());
}

TEST(Replay, ScaleIsOfGradientsOnly) {
  TraceContent c = sample_trace();
  const Trace t = Trace::parse(trace::serialize(c, "sample"), "sample");
  EXPECT_EQ(t.scale_log2(0, 2), 16);    // 65536
  EXPECT_EQ(t.scale_log2(1, 2), 0);     // 1
  EXPECT_EQ(t.scale_log2(2, 2), -1);    // 0.75
  EXPECT_EQ(t.scale_log2(3, 2), -128);  // 2^-149 stops
  for (std::size_t p : {0, 1, 3, 4}) EXPECT_EQ(t.scale_log2(0, p), 0);

  c.loss_scale = {3.4e38f, 1.9999999f, 2.0f, 3.0f};
  const Trace edges = Trace::parse(trace::serialize(c, "sample"), "sample");
  EXPECT_EQ(edges.scale_log2(0, 2), 127);
  EXPECT_EQ(edges.scale_log2(1, 2), 0);
  EXPECT_EQ(edges.scale_log2(2, 2), 1);
  EXPECT_EQ(edges.scale_log2(3, 2), 1);
  c.loss_scale.clear();
  EXPECT_EQ(Trace::parse(trace::serialize(c, "sample"), "sample").scale_log2(0, 2), 0);
}

TEST(Access, OutsideTheTraceThrows) {
  const Trace t = Trace::parse(trace::serialize(sample_trace(), "sample"), "sample");
  for (const auto& [s, p] : {std::pair<std::size_t, std::size_t>{4, 0},
                             {0, 5},
                             {~std::size_t{0}, 0},
                             {0, ~std::size_t{0}}}) {
    EXPECT_THROW(t.max_abs(s, p), std::out_of_range);
    EXPECT_THROW(t.nonfinite(s, p), std::out_of_range);
    EXPECT_THROW(t.saturated(s, p), std::out_of_range);
    EXPECT_THROW(t.mean(s, p), std::out_of_range);
    EXPECT_THROW(t.raw(p, s), std::out_of_range);
    EXPECT_THROW(t.computation(p, s), std::out_of_range);
    EXPECT_THROW(t.computed_output(p, s), std::out_of_range);
    EXPECT_THROW(t.statistic(s, p), std::out_of_range);
    EXPECT_THROW(t.scale_log2(s, p), std::out_of_range);
  }
}

}  // namespace
}  // namespace opd::tb
