// Testplan: CHK-01 (every field that a path can get wrong is named), CHK-03 (a fault planted in the
// RTL is found, at its operator, step, seq, field and cycle), DRV-03 (the host beside each device),
// MET-01 (lead, alarms and downshifts
// on records written by hand).
#include "crosscheck.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <systemc>

#include "metrics.hpp"
#include "opd/trace/writer.hpp"
#include "paths/cpu_path.hpp"
#include "paths/rtl_factory.hpp"
#include "paths/simulation.hpp"
#include "replay.hpp"
#include "rtl_variants.hpp"

namespace {

using namespace opd;
using namespace opd::tb;

/// Two operators over `steps` steps: "qk" doubles every fourth step until it overflows FP16, "norm"
/// stays put. Elements are real for every step, so both go through the datapath.
trace::Trace growing_trace(std::size_t steps) {
  trace::TraceContent content{.name = "growing", .label = trace::Label::kGradual};
  content.probes = {{.name = "qk", .format = Format::kFp16, .shape = {100}},
                    {.name = "norm", .format = Format::kFp16, .shape = {7}}};
  for (std::size_t s = 0; s < steps; ++s) {
    content.step.push_back(static_cast<std::int64_t>(s));
    content.raw_step.push_back(static_cast<std::int64_t>(s));
    // 2^(s/4) with exponent field 15 + s/4 and the significand counting up within the octave.
    const auto qk = static_cast<std::uint16_t>((15 + s / 4) << 10 | (s % 4) << 8);
    const bool overflow = qk >= 0x7C00;
    const std::uint16_t elements[2] = {overflow ? std::uint16_t{0x7C00} : qk, 0x3C00};
    const std::size_t counts[2] = {100, 7};
    for (std::size_t p = 0; p < 2; ++p) {
      auto& row = content.raw[content.probes[p].name];
      for (std::size_t k = 0; k < counts[p]; ++k) {
        const std::uint16_t bits =
            k == 0 ? elements[p] : std::uint16_t{0x3800};  // one large element, the rest 0.5
        row.push_back(static_cast<std::byte>(bits & 0xFF));
        row.push_back(static_cast<std::byte>(bits >> 8));
      }
    }
    content.max_abs.push_back(
        overflow ? 0.5f
                 : std::ldexp(1.0f + static_cast<float>(s % 4) / 4.0f, static_cast<int>(s / 4)));
    content.max_abs.push_back(1.0f);
    content.nonfinite.push_back(overflow ? 1 : 0);
    content.nonfinite.push_back(0);
    if (overflow && !content.first_bad)
      content.first_bad = trace::FirstBad{static_cast<std::uint32_t>(s), "qk"};
  }
  return trace::Trace::parse(trace::serialize(content, "growing"), "growing");
}

TEST(CompareRecords, NamesTheFirstFieldThatDiffers) {
  const OpRecord good{.seq = 7,
                      .step = 3,
                      .op = 2,
                      .max_mag = 0x7BFF,
                      .flags = flag_bit(Flag::kForecast),
                      .risk = 128};
  const TapCounts counts{.element_count = 64};
  EXPECT_FALSE(compare_records("a", good, counts, "b", good, counts));
  const auto field_of = [&](const OpRecord& bad, const TapCounts& bad_counts) {
    const auto difference = compare_records("a", good, counts, "b", bad, bad_counts);
    return difference ? difference->field : "";
  };
  const auto with = [&](auto change) {
    OpRecord bad = good;
    change(bad);
    return field_of(bad, counts);
  };
  EXPECT_EQ(with([](OpRecord& r) { ++r.seq; }), "seq");
  EXPECT_EQ(with([](OpRecord& r) { ++r.step; }), "step");
  EXPECT_EQ(with([](OpRecord& r) { ++r.op; }), "op");
  EXPECT_EQ(with([](OpRecord& r) { ++r.format; }), "format");
  EXPECT_EQ(with([](OpRecord& r) { --r.max_mag; }), "max_mag");
  EXPECT_EQ(with([](OpRecord& r) { ++r.nonfinite_count; }), "nonfinite_count");
  EXPECT_EQ(with([](OpRecord& r) { r.first_nonfinite = 0; }), "first_nonfinite");
  EXPECT_EQ(with([](OpRecord& r) { ++r.saturated_count; }), "saturated_count");
  EXPECT_EQ(with([](OpRecord& r) { r.flags = 0; }), "flags");
  EXPECT_EQ(with([](OpRecord& r) { ++r.risk; }), "risk");
  EXPECT_EQ(with([](OpRecord& r) { ++r.cause; }), "cause");
  EXPECT_EQ(with([](OpRecord& r) { ++r.mode; }), "mode");
  EXPECT_EQ(field_of(good, {.element_count = 63}), "element_count");
  EXPECT_EQ(field_of(good, {.element_count = 64, .subnormal_count = 1}), "subnormal_count");
  EXPECT_EQ(field_of(good, {.element_count = 64, .zero_count = 1}), "zero_count");
}

TEST(CompareCycles, NamesThePinThatDiffers) {
  const CycleOutput good{
      .stat_ready = true, .queue_level = 2, .queue_high_water = 3, .unseen_count = 1};
  const auto pin_of = [&](auto change) {
    CycleOutput bad = good;
    change(bad);
    const auto difference = compare_cycles("rtl", good, "systemc", bad, 42);
    return difference && difference->cycle == 42 ? difference->field : "";
  };
  EXPECT_FALSE(compare_cycles("rtl", good, "systemc", good, 42));
  EXPECT_EQ(pin_of([](CycleOutput& o) { o.record_valid = true; }), "record_valid");
  EXPECT_EQ(pin_of([](CycleOutput& o) { o.mode = Mode::kSafe; }), "mode_o");
  EXPECT_EQ(pin_of([](CycleOutput& o) { o.stat_ready = false; }), "stat_ready");
  EXPECT_EQ(pin_of([](CycleOutput& o) { ++o.queue_level; }), "queue_level");
  EXPECT_EQ(pin_of([](CycleOutput& o) { ++o.queue_high_water; }), "queue_high_water");
  EXPECT_EQ(pin_of([](CycleOutput& o) { ++o.unseen_count; }), "unseen_count");
  EXPECT_EQ(pin_of([](CycleOutput& o) { o.irq = true; }), "irq");
  EXPECT_EQ(pin_of([](CycleOutput& o) { o.apb.ready = true; }), "apb_ready");
  EXPECT_EQ(pin_of([](CycleOutput& o) { o.apb.error = true; }), "apb_error");
  EXPECT_EQ(pin_of([](CycleOutput& o) { ++o.apb.data; }), "apb_data");
}

TEST(CompareStreams, AMissingRecordIsOneMismatchWhereverItIsMissing) {
  std::vector<Completion> three(3);
  for (std::uint32_t i = 0; i < 3; ++i) three[i].record.seq = i;
  const auto all = compare_streams("rtl", three, "cpu", three);
  EXPECT_EQ(all.compared, 3u);
  EXPECT_EQ(all.mismatches, 0u);
  for (std::size_t gone = 0; gone < three.size(); ++gone) {
    std::vector<Completion> two = three;
    two.erase(two.begin() + static_cast<std::ptrdiff_t>(gone));
    for (const bool left_lacks : {false, true}) {
      const auto fewer = left_lacks ? compare_streams("rtl", two, "cpu", three)
                                    : compare_streams("rtl", three, "cpu", two);
      EXPECT_EQ(fewer.compared, 2u);
      EXPECT_EQ(fewer.mismatches, 1u);
      ASSERT_TRUE(fewer.first && fewer.first->record);
      EXPECT_EQ(fewer.first->field, "record");
      EXPECT_EQ(fewer.first->record->seq, gone);
      EXPECT_EQ(fewer.first->left_value, left_lacks ? "missing" : "present");
    }
  }
}

TEST(CompareEvents, NamesTheFirstThatDiffersAndCountsThoseThatAreMissing) {
  std::vector<Event> five(5);
  for (std::uint32_t i = 0; i < 5; ++i) five[i] = {.step = i, .op = 3, .cause = Cause::kRisk};
  const auto all = compare_events("rtl", five, 0, "cpu", five);
  EXPECT_EQ(all.compared, 5u);
  EXPECT_EQ(all.mismatches, 0u);
  // Two lost, wherever they are: equal when they have been counted.
  const std::vector<Event> three = {five[0], five[2], five[3]};
  EXPECT_EQ(compare_events("rtl", three, 2, "cpu", five).mismatches, 0u);
  EXPECT_EQ(compare_events("rtl", three, 2, "cpu", five).compared, 3u);
  for (const std::uint32_t lost : {0u, 1u, 3u})
    EXPECT_EQ(compare_events("rtl", three, lost, "cpu", five).mismatches, 1u) << lost;
  // One that differs, one too many, two that change places.
  std::vector<Event> other = five;
  other[1].risk = 7;
  const auto differs = compare_events("rtl", other, 0, "cpu", five);
  EXPECT_GE(differs.mismatches, 1u);
  ASSERT_TRUE(differs.first);
  EXPECT_EQ(differs.first->field, "event");
  EXPECT_NE(differs.first->left_value.find("risk 7"), std::string::npos);
  EXPECT_NE(differs.first->right_value.find("step 1, op 3"), std::string::npos);
  other = five;
  other.push_back(five[0]);
  EXPECT_GE(compare_events("rtl", other, 0, "cpu", five).mismatches, 1u);
  other = five;
  std::swap(other[2], other[3]);
  EXPECT_GE(compare_events("rtl", other, 0, "cpu", five).mismatches, 1u);
  EXPECT_EQ(compare_events("rtl", {}, 0, "cpu", five).mismatches, 1u);
  EXPECT_EQ(compare_events("rtl", five, 0, "cpu", {}).mismatches, 5u);
}

TEST(PlantedFault, TheMutatedRtlIsNamedAtItsOperatorStepAndCycle) {
  const trace::Trace trace = growing_trace(40);
  const OperatorStream operators(trace, rtl_parameters().num_ops);
  Simulation simulation({.device = rtl_parameters(), .bubbles = 9});
  const auto rtl = make_mutant_rtl_device();
  const LockstepResult result = simulation.run_lockstep(operators, rtl.get());
  ASSERT_TRUE(result.divergence) << "the cross-check let a faulty device pass";
  const Divergence& d = *result.divergence;
  // The fault lowers WARMUP one sample late: sample 16 of the first operator, completion 2 * 16.
  EXPECT_EQ(d.field, "flags");
  ASSERT_TRUE(d.record && d.cycle && d.last_beat_cycle);
  EXPECT_EQ(d.record->op, 0);
  EXPECT_EQ(d.record->step, 16u);
  EXPECT_EQ(d.record->seq, 32u);
  EXPECT_EQ(*d.cycle, *d.last_beat_cycle + 12);
  EXPECT_NE(d.left_value.find("WARMUP"), std::string::npos);
  EXPECT_EQ(d.right_value.find("WARMUP"), std::string::npos);
  EXPECT_EQ(result.cycles_compared, *d.cycle);
}

/// Runs the growing trace in lockstep and expects it equal, to the reference as well, and every
/// operator's mode after `cycles[op]` clocks.
void expect_reaction(const DeviceParameters& device, PinDevice& rtl, unsigned bubbles,
                     std::array<std::uint64_t, 2> cycles) {
  const trace::Trace trace = growing_trace(80);
  const OperatorStream operators(trace, device.num_ops);
  Config config;
  config.quiet_steps = 3;
  Simulation simulation({.device = device, .config = config, .bubbles = bubbles});
  const LockstepResult result = simulation.run_lockstep(operators, &rtl);
  EXPECT_FALSE(result.divergence);
  ASSERT_EQ(result.systemc.completions.size(), 160u);
  const PathResult cpu = run_cpu(operators, device, config);
  EXPECT_EQ(
      compare_streams("systemc", result.systemc.completions, "cpu", cpu.completions).mismatches,
      0u);
  for (const Completion& completion : result.systemc.completions) {
    EXPECT_TRUE(completion.from_beats);
    EXPECT_EQ(completion.record_cycle - completion.last_beat_cycle,
              cycles.at(completion.record.op));
  }
  EXPECT_EQ(result.systemc.beats, 80u * (4 + 1));  // 100 and 7 halves at 32 per beat

  // The host's side, over APB and over TLM.
  const PathResult loosely_timed = simulation.run_loosely_timed(operators);
  for (const PathResult* path : {&result.systemc, &result.rtl, &loosely_timed}) {
    ASSERT_TRUE(path->host && cpu.host) << path->path;
    EXPECT_GT(path->host->events.size(), 10u) << path->path;
    EXPECT_EQ(path->host->events, cpu.host->events) << path->path;
    EXPECT_EQ(path->host->hints, cpu.host->hints) << path->path;
    EXPECT_EQ(path->host->mode_counts, cpu.host->mode_counts) << path->path;
    EXPECT_EQ(path->host->last_clean_step, 63u) << path->path;  // "qk" overflows in step 64
    EXPECT_FALSE(path->host->hint_changes.empty()) << path->path;
  }
}

TEST(Lockstep, BothEnginesDecideTwelveCyclesAfterTheLastBeat) {
  expect_reaction(rtl_parameters(), *make_rtl_device(), 9, {12, 12});
}

// Without bubbles. "qk" takes four beats, so the detection unit is idle when it completes: 4
// cycles. "norm" takes one and completes one clock later, while the unit, which takes a completion
// every two clocks, is at work: it waits one clock.
TEST(Lockstep, TheForecastEngineAloneDecidesFourCyclesAfterTheLastBeat) {
  expect_reaction(kForecastDevice, *make_forecast_rtl_device(), 0, {4, 5});
}

// A run that a mismatch has stopped leaves a host in the middle of an access; the next run serves.
TEST(Lockstep, ARunAfterAStoppedOneIsWhole) {
  const trace::Trace trace = growing_trace(40);
  const OperatorStream operators(trace, rtl_parameters().num_ops);
  Simulation simulation({.device = rtl_parameters(), .bubbles = 9});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(simulation.run_lockstep(operators, make_mutant_rtl_device().get()).divergence);
    const LockstepResult whole = simulation.run_lockstep(operators, make_rtl_device().get());
    EXPECT_FALSE(whole.divergence);
    EXPECT_EQ(whole.rtl.completions.size(), 80u);
    EXPECT_TRUE(whole.rtl.host.has_value());
  }
}

