#pragma once
// Events that wait for software: a bounded FIFO that never blocks its writer.
//
//   same edge : call pop() before push(); a full queue that is popped takes a push at the same edge
//   full      : push() returns false and the event is lost; the caller counts it
//   empty     : pop() does nothing
//   source    : docs/controller.md, "Events and hints"
#include <algorithm>
#include <deque>
#include <optional>

#include "opd/types/record.hpp"

namespace opd::sc {

class EventQueue {
 public:
  /// depth 1..255.
  explicit EventQueue(unsigned depth) : depth_(depth) {}

  void reset() {
    events_.clear();
    high_water_ = 0;
  }

  unsigned level() const { return static_cast<unsigned>(events_.size()); }
  /// Largest level after any edge since reset or clear_high_water().
  unsigned high_water() const { return high_water_; }
  void clear_high_water() { high_water_ = level(); }

  /// Oldest event; the default value when there is none.
  Event front() const { return events_.empty() ? Event{} : events_.front(); }

  void pop() {
    if (!events_.empty()) events_.pop_front();
  }

  /// False when full.
  bool push(const Event& event) {
    if (level() == depth_) return false;
    events_.push_back(event);
    high_water_ = std::max(high_water_, level());
    return true;
  }

 private:
  unsigned depth_;
  std::deque<Event> events_;
  unsigned high_water_ = 0;
};

}  // namespace opd::sc
