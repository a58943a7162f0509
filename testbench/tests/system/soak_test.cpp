// Testplan: SOAK-01 (rtl = systemc in every cycle, = cpu in every record, under stratified random
// stimulus). Short by default; OPD_SOAK=full runs ten million beats and more (scripts/test --full).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <systemc>

#include "crosscheck.hpp"
#include "opd/reference/cpu.hpp"
#include "paths/rtl_factory.hpp"
#include "paths/systemc_device.hpp"
#include "rtl_variants.hpp"
#include "stimulus.hpp"

namespace {

using namespace opd;
using namespace opd::tb;

bool full_soak() {
  const char* text = std::getenv("OPD_SOAK");
  return text != nullptr && std::string(text) == "full";
}

/// The reference's view of the pins: gathers each operator's elements and says which completion
/// gets which seq.
class Reference {
 public:
  Reference(const DeviceParameters& parameters, const Config& config)
      : parameters_(parameters), cpu_(parameters, config), open_(parameters.num_streams) {}

  void see(const CycleInput& input, bool stat_ready) {
    if (input.stat_valid && stat_ready) pushed_.push_back(input.statistic);
    if (!input.beat_valid) return;
    const Beat& beat = input.beat;
    Gathered& open = open_[beat.stream];
    const unsigned width = element_bytes(beat.descriptor.format);
    const unsigned lanes = parameters_.datapath_width / 8 / width;
    open.bytes.insert(open.bytes.end(), reinterpret_cast<const std::byte*>(beat.data.data()),
                      reinterpret_cast<const std::byte*>(beat.data.data()) + lanes * width);
    for (unsigned lane = 0; lane < lanes; ++lane)
      open.enabled.push_back(beat.lane_enable >> lane & 1u);
    if (!beat.last) return;
    Statistic completion{.descriptor = beat.descriptor};
    if (static_cast<unsigned>(beat.descriptor.format) < kFormatNames.size()) {
      completion.summary = ref::summarise_serial(beat.descriptor.format, open.bytes, open.enabled,
                                                 parameters_.counter_width);
      // The vectorised pass has no lane enables: it is held against the definition where all lanes
      // but a tail are enabled.
      const auto tail = std::find(open.enabled.begin(), open.enabled.end(), 0);
      if (std::find(tail, open.enabled.end(), 1) == open.enabled.end()) {
        const auto elements = static_cast<std::size_t>(tail - open.enabled.begin());
        ASSERT_EQ(completion.summary, ref::summarise(beat.descriptor.format,
                                                     std::span(open.bytes).first(elements * width),
                                                     parameters_.counter_width));
        ++vectorised;
      }
    }
    pushed_.push_back(completion);
    open.bytes.clear();
    open.enabled.clear();
  }

  /// The record of completion `seq`; completions before it that had no record were never seen by
  /// the device.
  void expect(const CycleOutput& output) {
    const std::uint32_t seq = output.record.seq;
    ASSERT_LT(seq, pushed_.size());
    ASSERT_GE(seq, next_) << "records out of order";
    unseen_ += seq - next_;
    next_ = seq + 1;
    const Statistic& completion = pushed_[seq];
    const auto record = cpu_.complete(seq, completion.descriptor, completion.summary);
    ASSERT_TRUE(record.has_value()) << "the device detected an illegal completion, seq " << seq;
    const std::uint64_t most = (std::uint64_t{1} << parameters_.counter_width) - 1;
    const auto clamp = [&](std::uint32_t v) {
      return static_cast<std::uint32_t>(std::min<std::uint64_t>(v, most));
    };
    const TapCounts counts{clamp(completion.summary.element_count),
                           clamp(completion.summary.subnormal_count),
                           clamp(completion.summary.zero_count)};
    const auto difference =
        compare_records("cpu", *record, counts, "systemc", output.record, output.counts);
    ASSERT_FALSE(difference) << "seq " << seq << ": " << difference->field << ": cpu "
                             << difference->left_value << ", systemc " << difference->right_value;
    ++compared;
  }

  [[nodiscard]] std::uint64_t unseen() const { return unseen_ + (pushed_.size() - next_); }
  std::uint64_t compared = 0;
  std::uint64_t vectorised = 0;  ///< operators summarised by the vectorised pass as well

