#pragma once
// The SystemC side of a replay: vector unit and device, cycle-accurate, with the Verilated device
// clocked beside them on the same pins; and the same unit loosely timed.
//
// SystemC elaborates once per process: make one Simulation, then run as many traces through it as
// wanted. Each run resets the devices first, as a host would.
#include <functional>
#include <memory>
#include <optional>

#include "operators.hpp"
#include "paths/path_result.hpp"
#include "paths/pin_device.hpp"

namespace opd::tb {

struct SimulationOptions {
  DeviceParameters device;
  Config config;  ///< of the SystemC device
  /// Of the loosely timed device (differs only when a fault is planted).
  Config loosely_timed_config;
  unsigned lane_latency = 4;  ///< clocks from issue to the first beat
  unsigned bubbles = 1;       ///< idle clocks between operators of one stream
  unsigned streams = 1;       ///< operators in flight
};

/// Result of a lockstep run; `divergence` names the first cycle in which the two devices differed,
/// if any.
struct LockstepResult {
  PathResult systemc;
  PathResult rtl;  ///< empty when there was no RTL device
  std::uint64_t cycles_compared = 0;
  std::uint64_t cycle_mismatches = 0;  ///< 0 or 1: the run stops at the first
  std::optional<Divergence> divergence;
};

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  /// Runs the operators cycle by cycle. `rtl` may be null; it is reset here. `on_progress` is told the
  /// operators completed so far.
  LockstepResult run_lockstep(const OperatorStream& operators, PinDevice* rtl,
                              const std::function<void(std::size_t)>& on_progress = {});

  /// Runs the operators loosely timed, in the order of `order` (tags by seq); empty = program
  /// order.
  PathResult run_loosely_timed(const OperatorStream& operators,
                               std::span<const std::size_t> order = {});

 private:
  struct Modules;
  std::unique_ptr<Modules> modules_;
};

}  // namespace opd::tb
