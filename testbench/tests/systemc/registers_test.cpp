// The registers of the cycle-accurate device through APB4: the map, its timing clock by clock,
// commands, events, hints, interrupts and upsets. Source: docs/registers.md, docs/controller.md,
// docs/architecture.md "Registers in time".
#include <gtest/gtest.h>

#include <bit>
#include <optional>
#include <random>

#include "device_bench.hpp"

namespace opd::tb {
namespace {

using sc::UpsetTarget;

constexpr std::uint32_t kOne = 0x3C00;  // FP16
constexpr std::uint32_t kEventBit = 1, kEventLostBit = 2, kUnseenBit = 4, kHintBit = 8,
                        kEscalateBit = 16, kUpsetBit = 32;

OpDescriptor fp16(std::uint16_t op, std::uint32_t step = 0) {
  return {.op = op, .format = Format::kFp16, .step = step, .scale_log2 = 0};
}
constexpr TapSummary kFinite = {.max_mag = kOne, .element_count = 1};
constexpr TapSummary kInfinite = {
    .max_mag = kOne, .element_count = 2, .nonfinite_count = 1, .first_nonfinite = 0};

CycleInput statistic_input(const OpDescriptor& descriptor, const TapSummary& summary) {
  return {.stat_valid = true, .statistic = {descriptor, summary}};
}
CycleInput setup(bool write, std::uint16_t address, std::uint32_t data = 0) {
  return {.apb = {.select = true, .write = write, .address = address, .data = data}};
}
CycleInput access(bool write, std::uint16_t address, std::uint32_t data = 0) {
  CycleInput input = setup(write, address, data);
  input.apb.enable = true;
  return input;
}

Mode mode_of(DeviceBench& bench, std::uint16_t op) {
  return bench.edge(CycleInput{.mode_op = op}).mode;
}

// --- The map -------------------------------------------------------------------------------------

/// Registers whose value after reset is a parameter or not zero.
std::optional<std::uint32_t> value_after_reset(std::uint16_t address,
                                               const DeviceParameters& device) {
  switch (address) {
    case reg::kCapabilityOps:
      return device.num_ops;
    case reg::kCapabilityEngines:
      return (device.forecast_engine ? 1u : 0u) + (device.published_engine ? 2u : 0u);
    case reg::kCapabilityTap:
      return device.datapath_width + 65536 * device.num_streams;
    case reg::kCapabilityQueues:
      return device.queue_depth + 256 * device.event_depth + 65536 * device.counter_width;
    case reg::kHintLearningRate:
      return 65536;
    default:
      return std::nullopt;
  }
}

class SystemcRegisterMap : public testing::TestWithParam<DeviceParameters> {};

TEST_P(SystemcRegisterMap, EveryAddressReadsItsResetValueOrIsRefused) {
  DeviceBench bench(GetParam(), Config{});
  bench.rst_n.write(false);
  DeviceBench::settle();
  bench.rst_n.write(true);
  DeviceBench::settle();
  int readable = 0, refused = 0;
  for (unsigned address = 0; address < 0x1000; ++address) {
    const Register* found = nullptr;
    for (const Register& candidate : kRegisters) {
      if (candidate.address == address) found = &candidate;
    }
    const ApbResponse response = bench.transfer({.address = static_cast<std::uint16_t>(address)});
    ASSERT_TRUE(response.ready);
    if (found == nullptr || found->readable == 0) {
      ASSERT_EQ(response, (ApbResponse{.ready = true, .error = true})) << address;
      ++refused;
    } else {
      const std::uint32_t expected =
          value_after_reset(found->address, GetParam()).value_or(found->reset);
      ASSERT_EQ(response, (ApbResponse{.ready = true, .data = expected})) << found->name;
      ++readable;
    }
  }
  EXPECT_EQ(readable, 59);
  EXPECT_EQ(refused, 4096 - 59);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, SystemcRegisterMap,
    testing::Values(DeviceParameters{},
                    DeviceParameters{.num_ops = 65536,
                                     .datapath_width = 96,
                                     .num_streams = 256,
                                     .queue_depth = 255,
                                     .counter_width = 7,
                                     .event_depth = 255,
                                     .published_engine = false},
                    DeviceParameters{.num_ops = 1, .event_depth = 1, .forecast_engine = false}));

TEST(SystemcRegisters, EveryWritableFieldTakesItsRangeAndNothingElse) {
  DeviceBench bench({.num_ops = 65536}, Config{});
  int accepted = 0, refused = 0;
  for (const RegisterField& field : kRegisterFields) {
    if (!field.writable) continue;
    const auto* target = std::find_if(
        kRegisters.begin(), kRegisters.end(),
        [&field](const Register& candidate) { return candidate.address == field.address; });
    const std::uint64_t mask = (std::uint64_t{1} << field.width) - 1;
    // The other fields keep their reset values, bits outside all fields are 1.
    const std::uint32_t others =
        (target->reset | ~target->writable) & ~static_cast<std::uint32_t>(mask << field.low_bit);
    const std::int64_t least = field.is_signed ? -(std::int64_t{1} << (field.width - 1)) : 0;
    const std::int64_t most = least + static_cast<std::int64_t>(mask);
    for (const std::int64_t value :
         {field.minimum, field.maximum, field.minimum - 1, field.maximum + 1, least, most}) {
      if (value < least || value > most) continue;  // no bits for it
      const std::uint32_t data =
          others |
          static_cast<std::uint32_t>((static_cast<std::uint64_t>(value) & mask) << field.low_bit);
      const bool legal = value >= field.minimum && value <= field.maximum;
      const bool readable = target->readable != 0;
      const std::uint32_t before = readable ? bench.read(field.address) : 0;
      const ApbResponse response =
          bench.transfer({.write = true, .address = field.address, .data = data});
      ASSERT_EQ(response, (ApbResponse{.ready = true, .error = !legal})) << field.path << value;
      bench.idle(4);
      if (readable && target->write_one_clears == 0) {
        ASSERT_EQ(bench.read(field.address), legal ? data & target->writable : before)
            << field.path << value;
      }
      legal ? ++accepted : ++refused;
    }
    if (target->write_one_clears == 0 && target->volatile_bits == 0 &&
        field.address != reg::kOpCommand) {
      bench.write(field.address, target->reset);
    }
  }
  EXPECT_GT(accepted, 200);
  EXPECT_GT(refused, 15);
}

TEST(SystemcRegisters, ConfigurationIsWhatWasWritten) {
  const std::uint64_t seed = case_seed(51);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  Config config;
  for (const ConfigField& field : kConfigFields) {
    field.set(config, static_cast<std::int32_t>(draw(rng, field.minimum, field.maximum)));
  }
  DeviceBench bench({}, config);
  int compared = 0;
  for (const auto& [address, value] : register_values(config)) {
    EXPECT_EQ(bench.read(address), value) << address;
    ++compared;
  }
  EXPECT_EQ(compared, 25);
}

TEST(SystemcRegisters, RefusedAccessesChangeNothing) {
  DeviceBench bench({.num_ops = 8}, Config{});
  const ApbResponse error{.ready = true, .error = true};
  int compared = 0;
  const auto refused = [&](ApbRequest request) {
    EXPECT_EQ(bench.transfer(request), error) << request.address;
    ++compared;
  };
  for (const std::uint8_t strobe : std::initializer_list<std::uint8_t>{0x0, 0x1, 0x7, 0xE}) {
    refused({.write = true, .address = reg::kTimers, .data = 0x0101, .strobe = strobe});
  }
  refused({.write = true, .address = reg::kTimers + 1, .data = 0x0101});
  refused({.write = true, .address = reg::kId, .data = 1});
  refused({.write = true, .address = 0x018, .data = 1});
  refused({.address = reg::kCommand});
  refused({.address = reg::kEventPop});
  refused({.write = true, .address = reg::kOpCommand, .data = 8});
  refused({.write = true, .address = reg::kOpSetting, .data = 3});
  refused({.write = true, .address = reg::kTimers, .data = 0x0100});  // one field of two illegal
  refused({.write = true, .address = reg::kZThreshold, .data = 0x80000000});  // -0
  refused({.write = true, .address = reg::kVarianceFloor, .data = 0x7F800000});
  refused({.write = true, .address = reg::kPublishedAlpha, .data = 0x3F800001});
  EXPECT_EQ(compared, 15);
  for (const auto& [address, value] : register_values(Config{})) {
    EXPECT_EQ(bench.read(address), value);
  }
  EXPECT_EQ(bench.read(reg::kOpCommand), 0u);
  EXPECT_EQ(bench.read(reg::kOpSetting), 0u);
  // A read needs no strobe.
  EXPECT_EQ(bench.transfer({.address = reg::kId, .strobe = 0}).data, 0x6F706400u);
}

// --- APB4 in time --------------------------------------------------------------------------------

TEST(SystemcApbTiming, ReadyInTheClockAfterTheSetup) {
  DeviceBench bench({}, Config{});
  const ApbResponse nothing;
  EXPECT_EQ(bench.edge().apb, nothing);
  EXPECT_EQ(bench.edge(setup(false, reg::kId)).apb, nothing);
  EXPECT_EQ(bench.edge(access(false, reg::kId)).apb,
            (ApbResponse{.ready = true, .data = 0x6F706400}));
  EXPECT_EQ(bench.edge(setup(false, reg::kVersion)).apb, nothing);  // back to back
  EXPECT_EQ(bench.edge(access(false, reg::kVersion)).apb,
            (ApbResponse{.ready = true, .data = 0x00010000}));
  EXPECT_EQ(bench.edge(setup(false, 0xFFC)).apb, nothing);
  EXPECT_EQ(bench.edge(access(false, 0xFFC)).apb, (ApbResponse{.ready = true, .error = true}));
  EXPECT_EQ(bench.edge().apb, nothing);
  EXPECT_EQ(bench.edge().apb, nothing);
}

TEST(SystemcApbTiming, AWriteTakesEffectAtTheEdgeThatEndsItsAccessClock) {
  DeviceBench bench({}, Config{});
  bench.edge(statistic_input(fp16(9999), kFinite));  // edge 0: unseen, IRQ_STATUS.UNSEEN
  EXPECT_EQ(bench.read(reg::kIrqStatus), kUnseenBit);
  bench.edge(setup(true, reg::kIrqEnable, kUnseenBit));
  EXPECT_FALSE(bench.edge(access(true, reg::kIrqEnable, kUnseenBit)).irq);  // ends at edge e
  EXPECT_TRUE(bench.edge().irq);
  bench.edge(setup(true, reg::kIrqStatus, kUnseenBit));
  EXPECT_TRUE(bench.edge(access(true, reg::kIrqStatus, kUnseenBit)).irq);
  EXPECT_FALSE(bench.edge().irq);
}

TEST(SystemcApbTiming, ReadDataAreThoseOfTheAccessClock) {
  DeviceBench bench({}, Config{});
  // The setup edge is the one at which the count rises: the access clock shows it.
  CycleInput input = setup(false, reg::kUnseen);
  input.stat_valid = true;
  input.statistic = {fp16(9999), kFinite};
  bench.edge(input);
  EXPECT_EQ(bench.edge(access(false, reg::kUnseen)).apb.data, 1u);
  // One edge later it does not.
  bench.edge(setup(false, reg::kUnseen));
  input = access(false, reg::kUnseen);
  input.stat_valid = true;
  input.statistic = {fp16(9999), kFinite};
  const CycleOutput shown = bench.edge(input);
  EXPECT_EQ(shown.apb.data, 1u);
  EXPECT_EQ(shown.unseen_count, 1u);
  EXPECT_EQ(bench.edge().unseen_count, 2u);
}

TEST(SystemcApbTiming, ABitSetAtTheEdgeThatClearsItStays) {
  DeviceBench bench({}, Config{});
  bench.edge(statistic_input(fp16(9999), kFinite));
  bench.edge(setup(true, reg::kIrqStatus, 0x3F));
  CycleInput input = access(true, reg::kIrqStatus, 0x3F);
  input.stat_valid = true;
  input.statistic = {fp16(9999), kFinite};
  bench.edge(input);
  EXPECT_EQ(bench.read(reg::kIrqStatus), kUnseenBit);
  bench.write(reg::kIrqStatus, kHintBit);  // another bit
  EXPECT_EQ(bench.read(reg::kIrqStatus), kUnseenBit);
  bench.write(reg::kIrqStatus, kUnseenBit);
  EXPECT_EQ(bench.read(reg::kIrqStatus), 0u);
}

TEST(SystemcApbTiming, ClearingCountsWhatHappensAtItsEdge) {
  DeviceBench bench({}, Config{});
  for (int i = 0; i < 3; ++i) bench.edge(statistic_input(fp16(9999), kFinite));
  bench.edge(setup(true, reg::kCommand, 1));
  const CycleInput illegal = statistic_input(fp16(9999), kFinite);
  CycleInput input = access(true, reg::kCommand, 1);
  input.stat_valid = true;
  input.statistic = illegal.statistic;
  EXPECT_EQ(bench.edge(input).unseen_count, 3u);    // e: counted, the command is written
  EXPECT_EQ(bench.edge(illegal).unseen_count, 4u);  // e + 1: cleared, and one more counted
  EXPECT_EQ(bench.edge().unseen_count, 1u);
  bench.write(reg::kCommand, 0);
  bench.idle(2);
  EXPECT_EQ(bench.read(reg::kUnseen), 1u);
}

TEST(SystemcApbTiming, ClearingSetsHighWaterToTheLevelAfterItsEdge) {
  DeviceBench bench({}, Config{});  // 10 clocks per completion
  for (int i = 0; i < 3; ++i) bench.edge(statistic_input(fp16(0), kFinite));
  // Pushed at 0, 1, 2; popped at 1.
  EXPECT_EQ(bench.edge().queue_high_water, 2);
  for (int i = 0; i < 30; ++i) bench.edge();
  EXPECT_EQ(bench.edge().queue_level, 0);
  bench.edge(setup(true, reg::kCommand, 1));
  EXPECT_EQ(bench.edge(access(true, reg::kCommand, 1)).queue_high_water, 2);
  EXPECT_EQ(bench.edge(statistic_input(fp16(0), kFinite)).queue_high_water, 2);  // e + 1, a push
  EXPECT_EQ(bench.edge().queue_high_water, 1);
  EXPECT_EQ(bench.read(reg::kQueue), 1u << 8);
}

// --- Detection with the published engine ---------------------------------------------------------

class SystemcDeviceReaction : public testing::TestWithParam<DeviceParameters> {};

TEST_P(SystemcDeviceReaction, IsTwelveCyclesWithThePublishedEngine) {
  DeviceBench bench(GetParam());
  CycleInput input{.beat_valid = true, .mode_op = 5, .beat = make_beat(fp16(5), {0x7C00}, true)};
  std::vector<int> valid, stable;
  for (int edge = 0; edge < 20; ++edge) {
    const CycleOutput output = bench.edge(input);
    if (output.record_valid) valid.push_back(edge);
    if (output.mode == Mode::kStable) stable.push_back(edge);
    input.beat_valid = false;
  }
  EXPECT_EQ(valid, std::vector<int>{12});
  EXPECT_EQ(stable, (std::vector<int>{12, 13, 14, 15, 16, 17, 18, 19}));
}

INSTANTIATE_TEST_SUITE_P(Devices, SystemcDeviceReaction,
                         testing::Values(DeviceParameters{},
                                         DeviceParameters{.forecast_engine = false}));

TEST(SystemcDeviceTiming, OneCompletionPerTenCyclesWithBothEngines) {
  DeviceBench bench(DeviceParameters{});
  for (std::uint16_t op = 0; op < 4; ++op) bench.edge(make_beat(fp16(op), {kOne}, true));
  std::vector<int> valid_edges;
  for (int edge = 4; edge < 60; ++edge) {
    if (bench.edge().record_valid) valid_edges.push_back(edge);
  }
  EXPECT_EQ(valid_edges, (std::vector<int>{12, 22, 32, 42}));
}

TEST(SystemcDeviceTiming, AStatisticReactsInElevenCyclesAndHalfOfTheQueueIsTheTaps) {
  DeviceBench bench({.queue_depth = 7});
  std::vector<bool> ready;
  std::vector<int> levels;
  for (int i = 0; i < 13; ++i) {
    const CycleOutput output = bench.edge(statistic_input(fp16(0), kFinite));
    ready.push_back(output.stat_ready);
    levels.push_back(output.queue_level);
    EXPECT_EQ(output.record_valid, i == 11) << i;
  }
  // Pushed at 0, 1, 2, 3: level 3 = 7 / 2 after edge 3. Popped at 1 and 11, so edge 12 takes one.
  EXPECT_EQ(levels, (std::vector<int>{0, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 2}));
  EXPECT_EQ(ready, (std::vector<bool>{true, true, true, true, false, false, false, false, false,
                                      false, false, false, true}));
  // The tap still has the other half.
  for (std::uint16_t op = 0; op < 4; ++op) bench.edge(make_beat(fp16(op), {kOne}, true));
  bench.idle(2);
  EXPECT_EQ(bench.outputs().queue_level, 7);
  EXPECT_EQ(bench.outputs().unseen_count, 0u);
}

// --- Commands ------------------------------------------------------------------------------------

TEST(SystemcCommandTiming, ReadThenCommandThenBusyFalls) {
  DeviceBench bench({}, Config{});
  const std::uint32_t set = 3u | 3u << 16;
  bench.write(reg::kOpSetting, 2);  // SAFE
  CycleInput input = setup(true, reg::kOpCommand, set);
  input.mode_op = 3;
  bench.edge(input);
  input = access(true, reg::kOpCommand, set);
  input.mode_op = 3;
  EXPECT_EQ(bench.edge(input).mode, Mode::kFast);  // e
  input = setup(false, reg::kOpStatus);
  input.mode_op = 3;
  EXPECT_EQ(bench.edge(input).mode, Mode::kFast);  // e + 1: the word is read
  input = access(false, reg::kOpStatus);
  input.mode_op = 3;
  const CycleOutput computing = bench.edge(input);  // e + 2: written
  EXPECT_EQ(computing.apb.data, 1u);                // BUSY in the clock before
  EXPECT_EQ(computing.mode, Mode::kFast);
  input = setup(false, reg::kOpStatus);
  input.mode_op = 3;
  EXPECT_EQ(bench.edge(input).mode, Mode::kSafe);  // e + 3
  EXPECT_EQ(bench.edge(access(false, reg::kOpStatus)).apb.data, 0u);
  EXPECT_EQ(bench.read(reg::kOpControl), 2u);
}

TEST(SystemcCommandTiming, ACommandComesBeforeTheQueueAndAfterWhatIsInFlight) {
  DeviceBench bench({}, Config{});
  for (std::uint16_t op = 0; op < 3; ++op) bench.edge(statistic_input(fp16(op), kFinite));
  // Popped at 1, written at 10. The command is written at 4 and waits.
  bench.edge(setup(true, reg::kOpCommand, 0));
  bench.edge(access(true, reg::kOpCommand, 0));
  EXPECT_EQ(bench.transfer({.write = true, .address = reg::kOpCommand, .data = 1}),
            (ApbResponse{.ready = true, .error = true}));  // busy; edges 5, 6
  std::vector<int> valid;
  for (int edge = 7; edge < 40; ++edge) {
    if (bench.edge().record_valid) valid.push_back(edge);
  }
  // Read at 11, done at 12, so the next completion is popped at 13 and written at 22.
  EXPECT_EQ(valid, (std::vector<int>{11, 23, 33}));
  EXPECT_EQ(bench.read(reg::kOpCommand), 0u);  // the refused one left no trace
}

TEST(SystemcCommand, ReadShowsTheStateOfBothEngines) {
  DeviceBench bench({}, Config{});
  OpDescriptor descriptor = fp16(6, 0x1234);
  bench.sample(descriptor, {.max_mag = 0x4200});  // 3.0
  descriptor.step = 0x1235;
  bench.sample(descriptor, {.max_mag = 0x4400});  // 4.0
  bench.command(6, Command::kRead);
  EXPECT_EQ(bench.read(reg::kOpControl), 0x35u << 16);
  EXPECT_EQ(bench.read(reg::kOpHistory), 2u);
  // x(3.0) = 51, x(4.0) = 65: m = 204 + ((260 - 204 + 8) >> 4) = 208.
  EXPECT_EQ(bench.read(reg::kOpBaseline), 208u);
  EXPECT_EQ(bench.read(reg::kOpAnchor), 128u);
  // y = 1.5, then 2: delta 0.5.
  const float alpha = Config{}.published_alpha;
  EXPECT_EQ(bench.read(reg::kOpMean), std::bit_cast<std::uint32_t>(1.5f + alpha * 0.5f));
  EXPECT_EQ(bench.read(reg::kOpVariance),
            std::bit_cast<std::uint32_t>((1 - alpha) * (alpha * 0.25f)));
  EXPECT_EQ(bench.read(reg::kOpLast), std::bit_cast<std::uint32_t>(2.0f));
  EXPECT_EQ(bench.read(reg::kOpSlope), std::bit_cast<std::uint32_t>(0.5f));

  descriptor = fp16(7);
  descriptor.scale_log2 = 127;
  bench.sample(descriptor, {.max_mag = 0x0400});  // x = -447: negative baseline and anchor
  bench.command(7, Command::kRead);
  EXPECT_EQ(bench.read(reg::kOpBaseline), static_cast<std::uint32_t>(4 * (-447 - 4064)) & 0x1FFFF);
  EXPECT_EQ(bench.read(reg::kOpAnchor), static_cast<std::uint32_t>(113 - 127) & 0x3FF);
}

TEST(SystemcCommand, AnAbsentEngineKeepsItsStateAtZero) {
  DeviceBench bench({.forecast_engine = false}, Config{});
  for (std::uint32_t step = 0; step < 40; ++step) {
    const OpRecord record = bench.sample(fp16(1, step), {.max_mag = step < 39 ? kOne : 0x7BF0});
    const unsigned engine =
        flag_bit(Flag::kForecast) | flag_bit(Flag::kCritical) | flag_bit(Flag::kJump);
    EXPECT_EQ(record.flags & engine, 0);
  }
  bench.command(1, Command::kRead);
  EXPECT_EQ(bench.read(reg::kOpHistory), 40u);
  EXPECT_EQ(bench.read(reg::kOpBaseline), 0u);
  EXPECT_NE(bench.read(reg::kOpMean), 0u);
}

TEST(SystemcCommand, AnAbsentPublishedEngineKeepsItsStateAtZero) {
  DeviceBench bench(kForecastOnly, Config{});
  for (std::uint32_t step = 0; step < 40; ++step) {
    const OpRecord record = bench.sample(fp16(1, step), {.max_mag = kOne + step % 2 * 64});
    EXPECT_EQ(record.flags & (flag_bit(Flag::kZ) | flag_bit(Flag::kZHalf) | flag_bit(Flag::kD2)),
              0);
  }
  bench.command(1, Command::kRead);
  EXPECT_NE(bench.read(reg::kOpBaseline), 0u);
  for (const std::uint16_t address :
       {reg::kOpAnchor, reg::kOpMean, reg::kOpVariance, reg::kOpLast, reg::kOpSlope}) {
    EXPECT_EQ(bench.read(address), 0u) << address;
  }
}

TEST(SystemcCommand, SetReseedAndClear) {
  DeviceBench bench({}, Config{});
  bench.sample(fp16(2, 5), kFinite);
  bench.sample(fp16(2, 6), kInfinite);  // STABLE
  bench.sample(fp16(2, 8), kFinite);    // timer 2
  bench.command(2, Command::kRead);
  EXPECT_EQ(bench.read(reg::kOpControl), 1u | 2u << 8 | 8u << 16);
  EXPECT_EQ(bench.read(reg::kOpHistory), 2u);

  bench.command(2, Command::kReseed);  // mode and timer stay
  EXPECT_EQ(bench.read(reg::kOpControl), 1u | 2u << 8 | 8u << 16);
  EXPECT_EQ(bench.read(reg::kOpHistory), 0u);
  EXPECT_EQ(bench.read(reg::kOpMean), 0u);
  EXPECT_EQ(bench.read(reg::kOpBaseline), 0u);

  bench.write(reg::kOpSetting, 2u | 1u << 8 | 1u << 16);  // SAFE, locked, disabled
  bench.command(2, Command::kSet);                        // the timer restarts
  EXPECT_EQ(bench.read(reg::kOpControl), 2u | 1u << 2 | 1u << 3 | 8u << 16);
  EXPECT_EQ(mode_of(bench, 2), Mode::kSafe);
  EXPECT_EQ(bench.read(reg::kSafeOps), 1u);
  EXPECT_EQ(bench.read(reg::kStableOps), 0u);

  bench.command(2, Command::kClear);
  EXPECT_EQ(bench.read(reg::kOpControl), 0u);
  EXPECT_EQ(mode_of(bench, 2), Mode::kFast);
  EXPECT_EQ(bench.read(reg::kSafeOps), 0u);
}

TEST(SystemcCommand, LockedAndDisabledOperators) {
  DeviceBench bench({}, Config{});
  bench.write(reg::kOpSetting, 1u << 8);  // FAST, locked
  bench.command(0, Command::kSet);
  OpRecord record = bench.sample(fp16(0, 1), kInfinite);
  EXPECT_EQ(record.mode, 0);
  EXPECT_EQ(record.cause, 0);
  EXPECT_EQ(record.risk, 255);  // judged all the same
  EXPECT_EQ(bench.read(reg::kIrqStatus), 0u);

  bench.write(reg::kOpSetting, 2u | 1u << 8);  // SAFE, locked
  bench.command(0, Command::kSet);
  bench.write(reg::kIrqStatus, 0x3F);
  record = bench.sample(fp16(0, 2), kInfinite);
  EXPECT_EQ(record.mode, 2);
  EXPECT_EQ(record.cause, static_cast<std::uint8_t>(Cause::kEscalate));
  EXPECT_EQ(bench.read(reg::kIrqStatus), kEscalateBit | kEventBit);

  bench.write(reg::kOpSetting, 1u | 1u << 16);  // STABLE, disabled
  bench.command(0, Command::kSet);
  record = bench.sample(fp16(0, 3), kInfinite);
  EXPECT_EQ(record.flags, 0);
  EXPECT_EQ(record.risk, 0);
  EXPECT_EQ(record.cause, 0);
  EXPECT_EQ(record.mode, 1);
  EXPECT_EQ(record.nonfinite_count, 1u);
  bench.command(0, Command::kRead);
  EXPECT_EQ(bench.read(reg::kOpControl), 1u | 1u << 3 | 2u << 16);  // last step 2: nothing moved
  EXPECT_EQ(bench.read(reg::kOpHistory), 2u << 8);
}

TEST(SystemcCommand, TheWholeDeviceCanBeDisabled) {
  DeviceBench bench({}, Config{.control_enable = 0});
  const OpRecord record = bench.sample(fp16(0, 1), kInfinite);
  EXPECT_EQ(record.flags, 0);
  EXPECT_EQ(record.mode, 0);
  bench.command(0, Command::kRead);
  EXPECT_EQ(bench.read(reg::kOpControl), 0u);
  EXPECT_EQ(bench.read(reg::kOpHistory), 0u);
}

// --- Desensitising -------------------------------------------------------------------------------

TEST(SystemcDesensitise, FromTheAnnouncedStepOn) {
  DeviceBench bench({}, Config{});
  // From 32.0 (x = 161) to 384.0 (x = 275): 114 is over the threshold of 96, not over 96 + 32, and
  // the headroom of 237 is below the 256 at which jumps begin to count.
  const auto jump_at = [&bench](std::uint16_t op, std::uint32_t step) {
    for (std::uint32_t i = 0; i < 16; ++i) {
      bench.sample(fp16(op, step - 16 + i), {.max_mag = 0x5000});
    }
    return (bench.sample(fp16(op, step), {.max_mag = 0x5E00}).flags & flag_bit(Flag::kJump)) != 0;
  };
  std::uint16_t op = 0;
  EXPECT_TRUE(jump_at(op++, 100));  // nothing announced: not even of step 0
  bench.write(reg::kLearningRateChange, 100);
  EXPECT_TRUE(jump_at(op++, 99));
  EXPECT_FALSE(jump_at(op++, 100));
  EXPECT_FALSE(jump_at(op++, 139));
  EXPECT_TRUE(jump_at(op++, 140));
  bench.write(reg::kLearningRateChange, 0xFFFFFFF0);  // steps are counted mod 2^32
  EXPECT_FALSE(jump_at(op++, 23));
  EXPECT_TRUE(jump_at(op++, 24));
}

TEST(SystemcDesensitise, NeverBeforeAnAnnouncement) {
  DeviceBench bench({}, Config{});
  for (std::uint32_t i = 0; i < 16; ++i) bench.sample(fp16(0, i), {.max_mag = 0x5000});
  EXPECT_NE(bench.sample(fp16(0, 16), {.max_mag = 0x5E00}).flags & flag_bit(Flag::kJump), 0);
}

// --- Events, hints, last clean step --------------------------------------------------------------

struct ReadEvent {
  std::uint32_t step, op, score;
  bool operator==(const ReadEvent&) const = default;
};
ReadEvent front(DeviceBench& bench) {
  return {bench.read(reg::kEventStep), bench.read(reg::kEventOp), bench.read(reg::kEventScore)};
}
constexpr std::uint32_t event_op(unsigned op, Mode from, Mode to, Cause cause) {
  return op | static_cast<unsigned>(from) << 16 | static_cast<unsigned>(to) << 18 |
         static_cast<unsigned>(cause) << 20;
}

TEST(SystemcEvents, QueueLostHighWaterAndPop) {
  DeviceBench bench({.event_depth = 2}, Config{});
  bench.sample(fp16(1, 10), kInfinite);  // FAST to STABLE
  bench.sample(fp16(1, 11), kInfinite);  // STABLE to SAFE
  EXPECT_EQ(bench.read(reg::kIrqStatus), kEventBit | kHintBit);
  bench.write(reg::kIrqStatus, 0x3F);
  bench.sample(fp16(1, 12), kInfinite);  // ESCALATE, lost
  EXPECT_EQ(bench.read(reg::kIrqStatus), kEventLostBit | kEscalateBit);
  EXPECT_EQ(bench.read(reg::kEvents), 2u | 2u << 8);
  EXPECT_EQ(bench.read(reg::kEventsLost), 1u);

  const std::uint32_t score = 255u << 16 | flag_bit(Flag::kNonfinite) | flag_bit(Flag::kWarmup);
  EXPECT_EQ(front(bench),
            (ReadEvent{10, event_op(1, Mode::kFast, Mode::kStable, Cause::kNonfinite), score}));
  bench.write(reg::kEventPop, 0);
  bench.idle(2);
  EXPECT_EQ(bench.read(reg::kEvents), 2u | 2u << 8);
  bench.write(reg::kEventPop, 1);
  EXPECT_EQ(front(bench),
            (ReadEvent{11, event_op(1, Mode::kStable, Mode::kSafe, Cause::kNonfinite), score}));
  EXPECT_EQ(bench.read(reg::kEvents), 1u | 2u << 8);
  bench.write(reg::kCommand, 1);
  EXPECT_EQ(bench.read(reg::kEvents), 1u | 1u << 8);
  EXPECT_EQ(bench.read(reg::kEventsLost), 0u);
  bench.write(reg::kEventPop, 1);
  EXPECT_EQ(front(bench), (ReadEvent{0, 0, 0}));
  bench.write(reg::kEventPop, 1);  // of an empty queue
  EXPECT_EQ(bench.read(reg::kEvents), 1u << 8);
}

TEST(SystemcEvents, APushAtTheEdgeOfAPopFindsRoom) {
  DeviceBench bench({.event_depth = 1, .published_engine = false}, Config{});
  int compared = 0;
  for (const std::size_t acts : {4u, 5u, 6u, 7u}) {  // edge at which the pop acts
    bench.command(0, Command::kClear);
    bench.write(reg::kCommand, 1);
    bench.write(reg::kEventPop, 1);
    bench.idle(1);
    bench.sample(fp16(0, 1), kInfinite);  // fills the queue
    std::vector<CycleInput> inputs(12);
    inputs[4] = statistic_input(fp16(0, 2), kInfinite);  // its event is pushed at edge 6
    inputs[acts - 2].apb = setup(true, reg::kEventPop, 1).apb;
    inputs[acts - 1].apb = access(true, reg::kEventPop, 1).apb;
    for (const CycleInput& input : inputs) bench.edge(input);
    const bool lost = acts > 6;
    EXPECT_EQ(bench.read(reg::kEventsLost), lost ? 1u : 0u) << acts;
    EXPECT_EQ(bench.read(reg::kEvents) & 0xFF, lost ? 0u : 1u) << acts;
    ++compared;
  }
  EXPECT_EQ(compared, 4);
}

TEST(SystemcHints, FollowTheModeCounts) {
  DeviceBench bench({}, Config{});
  const auto hint = [&bench] {
    return std::pair{bench.read(reg::kHint), bench.read(reg::kHintLearningRate)};
  };
  const std::uint32_t shifts = 0xF8 | 0xFF << 8;
  EXPECT_EQ(hint(), (std::pair{0u, 65536u}));
  bench.sample(fp16(0, 1), kInfinite);
  EXPECT_EQ(hint(), (std::pair{shifts, 65536u}));
  EXPECT_EQ(bench.read(reg::kIrqStatus), kEventBit | kHintBit);
  bench.write(reg::kIrqStatus, 0x3F);
  bench.sample(fp16(1, 1), kInfinite);  // a second STABLE changes no hint
  EXPECT_EQ(bench.read(reg::kIrqStatus), kEventBit);
  EXPECT_EQ(bench.read(reg::kStableOps), 2u);
  bench.sample(fp16(1, 2), kInfinite);
  EXPECT_EQ(hint(), (std::pair{shifts, 6554u}));
  EXPECT_EQ(bench.read(reg::kSafeOps), 1u);
  EXPECT_EQ(bench.read(reg::kIrqStatus), kEventBit | kHintBit);
  bench.write(reg::kIrqStatus, 0x3F);
  bench.command(1, Command::kClear);  // a command moves hints, without an event
  EXPECT_EQ(hint(), (std::pair{shifts, 65536u}));
  EXPECT_EQ(bench.read(reg::kIrqStatus), kHintBit);
  bench.command(0, Command::kClear);
  EXPECT_EQ(hint(), (std::pair{0u, 65536u}));
}

TEST(SystemcLastCleanStep, IsTheLatestThatEndedClean) {
  DeviceBench bench({}, Config{});
  const auto clean = [&bench]() -> std::optional<std::uint32_t> {
    const std::uint32_t step = bench.read(reg::kLastCleanStep);
    if (bench.read(reg::kLastClean) != 0) return step;
    EXPECT_EQ(step, 0u);
    return std::nullopt;
  };
  EXPECT_EQ(clean(), std::nullopt);
  bench.sample(fp16(0, 7), kFinite);
  EXPECT_EQ(clean(), std::nullopt);  // has not ended
  bench.sample(fp16(1, 7), kFinite);
  bench.sample(fp16(0, 8), kFinite);
  EXPECT_EQ(clean(), 7u);
  bench.write(reg::kOpSetting, 1u << 16);
  bench.command(1, Command::kSet);
  bench.sample(fp16(1, 8), kInfinite);  // of a disabled operator
  bench.sample(fp16(0, 9), kFinite);
  EXPECT_EQ(clean(), 7u);
  bench.sample(fp16(0, 8), kFinite);  // rolled back: 9 has ended
  EXPECT_EQ(clean(), 9u);
  bench.sample(fp16(0, 9), kFinite);  // the repeated 8 was clean
  EXPECT_EQ(clean(), 8u);
  bench.write(reg::kCommand, 1);  // no counter
  EXPECT_EQ(clean(), 8u);
}

// --- Upsets --------------------------------------------------------------------------------------

/// Which of the two places are hit.
struct Upset {
  const char* what;
  bool memory;
  std::optional<unsigned> mode_bit;
  Mode mode;  ///< after repair, of an operator in STABLE
  bool state_lost;
};

class SystemcUpset : public testing::TestWithParam<Upset> {};

TEST_P(SystemcUpset, IsRepairedByTheNextSample) {
  const Upset& upset = GetParam();
  DeviceBench bench({}, Config{});
  bench.sample(fp16(4, 1), kFinite);
  bench.sample(fp16(4, 2), kInfinite);  // STABLE
  bench.sample(fp16(4, 12), kFinite);   // timer 10
  bench.sample(fp16(5, 12), kFinite);
  bench.write(reg::kEventPop, 1);
  bench.write(reg::kIrqStatus, 0x3F);

  if (upset.memory) bench.inject_upset(4, UpsetTarget::kMemory, 17);
  if (upset.mode_bit) bench.inject_upset(4, UpsetTarget::kModeRegister, *upset.mode_bit);
  EXPECT_EQ(mode_of(bench, 4), upset.mode_bit ? Mode::kSafe : Mode::kStable);
  EXPECT_EQ(bench.read(reg::kUpsets), 0u);
  EXPECT_EQ(bench.sample(fp16(5, 13), kFinite).flags, flag_bit(Flag::kWarmup));  // another operator

  const OpRecord record = bench.sample(fp16(4, 15), kFinite);
  EXPECT_EQ(record.flags, flag_bit(Flag::kUpset) | flag_bit(Flag::kWarmup));
  EXPECT_EQ(record.mode, static_cast<std::uint8_t>(upset.mode));
  EXPECT_EQ(record.cause, 0);
  EXPECT_EQ(record.risk, 0);
  EXPECT_EQ(mode_of(bench, 4), upset.mode);
  EXPECT_EQ(bench.read(reg::kUpsets), 1u);
  EXPECT_EQ(bench.read(reg::kIrqStatus), kEventBit | kUpsetBit);
  EXPECT_EQ(front(bench),
            (ReadEvent{15, event_op(4, upset.mode, upset.mode, Cause::kNone), record.flags}));

  bench.command(4, Command::kRead);
  // Timer 13, or e = 0 from a fresh state; the baseline re-seeds.
  EXPECT_EQ(bench.read(reg::kOpControl), static_cast<std::uint32_t>(upset.mode) |
                                             (upset.state_lost ? 0u : 13u << 8) | 15u << 16);
  EXPECT_EQ(bench.read(reg::kOpHistory), upset.state_lost ? 1u : 3u);
  // Repaired: the next one finds nothing.
  EXPECT_EQ(bench.sample(fp16(4, 16), kFinite).flags, flag_bit(Flag::kWarmup));
  EXPECT_EQ(bench.read(reg::kUpsets), 1u);
}

TEST_P(SystemcUpset, IsRepairedByACommandWithoutAnEvent) {
  const Upset& upset = GetParam();
  DeviceBench bench({}, Config{});
  bench.sample(fp16(4, 1), kFinite);
  bench.sample(fp16(4, 2), kInfinite);
  bench.sample(fp16(4, 12), kFinite);
  bench.write(reg::kEventPop, 1);
  bench.write(reg::kIrqStatus, 0x3F);
  if (upset.memory) bench.inject_upset(4, UpsetTarget::kMemory);
  if (upset.mode_bit) bench.inject_upset(4, UpsetTarget::kModeRegister, *upset.mode_bit);

  bench.command(4, Command::kRead);
  EXPECT_EQ(bench.read(reg::kOpControl), static_cast<std::uint32_t>(upset.mode) |
                                             (upset.state_lost ? 0u : 10u << 8 | 12u << 16));
  EXPECT_EQ(bench.read(reg::kUpsets), 1u);
  EXPECT_EQ(bench.read(reg::kIrqStatus), kUpsetBit);
  EXPECT_EQ(bench.read(reg::kEvents) & 0xFF, 0u);
  EXPECT_EQ(mode_of(bench, 4), upset.mode);
  EXPECT_EQ(bench.sample(fp16(4, 16), kFinite).flags, flag_bit(Flag::kWarmup));
  bench.write(reg::kCommand, 1);
  EXPECT_EQ(bench.read(reg::kUpsets), 0u);
}

INSTANTIATE_TEST_SUITE_P(Targets, SystemcUpset,
                         testing::Values(Upset{"memory", true, {}, Mode::kStable, true},
                                         Upset{"mode bit 0", false, 0, Mode::kStable, false},
                                         Upset{"mode bit 1", false, 1, Mode::kStable, false},
                                         Upset{"mode parity", false, 2, Mode::kStable, false},
                                         Upset{"memory and mode bit 0", true, 0, Mode::kSafe, true},
                                         Upset{"memory and mode bit 1", true, 1, Mode::kSafe, true},
                                         Upset{"memory and parity", true, 2, Mode::kSafe, true}));

TEST(SystemcUpset, TwoFlipsThatParityMissesAreFoundByTheCopy) {
  DeviceBench bench({}, Config{});
  bench.sample(fp16(4, 1), kFinite);
  bench.inject_upset(4, UpsetTarget::kModeRegister, 0);
  bench.inject_upset(4, UpsetTarget::kModeRegister, 2);
  EXPECT_EQ(mode_of(bench, 4), Mode::kStable);  // legal, and wrong
  const OpRecord record = bench.sample(fp16(4, 2), kFinite);
  EXPECT_NE(record.flags & flag_bit(Flag::kUpset), 0);
  EXPECT_EQ(record.mode, 0);
  EXPECT_EQ(mode_of(bench, 4), Mode::kFast);
  EXPECT_EQ(bench.read(reg::kStableOps), 0u);
}

TEST(SystemcUpset, EnablesAndUnlocksAnOperatorWhoseStateIsLost) {
  DeviceBench bench({}, Config{});
  bench.write(reg::kOpSetting, 1u | 1u << 8 | 1u << 16);
  bench.command(3, Command::kSet);
  bench.inject_upset(3, UpsetTarget::kModeRegister, 1);
  OpRecord record = bench.sample(fp16(3, 1), kInfinite);  // disabled: no flag but UPSET
  EXPECT_EQ(record.flags, flag_bit(Flag::kUpset));
  EXPECT_EQ(record.mode, 1);
  bench.inject_upset(3, UpsetTarget::kMemory);
  record = bench.sample(fp16(3, 2), kInfinite);  // judged: STABLE to SAFE
  EXPECT_EQ(record.flags,
            flag_bit(Flag::kUpset) | flag_bit(Flag::kNonfinite) | flag_bit(Flag::kWarmup));
  EXPECT_EQ(record.mode, 2);
  EXPECT_EQ(bench.read(reg::kSafeOps), 1u);
  EXPECT_EQ(bench.read(reg::kUpsets), 2u);
}

// --- Reset ---------------------------------------------------------------------------------------

TEST(SystemcRegisters, AResetRestoresEveryResetValue) {
  DeviceBench bench({.event_depth = 1}, Config{.quiet_steps = 3, .hint_clip_shift = 5});
  bench.write(reg::kIrqEnable, 0x3F);
  bench.write(reg::kLearningRateChange, 77);
  bench.write(reg::kOpSetting, 2);
  bench.sample(fp16(4, 1), kFinite);
  for (std::uint32_t step = 2; step < 6; ++step) bench.sample(fp16(4, step), kInfinite);
  bench.edge(statistic_input(fp16(999), kFinite));
  bench.inject_upset(4, UpsetTarget::kMemory);
  bench.command(4, Command::kSet);
  EXPECT_TRUE(bench.outputs().irq);
  EXPECT_EQ(bench.read(reg::kIrqStatus), 0x3Fu);
  bench.edge(setup(false, reg::kId));  // a transfer in its access clock
  EXPECT_TRUE(bench.outputs().apb.ready);

  bench.rst_n.write(false);
  DeviceBench::settle();
  EXPECT_FALSE(bench.outputs().irq);
  EXPECT_EQ(bench.outputs().apb, ApbResponse{});
  bench.rst_n.write(true);
  DeviceBench::settle();
  int compared = 0;
  for (const Register& entry : kRegisters) {
    if (entry.readable == 0) continue;
    EXPECT_EQ(bench.read(entry.address),
              value_after_reset(entry.address, {.event_depth = 1}).value_or(entry.reset))
        << entry.name;
    ++compared;
  }
  EXPECT_EQ(compared, 59);
}

}  // namespace
}  // namespace opd::tb