TEST(Metrics, LeadCountsTheStepsForWhichAnAlarmHasBeenStanding) {
  const trace::Trace trace = growing_trace(80);
  const OperatorStream operators(trace, 256);
  std::vector<Completion> completions;
  const auto say = [&](std::uint32_t step, std::uint16_t op, Mode mode, std::uint8_t risk,
                       std::uint32_t nonfinite, Cause cause) {
    completions.push_back({.record = {.seq = static_cast<std::uint32_t>(completions.size()),
                                      .step = step,
                                      .op = op,
                                      .mode = static_cast<std::uint8_t>(mode),
                                      .nonfinite_count = nonfinite,
                                      .risk = risk,
                                      .cause = static_cast<std::uint8_t>(cause)}});
  };
  say(10, 0, Mode::kStable, 128, 0, Cause::kRisk);  // an alarm that is withdrawn
  say(20, 0, Mode::kFast, 0, 0, Cause::kRecovered);
  say(30, 0, Mode::kStable, 130, 0, Cause::kRisk);  // the one that stands
  say(31, 1, Mode::kFast, 0, 0, Cause::kNone);
  say(40, 0, Mode::kStable, 0, 0, Cause::kNone);
  say(50, 0, Mode::kSafe, 255, 3, Cause::kNonfinite);
  say(51, 0, Mode::kSafe, 255, 3, Cause::kEscalate);  // after the incident: no alarm any more
  const DetectionQuality quality = assess(operators, completions, {});
  ASSERT_EQ(quality.incidents.size(), 1u);
  ASSERT_TRUE(quality.first);
  EXPECT_EQ(quality.first->op, 0);
  EXPECT_EQ(quality.first->step, 50u);
  EXPECT_EQ(quality.first->lead_steps, 20u);
  EXPECT_EQ(quality.first->first_alarm, 10u);
  EXPECT_EQ(quality.first->mode_before, Mode::kStable);
  EXPECT_EQ(quality.alarms, 2u);
  EXPECT_EQ(quality.downshifts, 2u);
  EXPECT_EQ(quality.probe_steps, 7u);
}

TEST(Metrics, NoAlarmBeforeTheIncidentIsNoLead) {
  const trace::Trace trace = growing_trace(80);
  const OperatorStream operators(trace, 256);
  std::vector<Completion> completions(1);
  completions[0].record = {.step = 5,
                           .mode = static_cast<std::uint8_t>(Mode::kStable),
                           .nonfinite_count = 1,
                           .risk = 255};
  const DetectionQuality quality = assess(operators, completions, {});
  ASSERT_TRUE(quality.first);
  EXPECT_EQ(quality.first->lead_steps, 0u);
  EXPECT_FALSE(quality.first->first_alarm);
  EXPECT_EQ(quality.first->mode_before, Mode::kFast);
  EXPECT_EQ(quality.alarms, 0u);
}

}  // namespace

int sc_main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
