#pragma once
// A device held against another one at its pins, clock by clock, on a thread of its own: the device
// that leads runs up to kBlocks · kBlockClocks clocks ahead. Nothing of the comparison depends on how
// far. Or in step, on the thread of the caller, where both are to be looked at in the same clock.
//
//   PinComparison comparison(device, "rtl", "systemc");
//   PinClock& clock = comparison.next();   // filled in: what the leading device was given and did
//   comparison.push();
//   const ComparisonResult result = comparison.finish();
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "crosscheck.hpp"
#include "paths/pin_device.hpp"

namespace opd::tb {

/// One clock of the device that leads, and how far its run had come.
struct PinClock {
  CycleInput input;
  CycleOutput output;
  std::uint64_t cycle = 0;
  std::uint64_t beats = 0;                 ///< so far
  std::size_t executions = 0;              ///< so far
  std::uint64_t sideband_wait_cycles = 0;  ///< so far
};

/// A record of the device that follows.
struct FollowingRecord {
  std::uint64_t cycle = 0;
  OpRecord record;
  TapCounts counts;
};

struct ComparisonResult {
  std::uint64_t cycles = 0;                ///< compared, the one that differs included
  std::uint64_t sideband_wait_cycles = 0;  ///< stat_valid without its stat_ready
  double seconds = 0;                      ///< of the device that follows
  double waited = 0;                       ///< seconds for which next() and finish() waited for it
  /// Those that come in the same clock as a record of the other device with the same seq
  std::vector<FollowingRecord> records;
  std::optional<Divergence> divergence;  ///< the first; nothing is compared after it
  std::optional<PinClock> differing;     ///< the clock of the divergence
};

class PinComparison {
 public:
  /// push() returns when the clock is compared.
  struct InStep {
    /// Both devices have had the same edges: the clock, and the outputs of the one that follows. Not
    /// called any more after a divergence.
    std::function<void(const PinClock&, const CycleOutput&)> before_edge;
    bool to_the_end = false;  ///< the device goes on after a divergence, and nothing is compared
  };

  /// Keeps a reference to the device, which is reset already. The names are those of a divergence.
  PinComparison(PinDevice& device, std::string name, std::string leading_name,
                std::optional<InStep> in_step = std::nullopt);
  ~PinComparison();  ///< waits for the thread
  PinComparison(const PinComparison&) = delete;
  PinComparison& operator=(const PinComparison&) = delete;

  /// The clock to come; waits while the device that follows is too far behind.
  PinClock& next();
  /// What next() has given is filled in.
  void push();
  /// The devices have differed, or the one that follows has failed: more clocks change nothing.
  [[nodiscard]] bool ended() const { return ended_.load(std::memory_order_relaxed); }
  /// Waits until everything pushed is compared. Call it once. Errors of the device come as they are.
  ComparisonResult finish();

 private:
  static constexpr std::size_t kBlocks = 4, kBlockClocks = 256;
  struct Block {
    std::size_t size = 0;
    std::array<PinClock, kBlockClocks> clocks;
  };

  void hand_over_();
  void close_();
  void run_();
  void compare_guarded_(const PinClock& clock);
  bool compare_(const PinClock& clock);

  PinDevice& device_;
  const std::string name_, leading_name_;
  const std::optional<InStep> in_step_;
  std::vector<Block> ring_{kBlocks};
  std::size_t filling_ = 0;  ///< block that next() fills
  bool owned_ = false;       ///< that block is free

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t full_ = 0;  ///< blocks handed over and not yet compared
  bool closed_ = false;

  std::atomic<bool> ended_ = false;
  ComparisonResult result_;  ///< of the thread until it is joined
  double waited_ = 0;
  std::exception_ptr error_;
  std::thread thread_;  ///< none in step
};

}  // namespace opd::tb
