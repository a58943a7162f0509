#pragma once
// Downshift controller: FAST, STABLE and SAFE, one state per operator, advanced by its completions
// only.
//
//   rule   : the first line of the table that applies; one arrow per completion at most
//   source : docs/controller.md
#include <cstdint>

#include "opd/reference/flags.hpp"

namespace opd::ref {

/// Per-operator state, all zero (FAST, unlocked, enabled) after reset.
struct ControllerState {
  Mode mode = Mode::kFast;
  std::uint8_t timer = 0;      ///< steps, saturating
  std::uint8_t last_step = 0;  ///< low 8 bits of the last sample's step
  bool locked = false;         ///< software has set the mode; it stays
  bool disabled = false;       ///< samples are not judged
  bool operator==(const ControllerState&) const = default;
};

/// Steps since the last sample: the difference of the low bytes as a signed byte, negative (a
/// roll-back) as 0.
OPD_HOST_DEVICE constexpr unsigned elapsed_steps(std::uint32_t step, std::uint8_t last_step) {
  const std::uint32_t difference = (step - last_step) & 0xFFu;
  return difference < 128 ? difference : 0;
}

/// Advances `state` by one completion, `elapsed` steps after the one before, and returns the cause
/// of the mode change.
OPD_HOST_DEVICE constexpr Cause controller_step(std::uint32_t step, unsigned elapsed,
                                                std::uint16_t flags, std::uint8_t risk,
                                                const Config& config, ControllerState& state) {
  const unsigned sum = state.timer + elapsed;
  const auto advanced = static_cast<std::uint8_t>(sum < 255 ? sum : 255);
  state.last_step = static_cast<std::uint8_t>(step & 0xFFu);

  const bool nonfinite = (flags & bit_of(Flag::kNonfinite)) != 0;
  const auto enter = [&state](Mode mode, std::uint8_t timer, Cause cause) {
    state.mode = mode;
    state.timer = timer;
    return cause;
  };
  if (state.locked) {
    const bool escalate = state.mode == Mode::kSafe && nonfinite;
    return enter(state.mode, 0, escalate ? Cause::kEscalate : Cause::kNone);
  }
  switch (state.mode) {
    case Mode::kFast:
      if (nonfinite) return enter(Mode::kStable, 0, Cause::kNonfinite);
      if (risk >= config.risk_stable) return enter(Mode::kStable, 0, Cause::kRisk);
      return enter(Mode::kFast, 0, Cause::kNone);
    case Mode::kStable: {
      if (nonfinite) return enter(Mode::kSafe, 0, Cause::kNonfinite);
      if (risk >= config.risk_safe) return enter(Mode::kSafe, 0, Cause::kRisk);
      const bool quiet = is_quiet(flags, config);
      if (quiet && advanced >= config.quiet_steps) return enter(Mode::kFast, 0, Cause::kRecovered);
      return enter(Mode::kStable, quiet ? advanced : std::uint8_t{0}, Cause::kNone);
    }
    case Mode::kSafe:
      break;
  }
  if (nonfinite) return enter(Mode::kSafe, 0, Cause::kEscalate);
  if (advanced >= config.safe_steps) return enter(Mode::kStable, 0, Cause::kSafeExpired);
  return enter(Mode::kSafe, advanced, Cause::kNone);
}

}  // namespace opd::ref
