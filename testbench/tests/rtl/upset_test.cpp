// Every bit of stored state of one operator, flipped: detected, reported and repaired as the table of
// docs/controller.md, "Upsets", says. The small device is built so that a test can reach its memory.
#include <gtest/gtest.h>

#include <functional>

#include "Vopd_top_small.h"
#include "Vopd_top_small___024root.h"
#include "pins.hpp"

namespace opd::tb {
namespace {

using Device = Pins<Vopd_top_small>;
constexpr std::uint16_t kOp = 3;
constexpr unsigned kWordBits = 16 + 17 + (10 + 4 * 32) + 20 + 1;  // state and parity

void flip_word(Device& pins, unsigned bit) {
  auto& word =
      pins.model().rootp->opd_top__DOT__u_detection_unit__DOT__u_state_memory__DOT__word_q[kOp];
  static_assert(sizeof(word) * 8 >= kWordBits);
  word[bit / 32] ^= 1u << bit % 32;
}
void flip_written(Device& pins, unsigned bit) {
  pins.model().rootp->opd_top__DOT__u_detection_unit__DOT__u_state_memory__DOT__written_q[kOp] ^=
      static_cast<std::uint8_t>(1u << bit);
}
void flip_register(Device& pins, unsigned bit) {
  pins.model().rootp->opd_top__DOT__u_mode_registers__DOT__register_q[kOp] ^=
      static_cast<std::uint8_t>(1u << bit);
}

/// One way to break the stored state of the operator, and what of it the device has left.
struct Fault {
  std::string name;
  std::function<void(Device&)> inject;
  bool word = false;  ///< the memory word is corrupt
  bool mode = false;  ///< the mode register is
};

std::vector<Fault> single_flips() {
  std::vector<Fault> faults;
  for (unsigned bit = 0; bit < kWordBits; ++bit) {
    faults.push_back({"word bit " + std::to_string(bit),
                      [bit](Device& pins) { flip_word(pins, bit); }, true, false});
  }
  for (unsigned bit = 0; bit < 2; ++bit) {
    faults.push_back({"written bit " + std::to_string(bit),
                      [bit](Device& pins) { flip_written(pins, bit); }, true, false});
  }
  for (unsigned bit = 0; bit < 3; ++bit) {
    faults.push_back({"register bit " + std::to_string(bit),
                      [bit](Device& pins) { flip_register(pins, bit); }, false, true});
  }
  return faults;
}

/// Operator in `mode`, locked or not, with a history and a timer that has begun (in STABLE and SAFE).
OpState prepare(Device& pins, Mode mode, bool locked) {
  pins.sample(finite(kOp, 0x2FE, 0x3C00));
  pins.sample(finite(kOp, 0x2FF, 0x3C40));
  if (mode != Mode::kFast) pins.sample(nonfinite(kOp, 0x300));
  if (mode == Mode::kSafe) pins.sample(nonfinite(kOp, 0x301));
  pins.sample(finite(kOp, 0x304, 0x3C20));
  return locked ? pins.set(kOp, mode, true, false) : pins.state(kOp);
}

/// After reset, with the mode that the table leaves.
OpState lost(Mode mode) {
  OpState state;
  state.mode = mode;
  return state;
}

// Found by a command: repaired and reported, without an event.
TEST(Upset, EveryFlippedBitIsFoundByACommand) {
  int faults = 0;
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    for (const Fault& fault : single_flips()) {
      Device pins;
      const OpState before = prepare(pins, mode, true);
      const std::uint32_t events = pins.read(reg::kEvents);
      pins.write(reg::kIrqStatus, 0x3F);
      fault.inject(pins);
      EXPECT_EQ(pins.mode(kOp), fault.mode ? Mode::kSafe : mode) << fault.name;
      EXPECT_EQ(pins.read(reg::kUpsets), 0u);
      EXPECT_EQ(pins.state(kOp), fault.word ? lost(mode) : before) << fault.name;
      EXPECT_EQ(pins.mode(kOp), mode) << fault.name;
      EXPECT_EQ(pins.read(reg::kUpsets), 1u) << fault.name;
      EXPECT_EQ(pins.read(reg::kIrqStatus), 1u << 5) << fault.name;
      EXPECT_EQ(pins.read(reg::kEvents), events) << fault.name;
      EXPECT_EQ(pins.state(kOp), fault.word ? lost(mode) : before) << fault.name;  // and is gone
      EXPECT_EQ(pins.read(reg::kUpsets), 1u) << fault.name;
      ++faults;
    }
  }
  EXPECT_EQ(faults, 3 * (192 + 2 + 3));
}

// Found by a sample: it is judged from the repaired state, raises UPSET and makes an event.
TEST(Upset, EveryFlippedBitIsFoundByASample) {
  int faults = 0;
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    for (const Fault& fault : single_flips()) {
      Device pins, healthy;
      prepare(pins, mode, false);
      prepare(healthy, mode, false);
      // An operator without a word holds the mode and nothing else: set by a command it is the model
      // of a lost state, because a timer of 0 and e = 0 do nothing.
      if (fault.word) {
        healthy.command(kOp, Command::kClear);
        healthy.set(kOp, mode, false, false);
      }
      for (Device* device : {&pins, &healthy}) {
        while (device->read(reg::kEventOp) != 0) {
          device->write(reg::kEventPop, 1);
          device->edge();
        }
      }
      pins.write(reg::kIrqStatus, 0x3F);
      fault.inject(pins);
      const std::uint32_t step = 0x308;
      // The last step of a cleared operator is 0: e = 8 in the healthy device, 0 in the other.
      OpRecord want = healthy.sample(finite(kOp, fault.word ? 0x400 : step, 0x3C60));
      want.step = step;
      want.seq = static_cast<std::uint32_t>(pins.seen().size());
      want.flags = static_cast<std::uint16_t>(want.flags | flag_bit(Flag::kUpset));
      EXPECT_EQ(pins.sample(finite(kOp, step, 0x3C60)), want) << fault.name;
      OpState state = healthy.state(kOp);
      state.last_step = step & 0xFF;
      EXPECT_EQ(pins.state(kOp), state) << fault.name;
      EXPECT_EQ(pins.mode(kOp), static_cast<Mode>(want.mode)) << fault.name;
      EXPECT_EQ(pins.read(reg::kUpsets), 1u) << fault.name;
      EXPECT_EQ(pins.read(reg::kIrqStatus) & ~std::uint32_t{1u << 3}, 1u << 5 | 1u) << fault.name;
      EXPECT_EQ(pins.read(reg::kEventStep), step);
      EXPECT_EQ(pins.read(reg::kEventOp), kOp | static_cast<std::uint32_t>(mode) << 16 |
                                              std::uint32_t{want.mode} << 18 |
                                              std::uint32_t{want.cause} << 20)
          << fault.name;
      EXPECT_EQ(pins.read(reg::kEventScore), want.flags | std::uint32_t{want.risk} << 16);
      EXPECT_EQ(pins.sample(finite(kOp, step, 0x3C60)).flags & flag_bit(Flag::kUpset), 0);
      ++faults;
    }
  }
  EXPECT_EQ(faults, 3 * (192 + 2 + 3));
}

