// opd_event_queue alone: random pushes, pops and clears against a std::deque, every output of every clock.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <verilated.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <random>

#include "Vopd_event_queue.h"
#include "Vopd_event_queue_one.h"
#include "paths/coverage.hpp"
#include "seed.hpp"

namespace opd::tb {
namespace {

using Event = std::array<std::uint32_t, 3>;  // opd_pkg::event_t, 79 bits

struct Counts {
  int lost = 0, popped = 0, full = 0, clears_at_a_loss = 0;
};

template <class Module>
Counts compare(std::size_t depth, std::uint64_t seed, int clocks) {
  SCOPED_TRACE(fmt::format("reproduce: OPD_SEED={} depth {}", seed, depth));
  std::mt19937_64 rng(seed);
  VerilatedContext context;
  auto module = std::make_unique<Module>(&context);
  module->rst_ni = 1;
  module->eval();
  module->rst_ni = 0;
  module->eval();
  module->rst_ni = 1;

  std::deque<Event> queue;
  std::size_t high_water = 0;
  std::uint32_t lost = 0;
  Counts counts;
  for (int clock = 0; clock < clocks && !testing::Test::HasFailure(); ++clock) {
    const bool filling = clock / 64 % 2 == 0;  // by turns more pushes and more pops
    const bool push = rng() % 4 < (filling ? 3 : 1), pop = rng() % 4 < (filling ? 1 : 3);
    const bool clear = rng() % 16 == 0;
    Event event;
    for (std::uint32_t& word : event) word = static_cast<std::uint32_t>(rng());
    event[2] &= 0x7FFF;
    module->push_i = push;
    module->pop_i = pop;
    module->clear_i = clear;
    std::memcpy(&module->event_i, &event, sizeof(event));
    module->clk_i = 0;
    module->eval();

    const bool takes = pop && !queue.empty();
    const bool loses = push && queue.size() == depth && !takes;
    Event head;
    std::memcpy(&head, &module->head_o, sizeof(head));
    EXPECT_EQ(head, queue.empty() ? Event{} : queue.front()) << clock;
    EXPECT_EQ(module->level_o, queue.size()) << clock;
    EXPECT_EQ(module->high_water_o, high_water) << clock;
    EXPECT_EQ(module->lost_count_o, lost) << clock;
    EXPECT_EQ(module->lost_o != 0, loses) << clock;

    if (takes) queue.pop_front();
    if (push && !loses) queue.push_back(event);
    high_water = clear ? queue.size() : std::max(high_water, queue.size());
    lost = clear ? loses : lost + loses;
    counts.lost += loses;
    counts.popped += takes;
    counts.full += queue.size() == depth;
    counts.clears_at_a_loss += clear && loses;
    module->clk_i = 1;
    module->eval();
  }
  Verilated::threadContextp(&context);
  module->final();
  write_coverage(context);
  return counts;
}

template <class Module>
void run(std::size_t depth) {
  const Counts counts = compare<Module>(depth, case_seed(0xE0E0 + depth), 50'000);
  EXPECT_GT(counts.lost, 1000);
  EXPECT_GT(counts.popped, 10'000);
  EXPECT_GT(counts.full, 10'000);
  EXPECT_GT(counts.clears_at_a_loss, 50);
  fmt::print("50000 clocks: {} lost, {} popped, {} full\n", counts.lost, counts.popped,
             counts.full);
}

TEST(RtlEventQueue, MatchesADequeOfThree) { run<Vopd_event_queue>(3); }
TEST(RtlEventQueue, MatchesADequeOfOne) { run<Vopd_event_queue_one>(1); }

}  // namespace
}  // namespace opd::tb
