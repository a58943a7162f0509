#pragma once
// The precision-mode registers, one per operator, with a read port for the vector unit.
#include <cstdint>
#include <vector>

#include "opd/types/registers.hpp"

namespace opd::sc {

class ModeRegisters {
 public:
  explicit ModeRegisters(unsigned num_ops) : modes_(num_ops, Mode::kFast) {}

  void reset() { modes_.assign(modes_.size(), Mode::kFast); }

  /// An operator that does not exist reads FAST.
  Mode read(std::uint16_t op) const { return op < modes_.size() ? modes_[op] : Mode::kFast; }

  /// Precondition: op < num_ops. Returns whether the register changed.
  bool write(std::uint16_t op, Mode mode) {
    const bool changed = modes_[op] != mode;
    modes_[op] = mode;
    return changed;
  }

 private:
  std::vector<Mode> modes_;
};

}  // namespace opd::sc
