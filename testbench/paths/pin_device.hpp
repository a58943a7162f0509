#pragma once
// A device seen through its pins, one clock cycle at a time.
#include <cstdint>
#include <optional>

#include "opd/types/device.hpp"
#include "stored_state.hpp"

namespace opd::tb {

/// Per cycle: peek() with the inputs of the coming edge, then edge().
class PinDevice {
 public:
  virtual ~PinDevice() = default;
  /// Asynchronous reset.
  virtual void reset() = 0;
  /// Drives the inputs and returns the outputs of the same cycle.
  virtual CycleOutput peek(const CycleInput& input) = 0;
  /// Rising edge: the inputs of the last peek() are sampled.
  virtual void edge() = 0;
  /// What it stores of an operator, past its pins; nothing where a bench cannot read it.
  [[nodiscard]] virtual std::optional<StoredState> stored_state(std::uint16_t /*op*/) const {
    return std::nullopt;
  }
};

}  // namespace opd::tb
