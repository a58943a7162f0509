// Commands on one operator's state, disabled operators and the switch of the whole device.
#include <gtest/gtest.h>

#include "Vopd_top.h"
#include "Vopd_top_forecast.h"
#include "pins.hpp"

namespace opd::tb {
namespace {

constexpr std::uint16_t kOp = 77;

/// Two usable samples, one all-zero one and two non-finite ones: SAFE, and no field of the state is 0
/// but the timer. FP16 codes as in forecast_test.cpp.
template <class Model>
void fill(Pins<Model>& pins) {
  pins.sample(finite(kOp, 0x2FE, 0x3C00));
  pins.sample(finite(kOp, 0x2FF, 0x4400));
  pins.sample(nonfinite(kOp, 0x300));
  pins.sample(nonfinite(kOp, 0x301));
}
const OpState kFilled = {.mode = Mode::kSafe,
                         .last_step = 0x01,
                         .age = 2,
                         .nonfinite_run = 2,
                         .baseline = 20,  // 4, then d = 4*65 - 4 = 256, (256 + 8) >> 4 = 16
                         .anchor = 127,
                         .mean = 0x3F85F418,      // 1 + 3 * alpha
                         .variance = 0x3E0CAB21,  // (1 - alpha) * alpha * 9
                         .last = 0x40800000,
                         .slope = 0x40400000};

TEST(Command, ReadShowsEveryField) {
  Pins<Vopd_top> pins;
  EXPECT_EQ(pins.state(kOp), OpState{});
  fill(pins);
  const OpState state = pins.state(kOp);
  EXPECT_EQ(state, kFilled);
  EXPECT_EQ(pins.state(kOp), state);  // a read changes nothing
  EXPECT_EQ(pins.state(kOp + 1), OpState{});
  EXPECT_EQ(pins.mode(kOp), Mode::kSafe);
}

TEST(Command, AbsentEngineReadsZero) {
  Pins<Vopd_top_forecast> pins;
  fill(pins);
  OpState want = kFilled;
  want.anchor = 0;
  want.mean = want.variance = want.last = want.slope = 0;
  EXPECT_EQ(pins.state(kOp), want);
}

TEST(Command, ClearIsAsAfterReset) {
  Pins<Vopd_top> pins;
  fill(pins);
  pins.set(kOp, Mode::kSafe, true, true);
  EXPECT_EQ(pins.command(kOp, Command::kClear), OpState{});
  EXPECT_EQ(pins.mode(kOp), Mode::kFast);
  EXPECT_EQ(pins.state(kOp), OpState{});
}

TEST(Command, ReseedForgetsTheBaselinesOnly) {
  Pins<Vopd_top> pins;
  fill(pins);
  pins.sample(finite(kOp, 0x304, 0x3C00));  // the timer runs
  OpState want = {.mode = Mode::kSafe, .timer = 3, .last_step = 0x04};
  EXPECT_EQ(pins.command(kOp, Command::kReseed), want);
  EXPECT_EQ(pins.mode(kOp), Mode::kSafe);
}

TEST(Command, SetWritesModeLockAndDisable) {
  Pins<Vopd_top> pins;
  fill(pins);
  pins.sample(finite(kOp, 0x304, 0x3C00));
  OpState before = pins.state(kOp);
  EXPECT_EQ(before.timer, 3u);
  int compared = 0;
  for (const Mode mode : {Mode::kStable, Mode::kFast, Mode::kSafe}) {
    for (const bool locked : {false, true}) {
      for (const bool disabled : {true, false}) {
        OpState want = before;
        want.mode = mode;
        want.locked = locked;
        want.disabled = disabled;
        want.timer = 0;
        EXPECT_EQ(pins.set(kOp, mode, locked, disabled), want);
        EXPECT_EQ(pins.mode(kOp), mode);
        EXPECT_EQ(pins.mode(kOp + 1), Mode::kFast);
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 12);
}

// A command that is pending when READ comes goes before the queue: BUSY rises after the edge e that
// ends the write; READ at e + 1, COMMAND at e + 2.
TEST(Command, TakesTwoClocksWhenTheUnitIsIdle) {
  Pins<Vopd_top> pins;
  CycleInput input;
  input.apb = {.select = true, .write = true, .address = reg::kOpCommand, .data = 5};
  pins.edge(input);
  input.apb.enable = true;
  EXPECT_TRUE(pins.edge(input).apb.ready);  // e
  // A read whose access clock is the one before edge e + 2 sees BUSY, the next one does not.
  CycleInput poll;
  poll.apb = {.select = true, .address = reg::kOpStatus};
  pins.edge(poll);  // e + 1
  poll.apb.enable = true;
  EXPECT_EQ(pins.edge(poll).apb.data, 1u);  // e + 2
  EXPECT_EQ(pins.read(reg::kOpStatus), 0u);
}

TEST(Command, ComesBeforeTheQueueAndBetweenTwoCompletions) {
  for (unsigned offset = 0; offset < 12; ++offset) {
    Pins<Vopd_top> pins;
    CycleInput sample;
    sample.stat_valid = true;
    sample.statistic = nonfinite(kOp, 1);
    pins.edge(sample);  // popped at 2, written at 11; the second is popped at 12 and written at 21
    pins.edge(sample);
    const std::uint64_t first = pins.edges() - 1;
    for (unsigned i = 0; i < offset; ++i) pins.edge();
    pins.write(reg::kOpCommand, kOp | static_cast<std::uint32_t>(Command::kClear) << 16);
    const std::uint64_t written = pins.edges() - first + 1;  // e, counted as in the comment above
    pins.drain();
    ASSERT_EQ(pins.seen().size(), 2u);
    EXPECT_EQ(pins.seen()[0].record.mode, 1);
    EXPECT_EQ(pins.seen()[0].edge - first + 1, 12u);
    // The command runs at edges 12 and 13 when it was written at edge 11 or earlier: the second
    // sample is 2 clocks later and starts from FAST again.
    const bool between = written <= 11;
    EXPECT_EQ(pins.seen()[1].record.mode, between ? 1 : 2) << "written at edge " << written;
    EXPECT_EQ(pins.seen()[1].edge - first + 1, between ? 24u : 22u)
        << "written at edge " << written;
    EXPECT_EQ(pins.read(reg::kOpStatus), 0u);
  }
}

TEST(Lock, ModeStaysWhateverComes) {
  Config config;
  config.quiet_steps = 2;
  config.safe_steps = 2;
  Pins<Vopd_top> pins(config);
  int compared = 0;
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    pins.set(kOp, mode, true, false);
    std::uint32_t step = 100;
    for (int i = 0; i < 4; ++i) {
      const OpRecord bad = pins.sample(nonfinite(kOp, step += 5));
      EXPECT_EQ(static_cast<Mode>(bad.mode), mode);
      EXPECT_EQ(static_cast<Cause>(bad.cause),
                mode == Mode::kSafe ? Cause::kEscalate : Cause::kNone);
      EXPECT_EQ(bad.risk, 255);
      Statistic saturated = finite(kOp, step += 5, 0x7BFF);
      saturated.summary.saturated_count = 1;
      const OpRecord risky = pins.sample(saturated);
      EXPECT_EQ(static_cast<Mode>(risky.mode), mode);
      EXPECT_EQ(static_cast<Cause>(risky.cause), Cause::kNone);
      const OpRecord quiet = pins.sample(finite(kOp, step += 5, 0x3C00));
      EXPECT_EQ(static_cast<Mode>(quiet.mode), mode);
      EXPECT_EQ(static_cast<Cause>(quiet.cause), Cause::kNone);
      EXPECT_EQ(pins.state(kOp).timer, 0u);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 12);
}

TEST(Disabled, SamplesAreRecordedAndNothingElse) {
  Pins<Vopd_top> pins;
  fill(pins);
  pins.sample(finite(kOp, 0x304, 0x3C00));
  OpState want = pins.set(kOp, Mode::kSafe, false, true);
  for (const Statistic& s : {nonfinite(kOp, 0x330), finite(kOp, 0x390, 0x7BFF)}) {
    const OpRecord record = pins.sample(s);
    EXPECT_EQ(record.flags, 0);
    EXPECT_EQ(record.risk, 0);
    EXPECT_EQ(record.cause, 0);
    EXPECT_EQ(record.mode, 2);
    EXPECT_EQ(record.nonfinite_count, s.summary.nonfinite_count);
    EXPECT_EQ(record.max_mag, s.summary.max_mag);
    EXPECT_EQ(pins.state(kOp), want);
  }
  EXPECT_NE(pins.sample(nonfinite(kOp + 1, 0x390)).flags, 0);  // the others are judged
  pins.set(kOp, Mode::kSafe, false, false);
  EXPECT_EQ(static_cast<Cause>(pins.sample(nonfinite(kOp, 0x391)).cause), Cause::kEscalate);
}

TEST(Disabled, WholeDevice) {
  Pins<Vopd_top> pins;
  fill(pins);
  pins.write(reg::kControl, 0);
  for (const Statistic& s : {nonfinite(kOp, 0x330), finite(kOp, 0x390, 0x7BFF)}) {
    const OpRecord record = pins.sample(s);
    EXPECT_EQ(record.flags, 0);
    EXPECT_EQ(record.risk, 0);
    EXPECT_EQ(record.cause, 0);
    EXPECT_EQ(record.mode, 2);
    EXPECT_EQ(pins.state(kOp), kFilled);
  }
  pins.write(reg::kControl, 1);
  EXPECT_EQ(static_cast<Cause>(pins.sample(nonfinite(kOp, 0x391)).cause), Cause::kEscalate);
}

TEST(Clear, HighWaterAndUnseenStartAgain) {
  Pins<Vopd_top> pins;
  CycleInput sample;
  sample.stat_valid = true;
  sample.statistic = finite(kOp, 0, 0x3C00);
  for (int i = 0; i < 5; ++i) pins.edge(sample);
  sample.statistic.descriptor.op = 0xFFFF;  // no such operator
  for (int i = 0; i < 3; ++i) {
    while (!pins.edge(sample).stat_ready) {
    }
  }
  EXPECT_EQ(pins.read(reg::kUnseen), 3u);
  EXPECT_EQ(pins.read(reg::kQueue) >> 8, 4u);
  pins.drain();
  pins.write(reg::kCommand, 1);
  pins.edge();
  EXPECT_EQ(pins.read(reg::kUnseen), 0u);
  EXPECT_EQ(pins.read(reg::kQueue), 0u);
  // What the clearing edge counts stays: the write ends at edge e, clearing is at e + 1.
  pins.write(reg::kCommand, 1);
  const CycleOutput at = pins.edge(sample);
  EXPECT_TRUE(at.stat_ready);
  EXPECT_EQ(at.unseen_count, 0u);
  EXPECT_EQ(pins.edge().unseen_count, 1u);
  // So does the level after it.
  sample.statistic.descriptor.op = kOp;
  pins.write(reg::kCommand, 1);
  pins.edge(sample);
  const CycleOutput after = pins.edge();
  EXPECT_EQ(after.unseen_count, 0u);
  EXPECT_EQ(after.queue_level, 1);
  EXPECT_EQ(after.queue_high_water, 1);
}

}  // namespace
}  // namespace opd::tb
