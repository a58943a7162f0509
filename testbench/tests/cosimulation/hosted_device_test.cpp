// Testplan: COS-03 (the host of co-simulation: a device that hangs, drops or lies is an error and not
// a wait; no event is lost however shallow the queues; upsets; SystemC is lent).
#include "cosimulation/hosted_device.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <systemc>
#include <vector>

#include "cosimulation/systemc_loan.hpp"
#include "opd/reference/cpu.hpp"
#include "opd/reference/element.hpp"
#include "paths/rtl_factory.hpp"
#include "paths/systemc_device.hpp"
#include "rtl_variants.hpp"
#include "seed.hpp"

namespace {

using namespace opd;
using namespace opd::tb;

/// A device whose answers are changed on the way to the host, once it has been brought up.
class Lying final : public PinDevice {
 public:
  using Lie = std::function<void(CycleOutput&)>;

  explicit Lying(const Lie* lie) : lie_(lie) {}
  void reset() override { device_->reset(); }
  CycleOutput peek(const CycleInput& input) override {
    CycleOutput output = device_->peek(input);
    if (*lie_) (*lie_)(output);
    return output;
  }
  void edge() override { device_->edge(); }

 private:
  std::unique_ptr<PinDevice> device_ = make_rtl_device();
  const Lie* lie_;
};

Statistic completion(std::uint16_t op, std::uint32_t step, std::uint32_t nonfinite = 0,
                     std::uint32_t max_mag = 0x3C00, Format format = Format::kFp16) {
  return {.descriptor = {.op = op, .format = format, .step = step},
          .summary = {.max_mag = max_mag,
                      .element_count = 64,
                      .nonfinite_count = nonfinite,
                      .first_nonfinite = nonfinite > 0 ? 0 : kNoElement}};
}

std::string error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

/// What the host says of a step on a device that lies from then on.
std::string error_under(const Lying::Lie& lie, std::uint16_t op = 3, std::uint32_t nonfinite = 0) {
  Lying::Lie told;
  HostedDevice device(std::make_unique<Lying>(&told), 16, {});
  EXPECT_EQ(device.step(std::vector{completion(3, 0)}).records.size(), 1u);
  told = lie;
  return error_of([&] { device.step(std::vector{completion(op, 1, nonfinite)}); });
}

TEST(HostedDevice, ADeviceThatHangsIsAnError) {
  EXPECT_EQ(error_under([](CycleOutput& out) { out.stat_ready = false; }),
            "stat_ready is still 0 after 10000 clocks; the device has to be reset");
  EXPECT_EQ(error_under([](CycleOutput& out) { out.record_valid = false; }),
            "1 of 1 completions have no record after 10000 clocks; the device has to be reset");
  EXPECT_EQ(error_under([](CycleOutput& out) { out.irq = true; }),
            "the interrupt is still up after it was served; the device has to be reset");
  EXPECT_EQ(error_under([](CycleOutput& out) { out.apb.ready = false; }, 3, 1),
            "read of IRQ_STATUS (0x040): pready is 0 in the access clock; the device takes no wait "
            "states");
  EXPECT_EQ(error_under({}), "no error");
}

TEST(HostedDevice, ACompletionThatTheDeviceDropsIsAnError) {
  EXPECT_EQ(error_under({}, static_cast<std::uint16_t>(rtl_parameters().num_ops)),
            "UNSEEN reads 1: completions were lost; the device has to be reset");
}

TEST(HostedDevice, ADeviceThatIsAnotherIsRefused) {
  const unsigned too_many = rtl_parameters().num_ops + 1;
  EXPECT_EQ(error_of([&] { HostedDevice(make_rtl_device(), too_many, {}); }),
            "CAPABILITY_OPS reads " + std::to_string(rtl_parameters().num_ops) +
                ": fewer operators than the " + std::to_string(too_many) + " asked for");
  const Lying::Lie other = [](CycleOutput& out) { out.apb.data = 0; };
  EXPECT_NE(error_of([&] {
              HostedDevice(std::make_unique<Lying>(&other), 16, {});
            }).find("ID reads 0x00000000"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              HostedDevice(make_rtl_device(), 16, {.baseline_shift = 9});
            }).find("must be in 1..8"),
            std::string::npos);
}

