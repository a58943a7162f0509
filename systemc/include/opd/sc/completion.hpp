#pragma once
// What travels from the tap or the sideband through the op queue to the detection unit, and out of
// it.
#include <cstdint>

#include "opd/sc/format.hpp"
#include "opd/types/device.hpp"

namespace opd::sc {

/// One operator output, numbered.
struct Completion {
  std::uint32_t seq = 0;
  Statistic statistic;
};

/// What the detection unit says about one completion. Whether it found an upset is flag UPSET.
struct Detection {
  OpRecord record;
  TapCounts counts;
  Mode old_mode = Mode::kFast;  ///< before the sample, after repair of an upset
};

/// Clocks that the detection unit computes between reading and writing an operator's state: K of
/// docs/architecture.md.
constexpr unsigned compute_clocks(const DeviceParameters& parameters) {
  return parameters.published_engine ? 8 : 0;
}

/// False for a completion that the detection unit must not see: no such operator or no such format.
constexpr bool is_legal(const OpDescriptor& descriptor, unsigned num_ops) {
  return descriptor.op < num_ops && is_format(descriptor.format);
}

}  // namespace opd::sc
