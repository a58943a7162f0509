// Testplan: CHK-04 (every field of the stored state that is wrong on one side is named, at the
// operator and completion at which it starts), CHK-05 (mismatches by kind).
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <string>
#include <systemc>

#include "crosscheck.hpp"
#include "flipping_device.hpp"
#include "opd/trace/writer.hpp"
#include "operators.hpp"
#include "paths/cpu_path.hpp"
#include "paths/rtl_factory.hpp"
#include "paths/simulation.hpp"

namespace {

using namespace opd;
using namespace opd::tb;

constexpr std::size_t kSteps = 40, kOps = 3;

/// Three FP16 operators by their statistics; each moves a little, none near its limit.
trace::Trace quiet_trace() {
  trace::TraceContent content{.name = "quiet", .label = trace::Label::kHealthy};
  for (std::size_t op = 0; op < kOps; ++op) {
    content.probes.push_back(
        {.name = "op" + std::to_string(op), .format = Format::kFp16, .shape = {8}});
  }
  for (std::size_t s = 0; s < kSteps; ++s) {
    content.step.push_back(static_cast<std::int64_t>(s));
    for (std::size_t op = 0; op < kOps; ++op) {
      content.max_abs.push_back(1.0f + static_cast<float>((s * (op + 3)) % 8) / 8.0f);
      content.nonfinite.push_back(0);
    }
  }
  return trace::Trace::parse(trace::serialize(content, "quiet"), "quiet");
}

std::uint32_t hex_of(const std::string& value) {
  return static_cast<std::uint32_t>(
      std::strtoul(value.substr(value.find("(0x") + 3).c_str(), nullptr, 16));
}

class StoredStates : public testing::Test {
 protected:
  // SystemC elaborates once per process.
  static Simulation& simulation() {
    static Simulation simulation({.device = rtl_parameters(), .bubbles = 9});
    return simulation;
  }
  static const OperatorStream& operators() {
    static const trace::Trace trace = quiet_trace();
    static const OperatorStream operators(trace, rtl_parameters().num_ops);
    return operators;
  }
  static LockstepResult lockstep(PinDevice& rtl) {
    return simulation().run_lockstep(operators(), &rtl, {}, nullptr, nullptr,
                                     {.compare_state = true});
  }
};

TEST_F(StoredStates, AreEqualOnAllPathsAndKeptPerCompletion) {
  const auto rtl = make_rtl_device();
  const LockstepResult result = lockstep(*rtl);
  EXPECT_FALSE(result.divergence);
  EXPECT_TRUE(result.state_kinds.empty());
  EXPECT_EQ(result.states_compared, kSteps * kOps);
  const PathResult lt = simulation().run_loosely_timed(operators(), {}, nullptr, nullptr, true);
  const PathResult cpu = run_cpu(operators(), rtl_parameters(), {}, {}, {}, nullptr, nullptr, true);
  ASSERT_EQ(result.rtl.states.size(), kSteps * kOps);
  EXPECT_EQ(result.rtl.states, result.systemc.states);
  EXPECT_EQ(result.rtl.states, lt.states);
  EXPECT_EQ(result.rtl.states, cpu.states);
  EXPECT_EQ(result.rtl.states.back().age, kSteps);
  EXPECT_EQ(result.rtl.states.back().written, 3);
  EXPECT_NE(result.rtl.states.back().baseline, 0);
  EXPECT_NE(result.rtl.states.back().variance, 0u);
}

TEST_F(StoredStates, AreNotKeptUnlessAskedFor) {
  const auto rtl = make_rtl_device();
  const LockstepResult result = simulation().run_lockstep(operators(), rtl.get());
  EXPECT_EQ(result.states_compared, 0u);
  EXPECT_TRUE(result.rtl.states.empty() && result.systemc.states.empty());
}

/// A bit of every field: named with the operator whose word it is, both values, and the completion
/// after which it is first seen, here one of another operator.
TEST_F(StoredStates, AWrongBitOfAnyFieldIsNamedAtTheNextCompletion) {
  struct Case {
    const char* field;
    Flip flip;
    unsigned bit_of_field;
  };
  const Case cases[] = {
      {"age", {Flip::kWord, 183 + 7, true}, 7},
      {"nonfinite_run", {Flip::kWord, 175 + 2, true}, 2},
      {"baseline", {Flip::kWord, 158, true}, 0},
      {"baseline", {Flip::kWord, 158 + 16, true}, 16},
      {"anchor", {Flip::kWord, 148 + 9, true}, 9},
      {"mean", {Flip::kWord, 116, true}, 0},
      {"variance", {Flip::kWord, 84 + 3, true}, 3},
      {"last", {Flip::kWord, 52 + 5, true}, 5},
      {"slope", {Flip::kWord, 20 + 3, true}, 3},
      {"mode", {Flip::kWord, 18, true}, 0},
      {"locked", {Flip::kWord, 17, true}, 0},
      {"disabled", {Flip::kWord, 16, true}, 0},
      {"timer", {Flip::kWord, 8 + 1, true}, 1},
      {"last_step", {Flip::kWord, 4, true}, 4},
      {"parity", {Flip::kWord, kParityBit, false}, 0},
      {"written", {Flip::kMark, 1, false}, 1},
      {"mode_register", {Flip::kModeRegister, 2, false}, 2},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.field);
    const auto rtl =
        make_flipping_rtl_device(c.flip, 3 * 10 + 2);  // the victim has just completed step 10
    const LockstepResult result = lockstep(*rtl);
    ASSERT_FALSE(result.state_kinds.empty());
    const Divergence& first = result.state_kinds.front().first;
    EXPECT_EQ(first.field, std::string("state.") + c.field);
    EXPECT_EQ(hex_of(first.left_value) ^ hex_of(first.right_value), 1u << c.bit_of_field)
        << first.left_value << ' ' << first.right_value;
    EXPECT_EQ(first.state_op, kVictim);
    ASSERT_TRUE(first.record && first.cycle);
    EXPECT_EQ(first.record->op, 2);
    EXPECT_EQ(first.record->step, 10u);
    EXPECT_EQ(first.record->seq, 32u);
    EXPECT_EQ(first.left, "rtl");
    EXPECT_EQ(first.right, "systemc");
  }
}