/// Both sides of a random run: every completion, commands between the steps, and upsets where `flip`
/// is given.
struct Twins {
  HostedDevice& device;
  ref::CpuReference& reference;
  unsigned num_ops;
  std::function<void(std::uint16_t, ref::Upset, unsigned bit)> flip;
  std::mt19937_64 rng;
  std::uint32_t seq = 0;
  std::size_t events = 0, upsets = 0;

  void step(std::uint32_t number, std::size_t count, unsigned nonfinite_percent) {
    std::vector<Statistic> completions;
    for (std::size_t i = 0; i < count; ++i) {
      const auto format = static_cast<Format>(draw(rng, 0, kFormatNames.size() - 1));
      const auto largest = ref::layout_of(format).max_finite;
      Statistic made =
          completion(static_cast<std::uint16_t>(draw(rng, 0, num_ops - 1)), number,
                     draw(rng, 0, 99) < nonfinite_percent,
                     static_cast<std::uint32_t>(draw(rng, largest / 2, largest)), format);
      made.summary.saturated_count = made.summary.max_mag == largest;
      completions.push_back(made);
    }
    const HostedDevice::Step done = device.step(completions);
    ASSERT_EQ(done.records.size(), count);
    std::vector<Event> expected;
    for (std::size_t i = 0; i < count; ++i) {
      const auto detection =
          reference.complete(seq++, completions[i].descriptor, completions[i].summary);
      ASSERT_EQ(done.records[i], detection.value().record) << "completion " << i;
      if (const auto event = detection->event()) expected.push_back(*event);
    }
    EXPECT_EQ(done.events, expected);
    events += expected.size();
    upsets = reference.upset_count();
    compare();
  }

  void compare() {
    EXPECT_EQ(device.hints(), reference.hints());
    EXPECT_EQ(device.last_clean_step(), reference.last_clean_step());
    const std::vector<Mode> modes = device.modes();
    for (unsigned op = 0; op < num_ops; ++op)
      EXPECT_EQ(modes[op], reference.mode(static_cast<std::uint16_t>(op))) << op;
  }

  void run(unsigned steps, std::size_t largest_step, unsigned nonfinite_percent) {
    for (std::uint32_t number = 0; number < steps && !testing::Test::HasFailure(); ++number) {
      if (flip && draw(rng, 0, 2) == 0) {
        const auto upset = static_cast<ref::Upset>(draw(rng, 1, 2));
        const auto op = static_cast<std::uint16_t>(draw(rng, 0, num_ops - 1));
        flip(op, upset, static_cast<unsigned>(draw(rng, 0, 1 << 20)));
        reference.inject_upset(op, upset);
        compare();  // the vector unit is told SAFE where the mode register is corrupt
      }
      step(number, static_cast<std::size_t>(draw(rng, 0, static_cast<std::int64_t>(largest_step))),
           nonfinite_percent);
      const auto op = static_cast<std::uint16_t>(draw(rng, 0, num_ops - 1));
      const ref::OpSetting setting{.mode = static_cast<Mode>(draw(rng, 0, 2)),
                                   .locked = draw(rng, 0, 3) == 0,
                                   .disabled = draw(rng, 0, 7) == 0};
      const driver::OperatorState found =
          device.set_operator(op, setting.mode, setting.locked, setting.disabled);
      const ref::OpState wanted = reference.command(op, Command::kSet, setting);
      EXPECT_EQ(found.mode, wanted.controller.mode);
      EXPECT_EQ(found.locked, wanted.controller.locked != 0);
      EXPECT_EQ(found.disabled, wanted.controller.disabled != 0);
      EXPECT_EQ(found.timer, wanted.controller.timer);
    }
  }
};

