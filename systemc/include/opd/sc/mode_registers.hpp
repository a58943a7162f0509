#pragma once
// The precision-mode registers, one per operator: two bits of mode and an even-parity bit, with a
// read port for the vector unit. Source: docs/controller.md, "Upsets".
#include <bit>
#include <cstdint>
#include <vector>

#include "opd/types/registers.hpp"

namespace opd::sc {

class ModeRegisters {
 public:
  static constexpr unsigned kBits = 3;  ///< 0 and 1: mode, 2: parity

  explicit ModeRegisters(unsigned num_ops) : registers_(num_ops, encoded(Mode::kFast)) {}

  void reset() { registers_.assign(registers_.size(), encoded(Mode::kFast)); }

  /// What the vector unit sees: SAFE while the register is corrupt, FAST for an operator that does
  /// not exist.
  Mode read(std::uint16_t op) const {
    if (op >= registers_.size()) return Mode::kFast;
    return corrupt(op) ? Mode::kSafe : static_cast<Mode>(registers_[op] & 3u);
  }

  /// Parity does not hold, or no mode has that code. Precondition: op < num_ops.
  bool corrupt(std::uint16_t op) const {
    const std::uint8_t bits = registers_[op];
    return std::popcount(bits) % 2 != 0 || (bits & 3u) == 3u;
  }

  /// As stored: mode, parity. Precondition: op < num_ops.
  std::uint8_t bits(std::uint16_t op) const { return registers_[op]; }

  /// Precondition: op < num_ops.
  void write(std::uint16_t op, Mode mode) { registers_[op] = encoded(mode); }

  /// Precondition: op < num_ops, bit < kBits.
  void flip(std::uint16_t op, unsigned bit) {
    registers_[op] = static_cast<std::uint8_t>(registers_[op] ^ 1u << bit);
  }

 private:
  static constexpr std::uint8_t encoded(Mode mode) {
    const auto code = static_cast<std::uint8_t>(mode);
    return static_cast<std::uint8_t>(code | (std::popcount(code) & 1) << 2);
  }

  std::vector<std::uint8_t> registers_;
};

}  // namespace opd::sc
