// Reset in the middle of activity, without a clock: opd_event_queue and opd_device_status alone. Every output is as at power-up at
// once, and what comes afterwards goes as if nothing had been before.
#include <gtest/gtest.h>
#include <verilated.h>

#include <cstdint>
#include <cstring>
#include <memory>

#include "Vopd_device_status.h"
#include "Vopd_event_queue.h"
#include "paths/coverage.hpp"

namespace opd::tb {
namespace {

template <class Module>
class Bench {
 public:
  Bench() : module(std::make_unique<Module>(&context_)) {
    module->rst_ni = 1;
    module->eval();
    reset();
  }
  ~Bench() {
    Verilated::threadContextp(&context_);
    module->final();
    write_coverage(context_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void reset() {
    module->rst_ni = 0;
    module->eval();
  }
  void release() {
    module->rst_ni = 1;
    module->eval();
  }
  void clock() {
    module->clk_i = 0;
    module->eval();
    module->clk_i = 1;
    module->eval();
  }

 private:
  VerilatedContext context_;

 public:
  std::unique_ptr<Module> module;
};

class QueueReset : public testing::Test {
 protected:
  void step(bool push, bool pop, std::uint32_t word) {
    const std::uint32_t event[3] = {word, 0, 0};
    bench.module->push_i = push;
    bench.module->pop_i = pop;
    std::memcpy(&bench.module->event_i, event, sizeof(event));
    bench.clock();
    bench.module->push_i = 0;
    bench.module->pop_i = 0;
    bench.module->eval();
  }
  std::uint32_t head() {
    std::uint32_t word = 0;
    std::memcpy(&word, &bench.module->head_o, sizeof(word));
    return word;
  }
  Bench<Vopd_event_queue> bench;
};

TEST_F(QueueReset, EmptiesTheQueueItsPointersAndItsCounts) {
  for (const bool once_more : {false, true}) {
    bench.release();
    for (std::uint32_t word = 1; word <= 4; ++word) step(true, false, word);  // the fourth is lost
    step(false, true, 0);
    if (once_more) step(true, true, 5);  // the pointers at other places
    ASSERT_EQ(head(), once_more ? 3u : 2u);
    ASSERT_EQ(bench.module->high_water_o, 3);
    ASSERT_EQ(bench.module->lost_count_o, 1u);
    bench.reset();
    EXPECT_EQ(bench.module->level_o, 0);
    EXPECT_EQ(bench.module->high_water_o, 0);
    EXPECT_EQ(bench.module->lost_count_o, 0u);
    EXPECT_EQ(head(), 0u);
    bench.release();
    for (std::uint32_t word = 11; word <= 13; ++word) step(true, false, word);
    for (std::uint32_t word = 11; word <= 13; ++word) {
      EXPECT_EQ(head(), word);
      step(false, true, 0);
    }
    bench.reset();
  }
}

class StatusReset : public testing::Test {
 protected:
  void sample(std::uint32_t step, bool nonfinite) {
    bench.module->sample_valid_i = 1;
    bench.module->sample_step_i = step;
    bench.module->sample_nonfinite_i = nonfinite;
    bench.clock();
    bench.module->sample_valid_i = 0;
  }
  void change(std::uint8_t from, std::uint8_t to) {
    bench.module->mode_change_valid_i = 1;
    bench.module->old_mode_i = from;
    bench.module->new_mode_i = to;
    bench.clock();
    bench.module->mode_change_valid_i = 0;
  }
  Bench<Vopd_device_status> bench;
};

TEST_F(StatusReset, ForgetsModesStepsAndUpsets) {
  bench.release();
  change(0, 1);
  change(0, 2);
  bench.module->upset_i = 1;
  bench.clock();
  bench.module->upset_i = 0;
  sample(6, false);
  sample(7, false);
  ASSERT_EQ(bench.module->stable_ops_o, 1u);
  ASSERT_EQ(bench.module->safe_ops_o, 1u);
  ASSERT_EQ(bench.module->upset_count_o, 1u);
  ASSERT_EQ(bench.module->last_clean_valid_o, 1);
  ASSERT_EQ(bench.module->last_clean_step_o, 6u);
  bench.reset();
  EXPECT_EQ(bench.module->stable_ops_o, 0u);
  EXPECT_EQ(bench.module->safe_ops_o, 0u);
  EXPECT_EQ(bench.module->upset_count_o, 0u);
  EXPECT_EQ(bench.module->last_clean_valid_o, 0);
  EXPECT_EQ(bench.module->last_clean_step_o, 0u);
}

TEST_F(StatusReset, TheStepThatRanBeforeIsNoCleanStep) {
  bench.release();
  sample(7, false);
  bench.reset();
  bench.release();
  sample(8, false);
  EXPECT_EQ(bench.module->last_clean_valid_o, 0);
}

TEST_F(StatusReset, TheSameStepBeginsAnew) {
  bench.release();
  sample(7, true);
  bench.reset();
  bench.release();
  sample(7, false);
  sample(8, false);
  EXPECT_EQ(bench.module->last_clean_valid_o, 1);
  EXPECT_EQ(bench.module->last_clean_step_o, 7u);
}

}  // namespace
}  // namespace opd::tb
