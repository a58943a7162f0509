#pragma once
// The op queue between the tap and the detection unit: a bounded FIFO that never blocks its writer.
//
//   same edge : call pop() before push(); a full queue that is popped takes a push at the same edge
//   full      : push() returns false and the completion is lost; the caller counts it
#include <vector>

#include "opd/sc/completion.hpp"

namespace opd::sc {

class OpQueue {
 public:
  /// depth 1..255.
  explicit OpQueue(unsigned depth) : entries_(depth) {}

  void reset() { head_ = level_ = 0; }

  bool empty() const { return level_ == 0; }
  bool full() const { return level_ == depth_(); }
  unsigned level() const { return level_; }

  /// Precondition: not empty.
  const Completion& pop() {
    const Completion& oldest = entries_[head_];
    head_ = wrap_(head_ + 1);
    --level_;
    return oldest;
  }

  /// False when full.
  bool push(const Completion& completion) {
    if (full()) return false;
    entries_[wrap_(head_ + level_)] = completion;
    ++level_;
    return true;
  }

 private:
  unsigned depth_() const { return static_cast<unsigned>(entries_.size()); }
  unsigned wrap_(unsigned index) const { return index < depth_() ? index : index - depth_(); }

  std::vector<Completion> entries_;  ///< ring
  unsigned head_ = 0;                ///< oldest entry
  unsigned level_ = 0;
};

}  // namespace opd::sc
