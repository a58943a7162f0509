// Testplan: REG-01 (every register of the three devices by one walk: Verilated and cycle-accurate
// SystemC over APB, loosely timed over TLM), REG-02 (APB in time: strobes, busy, back to back).
#include "register_walk.hpp"

#include <gtest/gtest.h>

#include <systemc>

#include "crosscheck.hpp"
#include "opd/sc/loosely_timed_device.hpp"
#include "paths/apb_bus.hpp"
#include "paths/rtl_factory.hpp"
#include "paths/systemc_device.hpp"
#include "paths/tlm_bus.hpp"
#include "rtl_variants.hpp"

namespace {

using namespace opd;
using namespace opd::tb;

/// What the walk must have tried, from the map alone.
RegisterWalk::Counts expected_counts(const DeviceParameters& device) {
  RegisterWalk::Counts counts;
  unsigned stored = 0, readable = 0;
  for (const Register& r : kRegisters) {
    readable += r.readable != 0;
    counts.refused_reads += r.readable == 0;
    counts.refused_writes += r.writable == 0 ? 2 : 0;
    stored += r.writable != 0 && (r.volatile_bits & r.writable) == 0 && r.address != 0x090;
  }
  counts.reset_values = 2 * readable;
  counts.refused_reads += 4096 - static_cast<unsigned>(kRegisters.size());
  counts.refused_writes += 4096 - static_cast<unsigned>(kRegisters.size());
  // Three values each of COMMAND, IRQ_STATUS and EVENT_POP, three commands.
  counts.bits_written = 32 * stored + 3 * 3 + 3;
  // Operators 0 and the last; the first that does not exist, and 65535 where that is another.
  counts.range_ends = 4 + (device.num_ops < 65536 ? 2u : 0u);
  for (const Register& r : kRegisters) {
    const bool stores =
        r.writable != 0 && (r.volatile_bits & r.writable) == 0 && r.address != 0x090;
    for (unsigned bit = 0; stores && bit < 32; ++bit) {
      // Bits whose flip alone leaves a field's range.
      for (const RegisterField& f : kRegisterFields) {
        if (f.address != r.address || bit < f.low_bit || bit >= f.low_bit + f.width) continue;
        const std::int64_t v = driver::extract(f, r.reset ^ std::uint32_t{1} << bit);
        counts.refused_writes += v < f.minimum || v > f.maximum;
      }
    }
    for (const RegisterField& f : kRegisterFields) {
      if (f.address != r.address || !stores) continue;
      const std::int64_t low = f.is_signed ? -(std::int64_t{1} << (f.width - 1)) : 0;
      const std::int64_t high = low + (std::int64_t{1} << f.width) - 1;
      const unsigned past = (f.minimum > low ? 1u : 0u) + (f.maximum < high ? 1u : 0u);
      counts.range_ends += 2 + past;
      counts.refused_writes += past;
    }
  }
  counts.refused_writes += device.num_ops < 65536 ? 2u : 0u;  // commands for no operator
  return counts;
}

void walk(driver::RegisterBus& bus, const DeviceParameters& device) {
  EXPECT_EQ(driver::Driver(bus).identify(), device);
  const RegisterWalk::Counts counts = RegisterWalk(bus, device).run();
  std::printf(
      "walk: %u reset values, %u bits and actions, %u ends of ranges, %u reads and %u writes "
      "refused\n",
      counts.reset_values, counts.bits_written, counts.range_ends, counts.refused_reads,
      counts.refused_writes);
  EXPECT_EQ(counts, expected_counts(device));
}

TEST(RegisterWalk, Rtl) {
  const auto device = make_rtl_device();
  ApbBus bus(*device);
  walk(bus, rtl_parameters());
}
TEST(RegisterWalk, RtlSmall) {
  const auto device = make_small_rtl_device();
  ApbBus bus(*device);
  walk(bus, kSmallDevice);
}
TEST(RegisterWalk, RtlForecastAlone) {
  const auto device = make_forecast_rtl_device();
  ApbBus bus(*device);
  walk(bus, kForecastDevice);
}
TEST(RegisterWalk, RtlPublishedAlone) {
  const auto device = make_published_rtl_device();
  ApbBus bus(*device);
  walk(bus, kPublishedDevice);
}
TEST(RegisterWalk, Systemc) {
  SystemcDevice device(rtl_parameters());
  ApbBus bus(device);
  walk(bus, rtl_parameters());
}
TEST(RegisterWalk, SystemcSmall) {
  SystemcDevice device(kSmallDevice);
  ApbBus bus(device);
  walk(bus, kSmallDevice);
}
TEST(RegisterWalk, LooselyTimed) {
  sc::LooselyTimedDevice device("device", rtl_parameters());
  TlmBus bus("bus");
  bus.socket.bind(device.socket);
  sc_core::sc_start(sc_core::SC_ZERO_TIME);
  walk(bus, rtl_parameters());
}

/// Both pin-level devices at once: the same requests, equal answers, returned to one caller.
class TwoDevices {
 public:
  ApbResponse clock(const ApbRequest& request) {
    CycleInput input;
    input.apb = request;
    const CycleOutput left = rtl_->peek(input), right = systemc_.peek(input);
    const auto difference = compare_cycles("rtl", left, "systemc", right, ++cycles);
    EXPECT_FALSE(difference) << "cycle " << cycles << ": " << difference->field;
    rtl_->edge();
    systemc_.edge();
    return left.apb;
  }
  std::uint64_t cycles = 0;

