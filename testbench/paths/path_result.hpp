#pragma once
// What running a trace through one path yields, whatever the path.
#include <cstdint>
#include <string>
#include <vector>

#include "crosscheck.hpp"

namespace opd::tb {

struct PathResult {
  std::string path;
  std::vector<Completion> completions;  ///< those the detection unit saw, in seq order
  std::uint32_t unseen_count = 0;
  double seconds = 0;  ///< wall time of the path alone
  // rtl and systemc:
  std::uint64_t cycles = 0;
  std::uint64_t beats = 0;
  std::uint64_t stall_cycles = 0;  ///< vector-unit beats held back by the device
  unsigned queue_high_water = 0;
  // cpu and cuda:
  std::vector<double> reaction_ns;  ///< operators with elements: statistic, detection and decision
  /// Operators whose statistic was given: detection and decision
  std::vector<double> statistic_reaction_ns;
  /// Per completion: the baseline after it, log2; NaN while there is none
  std::vector<double> baseline_log2;
  std::uint64_t bytes_read = 0;  ///< element bytes read a second time
};

}  // namespace opd::tb
