#pragma once
// The Verilated device with one bit of its stored state flipped behind its back.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "paths/pin_device.hpp"

namespace opd::tb {

/// One bit of what the device stores of an operator flips, once, after `completions` of them came
/// out. `restore_parity`: in the word, so that the device itself does not see it.
struct Flip {
  enum Where { kWord, kMark, kModeRegister } where = kWord;
  unsigned bit = 0;
  bool restore_parity = false;
};
inline constexpr std::uint16_t kVictim = 1;
inline constexpr unsigned kParityBit = 191;

[[nodiscard]] std::unique_ptr<PinDevice> make_flipping_rtl_device(const Flip& flip,
                                                                  std::size_t completions);

}  // namespace opd::tb