 private:
  struct Gathered {
    std::vector<std::byte> bytes;
    std::vector<std::uint8_t> enabled;
  };
  static unsigned element_bytes(Format format) {
    switch (format) {
      case Format::kE4m3:
      case Format::kE5m2:
        return 1;
      case Format::kFp32:
        return 4;
      default:
        return 2;
    }
  }
  DeviceParameters parameters_;
  ref::CpuReference cpu_;
  std::vector<Gathered> open_;
  std::vector<Statistic> pushed_;  // by seq
  std::uint64_t unseen_ = 0;
  std::size_t next_ = 0;
};

/// A configuration with short timers, so that every transition of the controller is met often.
Config restless() {
  Config config;
  config.quiet_steps = 5;
  config.safe_steps = 3;
  config.baseline_reseed_run = 3;
  return config;
}

void soak(PinDevice& rtl, const DeviceParameters& parameters, const Config& config,
          std::uint64_t fixed_seed, std::uint64_t beats) {
  const std::uint64_t seed = case_seed(fixed_seed);
  SCOPED_TRACE("reproduce: OPD_SEED=" + std::to_string(seed));
  rtl.reset();
  SystemcDevice systemc(parameters, config);
  Reference reference(parameters, config);
  Stimulus stimulus(parameters, seed);

  std::uint64_t beats_seen = 0, cycles = 0;
  std::map<unsigned, std::uint64_t> formats, modes, causes;
  std::array<std::uint64_t, kFlagNames.size()> flags{};
  CycleOutput last;
  bool stat_taken = false;
  const auto cycle = [&](const CycleInput& input) {
    const CycleOutput from_rtl = rtl.peek(input);
    last = systemc.peek(input);
    ++cycles;
    const auto difference = compare_cycles("rtl", from_rtl, "systemc", last, cycles);
    ASSERT_FALSE(difference) << "cycle " << cycles << ": " << difference->field << ": rtl "
                             << difference->left_value << ", systemc " << difference->right_value;
    ASSERT_NO_FATAL_FAILURE(reference.see(input, last.stat_ready));
    if (last.record_valid) {
      ASSERT_NO_FATAL_FAILURE(reference.expect(last));
      ++formats[last.record.format];
      ++modes[last.record.mode];
      ++causes[last.record.cause];
      for (std::size_t f = 0; f < flags.size(); ++f) flags[f] += last.record.flags >> f & 1u;
    }
    stat_taken = input.stat_valid && last.stat_ready;
    beats_seen += input.beat_valid;
    rtl.edge();
    systemc.edge();
  };
  while (beats_seen < beats) ASSERT_NO_FATAL_FAILURE(cycle(stimulus.next(stat_taken)));
  for (int drain = 0; drain < 600; ++drain) ASSERT_NO_FATAL_FAILURE(cycle(CycleInput{}));

  std::printf("soak: %llu cycles, %llu beats, %llu records compared, %u completions unseen\n",
              static_cast<unsigned long long>(cycles), static_cast<unsigned long long>(beats_seen),
              static_cast<unsigned long long>(reference.compared), last.unseen_count);
  EXPECT_GE(reference.compared, beats / 100);
  EXPECT_GE(reference.vectorised, beats / 1000);
  EXPECT_EQ(last.unseen_count, reference.unseen());
  // The stimulus must have reached what the soak is for.
  EXPECT_GT(last.unseen_count, 0u) << "the op queue never overflowed";
  EXPECT_EQ(last.queue_high_water, parameters.queue_depth);
  for (unsigned format = 0; format < kFormatNames.size(); ++format)
    EXPECT_GT(formats[format], 0u) << kFormatNames[format];
  for (unsigned mode = 0; mode < kModeNames.size(); ++mode)
    EXPECT_GT(modes[mode], 0u) << kModeNames[mode];
  for (unsigned cause = 0; cause < kCauseNames.size(); ++cause)
    EXPECT_GT(causes[cause], 0u) << kCauseNames[cause];
  for (const Flag flag : {Flag::kForecast, Flag::kCritical, Flag::kJump, Flag::kNonfinite,
                          Flag::kSaturated, Flag::kWarmup}) {
    EXPECT_GT(flags[static_cast<std::size_t>(flag)], 0u)
        << kFlagNames[static_cast<std::size_t>(flag)];
  }
}

TEST(Soak, DefaultDevice) {
  soak(*make_rtl_device({}), rtl_parameters(), {}, 0x50A0001, full_soak() ? 6'000'000 : 300'000);
}
TEST(Soak, DefaultDeviceShortTimers) {
  soak(*make_rtl_device(restless()), rtl_parameters(), restless(), 0x50A0002,
       full_soak() ? 6'000'000 : 300'000);
}
TEST(Soak, SmallDeviceWithNarrowCounters) {
  soak(*make_small_rtl_device(restless()), kSmallDevice, restless(), 0x50A0003,
       full_soak() ? 3'000'000 : 300'000);
}

}  // namespace

int sc_main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
