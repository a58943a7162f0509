#pragma once
// What a replay that computes asks of the vector unit of every path, and a fault for one of them.
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "opd/types/computation.hpp"
#include "opd/types/device.hpp"

namespace opd::tb {

/// The unit's CONTROL register, as `opd replay --compute` sets it.
struct ComputeOptions {
  std::optional<Mode> force_mode;  ///< whatever the mode registers hold
  AccumulatorChoice accumulator = AccumulatorChoice::kPerOperator;
  bool saturate = false;
};
/// Values of --accumulator, by AccumulatorChoice.
inline constexpr std::array<std::string_view, 3> kAccumulatorChoiceNames = {"per-operator",
                                                                            "narrow", "wide"};

/// Width of the device's datapath, and CONTROL.
[[nodiscard]] inline UnitSettings unit_settings(const DeviceParameters& device,
                                                const ComputeOptions& options) {
  return {.datapath_width = device.datapath_width,
          .saturate = options.saturate,
          .accumulator = options.accumulator};
}

/// Paths with arithmetic of their own; rtl has the beats of systemc.
inline constexpr std::array<std::string_view, 3> kComputingPaths = {"systemc", "systemc-lt", "cpu"};

/// One operand of one execution with a bit flipped. Valid while it lives: it holds the bytes.
struct OperandFault {
  std::size_t tag = 0;
  std::size_t operand = 0;
  std::vector<std::byte> elements;
};

/// The computation with the fault in it where it is the one that is meant.
[[nodiscard]] inline Computation with_fault(Computation computation, const OperandFault* fault,
                                            std::size_t tag) {
  if (fault != nullptr && fault->tag == tag)
    computation.operands[fault->operand].elements = fault->elements;
  return computation;
}

/// What a path computed.
struct ComputedExecution {
  std::size_t tag = 0;  ///< operator in program order
  Execution execution;
};

}  // namespace opd::tb