 private:
  std::unique_ptr<PinDevice> rtl_ = make_rtl_device();
  SystemcDevice systemc_{rtl_parameters()};
};

TEST(Apb, AWriteThatDoesNotStrobeAllBytesIsRefused) {
  TwoDevices devices;
  ApbBus bus([&](const ApbRequest& request) { return devices.clock(request); });
  unsigned refused = 0;
  for (const std::uint16_t address : {reg::kIrqEnable, reg::kBaseline, reg::kCommand}) {
    for (std::uint8_t strobe = 0; strobe < 16; ++strobe) {
      if (strobe == 0xF) continue;
      EXPECT_THROW(bus.write(address, 1, strobe), driver::BusError);
      ++refused;
    }
  }
  EXPECT_EQ(refused, 45u);
  EXPECT_EQ(bus.read(reg::kIrqEnable), 0u);
  EXPECT_EQ(bus.read(reg::kBaseline), 0x00101034u);
}

// A second command right behind the first meets BUSY; after it, the operator can be commanded again.
TEST(Apb, ACommandWhileOneIsRunningIsRefused) {
  TwoDevices devices;
  ApbBus bus([&](const ApbRequest& request) { return devices.clock(request); });
  const std::uint32_t set = 7u | 3u << 16;
  bus.write(reg::kOpSetting, 2u | 1u << 8);
  bus.write(reg::kOpCommand, set);
  EXPECT_THROW(bus.write(reg::kOpCommand, 8u | 3u << 16), driver::BusError);
  EXPECT_EQ(bus.read(reg::kOpCommand), set);
  driver::Driver host(bus);
  EXPECT_EQ(host.op_state(7), (driver::OperatorState{.mode = Mode::kSafe, .locked = true}));
  EXPECT_EQ(host.op_state(8), driver::OperatorState{});
  EXPECT_EQ(host.mode_counts(), (driver::ModeCounts{0, 1}));
  EXPECT_EQ(host.hints(), (Hints{-8, -1, 6554}));
  EXPECT_TRUE(host.poll().hint);
  EXPECT_EQ(host.enable(7, false),
            (driver::OperatorState{.mode = Mode::kSafe, .locked = true, .disabled = true}));
  EXPECT_EQ(host.clear(7), driver::OperatorState{});
  EXPECT_EQ(host.hints(), Hints{});
  EXPECT_GT(devices.cycles, 100u);
}

// Signals outside a transfer: nothing is answered without select, nor in the setup clock, and a
// transfer may follow another without a clock between.
TEST(Apb, AnswersComeInTheAccessClockAlone) {
  TwoDevices devices;
  const ApbRequest setup{.select = true, .address = reg::kId};
  ApbRequest access = setup;
  access.enable = true;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(devices.clock(setup), ApbResponse{});
    EXPECT_EQ(devices.clock(access), (ApbResponse{true, false, 0x6F706400}));
  }
  EXPECT_EQ(devices.clock({}), ApbResponse{});
  EXPECT_EQ(devices.clock({.address = reg::kId}), ApbResponse{});
}

}  // namespace

int sc_main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
