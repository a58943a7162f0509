// Argument checks, and what the device keeps beside the operators' states: counts of modes, upsets,
// the last clean step.
#include <array>
#include <bit>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>

#include "opd/reference/cpu.hpp"

namespace opd::ref {
namespace {

void check_range(const std::string& field, long long value, long long minimum, long long maximum) {
  if (value < minimum || value > maximum) {
    throw std::invalid_argument(field + ": " + std::to_string(value) + " must be " +
                                std::to_string(minimum) + ".." + std::to_string(maximum));
  }
}

/// The binary32 number with these bits, in full precision.
std::string number(std::int32_t bits) {
  std::array<char, 32> text;
  const int length = std::snprintf(text.data(), text.size(), "%.9g",
                                   static_cast<double>(std::bit_cast<float>(bits)));
  return {text.data(), static_cast<std::size_t>(length)};
}

void count_up(std::uint32_t& counter) {
  if (counter < std::numeric_limits<std::uint32_t>::max()) ++counter;
}

}  // namespace

void validate(const DeviceParameters& parameters) {
  check_range("num_ops", parameters.num_ops, 1, 65536);
  check_range("datapath_width", parameters.datapath_width, 32, 512);
  if (parameters.datapath_width % 32 != 0) {
    throw std::invalid_argument("datapath_width: " + std::to_string(parameters.datapath_width) +
                                " must be a multiple of 32, 32..512");
  }
  check_range("num_streams", parameters.num_streams, 1, 256);
  check_range("queue_depth", parameters.queue_depth, 1, 255);
  check_range("counter_width", parameters.counter_width, 2, 32);
  check_range("event_depth", parameters.event_depth, 1, 255);
  if (!parameters.forecast_engine && !parameters.published_engine) {
    throw std::invalid_argument(
        "forecast_engine, published_engine: both are false, one must be true");
  }
}

void validate(const Config& config) {
  for (const ConfigField& field : kConfigFields) {
    const std::string name = std::string(field.name) + " (" + std::string(field.path) + ")";
    const std::int32_t value = field.get(config);
    if (!field.is_float) {
      check_range(name, value, field.minimum, field.maximum);
    } else if (value < field.minimum || value > field.maximum) {  // bits sort like the numbers
      throw std::invalid_argument(name + ": " + number(value) + " must be " +
                                  number(field.minimum) + ".." + number(field.maximum));
    }
  }
}

CpuReference::CpuReference(const DeviceParameters& parameters, const Config& config)
    : parameters_(parameters),
      setup_{.config = config,
             .forecast_engine = parameters.forecast_engine,
             .published_engine = parameters.published_engine} {
  validate(parameters);
  validate(config);
  states_.resize(parameters.num_ops);
  upsets_.resize(parameters.num_ops);
}

void CpuReference::configure(const Config& config) {
  validate(config);
  setup_.config = config;
}

std::optional<Detection> CpuReference::complete(std::uint32_t seq, const OpDescriptor& descriptor,
                                                const TapSummary& summary) {
  if (descriptor.op >= parameters_.num_ops || !is_known(descriptor.format)) {
    count_up(unseen_count_);
    return std::nullopt;
  }
  OpState& state = states_[descriptor.op];
  const Mode stored = state.controller.mode;
  const Upset upset = find_upset(descriptor.op);
  const Detection detection = ref::complete(
      seq, descriptor, sideband_summary(descriptor.format, summary, parameters_.counter_width),
      setup_, upset, state);
  count_modes(stored, state.controller.mode);
  record_step(descriptor.step, summary.nonfinite_count > 0);
  return detection;
}

OpState CpuReference::command(std::uint16_t op, Command command, const OpSetting& setting) {
  check_op(op);
  check_range("mode (OP_SETTING.MODE)", static_cast<int>(setting.mode), 0, 2);
  OpState& state = states_[op];
  const Mode stored = state.controller.mode;
  find_upset(op);
  apply(command, setting, state);
  count_modes(stored, state.controller.mode);
  return state;
}

void CpuReference::inject_upset(std::uint16_t op, Upset upset) {
  check_op(op);
  upsets_[op] =
      static_cast<Upset>(static_cast<unsigned>(upsets_[op]) | static_cast<unsigned>(upset));
}

Mode CpuReference::mode(std::uint16_t op) const {
  check_op(op);
  const bool readable = upsets_[op] == Upset::kNone || upsets_[op] == Upset::kMemory;
  return readable ? states_[op].controller.mode : Mode::kSafe;
}

Hints CpuReference::hints() const {
  const Config& config = setup_.config;
  Hints hints;
  if (stable_ops_ + safe_ops_ > 0) {
    hints.loss_scale_shift = config.hint_loss_scale_shift;
    hints.clip_shift = config.hint_clip_shift;
  }
  if (safe_ops_ > 0) hints.learning_rate_factor = config.hint_learning_rate_factor;
  return hints;
}

/// What a sample or command finds of an operator; afterwards it is repaired.
Upset CpuReference::find_upset(std::uint16_t op) {
  const Upset upset = upsets_[op];
  if (upset == Upset::kNone) return upset;
  upsets_[op] = Upset::kNone;
  count_up(upset_count_);
  repair(upset, states_[op]);
  return upset;
}

void CpuReference::count_modes(Mode before, Mode after) {
  if (before == after) return;
  if (before == Mode::kStable) --stable_ops_;
  if (before == Mode::kSafe) --safe_ops_;
  if (after == Mode::kStable) ++stable_ops_;
  if (after == Mode::kSafe) ++safe_ops_;
}

/// A step ends with the first sample of another one.
void CpuReference::record_step(std::uint32_t step, bool nonfinite) {
  if (open_step_ != step) {
    if (open_step_ && open_step_is_clean_) last_clean_step_ = open_step_;
    open_step_ = step;
    open_step_is_clean_ = true;
  }
  if (nonfinite) open_step_is_clean_ = false;
}

void CpuReference::check_op(std::uint16_t op) const {
  if (op >= parameters_.num_ops) {
    throw std::out_of_range("op: " + std::to_string(op) + " must be 0.." +
                            std::to_string(parameters_.num_ops - 1));
  }
}

}  // namespace opd::ref
