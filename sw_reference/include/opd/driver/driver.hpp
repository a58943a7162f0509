#pragma once
// Host driver of the device: bring-up, configuration, interrupts, events, hints and commands on
// operators, over any RegisterBus. How a host uses it is docs/programming.md; what each register
// means is docs/registers.md.
//
//   cost    : every call says how many accesses it makes where that is not one
//   threads : one at a time; the device has one event queue and one command at a time
//   errors  : BusError for an access that the device refuses, DeviceError for a device that answers
//             but is not what it should be. Neither leaves a command running.
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>

#include "opd/driver/register_bus.hpp"
#include "opd/types/device.hpp"
#include "opd/types/record.hpp"

namespace opd::driver {

/// The major version of the register map that this driver speaks.
inline constexpr unsigned kMajorVersion = 1;

/// The device answers, but not as this driver expects. The text names register, value and remedy.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bits of IRQ_STATUS and IRQ_ENABLE.
struct Interrupts {
  bool event = false;
  bool event_lost = false;
  bool unseen = false;
  bool hint = false;
  bool escalate = false;
  bool upset = false;
  [[nodiscard]] bool any() const { return *this != Interrupts{}; }
  bool operator==(const Interrupts&) const = default;
};
inline constexpr Interrupts kAllInterrupts{true, true, true, true, true, true};

/// What one call of Driver::handle_events found.
struct EventReport {
  Interrupts interrupts;  ///< that were pending, and have been cleared
  unsigned handled = 0;   ///< events given to the callback
  /// EVENTS_LOST.COUNT, all losses since the counters were cleared; 0 unless one was pending
  std::uint32_t lost = 0;
};

/// Operators that are not in FAST.
struct ModeCounts {
  std::uint32_t stable = 0;
  std::uint32_t safe = 0;
  bool operator==(const ModeCounts&) const = default;
};

/// Levels, high-water marks and saturating counts; all but the levels since the last clear.
struct Counters {
  unsigned queue_level = 0;
  unsigned queue_high_water = 0;
  unsigned event_level = 0;
  unsigned event_high_water = 0;
  std::uint32_t unseen = 0;
  std::uint32_t events_lost = 0;
  std::uint32_t upsets = 0;
  bool operator==(const Counters&) const = default;
};

/// Everything that the device holds of one operator (registers OP_CONTROL .. OP_SLOPE).
struct OperatorState {
  Mode mode = Mode::kFast;
  bool locked = false;
  bool disabled = false;
  std::uint8_t timer = 0;      ///< steps
  std::uint8_t last_step = 0;  ///< low byte
  std::uint8_t age = 0;        ///< samples in the baselines
  std::uint8_t nonfinite_run = 0;
  std::int32_t baseline = 0;  ///< forecast engine, 1/128 bit
  std::int16_t anchor = 0;    ///< published engine, all below as well
  float mean = 0;
  float variance = 0;
  float last = 0;
  float slope = 0;
  bool operator==(const OperatorState&) const = default;
};

class Driver {
 public:
  /// Keeps a reference to the bus; makes no access.
  explicit Driver(RegisterBus& bus) : bus_(bus) {}

  /// Checks that the device is one that this driver speaks and returns its parameters. 6 reads.
  /// Errors: DeviceError for another ID or major version.
  DeviceParameters identify();

  /// Makes the configuration of the device equal to `config`: writes the registers that differ and
  /// reads them back. Only while no completion is in flight. One read per register, then two
  /// accesses per changed one. Returns how many registers were written.
  /// Errors: std::invalid_argument that names a field out of its range, before anything is written;
  /// DeviceError when a register does not read back as written.
  unsigned configure(const Config& config);
  /// One read per configuration register.
  [[nodiscard]] Config read_configuration();

  void enable_interrupts(const Interrupts& interrupts);
  /// What is pending, enabled or not. Changes nothing.
  [[nodiscard]] Interrupts poll();
  /// Clears what is pending, then gives every waiting event to `callback`, oldest first. In this
  /// order nothing is missed: an event that arrives after the clearing raises the interrupt again.
  /// 4 accesses per event and up to 5 more.
  EventReport handle_events(const std::function<void(const Event&)>& callback);

  /// 2 reads. A hint that changes between them raises IRQ_STATUS.HINT.
  [[nodiscard]] Hints hints();
  [[nodiscard]] ModeCounts mode_counts();  ///< 2 reads
  /// The latest step that ended without a non-finite sample; nothing before the first. 2 reads; the
  /// step is valid once LAST_CLEAN.VALID is, which stays 1, so it is read second.
  [[nodiscard]] std::optional<std::uint32_t> last_clean_step();

  /// The learning rate changes with training step `step`. Only while no completion of that step or
  /// a later one is in flight.
  void announce_learning_rate(std::uint32_t step);

  /// Commands on one operator; each waits until it is done (about 20 clocks of the device at most).
  /// Errors: BusError for an operator that does not exist, DeviceError when the device stays busy.
  OperatorState op_state(std::uint16_t op);
  OperatorState clear(std::uint16_t op);   ///< everything as after reset
  OperatorState reseed(std::uint16_t op);  ///< forgets the baselines, keeps mode and timer
  /// Sets mode and lock; the timer restarts. Whether the operator is enabled is read first and
  /// written back.
  OperatorState set_mode(std::uint16_t op, Mode mode, bool locked);
  /// Enables or disables judging of the operator's samples; the timer restarts. Mode and lock are
  /// read first and written back: a change of mode in between is undone. Locking the operator
  /// before avoids that.
  OperatorState enable(std::uint16_t op, bool enabled);
  /// Mode, lock and disable together, by one command; the timer restarts.
  OperatorState set(std::uint16_t op, Mode mode, bool locked, bool disabled);

  [[nodiscard]] Counters counters();  ///< 5 reads
  void clear_counters();

 private:
  OperatorState command_(std::uint16_t op, Command command);
  void wait_until_idle_();
  OperatorState read_operator_();

  RegisterBus& bus_;
};

}  // namespace opd::driver
