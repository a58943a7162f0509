#include "opd/driver/driver.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <vector>

#include "opd/driver/fields.hpp"

namespace opd::driver {
namespace {

/// Far more reads of OP_STATUS than a command takes: it comes before waiting completions and ends
/// within about 20 clocks, and no read is shorter than a clock.
constexpr unsigned kPolls = 1000;

std::string hex(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08" PRIX32, value);
  return text;
}

template <class T>
T get(const RegisterField& f, std::uint32_t register_value) {
  return static_cast<T>(extract(f, register_value));
}

/// Addresses of the registers that hold the configuration, rising.
std::vector<std::uint16_t> configuration_registers() {
  std::vector<std::uint16_t> addresses;
  for (const ConfigField& f : kConfigFields) {
    if (addresses.empty() || addresses.back() != f.address) addresses.push_back(f.address);
  }
  return addresses;
}

void check_ranges(const Config& config) {
  for (const ConfigField& f : kConfigFields) {
    const std::int32_t value = f.get(config);
    if (value >= f.minimum && value <= f.maximum) continue;
    const auto shown = [&](std::int32_t v) {
      return f.is_float ? std::to_string(std::bit_cast<float>(v)) : std::to_string(v);
    };
    throw std::invalid_argument(std::string(f.name) + " = " + shown(value) + ": must be in " +
                                shown(f.minimum) + ".." + shown(f.maximum));
  }
}

Interrupts interrupts_of(std::uint32_t bits) {
  return {.event = get<bool>(field("IRQ_STATUS.EVENT"), bits),
          .event_lost = get<bool>(field("IRQ_STATUS.EVENT_LOST"), bits),
          .unseen = get<bool>(field("IRQ_STATUS.UNSEEN"), bits),
          .hint = get<bool>(field("IRQ_STATUS.HINT"), bits),
          .escalate = get<bool>(field("IRQ_STATUS.ESCALATE"), bits),
          .upset = get<bool>(field("IRQ_STATUS.UPSET"), bits)};
}

std::uint32_t bits_of(const Interrupts& i) {
  return place(field("IRQ_ENABLE.EVENT"), i.event) |
         place(field("IRQ_ENABLE.EVENT_LOST"), i.event_lost) |
         place(field("IRQ_ENABLE.UNSEEN"), i.unseen) | place(field("IRQ_ENABLE.HINT"), i.hint) |
         place(field("IRQ_ENABLE.ESCALATE"), i.escalate) |
         place(field("IRQ_ENABLE.UPSET"), i.upset);
}

}  // namespace

DeviceParameters Driver::identify() {
  constexpr std::uint32_t kIdentity = 0x6F706400;  // "opd" and a zero byte
  if (const std::uint32_t id = bus_.read(reg::kId); id != kIdentity) {
    throw DeviceError("ID reads " + hex(id) + ", not " + hex(kIdentity) +
                      ": no such device at this address; check the base address");
  }
  const auto major = get<unsigned>(field("VERSION.MAJOR"), bus_.read(reg::kVersion));
  if (major != kMajorVersion) {
    throw DeviceError("VERSION.MAJOR reads " + std::to_string(major) + ": this driver speaks " +
                      std::to_string(kMajorVersion) + "; use the driver of the device's version");
  }
  const std::uint32_t engines = bus_.read(reg::kCapabilityEngines);
  const std::uint32_t tap = bus_.read(reg::kCapabilityTap);
  const std::uint32_t queues = bus_.read(reg::kCapabilityQueues);
  return {.num_ops = get<unsigned>(field("CAPABILITY_OPS.NUM_OPS"), bus_.read(reg::kCapabilityOps)),
          .datapath_width = get<unsigned>(field("CAPABILITY_TAP.WIDTH"), tap),
          .num_streams = get<unsigned>(field("CAPABILITY_TAP.STREAMS"), tap),
          .queue_depth = get<unsigned>(field("CAPABILITY_QUEUES.QUEUE_DEPTH"), queues),
          .counter_width = get<unsigned>(field("CAPABILITY_QUEUES.COUNTER_WIDTH"), queues),
          .event_depth = get<unsigned>(field("CAPABILITY_QUEUES.EVENT_DEPTH"), queues),
          .forecast_engine = get<bool>(field("CAPABILITY_ENGINES.FORECAST"), engines),
          .published_engine = get<bool>(field("CAPABILITY_ENGINES.PUBLISHED"), engines)};
}

unsigned Driver::configure(const Config& config) {
  check_ranges(config);
  unsigned written = 0;
  for (const std::uint16_t address : configuration_registers()) {
    const std::uint32_t wanted = configuration_value(config, address);
    if (bus_.read(address) == wanted) continue;
    bus_.write(address, wanted);
    ++written;
    if (const std::uint32_t found = bus_.read(address); found != wanted) {
      throw DeviceError(std::string(register_name(address)) + " reads " + hex(found) +
                        " after a write of " + hex(wanted) +
                        "; reset the device and configure it again");
    }
  }
  return written;
}

Config Driver::read_configuration() {
  Config config;
  for (const std::uint16_t address : configuration_registers()) {
    const std::uint32_t value = bus_.read(address);
    for (const ConfigField& f : kConfigFields) {
      if (f.address != address) continue;
      const std::uint32_t bits = value >> f.low_bit & mask_of(f);
      const bool negative = f.is_signed && (bits >> (f.width - 1) & 1u) != 0;
      f.set(config, static_cast<std::int32_t>(negative ? bits | ~mask_of(f) : bits));
    }
  }
  return config;
}

void Driver::enable_interrupts(const Interrupts& interrupts) {
  bus_.write(reg::kIrqEnable, bits_of(interrupts));
}

Interrupts Driver::poll() { return interrupts_of(bus_.read(reg::kIrqStatus)); }

EventReport Driver::handle_events(const std::function<void(const Event&)>& callback) {
  EventReport report;
  const std::uint32_t pending = bus_.read(reg::kIrqStatus);
  if (pending != 0) bus_.write(reg::kIrqStatus, pending);
  report.interrupts = interrupts_of(pending);
  const auto level = [this] {
    return get<unsigned>(field("EVENTS.LEVEL"), bus_.read(reg::kEvents));
  };
  for (unsigned waiting = level(); waiting > 0; waiting = level()) {
    for (; waiting > 0; --waiting, ++report.handled) {
      const std::uint32_t step = bus_.read(reg::kEventStep);
      const std::uint32_t op = bus_.read(reg::kEventOp);
      const std::uint32_t score = bus_.read(reg::kEventScore);
      bus_.write(reg::kEventPop, place(field("EVENT_POP.POP"), 1));
      callback({.step = step,
                .op = get<std::uint16_t>(field("EVENT_OP.OP"), op),
                .old_mode = get<Mode>(field("EVENT_OP.OLD_MODE"), op),
                .new_mode = get<Mode>(field("EVENT_OP.NEW_MODE"), op),
                .cause = get<Cause>(field("EVENT_OP.CAUSE"), op),
                .flags = get<std::uint16_t>(field("EVENT_SCORE.FLAGS"), score),
                .risk = get<std::uint8_t>(field("EVENT_SCORE.RISK"), score)});
    }
  }
  if (report.interrupts.event_lost) report.lost = bus_.read(reg::kEventsLost);
  return report;
}

Hints Driver::hints() {
  const std::uint32_t shifts = bus_.read(reg::kHint);
  return {.loss_scale_shift = get<std::int8_t>(field("HINT.LOSS_SCALE_SHIFT"), shifts),
          .clip_shift = get<std::int8_t>(field("HINT.CLIP_SHIFT"), shifts),
          .learning_rate_factor = get<std::uint32_t>(field("HINT_LEARNING_RATE.FACTOR"),
                                                     bus_.read(reg::kHintLearningRate))};
}

ModeCounts Driver::mode_counts() {
  const std::uint32_t stable = bus_.read(reg::kStableOps);
  return {.stable = get<std::uint32_t>(field("STABLE_OPS.COUNT"), stable),
          .safe = get<std::uint32_t>(field("SAFE_OPS.COUNT"), bus_.read(reg::kSafeOps))};
}

std::optional<std::uint32_t> Driver::last_clean_step() {
  if (!get<bool>(field("LAST_CLEAN.VALID"), bus_.read(reg::kLastClean))) return std::nullopt;
  return bus_.read(reg::kLastCleanStep);
}

void Driver::announce_learning_rate(std::uint32_t step) {
  bus_.write(reg::kLearningRateChange, step);
}

OperatorState Driver::op_state(std::uint16_t op) { return command_(op, Command::kRead); }
OperatorState Driver::clear(std::uint16_t op) { return command_(op, Command::kClear); }
OperatorState Driver::reseed(std::uint16_t op) { return command_(op, Command::kReseed); }

OperatorState Driver::set_mode(std::uint16_t op, Mode mode, bool locked) {
  return set(op, mode, locked, op_state(op).disabled);
}

OperatorState Driver::enable(std::uint16_t op, bool enabled) {
  const OperatorState now = op_state(op);
  return set(op, now.mode, now.locked, !enabled);
}

OperatorState Driver::set(std::uint16_t op, Mode mode, bool locked, bool disabled) {
  bus_.write(reg::kOpSetting, place(field("OP_SETTING.MODE"), static_cast<std::int64_t>(mode)) |
                                  place(field("OP_SETTING.LOCKED"), locked) |
                                  place(field("OP_SETTING.DISABLED"), disabled));
  return command_(op, Command::kSet);
}

OperatorState Driver::command_(std::uint16_t op, Command command) {
  wait_until_idle_();
  bus_.write(reg::kOpCommand,
             place(field("OP_COMMAND.OP"), op) |
                 place(field("OP_COMMAND.COMMAND"), static_cast<std::int64_t>(command)));
  wait_until_idle_();
  return read_operator_();
}

void Driver::wait_until_idle_() {
  for (unsigned i = 0; i < kPolls; ++i) {
    if (!get<bool>(field("OP_STATUS.BUSY"), bus_.read(reg::kOpStatus))) return;
  }
  throw DeviceError("OP_STATUS.BUSY is still 1 after " + std::to_string(kPolls) +
                    " reads; check the device's clock, then reset it");
}

OperatorState Driver::read_operator_() {
  const std::uint32_t control = bus_.read(reg::kOpControl);
  const std::uint32_t history = bus_.read(reg::kOpHistory);
  const auto number = [this](std::uint16_t address) {
    return std::bit_cast<float>(bus_.read(address));
  };
  return {.mode = get<Mode>(field("OP_CONTROL.MODE"), control),
          .locked = get<bool>(field("OP_CONTROL.LOCKED"), control),
          .disabled = get<bool>(field("OP_CONTROL.DISABLED"), control),
          .timer = get<std::uint8_t>(field("OP_CONTROL.TIMER"), control),
          .last_step = get<std::uint8_t>(field("OP_CONTROL.LAST_STEP"), control),
          .age = get<std::uint8_t>(field("OP_HISTORY.AGE"), history),
          .nonfinite_run = get<std::uint8_t>(field("OP_HISTORY.NONFINITE_RUN"), history),
          .baseline = get<std::int32_t>(field("OP_BASELINE.VALUE"), bus_.read(reg::kOpBaseline)),
          .anchor = get<std::int16_t>(field("OP_ANCHOR.VALUE"), bus_.read(reg::kOpAnchor)),
          .mean = number(reg::kOpMean),
          .variance = number(reg::kOpVariance),
          .last = number(reg::kOpLast),
          .slope = number(reg::kOpSlope)};
}

Counters Driver::counters() {
  const std::uint32_t queue = bus_.read(reg::kQueue);
  const std::uint32_t events = bus_.read(reg::kEvents);
  return {.queue_level = get<unsigned>(field("QUEUE.LEVEL"), queue),
          .queue_high_water = get<unsigned>(field("QUEUE.HIGH_WATER"), queue),
          .event_level = get<unsigned>(field("EVENTS.LEVEL"), events),
          .event_high_water = get<unsigned>(field("EVENTS.HIGH_WATER"), events),
          .unseen = bus_.read(reg::kUnseen),
          .events_lost = bus_.read(reg::kEventsLost),
          .upsets = bus_.read(reg::kUpsets)};
}

void Driver::clear_counters() {
  bus_.write(reg::kCommand, place(field("COMMAND.CLEAR_COUNTERS"), 1));
}

}  // namespace opd::driver
