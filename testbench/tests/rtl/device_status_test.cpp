// opd_device_status alone: tables from docs/controller.md ("Events and hints", "Upsets"), and random samples and commands
// against a model that keeps the mode of every operator.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <verilated.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <set>

#include "Vopd_device_status.h"
#include "opd/types/registers.hpp"
#include "paths/coverage.hpp"
#include "seed.hpp"

namespace opd::tb {
namespace {

struct Hints {
  int loss_scale_shift, clip_shift, learning_rate_factor;
  bool operator==(const Hints&) const = default;
};
constexpr Hints kNone{0, 0, 65536};

class Bench {
 public:
  explicit Bench(const Config& config = {})
      : module_(std::make_unique<Vopd_device_status>(&context_)) {
    std::array<std::uint32_t, (kConfigPackedBits + 31) / 32> bits{};
    for (const ConfigField& f : kConfigFields) {
      const auto value = static_cast<std::uint32_t>(f.get(config));
      for (unsigned i = 0; i < f.width; ++i) {
        bits[(f.packed_low + i) / 32u] |= (value >> i & 1) << (f.packed_low + i) % 32u;
      }
    }
    static_assert(sizeof(bits) == sizeof(module_->cfg_i));
    std::memcpy(&module_->cfg_i, &bits, sizeof(bits));
    module_->rst_ni = 1;
    module_->eval();
    module_->rst_ni = 0;
    module_->eval();
    module_->rst_ni = 1;
    module_->eval();
  }
  ~Bench() {
    Verilated::threadContextp(&context_);
    module_->final();
    write_coverage(context_);
  }

  void sample(std::uint32_t step, bool nonfinite = false) {
    module_->sample_valid_i = 1;
    module_->sample_step_i = step;
    module_->sample_nonfinite_i = nonfinite;
  }
  void mode(Mode from, Mode to) {
    module_->mode_change_valid_i = 1;
    module_->old_mode_i = static_cast<CData>(from);
    module_->new_mode_i = static_cast<CData>(to);
  }
  void upset() { module_->upset_i = 1; }
  void clear() { module_->clear_i = 1; }

  /// Gives the edge at which the calls above happen. Returns whether it was told to change a hint.
  bool clock() {
    module_->clk_i = 0;
    module_->eval();
    const bool changed = module_->hint_changed_o != 0;
    module_->clk_i = 1;
    module_->eval();
    module_->sample_valid_i = module_->mode_change_valid_i = module_->upset_i = module_->clear_i =
        0;
    module_->eval();
    return changed;
  }
  bool change(Mode from, Mode to) {
    mode(from, to);
    return clock();
  }

  [[nodiscard]] Hints hints() const {
    const std::uint64_t bits = module_->hints_o;  // opd_pkg::hints_t
    return {static_cast<std::int8_t>(bits >> 25), static_cast<std::int8_t>(bits >> 17),
            static_cast<int>(bits & 0x1FFFF)};
  }
  [[nodiscard]] std::uint32_t stable() const { return module_->stable_ops_o; }
  [[nodiscard]] std::uint32_t safe() const { return module_->safe_ops_o; }
  [[nodiscard]] std::uint32_t upsets() const { return module_->upset_count_o; }
  /// The last clean step, if there is one.
  [[nodiscard]] std::optional<std::uint32_t> last_clean() const {
    if (module_->last_clean_valid_o != 0) return module_->last_clean_step_o;
    EXPECT_EQ(module_->last_clean_step_o, 0u);
    return {};
  }

