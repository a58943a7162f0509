// Testplan: DRV-01 (the driver against a bus that records every access: order of accesses, ranges,
// refusals, hints applied and taken back). The same driver on the devices: tests/system.
#include "opd/driver/driver.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "opd/driver/fields.hpp"
#include "opd/driver/training.hpp"

namespace {

using namespace opd;
using namespace opd::driver;

/// Registers as a table: plain storage, write-one-to-clear, an event queue, commands that take a
/// few reads of OP_STATUS. Accesses that docs/registers.md does not allow are refused.
class FakeBus final : public RegisterBus {
 public:
  struct Access {
    bool write;
    std::uint16_t address;
    std::uint32_t value;
  };

  FakeBus() {
    for (const Register& r : kRegisters) value[r.address] = r.reset;
    value[reg::kCapabilityOps] = 65536;
    value[reg::kCapabilityEngines] = 3;
    value[reg::kCapabilityTap] = 96 | 256 << 16;
    value[reg::kCapabilityQueues] = 7 | 255 << 8 | 5 << 16;
    value[reg::kHintLearningRate] = 65536;
  }

  std::uint32_t read(std::uint16_t address) override {
    log.push_back({false, address, 0});
    const Register* const r = find(address);
    if (r == nullptr || r->readable == 0) throw BusError(address, std::nullopt, "refused");
    const std::uint32_t found = value_at(address);
    if (after_read) after_read();
    return found;
  }

  void write(std::uint16_t address, std::uint32_t data) override {
    log.push_back({true, address, data});
    const Register* const r = find(address);
    if (r == nullptr || r->writable == 0) throw BusError(address, data, "refused");
    if (address == reg::kIrqStatus) {
      value[address] &= ~data;
    } else if (address == reg::kEventPop) {
      if ((data & 1u) != 0 && !events.empty()) events.pop_front();
    } else if (address == reg::kOpCommand) {
      busy_reads = command_reads;
      value[address] = data;
    } else {
      value[address] = data & r->writable & ~stuck[address];
    }
  }

  void raise(const Event& event) {
    events.push_back(event);
    value[reg::kIrqStatus] |= 1u;
  }

  static const Register* find(std::uint16_t address) {
    for (const Register& r : kRegisters)
      if (r.address == address) return &r;
    return nullptr;
  }
  static std::uint32_t word_of(const Event& e) {
    return e.op | static_cast<std::uint32_t>(e.old_mode) << 16 |
           static_cast<std::uint32_t>(e.new_mode) << 18 | static_cast<std::uint32_t>(e.cause) << 20;
  }
  [[nodiscard]] std::vector<std::uint16_t> written() const {
    std::vector<std::uint16_t> addresses;
    for (const Access& access : log)
      if (access.write) addresses.push_back(access.address);
    return addresses;
  }

  std::map<std::uint16_t, std::uint32_t> value;
  std::map<std::uint16_t, std::uint32_t> stuck;  ///< bits that never become 1
  std::deque<Event> events;
  std::vector<Access> log;
  std::function<void()> after_read;
  unsigned command_reads = 3;  ///< reads of OP_STATUS that a command takes
  unsigned busy_reads = 0;

