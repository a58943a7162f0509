#include "opd/sc/detection_unit.hpp"

#include "opd/sc/forecast_engine.hpp"

namespace opd::sc {

void DetectionUnit::reset() {
  state_ = State::kRead;
  memory_.assign(memory_.size(), Word{});
  modes_.reset();
}

void DetectionUnit::read(const Completion& completion) {
  completion_ = completion;
  word_ = memory_[completion.statistic.descriptor.op];
  clocks_left_ = compute_clocks(parameters_);
  state_ = clocks_left_ > 0 ? State::kCompute : State::kWrite;
}

void DetectionUnit::read(const OpCommand& command) {
  command_ = command;
  word_ = memory_[command.op];
  state_ = State::kCommand;
}

Detection DetectionUnit::write(const Config& config,
                               std::optional<std::uint32_t> learning_rate_change) {
  const OpDescriptor& descriptor = completion_.statistic.descriptor;
  const TapSummary& summary = completion_.statistic.summary;
  const Repaired before = repaired_(descriptor.op);

  OpState state = before.state;
  unsigned flags = before.upset ? flag_bit(Flag::kUpset) : 0;
  std::uint8_t score = 0;
  Transition transition{before.mode, Cause::kNone};
  if (config.control_enable != 0 && !state.controller.disabled) {
    flags |= status_flags(config, summary, state.history);
    if (is_usable(summary)) {
      const Sample sample{descriptor, summary.max_mag, state.history.age,
                          is_desensitised(config, learning_rate_change, descriptor.step)};
      if (parameters_.forecast_engine) flags |= forecast_engine(config, sample, state.baseline);
      if (parameters_.published_engine) flags |= published_engine(config, sample, state.published);
    }
    state.history = advanced(config, summary, state.history);
    const auto raised = static_cast<std::uint16_t>(flags);
    score = risk(config, raised);
    // A lost state knows no last step: no step has elapsed.
    if (before.word_lost) state.controller.last_step = static_cast<std::uint8_t>(descriptor.step);
    transition =
        advance_controller(config, before.mode, descriptor.step, raised, score, state.controller);
  }
  store_(descriptor.op, state, transition.mode);

  return {.record = {.seq = completion_.seq,
                     .step = descriptor.step,
                     .op = descriptor.op,
                     .format = static_cast<std::uint8_t>(descriptor.format),
                     .mode = static_cast<std::uint8_t>(transition.mode),
                     .max_mag = summary.max_mag,
                     .nonfinite_count = summary.nonfinite_count,
                     .first_nonfinite = summary.first_nonfinite,
                     .saturated_count = summary.saturated_count,
                     .flags = static_cast<std::uint16_t>(flags),
                     .risk = score,
                     .cause = static_cast<std::uint8_t>(transition.cause)},
          .counts = {.element_count = summary.element_count,
                     .subnormal_count = summary.subnormal_count,
                     .zero_count = summary.zero_count},
          .old_mode = before.mode};
}

CommandResult DetectionUnit::execute(const OpSetting& setting) {
  const Repaired before = repaired_(command_.op);
  CommandResult result{before.state, before.mode, before.mode, before.upset};
  switch (command_.command) {
    case Command::kRead:
      break;
    case Command::kClear:
      result.state = {};
      result.mode = Mode::kFast;
      break;
    case Command::kReseed:
      result.state = {.controller = before.state.controller};
      break;
    case Command::kSet:
      result.mode = setting.mode;
      result.state.controller.locked = setting.locked;
      result.state.controller.disabled = setting.disabled;
      result.state.controller.timer = 0;
      break;
  }
  store_(command_.op, result.state, result.mode);
  return result;
}

void DetectionUnit::inject_upset(std::uint16_t op, UpsetTarget target, unsigned bit) {
  if (target == UpsetTarget::kMemory) {
    memory_[op].corrupt = true;
  } else {
    modes_.flip(op, bit);
  }
}

/// The table of docs/controller.md, "Upsets".
DetectionUnit::Repaired DetectionUnit::repaired_(std::uint16_t op) const {
  const bool register_corrupt = modes_.corrupt(op);
  if (word_.corrupt) {
    return {OpState{}, register_corrupt ? Mode::kSafe : modes_.read(op), true, true};
  }
  const bool upset = register_corrupt || modes_.read(op) != word_.mode;
  return {word_.state, word_.mode, upset, false};
}

void DetectionUnit::store_(std::uint16_t op, const OpState& state, Mode mode) {
  memory_[op] = {state, mode, false, true};
  modes_.write(op, mode);
  state_ = State::kRead;
}

}  // namespace opd::sc
