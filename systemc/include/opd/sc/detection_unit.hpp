#pragma once
// The detection unit: forecast engine, risk and downshift controller around one state memory.
//
//   READ  : a completion is taken and the state of its operator read
//   WRITE : flags, risk and mode are computed; state, mode register and record are written
//
//   throughput : one completion per 2 clocks, because the memory has one port
//   source     : docs/architecture.md, "Timing contract"
#include <vector>

#include "opd/sc/completion.hpp"
#include "opd/sc/downshift_controller.hpp"
#include "opd/sc/forecast_engine.hpp"
#include "opd/sc/mode_registers.hpp"
#include "opd/sc/risk.hpp"

namespace opd::sc {

class DetectionUnit {
 public:
  enum class State { kRead, kWrite };

  DetectionUnit(unsigned num_ops, const Config& config)
      : config_(config), engine_(config), controller_(config), memory_(num_ops) {}

  void reset() {
    state_ = State::kRead;
    memory_.assign(memory_.size(), OpState{});
  }

  State state() const { return state_; }

  /// The edge that leaves READ. Precondition: state() is READ and the completion is legal.
  void read(const Completion& completion) {
    completion_ = completion;
    op_state_ = memory_[completion.statistic.descriptor.op];
    state_ = State::kWrite;
  }

  /// The edge that leaves WRITE. `mode_changed` tells whether the register got a new value.
  /// Precondition: state() is WRITE.
  Detection write(ModeRegisters& modes, bool& mode_changed) {
    const OpDescriptor& descriptor = completion_.statistic.descriptor;
    const TapSummary& summary = completion_.statistic.summary;

    const std::uint16_t flags = engine_.detect(descriptor, summary, op_state_.forecast);
    const std::uint8_t score = risk(config_, flags);
    const Transition transition = controller_.advance(modes.read(descriptor.op), descriptor.step,
                                                      flags, score, op_state_.controller);
    mode_changed = modes.write(descriptor.op, transition.mode);
    memory_[descriptor.op] = op_state_;
    state_ = State::kRead;

    return {.record = {.seq = completion_.seq,
                       .step = descriptor.step,
                       .op = descriptor.op,
                       .format = static_cast<std::uint8_t>(descriptor.format),
                       .mode = static_cast<std::uint8_t>(transition.mode),
                       .max_mag = summary.max_mag,
                       .nonfinite_count = summary.nonfinite_count,
                       .first_nonfinite = summary.first_nonfinite,
                       .saturated_count = summary.saturated_count,
                       .flags = flags,
                       .risk = score,
                       .cause = static_cast<std::uint8_t>(transition.cause)},
            .counts = {.element_count = summary.element_count,
                       .subnormal_count = summary.subnormal_count,
                       .zero_count = summary.zero_count}};
  }

 private:
  struct OpState {
    ForecastState forecast;
    ControllerState controller;
  };

  Config config_;
  ForecastEngine engine_;
  DownshiftController controller_;

  State state_ = State::kRead;
  Completion completion_;
  OpState op_state_;             ///< read data of the memory
  std::vector<OpState> memory_;  ///< indexed by op id
};

}  // namespace opd::sc
