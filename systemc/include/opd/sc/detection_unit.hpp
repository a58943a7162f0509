#pragma once
// The detection unit: both engines, risk and downshift controller around one state memory and the
// mode registers.
//
//   READ    : the state of an operator is read, for a completion or for a command of software
//   COMPUTE : K clocks, 8 with the published engine and none without
//   WRITE   : flags, risk and mode are there; state and mode register are written
//   COMMAND : the same for a command, straight from READ
//
//   throughput : one completion per 2 + K clocks
//   upsets     : a memory word is judged when it is read, a mode register when it is written; both
//                are written afresh by every sample and every command
//   untimed    : read(), then write() or execute(): the loosely timed model counts no clocks
//   source     : docs/architecture.md "Timing contract", docs/controller.md
#include <cstdint>
#include <optional>
#include <vector>

#include "opd/sc/completion.hpp"
#include "opd/sc/downshift_controller.hpp"
#include "opd/sc/mode_registers.hpp"
#include "opd/sc/published_engine.hpp"
#include "opd/sc/sample.hpp"
#include "opd/types/device.hpp"

namespace opd::sc {

/// Everything the device remembers of one operator, its mode apart; zero after reset.
struct OpState {
  History history;
  std::int32_t baseline = 0;  ///< of the forecast engine, 1/128 bit
  PublishedState published;
  ControllerState controller;
  bool operator==(const OpState&) const = default;
};

/// Where an upset hits.
enum class UpsetTarget {
  kMemory,        ///< the operator's word in the state memory: a data bit, parity, or a mark of it
  kModeRegister,  ///< bit 0 or 1: mode, 2: parity
};

/// What is stored of one operator, as it stands: upsets are not repaired.
struct StoredWord {
  OpState state;
  Mode mode = Mode::kFast;         ///< copy of the mode register
  bool corrupt = false;            ///< parity does not hold
  bool written = false;            ///< since reset; a word that is not reads as after reset
  std::uint8_t mode_register = 0;  ///< bits of ModeRegisters: mode, parity
};

/// What a command of software does to one operator.
struct OpCommand {
  std::uint16_t op = 0;  ///< < num_ops
  Command command = Command::kRead;
};

/// What SET writes.
struct OpSetting {
  Mode mode = Mode::kFast;
  bool locked = false;
  bool disabled = false;
};

/// The operator after a command.
struct CommandResult {
  OpState state;
  Mode old_mode = Mode::kFast;  ///< after repair, before the command
  Mode mode = Mode::kFast;
  bool upset = false;  ///< an upset was found and repaired
};

class DetectionUnit {
 public:
  enum class State { kRead, kCompute, kWrite, kCommand };

  explicit DetectionUnit(const DeviceParameters& parameters)
      : parameters_(parameters), memory_(parameters.num_ops), modes_(parameters.num_ops) {}

  void reset();

  State state() const { return state_; }
  const ModeRegisters& modes() const { return modes_; }

  /// The edge that leaves READ with a completion. Precondition: state() is READ, the completion is
  /// legal.
  void read(const Completion& completion);

  /// The edge that leaves READ with a command. Precondition: state() is READ, op < num_ops.
  void read(const OpCommand& command);

  /// One edge of COMPUTE. Precondition: state() is COMPUTE.
  void compute() {
    if (--clocks_left_ == 0) state_ = State::kWrite;
  }

  /// The edge that leaves WRITE. `learning_rate_change` is the step announced by software, if any.
  /// Precondition: a completion has been read.
  Detection write(const Config& config, std::optional<std::uint32_t> learning_rate_change);

  /// The edge that leaves COMMAND. Precondition: a command has been read.
  CommandResult execute(const OpSetting& setting);

  /// The operator's word and mode register, for a bench: no port of the device reads them.
  /// Precondition: op < num_ops.
  StoredWord stored(std::uint16_t op) const {
    const Word& word = memory_[op];
    return {word.state, word.mode, word.corrupt, word.written, modes_.bits(op)};
  }

  /// A bit flips between two edges. In the state memory every single flip has the same effect, so
  /// `bit` only matters in a mode register; a second flip does not undo the first one there.
  /// Precondition: op < num_ops; bit < ModeRegisters::kBits for kModeRegister.
  void inject_upset(std::uint16_t op, UpsetTarget target, unsigned bit);

 private:
  /// One word of the state memory.
  struct Word {
    OpState state;
    Mode mode = Mode::kFast;  ///< copy of the mode register
    bool corrupt = false;     ///< parity does not hold
    bool written = false;     ///< since reset
  };

  /// The operator's state and mode with upsets repaired.
  struct Repaired {
    OpState state;
    Mode mode;
    bool upset;
    bool word_lost;  ///< the state is as after reset
  };

  Repaired repaired_(std::uint16_t op) const;
  void store_(std::uint16_t op, const OpState& state, Mode mode);

  const DeviceParameters parameters_;
  State state_ = State::kRead;
  unsigned clocks_left_ = 0;  ///< of COMPUTE
  Completion completion_;
  OpCommand command_;
  Word word_;                 ///< read data of the memory
  std::vector<Word> memory_;  ///< indexed by op id
  ModeRegisters modes_;
};

}  // namespace opd::sc