/// One LSB of the baseline, once: no record says so for as long as the operator stays away from its
/// limit, and the state does at once.
TEST_F(StoredStates, AFaultThatNoRecordShowsIsFound) {
  const auto rtl = make_flipping_rtl_device({Flip::kWord, 158 + 4, true}, 3 * 10 + 2);
  const LockstepResult result = lockstep(*rtl);
  EXPECT_FALSE(result.divergence) << "a record shows it: choose a smaller fault";
  ASSERT_EQ(result.state_kinds.size(), 1u);
  EXPECT_GT(result.state_kinds.front().count, 5u);
  EXPECT_EQ(result.state_kinds.front().last.record->op, kVictim);
  const auto again = make_flipping_rtl_device({Flip::kWord, 158 + 4, true}, 3 * 10 + 2);
  const LockstepResult without = simulation().run_lockstep(operators(), again.get());
  EXPECT_FALSE(without.divergence);
  EXPECT_TRUE(without.state_kinds.empty());
}

TEST(StateFields, AreShownAsNumberAndHex) {
  StoredState state{.baseline = -12, .anchor = -1, .mean = 0x3FA00000, .mode = 1};
  const auto shown = [&](std::string_view name) {
    for (const StateField& field : kStateFields)
      if (field.name == name) return field_text(field, state);
    return std::string("no such field");
  };
  EXPECT_EQ(shown("baseline"), "-12 (0x1FFF4)");
  EXPECT_EQ(shown("anchor"), "-1 (0x3FF)");
  EXPECT_EQ(shown("mean"), "1.25 (0x3FA00000)");
  EXPECT_EQ(shown("mode"), "STABLE (0x1)");
}

TEST(MismatchKinds, AreCountedByPathsAndQuantity) {
  const auto at = [](const char* right, const char* field, std::uint32_t seq) {
    return Divergence{
        .left = "rtl", .right = right, .field = field, .record = OpRecord{.seq = seq}};
  };
  std::vector<MismatchKind> kinds, later;
  note(kinds, at("cpu", "flags", 3));
  note(kinds, at("cpu", "flags", 5));
  note(kinds, at("cpu", "risk", 5));
  note(later, at("cpu", "flags", 9));
  note(later, at("systemc", "flags", 9));
  Divergence element = at("cpu", "output element 7 in FAST", 9);
  element.quantity = "output element";
  note(later, element);
  element.field = "output element 8 in FAST";
  note(later, element);
  merge(kinds, later);
  ASSERT_EQ(kinds.size(), 4u);
  EXPECT_EQ(kinds[0].count, 3u);
  EXPECT_EQ(kinds[0].first.record->seq, 3u);
  EXPECT_EQ(kinds[0].last.record->seq, 9u);
  EXPECT_EQ(kinds[1].count, 1u);
  EXPECT_EQ(kinds[2].first.right, "systemc");
  EXPECT_EQ(kinds[3].count, 2u);
  EXPECT_EQ(kinds[3].last.field, "output element 8 in FAST");
}

}  // namespace

int sc_main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