 private:
  std::uint32_t value_at(std::uint16_t address) {
    if (address == reg::kOpStatus) return busy_reads > 0 && busy_reads-- > 0 ? 1 : 0;
    if (address == reg::kEvents) return static_cast<std::uint32_t>(events.size()) | 9 << 8;
    const bool empty = events.empty();
    if (address == reg::kEventStep) return empty ? 0 : events.front().step;
    if (address == reg::kEventOp) return empty ? 0 : word_of(events.front());
    if (address == reg::kEventScore)
      return empty ? 0 : events.front().flags | std::uint32_t{events.front().risk} << 16;
    return value[address];
  }
};

const Event kEvent{.step = 0xFFFFFFFF,
                   .op = 65535,
                   .old_mode = Mode::kStable,
                   .new_mode = Mode::kSafe,
                   .cause = Cause::kEscalate,
                   .flags = 0x3FF,
                   .risk = 255};

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(DriverFields, ExtractIsTheInverseOfPlaceForEveryField) {
  unsigned compared = 0;
  for (const RegisterField& f : kRegisterFields) {
    for (const std::int64_t v : {f.minimum, f.maximum, (f.minimum + f.maximum) / 2}) {
      EXPECT_EQ(extract(f, place(f, v)), v) << f.path;
      EXPECT_EQ(extract(f, ~place(f, ~v)), v) << f.path << ": other bits reach the field";
      ++compared;
    }
  }
  EXPECT_EQ(compared, 3 * kRegisterFields.size());
}

TEST(DriverIdentify, ReturnsTheCapabilities) {
  FakeBus bus;
  const DeviceParameters found = Driver(bus).identify();
  EXPECT_EQ(found, (DeviceParameters{.num_ops = 65536,
                                     .datapath_width = 96,
                                     .num_streams = 256,
                                     .queue_depth = 7,
                                     .counter_width = 5,
                                     .event_depth = 255,
                                     .forecast_engine = true,
                                     .published_engine = true}));
  bus.value[reg::kCapabilityEngines] = 2;
  EXPECT_FALSE(Driver(bus).identify().forecast_engine);
  EXPECT_TRUE(bus.written().empty());
}

TEST(DriverIdentify, RefusesAnotherDeviceAndAnotherMajorVersion) {
  FakeBus bus;
  bus.value[reg::kVersion] = 1 << 16 | 7;  // a newer minor version is compatible
  EXPECT_NO_THROW(Driver(bus).identify());
  bus.value[reg::kVersion] = 2 << 16;
  EXPECT_THROW(Driver(bus).identify(), DeviceError);
  bus.value[reg::kVersion] = 1 << 16;
  bus.value[reg::kId] = 0xFFFFFFFF;
  const std::string text = error_of([&] { Driver(bus).identify(); });
  EXPECT_NE(text.find("0xFFFFFFFF"), std::string::npos) << text;
  EXPECT_NE(text.find("base address"), std::string::npos) << text;
}

TEST(DriverConfigure, WritesNothingWhenTheDeviceIsAsWanted) {
  FakeBus bus;
  EXPECT_EQ(Driver(bus).configure({}), 0u);
  EXPECT_TRUE(bus.written().empty());
}

TEST(DriverConfigure, WritesTheRegistersThatDifferAndKeepsTheirOtherFields) {
  FakeBus bus;
  Config config;
  config.baseline_warmup_samples = 3;
  config.limit_e4m3 = -1;
  config.z_threshold = 4.5f;
  config.hint_clip_shift = -128;
  EXPECT_EQ(Driver(bus).configure(config), 4u);
  EXPECT_EQ(bus.written(), (std::vector<std::uint16_t>{reg::kLimitE4m3, reg::kBaseline,
                                                       reg::kZThreshold, reg::kHintSetting}));
  EXPECT_EQ(bus.value[reg::kBaseline], 0x00031034u);
  EXPECT_EQ(bus.value[reg::kLimitE4m3], 0x3FFFu);
  EXPECT_EQ(bus.value[reg::kHintSetting], 0x80F8u);
  EXPECT_EQ(Driver(bus).read_configuration(), config);
  EXPECT_EQ(Driver(bus).configure({}), 4u);
  EXPECT_EQ(Driver(bus).read_configuration(), Config{});
}

TEST(DriverConfigure, EveryFieldAtBothEndsReadsBack) {
  unsigned compared = 0;
  for (const ConfigField& f : kConfigFields) {
    for (const std::int32_t end : {f.minimum, f.maximum}) {
      FakeBus bus;
      Config config;
      f.set(config, end);
      Driver(bus).configure(config);
      EXPECT_EQ(f.get(Driver(bus).read_configuration()), end) << f.name;
      EXPECT_EQ(Driver(bus).read_configuration(), config) << f.name;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 2 * kConfigFields.size());
}

TEST(DriverConfigure, RefusesAFieldOutOfItsRangeBeforeAnyAccess) {
  FakeBus bus;
  Config config;
  config.limit_fp16 = 0;
  config.baseline_shift = 9;
  const std::string text = error_of([&] { Driver(bus).configure(config); });
  EXPECT_NE(text.find("baseline_shift = 9"), std::string::npos) << text;
  EXPECT_NE(text.find("1..8"), std::string::npos) << text;
  EXPECT_TRUE(bus.log.empty());
}

TEST(DriverConfigure, NamesARegisterThatDoesNotReadBack) {
  FakeBus bus;
  bus.stuck[reg::kTimers] = 0x80;
  Config config;
  config.quiet_steps = 0x81;
  const std::string text = error_of([&] { Driver(bus).configure(config); });
  EXPECT_NE(text.find("TIMERS reads 0x00000801 after a write of 0x00000881"), std::string::npos)
      << text;
}

TEST(DriverEvents, ClearsThenDrainsOldestFirst) {
  FakeBus bus;
  Event second = kEvent;
  second.step = 7;
  bus.raise(kEvent);
  bus.raise(second);
  bus.value[reg::kIrqStatus] |= 0x12;  // EVENT_LOST, ESCALATE
  bus.value[reg::kEventsLost] = 5;
  std::vector<Event> seen;
  const EventReport report =
      Driver(bus).handle_events([&](const Event& event) { seen.push_back(event); });
  EXPECT_EQ(seen, (std::vector<Event>{kEvent, second}));
  EXPECT_EQ(report.handled, 2u);
  EXPECT_EQ(report.lost, 5u);
  EXPECT_EQ(report.interrupts, (Interrupts{.event = true, .event_lost = true, .escalate = true}));
  EXPECT_EQ(bus.value[reg::kIrqStatus], 0u);
  EXPECT_EQ(bus.written(),
            (std::vector<std::uint16_t>{reg::kIrqStatus, reg::kEventPop, reg::kEventPop}));
}

// An event that arrives at any access of handle_events is either handled by it or leaves the
// interrupt pending.
TEST(DriverEvents, NoEventIsMissedWheneverItArrives) {
  unsigned cases = 0, left_pending = 0;
  for (unsigned at = 0; at < 20; ++at, ++cases) {
    FakeBus bus;
    bus.raise(kEvent);
    unsigned reads = 0;
    bus.after_read = [&] {
      if (reads++ == at) bus.raise(kEvent);
    };
    unsigned handled = 0;
    Driver(bus).handle_events([&](const Event&) { ++handled; });
    bus.after_read = {};
    const bool arrived = reads > at;
    EXPECT_EQ(handled + bus.events.size(), arrived ? 2u : 1u) << at;
    if (!bus.events.empty()) {
      ++left_pending;
      EXPECT_TRUE(Driver(bus).poll().event) << "an event waits without an interrupt, access " << at;
    }
  }
  EXPECT_EQ(cases, 20u);
  EXPECT_GT(left_pending, 0u) << "no event arrived after the last look at the queue";
}

TEST(DriverEvents, NothingPendingIsTwoReads) {
  FakeBus bus;
  const EventReport report = Driver(bus).handle_events([](const Event&) { FAIL(); });
  EXPECT_FALSE(report.interrupts.any());
  EXPECT_EQ(bus.log.size(), 2u);
  EXPECT_TRUE(bus.written().empty());
}

TEST(DriverStatus, ReadsHintsCountsAndCounters) {
  FakeBus bus;
  bus.value[reg::kHint] = 0x81F8;
  bus.value[reg::kHintLearningRate] = 6554;
  bus.value[reg::kStableOps] = 65536;
  bus.value[reg::kSafeOps] = 2;
  bus.value[reg::kQueue] = 0xFF03;
  bus.value[reg::kUnseen] = 0xFFFFFFFF;
  bus.value[reg::kUpsets] = 4;
  Driver driver(bus);
  EXPECT_EQ(driver.hints(), (Hints{-8, -127, 6554}));
  EXPECT_EQ(driver.mode_counts(), (ModeCounts{65536, 2}));
  EXPECT_EQ(driver.counters(), (Counters{.queue_level = 3,
                                         .queue_high_water = 255,
                                         .event_high_water = 9,
                                         .unseen = 0xFFFFFFFF,
                                         .upsets = 4}));
  EXPECT_FALSE(driver.last_clean_step());
  bus.value[reg::kLastClean] = 1;
  bus.value[reg::kLastCleanStep] = 41;
  EXPECT_EQ(driver.last_clean_step(), 41u);
}

TEST(DriverStatus, EachInterruptHasItsBit) {
  FakeBus bus;
  Driver driver(bus);
  const Interrupts each[] = {{.event = true}, {.event_lost = true}, {.unseen = true},
                             {.hint = true},  {.escalate = true},   {.upset = true}};
  for (unsigned bit = 0; bit < std::size(each); ++bit) {
    driver.enable_interrupts(each[bit]);
    EXPECT_EQ(bus.value[reg::kIrqEnable], 1u << bit);
    bus.value[reg::kIrqStatus] = 1u << bit;
    EXPECT_EQ(driver.poll(), each[bit]);
  }
  driver.enable_interrupts(kAllInterrupts);
  EXPECT_EQ(bus.value[reg::kIrqEnable], 0x3Fu);
  driver.announce_learning_rate(77);
  EXPECT_EQ(bus.value[reg::kLearningRateChange], 77u);
  driver.clear_counters();
  EXPECT_EQ(bus.value[reg::kCommand], 1u);
}

TEST(DriverCommands, WaitUntilTheCommandEndsAndReadTheOperator) {
  FakeBus bus;
  bus.value[reg::kOpControl] = 2u | 1u << 2 | 1u << 3 | 9u << 8 | 200u << 16;
  bus.value[reg::kOpHistory] = 255 | 3 << 8;
  bus.value[reg::kOpBaseline] = 0x1FFFF;
  bus.value[reg::kOpAnchor] = 0x200;
  bus.value[reg::kOpMean] = std::bit_cast<std::uint32_t>(1.5f);
  bus.value[reg::kOpSlope] = std::bit_cast<std::uint32_t>(-0.25f);
  const OperatorState state = Driver(bus).op_state(65535);
  EXPECT_EQ(bus.busy_reads, 0u);
  EXPECT_EQ(bus.value[reg::kOpCommand], 65535u);
  EXPECT_EQ(state, (OperatorState{.mode = Mode::kSafe,
                                  .locked = true,
                                  .disabled = true,
                                  .timer = 9,
                                  .last_step = 200,
                                  .age = 255,
                                  .nonfinite_run = 3,
                                  .baseline = -1,
                                  .anchor = -512,
                                  .mean = 1.5f,
                                  .slope = -0.25f}));
  Driver(bus).clear(4);
  EXPECT_EQ(bus.value[reg::kOpCommand], 4u | 1u << 16);
  Driver(bus).reseed(5);
  EXPECT_EQ(bus.value[reg::kOpCommand], 5u | 2u << 16);
}

TEST(DriverCommands, SettingOneThingKeepsTheOthers) {
  FakeBus bus;
  bus.value[reg::kOpControl] = 1u << 3;  // FAST, disabled
  Driver(bus).set_mode(3, Mode::kSafe, true);
  EXPECT_EQ(bus.value[reg::kOpSetting], 2u | 1u << 8 | 1u << 16);
  EXPECT_EQ(bus.value[reg::kOpCommand], 3u | 3u << 16);
  bus.value[reg::kOpControl] = 1u | 1u << 2;  // STABLE, locked
  Driver(bus).enable(3, false);
  EXPECT_EQ(bus.value[reg::kOpSetting], 1u | 1u << 8 | 1u << 16);
  Driver(bus).enable(3, true);
  EXPECT_EQ(bus.value[reg::kOpSetting], 1u | 1u << 8);
}

TEST(DriverCommands, SettingAllThreeReadsNothingBefore) {
  FakeBus bus;
  bus.value[reg::kOpControl] = 1u | 1u << 2;  // STABLE, locked
  Driver(bus).set(7, Mode::kSafe, false, true);
  EXPECT_EQ(bus.value[reg::kOpSetting], 2u | 1u << 16);
  EXPECT_EQ(bus.value[reg::kOpCommand], 7u | 3u << 16);
}

TEST(DriverCommands, ADeviceThatStaysBusyIsAnError) {
  FakeBus bus;
  bus.command_reads = 1u << 20;
  const std::string text = error_of([&] { Driver(bus).op_state(0); });
  EXPECT_NE(text.find("OP_STATUS.BUSY"), std::string::npos) << text;
}

TEST(DriverBusError, NamesRegisterAddressValueAndReason) {
  const BusError write(reg::kBaseline, 9, "refused by the device");
  EXPECT_STREQ(write.what(), "write of 0x00000009 to BASELINE (0x120): refused by the device");
  EXPECT_EQ(write.address(), reg::kBaseline);
  EXPECT_EQ(write.value(), 9u);
  const BusError read(0x0F0, std::nullopt, "refused by the device");
  EXPECT_STREQ(read.what(), "read of no register (0x0F0): refused by the device");
  EXPECT_FALSE(read.value());
}

TEST(HintPolicy, FactorsHoldWhileTheHintDoesAndAreTakenBack) {
  const TrainingSettings normal{.loss_scale = 65536, .clip_threshold = 1, .learning_rate = 3e-4};
  HintPolicy policy(normal);
  EXPECT_FALSE(policy.update({}));
  EXPECT_FALSE(policy.hinted());
  EXPECT_TRUE(policy.update({.loss_scale_shift = -8, .clip_shift = -1}));
  EXPECT_EQ(policy.settings(), (TrainingSettings{256, 0.5, 3e-4}));
  EXPECT_FALSE(policy.update({.loss_scale_shift = -8, .clip_shift = -1}));
  EXPECT_TRUE(policy.update({-8, -1, 6554}));
  EXPECT_DOUBLE_EQ(policy.settings().learning_rate, 3e-4 * 6554 / 65536);
  policy.set_normal({.loss_scale = 32768, .clip_threshold = 2, .learning_rate = 1e-4});
  EXPECT_EQ(policy.settings().loss_scale, 128);
  EXPECT_EQ(policy.settings().clip_threshold, 1);
  EXPECT_TRUE(policy.update({}));
  EXPECT_EQ(policy.settings(), policy.normal());
}

}  // namespace
