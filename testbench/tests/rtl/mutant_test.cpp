// The planted fault of opd::rtl_mutant passes every assertion and shows in exactly the sample it
// should.
#include <gtest/gtest.h>

#include "Vopd_top.h"
#include "Vopd_top_mutant.h"
#include "pins.hpp"

namespace opd::tb {
namespace {

TEST(Mutant, DiffersOnlyAtTheEndOfWarmup) {
  Pins<Vopd_top> original;
  Pins<Vopd_top_mutant> mutant;
  int compared = 0;
  for (std::uint32_t i = 0; i < 40; ++i) {
    const OpRecord a = original.sample(finite(0, i, 0x3C00));
    OpRecord b = mutant.sample(finite(0, i, 0x3C00));
    if (i == Config{}.baseline_warmup_samples) {
      EXPECT_NE(a, b);
      b.flags = static_cast<std::uint16_t>(b.flags ^ flag_bit(Flag::kWarmup));
    }
    EXPECT_EQ(a, b) << i;
    ++compared;
  }
  EXPECT_EQ(compared, 40);
}

}  // namespace
}  // namespace opd::tb
