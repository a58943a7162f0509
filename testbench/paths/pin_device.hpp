#pragma once
// A device seen through its pins, one clock cycle at a time.
#include <cstdint>

#include "opd/types/device.hpp"

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
};

}  // namespace opd::tb
