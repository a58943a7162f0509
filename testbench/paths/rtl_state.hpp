#pragma once
// What the Verilated device stores of one operator, read past its ports (rtl/lint/stored_state.vlt).
#include <cstdint>
#include <cstring>

#include "opd/types/device.hpp"
#include "stored_state.hpp"

namespace opd::tb {

namespace detail {

/// Takes fields off a word, the lowest bits first.
class WordReader {
 public:
  template <class Word>
  explicit WordReader(const Word& word) {
    static_assert(sizeof(word) <= sizeof(words_) - 4);
    std::memcpy(words_, &word, sizeof(word));  // little endian, as Verilator's integers are
  }
  std::uint32_t take(unsigned bits) {
    const std::uint64_t pair = words_[place_ / 32] | std::uint64_t{words_[place_ / 32 + 1]} << 32;
    const auto value = static_cast<std::uint32_t>(pair >> place_ % 32);
    place_ += bits;
    return value & (~std::uint32_t{0} >> (32 - bits));
  }
  std::int32_t take_signed(unsigned bits) {
    return static_cast<std::int32_t>(take(bits) << (32 - bits)) >> (32 - bits);
  }

 private:
  std::uint32_t words_[8] = {};
  unsigned place_ = 0;
};

}  // namespace detail

/// Of a Verilated opd_top; the header of its root must have been included. The layout of the word is
/// that of op_state_t in rtl/opd_pkg.sv, without the engines that are absent. A word that was not
/// written since reset holds nothing and reads as 0.
template <class Model>
StoredState stored_state_of(const Model& model, const DeviceParameters& device, std::uint16_t op) {
  const auto& root = *model.rootp;
  StoredState s;
  s.written = root.opd_top__DOT__u_detection_unit__DOT__u_state_memory__DOT__written_q[op];
  s.mode_register = root.opd_top__DOT__u_mode_registers__DOT__register_q[op];
  if (s.written == 0) return s;
  detail::WordReader word(
      root.opd_top__DOT__u_detection_unit__DOT__u_state_memory__DOT__word_q[op]);
  s.last_step = static_cast<std::uint8_t>(word.take(8));
  s.timer = static_cast<std::uint8_t>(word.take(8));
  s.disabled = static_cast<std::uint8_t>(word.take(1));
  s.locked = static_cast<std::uint8_t>(word.take(1));
  s.mode = static_cast<std::uint8_t>(word.take(2));
  if (device.published_engine) {
    s.slope = word.take(32);
    s.last = word.take(32);
    s.variance = word.take(32);
    s.mean = word.take(32);
    s.anchor = static_cast<std::int16_t>(word.take_signed(10));
  }
  if (device.forecast_engine) s.baseline = word.take_signed(17);
  s.nonfinite_run = static_cast<std::uint8_t>(word.take(8));
  s.age = static_cast<std::uint8_t>(word.take(8));
  s.parity = static_cast<std::uint8_t>(word.take(1));
  return s;
}

}  // namespace opd::tb
