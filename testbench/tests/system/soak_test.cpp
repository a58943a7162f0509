// Testplan: SOAK-01 (rtl = systemc in every cycle, = the reference in every record, event, read and
// interrupt, under stratified random operators and random APB traffic), UPS-01 (the same while stored
// bits flip). Short by default; OPD_SOAK=full runs ten million beats and more (scripts/test --full).
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <systemc>

#include "host_traffic.hpp"
#include "opd/driver/driver.hpp"
#include "paths/apb_bus.hpp"
#include "paths/rtl_factory.hpp"
#include "paths/systemc_device.hpp"
#include "rtl_variants.hpp"
#include "scoreboard.hpp"
#include "stimulus.hpp"

namespace {

using namespace opd;
using namespace opd::tb;

bool full_soak() {
  const char* text = std::getenv("OPD_SOAK");
  return text != nullptr && std::string(text) == "full";
}

/// A configuration with short timers and both engines in the risk, so that every transition of the
/// controller is met often, and with headrooms that let both kinds of operands raise every flag.
Config restless() {
  Config config;
  config.quiet_steps = 5;
  config.safe_steps = 3;
  config.baseline_reseed_run = 3;
  config.forecast_headroom_scaled = 60;
  config.jump_headroom_scaled = 300;
  config.weight_z = 128;
  config.weight_d2 = 64;
  config.z_threshold = 1.5f;
  config.z_threshold_desensitised = 2.5f;
  config.published_min_samples = 4;
  config.published_alpha = 0.125f;
  return config;
}

/// Flips stored bits of both devices now and then: of an operator's word or of its mode register, or
/// with `both`, of the two at a time as well.
class Particles {
 public:
  Particles(CorruptibleDevice& rtl, SystemcDevice& systemc, const DeviceParameters& parameters,
            bool both, std::uint64_t seed)
      : rtl_(rtl), systemc_(systemc), num_ops_(parameters.num_ops), both_(both), rng_(seed) {}

  void strike(Scoreboard& scoreboard) {
    if (draw(rng_, 0, 999) != 0) return;
    const auto op = static_cast<std::uint16_t>(draw(rng_, 0, num_ops_ - 1));
    if (!scoreboard.can_corrupt(op)) return;
    const auto bit = static_cast<unsigned>(draw(rng_, 0, 1 << 20));
    const auto what = static_cast<unsigned>(draw(rng_, 1, both_ ? 3 : 2));
    if ((what & 1u) != 0) {
      rtl_.flip(op, Stored::kMemory, bit);
      systemc_.inject_upset(op, sc::UpsetTarget::kMemory);
    }
    if ((what & 2u) != 0) {
      rtl_.flip(op, Stored::kModeRegister, bit % 3);
      systemc_.inject_upset(op, sc::UpsetTarget::kModeRegister, bit % 3);
    }
    scoreboard.corrupt(op, static_cast<ref::Upset>(what));
  }