TEST(Upset, BothCorruptIsSafe) {
  int faults = 0;
  const auto flips = single_flips();
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    for (const Fault& word : flips) {
      if (!word.word) continue;
      for (unsigned bit = 0; bit < 3; ++bit) {
        Device pins;
        prepare(pins, mode, true);
        word.inject(pins);
        flip_register(pins, bit);
        EXPECT_EQ(pins.state(kOp), lost(Mode::kSafe)) << word.name;
        EXPECT_EQ(pins.mode(kOp), Mode::kSafe);
        EXPECT_EQ(pins.read(reg::kUpsets), 1u);
        ++faults;
      }
    }
  }
  EXPECT_EQ(faults, 3 * 194 * 3);
}

// Two flips that leave the parity right: the copy in the memory is the mode that counts.
TEST(Upset, RegisterOtherThanTheCopy) {
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    for (const unsigned pair : {0b011u, 0b101u, 0b110u}) {
      Device pins;
      const OpState before = prepare(pins, mode, true);
      for (unsigned bit = 0; bit < 3; ++bit) {
        if ((pair >> bit & 1u) != 0) flip_register(pins, bit);
      }
      EXPECT_EQ(pins.state(kOp), before);
      EXPECT_EQ(pins.mode(kOp), mode);
      EXPECT_EQ(pins.read(reg::kUpsets), 1u);
    }
  }
}

TEST(Upset, ADisabledOperatorIsRepairedAndReported) {
  Device pins;
  prepare(pins, Mode::kStable, false);
  OpState want = pins.set(kOp, Mode::kStable, false, true);
  flip_register(pins, 0);
  OpRecord record = pins.sample(nonfinite(kOp, 0x305));
  EXPECT_EQ(record.flags, flag_bit(Flag::kUpset));
  EXPECT_EQ(record.risk, 0);
  EXPECT_EQ(record.mode, 1);
  EXPECT_EQ(pins.state(kOp), want);
  EXPECT_EQ(pins.mode(kOp), Mode::kStable);
  // A lost word loses `disabled` as well: the sample is judged.
  flip_word(pins, 100);
  record = pins.sample(nonfinite(kOp, 0x306));
  EXPECT_EQ(record.flags,
            flag_bit(Flag::kUpset) | flag_bit(Flag::kNonfinite) | flag_bit(Flag::kWarmup));
  EXPECT_EQ(record.mode, 2);
  // With the whole device off the repair is all that happens.
  pins.write(reg::kControl, 0);
  flip_word(pins, 100);
  record = pins.sample(nonfinite(kOp, 0x307));
  EXPECT_EQ(record.flags, flag_bit(Flag::kUpset));
  EXPECT_EQ(record.mode, 2);
  EXPECT_EQ(pins.state(kOp), lost(Mode::kSafe));
  EXPECT_EQ(pins.read(reg::kUpsets), 3u);
}

// A word that was never written holds nothing: what it powers up with, and flips there, are no upset.
TEST(Upset, AWordNeverWrittenIsNotCorrupt) {
  for (unsigned bit = 0; bit < kWordBits; ++bit) {
    Device pins;
    flip_word(pins, bit);
    EXPECT_EQ(pins.state(kOp), OpState{});
    EXPECT_EQ(pins.read(reg::kUpsets), 0u);
  }
  for (unsigned bit = 0; bit < 2; ++bit) {
    Device pins;
    flip_written(pins, bit);
    EXPECT_EQ(pins.state(kOp), OpState{});
    EXPECT_EQ(pins.read(reg::kUpsets), 1u);
  }
}

}  // namespace
}  // namespace opd::tb
