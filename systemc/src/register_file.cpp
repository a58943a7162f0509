#include "opd/sc/register_file.hpp"

#include <bit>
#include <cassert>

namespace opd::sc {
namespace {

enum IrqBit : unsigned { kEvent, kEventLost, kUnseen, kHint, kEscalate, kUpset };

constexpr std::uint16_t kConfigStart = 0x100;  ///< every register from here on is configuration

constexpr std::uint32_t mask_of(unsigned width) {
  return width == 32 ? ~std::uint32_t{0} : (std::uint32_t{1} << width) - 1;
}

/// The value of a field in a register value.
constexpr std::int64_t extract(std::uint32_t value, unsigned low_bit, unsigned width,
                               bool is_signed) {
  const std::int64_t bits = value >> low_bit & mask_of(width);
  const bool negative = is_signed && (bits >> (width - 1) & 1) != 0;
  return negative ? bits - (std::int64_t{1} << width) : bits;
}

const Register* find_register(std::uint64_t address) {
  for (const Register& candidate : kRegisters) {
    if (candidate.address == address) return &candidate;
  }
  return nullptr;
}

bool in_range(std::uint64_t address, std::uint32_t data) {
  for (const RegisterField& field : kRegisterFields) {
    if (field.address != address || !field.writable) continue;
    const std::int64_t value = extract(data, field.low_bit, field.width, field.is_signed);
    if (value < field.minimum || value > field.maximum) return false;
  }
  return true;
}

std::uint32_t read_config(const Config& config, std::uint64_t address) {
  std::uint32_t value = 0;
  for (const ConfigField& field : kConfigFields) {
    if (field.address != address) continue;
    value |= (static_cast<std::uint32_t>(field.get(config)) & mask_of(field.width))
             << field.low_bit;
  }
  return value;
}

void write_config(Config& config, std::uint64_t address, std::uint32_t data) {
  for (const ConfigField& field : kConfigFields) {
    if (field.address != address) continue;
    field.set(config, static_cast<std::int32_t>(
                          extract(data, field.low_bit, field.width, field.is_signed)));
  }
}

OpCommand op_command(std::uint32_t data) {
  return {static_cast<std::uint16_t>(data), static_cast<Command>(data >> 16 & 3)};
}

void count(std::uint32_t& counter) {
  if (counter != UINT32_MAX) ++counter;
}

template <typename Enum>
constexpr std::uint32_t code(Enum value) {
  return static_cast<std::uint32_t>(value);
}

}  // namespace

void RegisterFile::reset() {
  config_ = {};
  learning_rate_change_.reset();
  irq_status_ = irq_enable_ = op_command_ = 0;
  command_.reset();
  setting_ = {};
  shown_ = {};
  events_.reset();
  mode_counts_ = {};
  last_clean_step_ = {};
  unseen_ = events_lost_ = upsets_ = 0;
  queue_level_ = queue_high_water_ = 0;
  raised_ = 0;
  clear_pending_ = pop_pending_ = clearing_ = false;
}

std::optional<Refusal> RegisterFile::refusal(bool write, std::uint64_t address, std::uint32_t data,
                                             unsigned strobe) const {
  const Register* target = find_register(address);
  if (target == nullptr) return Refusal::kNoRegister;
  if (!write) {
    if (target->readable == 0) return Refusal::kNotAccessible;
    return std::nullopt;
  }
  if (target->writable == 0) return Refusal::kNotAccessible;
  if (strobe != 0xF) return Refusal::kPartialWrite;
  if (!in_range(address, data)) return Refusal::kValue;
  if (address == reg::kOpCommand) {
    if (op_command(data).op >= parameters_.num_ops) return Refusal::kValue;
    if (command_) return Refusal::kBusy;
  }
  return std::nullopt;
}

std::uint32_t RegisterFile::read(std::uint64_t address) const {
  assert(!refusal(false, address, 0));
  if (address >= kConfigStart) return read_config(config_, address);

  const Event event = events_.front();
  const ControllerState& controller = shown_.state.controller;
  const PublishedState& published = shown_.state.published;
  const Hints hint = hints();
  switch (address) {
    case reg::kCapabilityOps:
      return parameters_.num_ops;
    case reg::kCapabilityEngines:
      return code(parameters_.forecast_engine) | code(parameters_.published_engine) << 1;
    case reg::kCapabilityTap:
      return parameters_.datapath_width | parameters_.num_streams << 16;
    case reg::kCapabilityQueues:
      return parameters_.queue_depth | parameters_.event_depth << 8 |
             parameters_.counter_width << 16;
    case reg::kLearningRateChange:
      return learning_rate_change_.value_or(0);
    case reg::kIrqStatus:
      return irq_status_;
    case reg::kIrqEnable:
      return irq_enable_;
    case reg::kQueue:
      return queue_level_ | queue_high_water_ << 8;
    case reg::kUnseen:
      return unseen_;
    case reg::kEvents:
      return events_.level() | events_.high_water() << 8;
    case reg::kEventsLost:
      return events_lost_;
    case reg::kUpsets:
      return upsets_;
    case reg::kEventStep:
      return event.step;
    case reg::kEventOp:
      return event.op | code(event.old_mode) << 16 | code(event.new_mode) << 18 |
             code(event.cause) << 20;
    case reg::kEventScore:
      return event.flags | std::uint32_t{event.risk} << 16;
    case reg::kStableOps:
      return mode_counts_.stable;
    case reg::kSafeOps:
      return mode_counts_.safe;
    case reg::kHint:
      return static_cast<std::uint8_t>(hint.loss_scale_shift) |
             std::uint32_t{static_cast<std::uint8_t>(hint.clip_shift)} << 8;
    case reg::kHintLearningRate:
      return hint.learning_rate_factor;
    case reg::kLastCleanStep:
      return last_clean_step_.step().value_or(0);
    case reg::kLastClean:
      return last_clean_step_.step().has_value();
    case reg::kOpCommand:
      return op_command_;
    case reg::kOpStatus:
      return command_.has_value();
    case reg::kOpSetting:
      return code(setting_.mode) | code(setting_.locked) << 8 | code(setting_.disabled) << 16;
    case reg::kOpControl:
      return code(shown_.mode) | code(controller.locked) << 2 | code(controller.disabled) << 3 |
             std::uint32_t{controller.timer} << 8 | std::uint32_t{controller.last_step} << 16;
    case reg::kOpHistory:
      return shown_.state.history.age | std::uint32_t{shown_.state.history.nonfinite_run} << 8;
    case reg::kOpBaseline:
      return static_cast<std::uint32_t>(shown_.state.baseline) & mask_of(17);
    case reg::kOpAnchor:
      return static_cast<std::uint32_t>(published.anchor) & mask_of(10);
    case reg::kOpMean:
      return std::bit_cast<std::uint32_t>(published.mean);
    case reg::kOpVariance:
      return std::bit_cast<std::uint32_t>(published.variance);
    case reg::kOpLast:
      return std::bit_cast<std::uint32_t>(published.last);
    case reg::kOpSlope:
      return std::bit_cast<std::uint32_t>(published.slope);
    default:
      return find_register(address)->reset;  // ID and VERSION
  }
}

void RegisterFile::write(std::uint64_t address, std::uint32_t data) {
  assert(!refusal(true, address, data));
  if (address >= kConfigStart) return write_config(config_, address, data);

  switch (address) {
    case reg::kCommand:
      clear_pending_ = (data & 1) != 0;
      break;
    case reg::kLearningRateChange:
      learning_rate_change_ = data;
      break;
    case reg::kIrqStatus:
      irq_status_ = (irq_status_ & ~data) | raised_;
      break;
    case reg::kIrqEnable:
      irq_enable_ = data & find_register(address)->writable;
      break;
    case reg::kEventPop:
      pop_pending_ = (data & 1) != 0;
      break;
    case reg::kOpCommand:
      op_command_ = data & find_register(address)->writable;
      command_ = op_command(data);
      break;
    case reg::kOpSetting:
      setting_ = {static_cast<Mode>(data & 3), (data >> 8 & 1) != 0, (data >> 16 & 1) != 0};
      break;
  }
}

void RegisterFile::act_() {
  if (pop_pending_) events_.pop();
  clearing_ = clear_pending_;
  if (clearing_) {
    unseen_ = events_lost_ = upsets_ = 0;
    events_.clear_high_water();
  }
  clear_pending_ = pop_pending_ = false;
}

void RegisterFile::sampled(const Detection& detection) {
  const OpRecord& record = detection.record;
  const auto mode = static_cast<Mode>(record.mode);
  const auto cause = static_cast<Cause>(record.cause);
  const bool upset = (record.flags & flag_bit(Flag::kUpset)) != 0;

  last_clean_step_.sample(record.step, record.nonfinite_count > 0);
  move_(detection.old_mode, mode);
  if (upset) count_upset_();
  if (cause == Cause::kEscalate) raise_(kEscalate);
  if (cause == Cause::kNone && !upset) return;

  if (events_.push(
          {record.step, record.op, detection.old_mode, mode, cause, record.flags, record.risk})) {
    raise_(kEvent);
  } else {
    count(events_lost_);
    raise_(kEventLost);
  }
}

void RegisterFile::commanded(const CommandResult& result) {
  shown_ = result;
  move_(result.old_mode, result.mode);
  if (result.upset) count_upset_();
  command_.reset();
}

void RegisterFile::count_unseen() {
  count(unseen_);
  raise_(kUnseen);
}

void RegisterFile::raise_(unsigned bit) {
  irq_status_ |= 1u << bit;
  raised_ |= 1u << bit;
}

void RegisterFile::move_(Mode from, Mode to) {
  const Hints before = hints();
  mode_counts_.move(from, to);
  if (hints() != before) raise_(kHint);
}

void RegisterFile::count_upset_() {
  count(upsets_);
  raise_(kUpset);
}

}  // namespace opd::sc
