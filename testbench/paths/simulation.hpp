#pragma once
// The SystemC side of a replay: vector unit and device, cycle-accurate, with the Verilated device
// clocked beside them on the same pins; and the same unit loosely timed.
//
// A host runs beside the vector unit: it configures the device through its registers before the first
// operator, reacts to the interrupt, announces learning-rate changes between two steps, and reads
// counters at the end, all by the driver: over APB on the shared pins in the lockstep run, over TLM
// in the loosely timed one. Nothing reaches a device by another way.
//
// SystemC elaborates once per process: make one Simulation, then run as many traces through it as
// wanted. Each run resets the devices first, as a host would.
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "operators.hpp"
#include "paths/path_result.hpp"
#include "paths/pin_device.hpp"
#include "paths/waveform.hpp"
#include "policy.hpp"

namespace opd::tb {

struct SimulationOptions {
  DeviceParameters device;
  Config config;  ///< of every device
  /// What the device of the path `plant_fault` (rtl, systemc or systemc-lt) gets instead. Rtl and
  /// systemc share their pins: the one register that differs is written differently to one of them.
  Config faulty_config;
  std::optional<std::string> plant_fault;
  ComputeOptions compute;     ///< registers of both vector units
  unsigned lane_latency = 4;  ///< clocks from issue to the first beat
  unsigned bubbles = 1;       ///< idle clocks between operators of one stream
  unsigned streams = 1;       ///< operators in flight
};

/// What a lockstep run does beside comparing pins.
struct LockstepExtras {
  /// The words of all operators are compared after each completion, and those of the operators that
  /// complete kept. The RTL, where there is one, must give its stored state.
  bool compare_state = false;
  /// Not null: what the waveform is told. The run goes on after a divergence, and ends with it.
  Waveform* waveform = nullptr;
};

/// Result of a lockstep run; `divergence` names the first cycle in which the pins of the two devices
/// differed, if any.
struct LockstepResult {
  PathResult systemc;
  PathResult rtl;  ///< empty when there was no RTL device
  std::uint64_t cycles_compared = 0;
  std::uint64_t cycle_mismatches = 0;  ///< 0 or 1: the run stops at the first
  std::optional<Divergence> divergence;
  std::uint64_t completions = 0;  ///< that came out, of systemc
  std::uint64_t states_compared = 0;
  std::vector<MismatchKind>
      state_kinds;  ///< differences of stored state, which do not stop the run
};

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  /// Runs the operators cycle by cycle. `rtl` may be null; it is reset here. `on_progress` is told the
  /// operators completed so far. Where operators are computed, a training step starts when the
  /// records of the one before are out: modes at issue are then the same on every path. `fault` may
  /// be null. Errors of the driver come as sc_core::sc_report. With a `policy`, which may be null,
  /// each step waits for the records of the one before as well, and for the policy's commands; its
  /// errors come as they are.
  LockstepResult run_lockstep(const OperatorStream& operators, PinDevice* rtl,
                              const std::function<void(std::size_t)>& on_progress = {},
                              const OperandFault* fault = nullptr, PolicyAnswers* policy = nullptr,
                              const LockstepExtras& extras = {});

  /// Runs the operators loosely timed, in the order of `order` (tags by seq); empty = program
  /// order, which a stream that computes must give. `keep_states`: after each completion, in the result.
  PathResult run_loosely_timed(const OperatorStream& operators,
                               std::span<const std::size_t> order = {},
                               const OperandFault* fault = nullptr, PolicyAnswers* policy = nullptr,
                               bool keep_states = false);

 private:
  struct Modules;
  std::unique_ptr<Modules> modules_;
};

}  // namespace opd::tb
