#pragma once
// A device in the loop of a training run: this host clocks it at its pins and speaks to it as a real
// one would. Nothing reaches the device by another way, and nothing is read behind its pins.
//
//   completions : statistics at the sideband port (stat_*), one after the other
//   registers   : the driver over APB: bring-up, interrupt, events, hints, last clean step, commands
//   modes       : the mode port (mode_op_i, mode_o), as the vector unit reads it when it issues
//   records     : the record port
//   time        : the host waits for its accesses. It gives no completion while it serves an
//                 interrupt, so that no more events wait than the device's queue of completions holds
//   threads     : one at a time
//   errors      : std::runtime_error (driver::BusError and DeviceError among them) for a device that
//                 is not what it should be, hangs, or drops a completion or an event
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "opd/driver/driver.hpp"
#include "opd/types/device.hpp"
#include "paths/apb_bus.hpp"
#include "paths/pin_device.hpp"

namespace opd::tb {

class HostedDevice {
 public:
  /// What a training step's completions led to.
  struct Step {
    std::vector<OpRecord> records;  ///< one per completion, in their order
    std::vector<Event> events;
  };

  /// Resets the device and brings it up. It may have more operators than `num_ops`.
  /// Errors: std::invalid_argument for a configuration out of range; DeviceError for a device with
  /// fewer operators.
  HostedDevice(std::unique_ptr<PinDevice> pins, unsigned num_ops, const Config& config);

  /// Returns when every completion has been recorded and no interrupt is left.
  /// Precondition: op < num_ops, and max_mag a magnitude of the format.
  Step step(std::span<const Statistic> completions);

  /// Of every operator, one clock each.
  std::vector<Mode> modes();
  [[nodiscard]] Hints hints() const {
    return hints_;
  }  ///< read when the device said that they changed
  std::optional<std::uint32_t> last_clean_step() { return driver_.last_clean_step(); }

  void announce_learning_rate(std::uint32_t step) { driver_.announce_learning_rate(step); }
  /// Errors: std::out_of_range when op >= num_ops.
  driver::OperatorState operator_state(std::uint16_t op);
  /// Errors: as operator_state.
  driver::OperatorState set_operator(std::uint16_t op, Mode mode, bool locked, bool disabled);

  [[nodiscard]] unsigned num_ops() const { return num_ops_; }
  /// Clocks since the reset.
  [[nodiscard]] std::uint64_t cycles() const { return cycles_; }

 private:
  CycleOutput clock_(const CycleInput& input);
  void give_(const Statistic& completion);
  void serve_interrupts_();
  void check_op_(std::uint16_t op) const;

  std::unique_ptr<PinDevice> pins_;
  unsigned num_ops_;
  ApbBus bus_;
  driver::Driver driver_{bus_};
  Hints hints_;
  Step open_;         ///< the step that is being run
  bool irq_ = false;  ///< in the last clock
  std::uint64_t cycles_ = 0;
};

}  // namespace opd::tb
