#pragma once
// The stored state of each model in the form that is compared. The RTL's is read in rtl_device.
#include <bit>
#include <cstdint>

#include "opd/reference/detector.hpp"
#include "opd/sc/detection_unit.hpp"
#include "stored_state.hpp"

namespace opd::tb {

/// Of a word that was never written everything but the mode register reads as 0.
[[nodiscard]] inline StoredState stored_state_of(const sc::StoredWord& word) {
  const sc::OpState& s = word.state;
  StoredState state{.age = s.history.age,
                    .nonfinite_run = s.history.nonfinite_run,
                    .baseline = s.baseline,
                    .anchor = s.published.anchor,
                    .mean = std::bit_cast<std::uint32_t>(s.published.mean),
                    .variance = std::bit_cast<std::uint32_t>(s.published.variance),
                    .last = std::bit_cast<std::uint32_t>(s.published.last),
                    .slope = std::bit_cast<std::uint32_t>(s.published.slope),
                    .mode = static_cast<std::uint8_t>(word.mode),
                    .locked = s.controller.locked,
                    .disabled = s.controller.disabled,
                    .timer = s.controller.timer,
                    .last_step = s.controller.last_step,
                    .written = static_cast<std::uint8_t>(word.written ? 3 : 0),
                    .mode_register = word.mode_register};
  state.parity = static_cast<std::uint8_t>(word_parity(state) ^ (word.corrupt ? 1u : 0u));
  return state;
}

/// Of an operator that has completed, without an upset.
[[nodiscard]] inline StoredState stored_state_of(const ref::OpState& s) {
  const auto mode = static_cast<std::uint8_t>(s.controller.mode);
  StoredState state{
      .age = s.history.age,
      .nonfinite_run = s.history.nonfinite_run,
      .baseline = s.forecast.baseline,
      .anchor = static_cast<std::int16_t>(s.published.anchor),
      .mean = std::bit_cast<std::uint32_t>(s.published.mean),
      .variance = std::bit_cast<std::uint32_t>(s.published.variance),
      .last = std::bit_cast<std::uint32_t>(s.published.last),
      .slope = std::bit_cast<std::uint32_t>(s.published.slope),
      .mode = mode,
      .locked = s.controller.locked,
      .disabled = s.controller.disabled,
      .timer = s.controller.timer,
      .last_step = s.controller.last_step,
      .written = 3,
      .mode_register = static_cast<std::uint8_t>(mode | (std::popcount(mode) & 1) << 2)};
  state.parity = word_parity(state);
  return state;
}

}  // namespace opd::tb