 private:
  VerilatedContext context_;
  std::unique_ptr<Vopd_device_status> module_;
};

TEST(RtlDeviceStatus, HintsFollowTheCounts) {
  Bench bench;
  EXPECT_EQ(bench.hints(), kNone);
  EXPECT_TRUE(bench.change(Mode::kFast, Mode::kStable));
  EXPECT_EQ(bench.hints(), (Hints{-8, -1, 65536}));
  EXPECT_FALSE(bench.change(Mode::kFast, Mode::kStable));  // a second one changes no hint
  EXPECT_TRUE(bench.change(Mode::kStable, Mode::kSafe));
  EXPECT_EQ(bench.hints(), (Hints{-8, -1, 6554}));
  EXPECT_FALSE(bench.change(Mode::kSafe, Mode::kSafe));
  EXPECT_EQ(bench.stable(), 1u);
  EXPECT_EQ(bench.safe(), 1u);
  EXPECT_TRUE(bench.change(Mode::kSafe, Mode::kFast));  // by a command
  EXPECT_EQ(bench.hints(), (Hints{-8, -1, 65536}));
  EXPECT_TRUE(bench.change(Mode::kStable, Mode::kFast));
  EXPECT_EQ(bench.hints(), kNone);
}

TEST(RtlDeviceStatus, HintsAreTheSettings) {
  Config config;
  config.hint_loss_scale_shift = 127;
  config.hint_clip_shift = -128;
  config.hint_learning_rate_factor = 65535;
  Bench bench(config);
  bench.change(Mode::kFast, Mode::kSafe);
  EXPECT_EQ(bench.hints(), (Hints{127, -128, 65535}));

  // Settings that ask for nothing: the counts move, no hint does.
  Config nothing;
  nothing.hint_loss_scale_shift = nothing.hint_clip_shift = 0;
  nothing.hint_learning_rate_factor = 65536;
  Bench quiet(nothing);
  EXPECT_FALSE(quiet.change(Mode::kFast, Mode::kSafe));
  EXPECT_EQ(quiet.safe(), 1u);
}

TEST(RtlDeviceStatus, CountsDoNotFallBelowZero) {
  Bench bench;  // an upset of both copies can leave a count one too low
  bench.change(Mode::kSafe, Mode::kStable);
  EXPECT_EQ(bench.safe(), 0u);
  EXPECT_EQ(bench.stable(), 1u);
}

TEST(RtlDeviceStatus, LastCleanStepHasEndedWithoutNonfinite) {
  struct Row {
    std::uint32_t step;
    bool nonfinite;
    std::optional<std::uint32_t> after;
  };
  const Row rows[] = {
      {7, false, {}},  // not ended yet
      {7, false, {}},
      {8, false, 7},  // step 7 has ended
      {8, true, 7},   // one non-finite sample soils the step
      {8, false, 7},
      {9, true, 7},  // step 8 ended, not clean
      {10, false, 7},
      {0xFFFF'FFFF, false, 10},
      {0, false, 0xFFFF'FFFF},
      {5, false, 0},
      {3, false, 5},  // rolled back: the step that ended is 5
      {4, false, 3},
  };
  Bench bench;
  EXPECT_EQ(bench.last_clean(), std::nullopt);
  for (const Row& row : rows) {
    bench.sample(row.step, row.nonfinite);
    bench.clock();
    EXPECT_EQ(bench.last_clean(), row.after) << "step " << row.step;
    bench.clear();  // not a counter
    bench.clock();
    EXPECT_EQ(bench.last_clean(), row.after) << "step " << row.step;
  }
}

TEST(RtlDeviceStatus, ClearingCountsTheUpsetOfThatEdge) {
  Bench bench;
  for (std::uint32_t i = 1; i <= 3; ++i) {
    bench.upset();
    bench.clock();
    EXPECT_EQ(bench.upsets(), i);
  }
  bench.clear();
  bench.upset();
  bench.clock();
  EXPECT_EQ(bench.upsets(), 1u);
  bench.clear();
  bench.clock();
  EXPECT_EQ(bench.upsets(), 0u);
}

TEST(RtlDeviceStatus, RandomSamplesAndCommands) {
  const std::uint64_t seed = case_seed(0xDE51);
  SCOPED_TRACE(fmt::format("reproduce: OPD_SEED={} --gtest_filter=RtlDeviceStatus.*", seed));
  std::mt19937_64 rng(seed);
  const Config config;
  Bench bench(config);
  std::array<Mode, 6> modes{};  // few operators, so that the counts often return to 0
  std::optional<std::uint32_t> running, last_clean;
  std::set<std::uint32_t> soiled;  // running step, if a sample of it was non-finite
  std::uint32_t upsets = 0;
  Hints hints = kNone;
  int compared = 0, hint_changes = 0;
  for (int clock = 0; clock < 50'000 && !HasFailure(); ++clock) {
    const bool sample = rng() % 2 != 0, upset = rng() % 8 == 0, clear = rng() % 32 == 0;
    if (sample) {
      const std::uint32_t step =
          rng() % 4 != 0 && running ? *running : static_cast<std::uint32_t>(rng());
      const bool nonfinite = rng() % 6 == 0;
      bench.sample(step, nonfinite);
      if (running && *running != step) {
        if (soiled.empty()) last_clean = running;
        soiled.clear();
      }
      running = step;
      if (nonfinite) soiled.insert(step);
    }
    if (rng() % 2 != 0) {
      Mode& mode = modes[rng() % modes.size()];
      const Mode next = rng() % 3 == 0 ? static_cast<Mode>(rng() % 3) : Mode::kFast;
      bench.mode(mode, next);
      mode = next;
    }
    if (upset) bench.upset();
    if (clear) bench.clear();
    upsets = (clear ? 0 : upsets) + upset;

    std::uint32_t stable = 0, safe = 0;
    for (const Mode mode : modes) {
      stable += mode == Mode::kStable;
      safe += mode == Mode::kSafe;
    }
    const Hints after =
        stable + safe == 0
            ? kNone
            : Hints{config.hint_loss_scale_shift, config.hint_clip_shift,
                    safe == 0 ? 65536 : static_cast<int>(config.hint_learning_rate_factor)};
    EXPECT_EQ(bench.clock(), !(after == hints)) << clock;
    EXPECT_EQ(bench.hints(), after) << clock;
    EXPECT_EQ(bench.stable(), stable) << clock;
    EXPECT_EQ(bench.safe(), safe) << clock;
    EXPECT_EQ(bench.upsets(), upsets) << clock;
    EXPECT_EQ(bench.last_clean(), last_clean) << clock;
    hint_changes += !(after == hints);
    hints = after;
    ++compared;
  }
  EXPECT_EQ(compared, 50'000);
  EXPECT_GT(hint_changes, 1000);
}

}  // namespace
}  // namespace opd::tb
