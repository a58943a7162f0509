#pragma once
// What running a trace through one path yields, whatever the path.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crosscheck.hpp"
#include "opd/driver/driver.hpp"
#include "opd/driver/training.hpp"
#include "paths/computing.hpp"

namespace opd::tb {

/// A change of hints, and what a training loop does with it.
struct HintChange {
  std::uint32_t step = 0;  ///< of the last event before it was read, or before a policy's commands
  Hints hints;
  /// What is in force from here on, as factors of the loop's own settings
  driver::TrainingSettings factors;
};

/// What the host's driver read from a device, or what the reference says that it must read.
struct HostView {
  std::vector<Event> events;      ///< in the order of their samples
  std::uint32_t events_lost = 0;  ///< that found the event queue full
  std::vector<HintChange> hint_changes;
  // At the end of the run:
  Hints hints;
  driver::ModeCounts mode_counts;
  std::optional<std::uint32_t> last_clean_step;
  driver::Counters counters;  ///< all 0 for the reference, which has no queues
};

/// Keeps a HostView: called with the hints whenever they may have changed.
class HintLog {
 public:
  explicit HintLog(std::vector<HintChange>& changes) : changes_(changes) {}
  void update(std::uint32_t step, const Hints& device_hints) {
    const Hints hints = told_.value_or(device_hints);
    if (policy_.update(hints)) changes_.push_back({step, hints, policy_.settings()});
  }
  /// From the next update on: what the training loop is told whatever the device says; nothing: what
  /// the device says.
  void tell(const std::optional<Hints>& hints) { told_ = hints; }

 private:
  std::optional<Hints> told_;
  std::vector<HintChange>& changes_;
  driver::HintPolicy policy_{{}};
};

struct PathResult {
  std::string path;
  std::vector<Completion> completions;  ///< those the detection unit saw, in seq order
  std::vector<StoredState> states;      ///< after each of them; empty where states are not compared
  std::uint32_t unseen_count = 0;
  double seconds = 0;            ///< wall time of the path alone
  std::optional<HostView> host;  ///< absent for cuda
  /// What its vector unit computed, in the order of issue; rtl has none of its own
  std::vector<ComputedExecution> executions;
  // rtl and systemc:
  std::uint64_t cycles = 0;
  std::uint64_t beats = 0;
  std::uint64_t sideband_wait_cycles = 0;  ///< stat_valid without stat_ready, at its own pins
  // cpu and cuda:
  std::vector<double> reaction_ns;  ///< operators with elements: statistic, detection and decision
  /// Operators whose statistic was given: detection and decision
  std::vector<double> statistic_reaction_ns;
  /// Per completion: the baseline after it, log2; NaN while there is none
  std::vector<double> baseline_log2;
  /// Per completion: z of the published engine in its order; NaN while it does not score
  std::vector<double> z;
  std::uint64_t bytes_read = 0;  ///< element bytes read a second time
};

}  // namespace opd::tb
