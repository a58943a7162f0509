// Testplan: DRV-02 (the host of docs/programming.md, compiled and run against the Verilated device:
// the page shows the part between the two marks, test_replay checks that it is the same text).
#include <gtest/gtest.h>

#include <memory>
#include <systemc>
#include <vector>

#include "opd/driver/driver.hpp"
#include "opd/driver/training.hpp"
#include "paths/apb_bus.hpp"
#include "paths/rtl_factory.hpp"

namespace {

// [example]
using namespace opd;
using namespace opd::driver;

/// Once, before the first training step.
DeviceParameters bring_up(Driver& device, const Config& config) {
  const DeviceParameters found = device.identify();  // throws when this is another device
  device.configure(config);                          // writes what differs, reads it back
  device.clear_counters();
  device.enable_interrupts(kAllInterrupts);
  return found;
}

/// When the interrupt is up, or between two training steps. Returns whether to roll back.
bool serve_interrupt(Driver& device, HintPolicy& training, std::vector<Event>& log) {
  const EventReport report =
      device.handle_events([&](const Event& event) { log.push_back(event); });
  if (report.interrupts.hint) training.update(device.hints());
  return report.interrupts.escalate;  // to device.last_clean_step()
}

/// Between two training steps, when everything of the earlier one has been recorded.
void change_learning_rate(Driver& device, HintPolicy& training, double rate, std::uint32_t step) {
  TrainingSettings normal = training.normal();
  normal.learning_rate = rate;
  training.set_normal(normal);
  device.announce_learning_rate(step);
}
// [example]

/// The device, its bus and a sideband to feed it with.
struct Machine {
  std::unique_ptr<opd::tb::PinDevice> pins = opd::tb::make_rtl_device();
  opd::tb::ApbBus bus{*pins};
  bool irq = false;

  /// One statistic of FP16 operator `op`, and the clocks until its record is out.
  void sample(std::uint16_t op, std::uint32_t step, std::uint32_t max_mag,
              std::uint32_t nonfinite = 0) {
    CycleInput input;
    input.stat_valid = true;
    input.statistic = {.descriptor = {.op = op, .step = step},
                       .summary = {.max_mag = max_mag,
                                   .element_count = 64,
                                   .nonfinite_count = nonfinite,
                                   .first_nonfinite = nonfinite > 0 ? 0 : kNoElement}};
    for (int clock = 0; clock < 16; ++clock) {
      irq = pins->peek(input).irq;
      pins->edge();
      input = {};
    }
  }
};

TEST(HostExample, FollowsAnOperatorFromTheFirstStepToTheRollBack) {
  Machine machine;
  Driver device(machine.bus);
  Config config;
  config.quiet_steps = 4;
  EXPECT_EQ(bring_up(device, config), opd::tb::rtl_parameters());

  HintPolicy training({.loss_scale = 65536, .clip_threshold = 1, .learning_rate = 1e-3});
  std::vector<Event> log;
  std::uint32_t step = 0;
  for (; step < 4; ++step) machine.sample(3, step, 0x3C00);
  EXPECT_FALSE(machine.irq) << "a quiet run does not interrupt";

  machine.sample(3, step++, 0x3C00, 1);  // non-finite: FAST to STABLE
  ASSERT_TRUE(machine.irq);
  EXPECT_FALSE(serve_interrupt(device, training, log));
  EXPECT_EQ(training.settings(), (TrainingSettings{256, 0.5, 1e-3}));
  change_learning_rate(device, training, 5e-4, step);
  EXPECT_EQ(training.settings(), (TrainingSettings{256, 0.5, 5e-4}));
  EXPECT_EQ(device.last_clean_step(), 3u);

  machine.sample(3, step++, 0x3C00, 1);  // to SAFE
  EXPECT_FALSE(serve_interrupt(device, training, log));
  EXPECT_DOUBLE_EQ(training.settings().learning_rate, 5e-4 * 6554 / 65536);
  machine.sample(3, step++, 0x3C00, 1);  // and again: nothing below SAFE is left
  EXPECT_TRUE(serve_interrupt(device, training, log));
  EXPECT_EQ(device.last_clean_step(), 3u);

  // Rolled back and set right: the operator starts anew, and the hints end with it.
  device.clear(3);
  EXPECT_FALSE(serve_interrupt(device, training, log));
  EXPECT_EQ(training.settings(), training.normal());
  ASSERT_EQ(log.size(), 3u);
  EXPECT_EQ(log[0].cause, Cause::kNonfinite);
  EXPECT_EQ(log[2].cause, Cause::kEscalate);
  EXPECT_EQ(device.counters().event_high_water, 1u);
  EXPECT_FALSE(device.poll().any());
}

}  // namespace

int sc_main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
