#include "paths/pin_comparison.hpp"

#include <chrono>
#include <utility>

namespace opd::tb {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

PinComparison::PinComparison(PinDevice& device, std::string name, std::string leading_name,
                             std::optional<InStep> in_step)
    : device_(device),
      name_(std::move(name)),
      leading_name_(std::move(leading_name)),
      in_step_(std::move(in_step)) {
  if (!in_step_) thread_ = std::thread([this] { run_(); });
}

PinComparison::~PinComparison() { close_(); }

PinClock& PinComparison::next() {
  if (!owned_) {
    const auto start = Clock::now();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return full_ < kBlocks; });
    ring_[filling_].size = 0;
    owned_ = true;
    waited_ += seconds_since(start);
  }
  return ring_[filling_].clocks[ring_[filling_].size];
}

void PinComparison::push() {
  if (in_step_) {
    const auto start = Clock::now();
    compare_guarded_(ring_[filling_].clocks[0]);
    waited_ += seconds_since(start);
    return;
  }
  if (++ring_[filling_].size == kBlockClocks) hand_over_();
}

ComparisonResult PinComparison::finish() {
  if (owned_ && ring_[filling_].size > 0) hand_over_();
  const auto start = Clock::now();
  close_();
  if (error_) std::rethrow_exception(error_);
  result_.waited = waited_ + seconds_since(start);
  return std::move(result_);
}

void PinComparison::hand_over_() {
  {
    const std::lock_guard lock(mutex_);
    ++full_;
  }
  changed_.notify_all();
  filling_ = (filling_ + 1) % kBlocks;
  owned_ = false;
}

/// The thread ends when it has compared what was handed over.
void PinComparison::close_() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PinComparison::run_() {
  for (std::size_t comparing = 0;; comparing = (comparing + 1) % kBlocks) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return full_ > 0 || closed_; });
      if (full_ == 0) return;
    }
    const auto start = Clock::now();
    const Block& block = ring_[comparing];
    for (std::size_t i = 0; i < block.size && !ended(); ++i) compare_guarded_(block.clocks[i]);
    result_.seconds += seconds_since(start);
    {
      const std::lock_guard lock(mutex_);
      --full_;
    }
    changed_.notify_all();
  }
}

void PinComparison::compare_guarded_(const PinClock& clock) {
  try {
    ended_ = compare_(clock);
  } catch (...) {
    error_ = std::current_exception();
    ended_ = true;
  }
}

/// True when nothing more is to be compared: the devices differ in this clock.
bool PinComparison::compare_(const PinClock& clock) {
  const CycleOutput& leading = clock.output;
  const bool differed = result_.divergence.has_value();
  const auto start = in_step_ ? Clock::now() : Clock::time_point();
  const CycleOutput output = device_.peek(clock.input);
  double looking = 0;
  if (in_step_ && in_step_->before_edge && !differed) {
    const auto begin = Clock::now();
    in_step_->before_edge(clock, output);
    looking = seconds_since(begin);
  }
  device_.edge();
  if (in_step_) result_.seconds += seconds_since(start) - looking;
  if (differed) return false;
  ++result_.cycles;
  result_.sideband_wait_cycles += clock.input.stat_valid && !output.stat_ready;
  // A record with a seq of its own cannot be filed; the comparison below names it.
  if (output.record_valid && leading.record_valid && output.record.seq == leading.record.seq)
    result_.records.push_back({clock.cycle, output.record, output.counts});
  if (output == leading) return false;
  result_.divergence = compare_cycles(name_, output, leading_name_, leading, clock.cycle);
  if (result_.divergence) result_.differing = clock;
  return result_.divergence && !(in_step_ && in_step_->to_the_end);
}

}  // namespace opd::tb