TEST(HostedDevice, NoEventIsLostHoweverShallowTheQueues) {
  // Nearly every completion is non-finite and makes an event; the queue of events holds 3.
  ref::CpuReference reference(kSmallDevice, {});
  HostedDevice device(make_small_rtl_device(), kSmallDevice.num_ops, {});
  Twins twins{device, reference, kSmallDevice.num_ops, {}, std::mt19937_64(case_seed(11)), 0};
  twins.run(40, 60, 90);
  EXPECT_GT(twins.events, 500u);
}

TEST(HostedDevice, UpsetsReachTheHostRtl) {
  const Config config{.quiet_steps = 4, .safe_steps = 2};
  ref::CpuReference reference(kSmallDevice, config);
  auto pins = make_small_rtl_device();
  CorruptibleDevice& stored = *pins;
  HostedDevice device(std::move(pins), kSmallDevice.num_ops, config);
  Twins twins{device,
              reference,
              kSmallDevice.num_ops,
              [&](std::uint16_t op, ref::Upset upset, unsigned bit) {
                stored.flip(op,
                            upset == ref::Upset::kMemory ? Stored::kMemory : Stored::kModeRegister,
                            bit);
              },
              std::mt19937_64(case_seed(12)),
              0};
  twins.run(400, 20, 10);
  EXPECT_GT(twins.upsets, 100u);
}

TEST(HostedDevice, UpsetsReachTheHostSystemc) {
  const Config config{.quiet_steps = 4, .safe_steps = 2};
  const DeviceParameters parameters{.num_ops = 12};
  ref::CpuReference reference(parameters, config);
  auto pins = std::make_unique<SystemcDevice>(parameters);
  SystemcDevice& stored = *pins;
  HostedDevice device(std::move(pins), parameters.num_ops, config);
  Twins twins{device,
              reference,
              parameters.num_ops,
              [&](std::uint16_t op, ref::Upset upset, unsigned bit) {
                stored.inject_upset(op,
                                    upset == ref::Upset::kMemory ? sc::UpsetTarget::kMemory
                                                                 : sc::UpsetTarget::kModeRegister,
                                    bit % 3);
              },
              std::mt19937_64(case_seed(13)),
              0};
  twins.run(400, 30, 10);
  EXPECT_GT(twins.upsets, 100u);
}

TEST(HostedDevice, TheSystemcDeviceOfAProcessIsLentOnceAtATime) {
  auto first = std::make_unique<HostedDevice>(std::make_unique<SystemcLoan>(), 16, Config{});
  first->step(std::vector{completion(3, 0, 1)});
  EXPECT_EQ(first->modes()[3], Mode::kStable);
  EXPECT_NE(error_of([] { SystemcLoan(); }).find("in use"), std::string::npos);
  first.reset();
  HostedDevice second(std::make_unique<SystemcLoan>(), 32, {});
  EXPECT_EQ(second.modes(), std::vector<Mode>(32, Mode::kFast));
  EXPECT_EQ(second.step(std::vector{completion(3, 0)}).records[0].seq, 0u);
}

TEST(HostedDevice, ASystemcThatHasFailedIsNotLentAgain) {
  struct Failing : sc_core::sc_module {
    sc_core::sc_event trigger;
    SC_HAS_PROCESS(Failing);
    explicit Failing(sc_core::sc_module_name name) : sc_core::sc_module(name) {
      SC_METHOD(fail);
      sensitive << trigger;
      dont_initialize();
    }
    void fail() { SC_REPORT_ERROR("/opd/test", "planted"); }
  } failing("failing");
  {
    HostedDevice device(std::make_unique<SystemcLoan>(), 16, {});
    failing.trigger.notify(sc_core::SC_ZERO_TIME);
    const std::string text = error_of([&] { device.step(std::vector{completion(3, 0)}); });
    EXPECT_NE(text.find("SystemC has failed: Error: /opd/test: planted"), std::string::npos)
        << text;
  }
  const std::string text = error_of([] { SystemcLoan(); });
  EXPECT_NE(text.find("SystemC has failed in this process"), std::string::npos) << text;
  EXPECT_NE(text.find("planted"), std::string::npos) << text;
}

}  // namespace

int sc_main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
