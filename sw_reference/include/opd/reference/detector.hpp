#pragma once
// One completion through the detection unit: history, engines, risk, controller, record.
//
//   cost   : about 30 integer and 12 floating-point operations and 32 bytes of state per operator
//   order  : completions of one operator must come in seq order; different operators are
//            independent
//   source : docs/numerics.md, docs/controller.md, docs/formats.md "OpRecord"
#include <optional>
#include <type_traits>

#include "opd/reference/controller.hpp"
#include "opd/reference/forecast.hpp"
#include "opd/reference/history.hpp"
#include "opd/reference/published.hpp"
#include "opd/types/device.hpp"

namespace opd::ref {

/// Everything the device remembers of an operator, all zero after reset.
struct OpState {
  PublishedState published;
  ForecastState forecast;
  History history;
  ControllerState controller;
  bool operator==(const OpState&) const = default;
};
static_assert(sizeof(OpState) <= 32 && std::is_trivially_copyable_v<OpState>);

/// Bits of an OpState as the state memory stores it, without parity: history 2 * 8; controller
/// mode 2, timer 8, last step 8, locked 1, disabled 1; forecast baseline 17; published anchor 10
/// and four binary32.
constexpr unsigned state_bits(bool forecast_engine, bool published_engine) {
  return 16 + 20 + (forecast_engine ? 17 : 0) + (published_engine ? 10 + 4 * 32 : 0);
}
inline constexpr unsigned kStateBits = state_bits(true, true);

/// What the detection unit is set to while a batch of completions passes.
struct DetectorSetup {
  Config config;
  bool forecast_engine = true;   ///< present
  bool published_engine = true;  ///< present
  LearningRateChange learning_rate_change;
};

/// Stored bits of an operator that are corrupt: its word of the state memory, its mode register.
enum class Upset : std::uint8_t { kNone = 0, kMemory = 1, kModeRegister = 2, kBoth = 3 };

/// Makes good what an upset has left: what a sample or a command finds, before anything else. A
/// mode register alone costs nothing, the state memory holds a copy of it.
OPD_HOST_DEVICE constexpr void repair(Upset upset, OpState& state) {
  if (upset == Upset::kNone || upset == Upset::kModeRegister) return;
  const Mode mode = upset == Upset::kBoth ? Mode::kSafe : state.controller.mode;
  state = {};
  state.controller.mode = mode;
}

/// What the detection unit says about one completion.
struct Detection {
  OpRecord record;
  Mode old_mode = Mode::kFast;  ///< mode before the sample, after the repair of an upset
  PublishedScore score;         ///< all zero while the published engine scores nothing

  /// The event it makes, if any. (Host only, like all that follows from a record.)
  std::optional<Event> event() const {
    const auto cause = static_cast<Cause>(record.cause);
    if (cause == Cause::kNone && (record.flags & bit_of(Flag::kUpset)) == 0) return std::nullopt;
    return Event{.step = record.step,
                 .op = record.op,
                 .old_mode = old_mode,
                 .new_mode = static_cast<Mode>(record.mode),
                 .cause = cause,
                 .flags = record.flags,
                 .risk = record.risk};
  }
};

/// Advances `state` by one completion. The format must be known, the summary already clamped, and
/// the upset that the completion found already repaired.
OPD_HOST_DEVICE inline Detection complete(std::uint32_t seq, const OpDescriptor& descriptor,
                                          const TapSummary& summary, const DetectorSetup& setup,
                                          Upset upset, OpState& state) {
  const Config& config = setup.config;
  Detection detection;
  detection.old_mode = state.controller.mode;
  unsigned flags = 0;
  std::uint8_t risk = 0;
  Cause cause = Cause::kNone;
  if (config.control_enable != 0 && !state.controller.disabled) {
    const Sample sample = sample_of(summary);
    const unsigned age = state.history.age;
    if (sample == Sample::kNonfinite) flags |= bit_of(Flag::kNonfinite);
    if (summary.saturated_count > 0) flags |= bit_of(Flag::kSaturated);
    if (age < config.baseline_warmup_samples) flags |= bit_of(Flag::kWarmup);
    if (sample == Sample::kUsable) {
      const bool desensitised =
          is_desensitised(descriptor.step, setup.learning_rate_change, config);
      if (setup.forecast_engine) {
        flags |=
            forecast_step(descriptor, summary.max_mag, age, desensitised, config, state.forecast);
      }
      if (setup.published_engine) {
        flags |= published_step(descriptor, summary.max_mag, age, desensitised, config,
                                state.published, detection.score);
      }
    }
    history_step(sample, config, state.history);
    const auto judged = static_cast<std::uint16_t>(flags);
    risk = risk_of(judged, config);
    // A word that was lost has lost the last step as well.
    const bool step_is_known = upset == Upset::kNone || upset == Upset::kModeRegister;
    const unsigned elapsed =
        step_is_known ? elapsed_steps(descriptor.step, state.controller.last_step) : 0;
    cause = controller_step(descriptor.step, elapsed, judged, risk, config, state.controller);
  }
  if (upset != Upset::kNone) flags |= bit_of(Flag::kUpset);
  detection.record = {.seq = seq,
                      .step = descriptor.step,
                      .op = descriptor.op,
                      .format = static_cast<std::uint8_t>(descriptor.format),
                      .mode = static_cast<std::uint8_t>(state.controller.mode),
                      .max_mag = summary.max_mag,
                      .nonfinite_count = summary.nonfinite_count,
                      .first_nonfinite = summary.first_nonfinite,
                      .saturated_count = summary.saturated_count,
                      .flags = static_cast<std::uint16_t>(flags),
                      .risk = risk,
                      .cause = static_cast<std::uint8_t>(cause)};
  return detection;
}

/// What the command SET writes (register OP_SETTING).
struct OpSetting {
  Mode mode = Mode::kFast;
  bool locked = false;
  bool disabled = false;
};

/// Applies a command to the state of one operator; an upset that it found is already repaired.
OPD_HOST_DEVICE constexpr void apply(Command command, const OpSetting& setting, OpState& state) {
  switch (command) {
    case Command::kRead:
      return;
    case Command::kClear:
      state = {};
      return;
    case Command::kReseed: {
      const ControllerState controller = state.controller;
      state = {};
      state.controller = controller;
      return;
    }
    case Command::kSet:
      break;
  }
  state.controller.mode = setting.mode;
  state.controller.locked = setting.locked;
  state.controller.disabled = setting.disabled;
  state.controller.timer = 0;
}

}  // namespace opd::ref
