#pragma once
// The downshift controller: FAST, STABLE, SAFE per operator, one arrow per completion at most.
// Source: the table of docs/controller.md, row by row.
#include <algorithm>
#include <array>
#include <cstdint>

#include "opd/sc/risk.hpp"
#include "opd/types/record.hpp"

namespace opd::sc {

/// Controller state of one operator beside its mode register; zero after reset.
struct ControllerState {
  std::uint8_t timer = 0;      ///< STABLE: quiet steps so far; SAFE: steps so far
  std::uint8_t last_step = 0;  ///< low 8 bits of the step of the operator's last completion
  bool locked = false;         ///< the mode stays as software set it
  bool disabled = false;       ///< samples are not judged
  bool operator==(const ControllerState&) const = default;
};

struct Transition {
  Mode mode = Mode::kFast;  ///< in force for the operator's next execution
  Cause cause = Cause::kNone;
  bool operator==(const Transition&) const = default;
};

/// Steps since the last completion: a signed byte, of which a negative value (roll-back) counts as
/// 0.
constexpr unsigned elapsed_steps(std::uint32_t step, std::uint8_t last_step) {
  const auto difference = static_cast<std::int8_t>(static_cast<std::uint8_t>(step - last_step));
  return difference > 0 ? static_cast<unsigned>(difference) : 0;
}

/// No flag that has a weight is raised, and while Z has one, z is below half its threshold.
constexpr bool is_quiet(const Config& config, std::uint16_t flags) {
  if (config.weight_z != 0 && (flags & flag_bit(Flag::kZHalf)) != 0) return false;
  return (flags & weighted_flags(config)) == 0;
}

/// One completion of the operator: its new mode and why. Advances `state`.
/// Precondition: the operator is not disabled.
inline Transition advance_controller(const Config& config, Mode mode, std::uint32_t step,
                                     std::uint16_t flags, std::uint8_t risk,
                                     ControllerState& state) {
  const bool nonfinite = (flags & flag_bit(Flag::kNonfinite)) != 0;
  const bool quiet = is_quiet(config, flags);
  const unsigned timer = std::min(state.timer + elapsed_steps(step, state.last_step), 255u);
  state.last_step = static_cast<std::uint8_t>(step);

  const auto go = [&state](Mode next, unsigned next_timer, Cause cause) {
    state.timer = static_cast<std::uint8_t>(next_timer);
    return Transition{next, cause};
  };
  if (state.locked) {
    const bool escalates = mode == Mode::kSafe && nonfinite;
    return go(mode, 0, escalates ? Cause::kEscalate : Cause::kNone);
  }
  switch (mode) {
    case Mode::kFast:
      if (nonfinite) return go(Mode::kStable, 0, Cause::kNonfinite);
      if (risk >= config.risk_stable) return go(Mode::kStable, 0, Cause::kRisk);
      return go(Mode::kFast, 0, Cause::kNone);
    case Mode::kStable:
      if (nonfinite) return go(Mode::kSafe, 0, Cause::kNonfinite);
      if (risk >= config.risk_safe) return go(Mode::kSafe, 0, Cause::kRisk);
      if (quiet && timer >= config.quiet_steps) return go(Mode::kFast, 0, Cause::kRecovered);
      return go(Mode::kStable, quiet ? timer : 0, Cause::kNone);
    case Mode::kSafe:
      if (nonfinite) return go(Mode::kSafe, 0, Cause::kEscalate);
      if (timer >= config.safe_steps) return go(Mode::kStable, 0, Cause::kSafeExpired);
      return go(Mode::kSafe, timer, Cause::kNone);
  }
  return {mode, Cause::kNone};  // not reached: a mode register holds one of the three
}

}  // namespace opd::sc
