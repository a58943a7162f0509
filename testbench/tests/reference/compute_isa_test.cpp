// The instruction sets of the reference's kernels against each other, bit for bit: every kernel,
// mode and format, with accumulators of every width, lanes that divide by eight and lanes that do
// not.
#include <gtest/gtest.h>

#include "computation_draw.hpp"
#include "opd/reference/compute.hpp"
#include "seed.hpp"

namespace opd {
namespace {

class ReferenceComputeIsa : public testing::TestWithParam<std::size_t> {};

TEST_P(ReferenceComputeIsa, VectorsGiveThePortableBits) {
  if (ref::best_lanes_isa() == ref::LanesIsa::kPortable) GTEST_SKIP() << "no AVX2, FMA and F16C";
  const KernelTraits& traits = kKernels[GetParam()];
  std::mt19937_64 rng(tb::case_seed(100 + GetParam()));
  std::size_t compared = 0, nonfinite = 0;
  for (int round = 0; round < 150; ++round) {
    for (const Format format : tb::kFormats) {
      const tb::Owned owned = tb::draw_computation(rng, traits.kernel, format);
      UnitSettings settings;
      constexpr unsigned kWidths[] = {512, 512, 256, 128, 96, 32, 384};
      settings.datapath_width = kWidths[rng() % std::size(kWidths)];
      settings.saturate = rng() % 2 == 0;
      settings.accumulator = static_cast<AccumulatorChoice>(rng() % 3);
      for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
        const Execution portable =
            ref::compute(owned.computation, mode, settings, ref::LanesIsa::kPortable);
        for (const ref::LanesIsa isa : {ref::LanesIsa::kAvx2, ref::LanesIsa::kAvx512}) {
          if (isa > ref::best_lanes_isa()) continue;
          const Execution vector = ref::compute(owned.computation, mode, settings, isa);
          ASSERT_EQ(portable, vector)
              << traits.name << " format " << static_cast<int>(format) << " mode "
              << static_cast<int>(mode) << " width " << settings.datapath_width << " isa "
              << static_cast<int>(isa) << " round " << round;
        }
        compared += owned.computation.output_elements();
        if (portable.accumulators) nonfinite += portable.accumulators->nonfinite_count > 0;
      }
    }
  }
  EXPECT_GT(compared, 3000u);
  if (traits.accumulates) {
    EXPECT_GT(nonfinite, 10u);  // the rows that are done again lane by lane
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, ReferenceComputeIsa,
                         testing::Range<std::size_t>(0, kKernels.size()),
                         [](const auto& info) { return std::string(kKernels[info.param].name); });

}  // namespace
}  // namespace opd
