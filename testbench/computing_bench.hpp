#pragma once
// Speed of the vector unit that computes, with a device attached: cycle-accurate on the pins, and
// loosely timed. Part of `opd bench`.
//
// SystemC elaborates once per process: make it before the first simulation runs.
#include <memory>

#include "opd/types/computation.hpp"
#include "opd/types/device.hpp"

namespace opd::tb {

class ComputingBench {
 public:
  explicit ComputingBench(const DeviceParameters& device);
  ~ComputingBench();
  ComputingBench(const ComputingBench&) = delete;
  ComputingBench& operator=(const ComputingBench&) = delete;

  struct Speed {
    double seconds = 0;
    std::uint64_t cycles = 0;        ///< simulated clocks
    std::uint64_t lane_beats = 0;    ///< that the lanes took in, over all passes
    std::uint64_t output_beats = 0;  ///< written back
  };

  /// Runs the computation `count` times, back to back, in FAST.
  Speed cycle_accurate(const Computation& computation, unsigned count);
  /// The same loosely timed; lane_beats and output_beats stay 0.
  Speed loosely_timed(const Computation& computation, unsigned count);

 private:
  struct Modules;
  std::unique_ptr<Modules> modules_;
};

}  // namespace opd::tb