 private:
  CorruptibleDevice& rtl_;
  SystemcDevice& systemc_;
  const unsigned num_ops_;
  const bool both_;
  std::mt19937_64 rng_;
};

struct Soak {
  DeviceParameters parameters;
  Config config;
  std::uint64_t fixed_seed;
  std::uint64_t beats;
};

/// `corruptible`: the same device as `rtl`, when its stored bits are to flip; `both` as in Particles.
void soak(PinDevice& rtl, const Soak& what, CorruptibleDevice* corruptible = nullptr,
          bool both = false) {
  const DeviceParameters& parameters = what.parameters;
  const std::uint64_t seed = case_seed(what.fixed_seed);
  SCOPED_TRACE("reproduce: OPD_SEED=" + std::to_string(seed));
  rtl.reset();
  SystemcDevice systemc(parameters);
  Scoreboard scoreboard(parameters);
  Stimulus stimulus(parameters, seed);
  HostTraffic host(parameters, what.config, seed + 1);
  std::optional<Particles> particles;
  if (corruptible != nullptr) particles.emplace(*corruptible, systemc, parameters, both, seed + 2);

  std::uint64_t beats = 0, cycles = 0;
  CycleOutput last;
  const auto cycle = [&](const CycleInput& input) {
    const CycleOutput from_rtl = rtl.peek(input);
    last = systemc.peek(input);
    ++cycles;
    const auto difference = compare_cycles("rtl", from_rtl, "systemc", last, cycles);
    ASSERT_FALSE(difference) << "cycle " << cycles << ": " << difference->field << ": rtl "
                             << difference->left_value << ", systemc " << difference->right_value;
    ASSERT_NO_FATAL_FAILURE(scoreboard.see(input, last));
    ASSERT_FALSE(testing::Test::HasFailure());
    beats += input.beat_valid;
    rtl.edge();
    systemc.edge();
    if (particles) particles->strike(scoreboard);
  };
  ApbBus bus([&](const ApbRequest& request) {
    CycleInput input;
    input.apb = request;
    cycle(input);
    return last.apb;
  });
  driver::Driver(bus).configure(what.config);
  ASSERT_FALSE(testing::Test::HasFailure());

  bool stat_taken = false;
  while (beats < what.beats) {
    CycleInput input = stimulus.next(stat_taken, host.wants_quiet());
    input.apb = host.next(scoreboard.drained(), scoreboard.settled(), stimulus.step());
    ASSERT_NO_FATAL_FAILURE(cycle(input));
    stat_taken = input.stat_valid && last.stat_ready;
  }
  for (int drain = 0; drain < 600; ++drain) {
    CycleInput input;
    input.apb = host.finish();
    ASSERT_NO_FATAL_FAILURE(cycle(input));
  }

  const Scoreboard::Counts& n = scoreboard.counts;
  const auto number = [](std::uint64_t v) { return static_cast<unsigned long long>(v); };
  std::printf(
      "soak: %llu cycles, %llu beats, %llu records compared, %llu completions unseen\n"
      "      APB: %llu reads compared, %llu accesses refused, %llu configuration registers and "
      "%llu learning-rate changes, %llu commands\n"
      "      %llu events made, %llu of them lost, %llu read and compared, %llu upsets, %llu reads "
      "of the mode port, irq high for %llu cycles\n"
      "      %llu baselines held by MAX_LAG, %llu forecasts of 8-bit formats\n",
      number(cycles), number(beats), number(n.records), number(scoreboard.unseen()),
      number(n.reads), number(n.refused), number(n.configurations), number(n.learning_rate_changes),
      number(n.commands), number(n.events), number(n.events_lost), number(n.events_read),
      number(n.upsets), number(n.modes), number(n.irq_high), number(n.baselines_held),
      number(n.forecasts_fp8));
  EXPECT_GE(n.records, what.beats / 100);
  EXPECT_GE(n.vectorised, what.beats / 1000);
  EXPECT_EQ(scoreboard.unseen_counted(), scoreboard.unseen());
  // The stimulus must have reached what the soak is for.
  EXPECT_GT(scoreboard.unseen(), 0u) << "the op queue never overflowed";
  EXPECT_GT(n.reads, what.beats / 50);
  EXPECT_GT(n.refused, what.beats / 1000);
  EXPECT_GT(n.configurations, 10u);
  EXPECT_GT(n.learning_rate_changes, 10u);
  EXPECT_GT(n.commands, 100u);
  EXPECT_GT(n.events_lost, 0u);
  EXPECT_GT(n.events_read, 100u);
  EXPECT_GT(n.modes, cycles / 2);
  EXPECT_GT(n.irq_high, 0u);
  EXPECT_LT(n.irq_high, cycles);
  if (parameters.forecast_engine) {
    EXPECT_GT(n.baselines_held, what.beats / 1000);
    EXPECT_GT(n.forecasts_fp8, what.beats / 10000);
  }
  for (unsigned format = 0; format < kFormatNames.size(); ++format)
    EXPECT_GT(scoreboard.formats[format], 0u) << kFormatNames[format];
  for (unsigned mode = 0; mode < kModeNames.size(); ++mode)
    EXPECT_GT(scoreboard.modes[mode], 0u) << kModeNames[mode];
  for (unsigned cause = 0; cause < kCauseNames.size(); ++cause)
    EXPECT_GT(scoreboard.causes[cause], 0u) << kCauseNames[cause];
  for (unsigned flag = 0; flag < kFlagNames.size(); ++flag) {
    const auto bit = static_cast<Flag>(flag);
    const bool published = bit == Flag::kZ || bit == Flag::kD2 || bit == Flag::kZHalf;
    const bool forecast = bit == Flag::kForecast || bit == Flag::kCritical || bit == Flag::kJump;
    const bool possible = (!published || parameters.published_engine) &&
                          (!forecast || parameters.forecast_engine) &&
                          (bit != Flag::kUpset || corruptible != nullptr);
    EXPECT_EQ(scoreboard.flags[flag] > 0, possible)
        << kFlagNames[flag] << ": " << scoreboard.flags[flag];
  }
  // Operands under a loss scale, and others, have headrooms of their own.
  for (const Flag flag : {Flag::kForecast, Flag::kJump}) {
    const auto of = static_cast<std::size_t>(flag);
    if (!parameters.forecast_engine) continue;
    EXPECT_LT(scoreboard.flags_under_scale[of], scoreboard.flags[of]) << kFlagNames[of];
    if (flag == Flag::kForecast || what.config.jump_headroom_scaled > 0) {
      EXPECT_GT(scoreboard.flags_under_scale[of], 0u) << kFlagNames[of];
    }
  }
}

std::uint64_t beats(std::uint64_t full) { return full_soak() ? full : 200'000; }

TEST(Soak, DefaultDevice) {
  soak(*make_rtl_device(), {rtl_parameters(), {}, 0x50A0001, beats(4'000'000)});
}
TEST(Soak, DefaultDeviceShortTimers) {
  soak(*make_rtl_device(), {rtl_parameters(), restless(), 0x50A0002, beats(4'000'000)});
}
TEST(Soak, SmallDeviceWithNarrowCounters) {
  soak(*make_small_rtl_device(), {kSmallDevice, restless(), 0x50A0003, beats(2'000'000)});
}
TEST(Soak, ForecastEngineAlone) {
  soak(*make_forecast_rtl_device(), {kForecastDevice, restless(), 0x50A0004, beats(2'000'000)});
}
TEST(Soak, PublishedEngineAlone) {
  soak(*make_published_rtl_device(), {kPublishedDevice, restless(), 0x50A0005, beats(2'000'000)});
}
TEST(Soak, SmallDeviceWhoseStoredBitsFlip) {
  const auto rtl = make_small_rtl_device();
  soak(*rtl, {kSmallDevice, restless(), 0x50A0006, beats(1'000'000)}, rtl.get());
}
// Word and register of an operator at once: nothing is left to tell its mode, and the counts of
// operators in STABLE and SAFE may be off by one from then on. Devices agree on them all the same.
TEST(Soak, SmallDeviceThatLosesStateAndModeAtOnce) {
  const auto rtl = make_small_rtl_device();
  soak(*rtl, {kSmallDevice, restless(), 0x50A0007, beats(1'000'000)}, rtl.get(), true);
}

}  // namespace

int sc_main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
