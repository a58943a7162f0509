#pragma once
// The registers of the device: configuration, commands, status, events, hints and interrupt. One
// class behind APB4 in the cycle-accurate model and behind TLM-2.0 in the loosely timed one.
//
// Per clock edge, in this order: begin_clock(), then what the hardware does at the edge (sampled(),
// commanded(), count_unseen(), set_queue()), then at most one write(). So the hardware uses the
// register values from before the edge, and an IRQ_STATUS bit that is set and cleared at the same
// edge stays set.
//
//   errors : refusal() says why an access is refused; a refused one must not be made
//   reset  : every register to its reset value, every count to 0
//   source : docs/registers.md; docs/architecture.md, "Registers in time"
#include <cstdint>
#include <optional>

#include "opd/sc/completion.hpp"
#include "opd/sc/detection_unit.hpp"
#include "opd/sc/event_queue.hpp"
#include "opd/sc/mode_counts.hpp"
#include "opd/types/device.hpp"

namespace opd::sc {

/// Why an access is refused.
enum class Refusal {
  kNoRegister,     ///< nothing at the address
  kNotAccessible,  ///< written without a writable field, read without a readable one
  kPartialWrite,   ///< not all four bytes
  kValue,          ///< a field would leave its range, or OP_COMMAND names no operator
  kBusy,           ///< OP_COMMAND while one is running
};

class RegisterFile {
 public:
  explicit RegisterFile(const DeviceParameters& parameters)
      : parameters_(parameters), events_(parameters.event_depth) {}

  void reset();

  // ---- Software

  /// Empty when the access is legal now. `data` and `strobe` (4 bits) are those of a write.
  std::optional<Refusal> refusal(bool write, std::uint64_t address, std::uint32_t data,
                                 unsigned strobe = 0xF) const;

  /// Precondition: not refused. A read changes nothing.
  std::uint32_t read(std::uint64_t address) const;

  /// Precondition: not refused. CLEAR_COUNTERS and POP act at the next begin_clock().
  void write(std::uint64_t address, std::uint32_t data);

  // ---- Hardware

  /// Commands written at the edge before act.
  void begin_clock() {
    raised_ = 0;
    clearing_ = false;
    if (clear_pending_ || pop_pending_) act_();
  }

  /// No command of software waits for an edge.
  bool idle() const { return !command_ && !clear_pending_ && !pop_pending_; }

  /// The end of READ may take it; commanded() ends it.
  const std::optional<OpCommand>& pending_command() const { return command_; }
  const OpSetting& setting() const { return setting_; }
  const Config& config() const { return config_; }
  /// First step with the new learning rate, once one was announced.
  std::optional<std::uint32_t> learning_rate_change() const { return learning_rate_change_; }

  /// A sample is recorded: counts, last clean step, event, interrupts.
  void sampled(const Detection& detection);
  /// The pending command is done.
  void commanded(const CommandResult& result);
  /// A completion that the detection unit never sees.
  void count_unseen();
  /// Level of the op queue after the edge; high-water mark follows.
  void set_queue_level(unsigned level) {
    queue_level_ = level;
    if (level > queue_high_water_ || clearing_) queue_high_water_ = level;
  }

  std::uint32_t unseen_count() const { return unseen_; }
  unsigned queue_high_water() const { return queue_high_water_; }
  Hints hints() const { return sc::hints(config_, mode_counts_); }
  /// The interrupt pin.
  bool irq() const { return (irq_status_ & irq_enable_) != 0; }

 private:
  void act_();
  void raise_(unsigned bit);
  void move_(Mode from, Mode to);
  void count_upset_();

  const DeviceParameters parameters_;

  // Registers that software writes.
  Config config_;
  std::optional<std::uint32_t> learning_rate_change_;
  std::uint32_t irq_status_ = 0;
  std::uint32_t irq_enable_ = 0;
  std::uint32_t op_command_ = 0;      ///< value of OP_COMMAND
  std::optional<OpCommand> command_;  ///< set: BUSY
  OpSetting setting_;

  // What the hardware shows.
  CommandResult shown_;  ///< OP_CONTROL .. OP_SLOPE
  EventQueue events_;
  ModeCounts mode_counts_;
  LastCleanStep last_clean_step_;
  std::uint32_t unseen_ = 0;  ///< this and the next two saturate
  std::uint32_t events_lost_ = 0;
  std::uint32_t upsets_ = 0;
  unsigned queue_level_ = 0;
  unsigned queue_high_water_ = 0;

  std::uint32_t raised_ = 0;    ///< IRQ_STATUS bits set at this edge
  bool clear_pending_ = false;  ///< COMMAND.CLEAR_COUNTERS, written at the edge before
  bool pop_pending_ = false;    ///< EVENT_POP.POP, likewise
  bool clearing_ = false;       ///< counters are cleared at this edge
};

}  // namespace opd::sc
