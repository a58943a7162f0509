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

/// What the detection unit says about one completion.
struct Detection {
  OpRecord record;
  TapCounts counts;
};

/// False for a completion that the detection unit must not see: no such operator or no such format.
constexpr bool is_legal(const OpDescriptor& descriptor, unsigned num_ops) {
  return descriptor.op < num_ops && is_format(descriptor.format);
}

}  // namespace opd::sc
