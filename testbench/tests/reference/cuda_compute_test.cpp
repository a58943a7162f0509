// The vector unit's kernels on a CUDA device through their public interface, against the CPU.
#include "opd/reference/cuda_compute.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "computation_draw.hpp"
#include "opd/reference/compute.hpp"
#include "opd/reference/cuda.hpp"
#include "oracle.hpp"

namespace opd {
namespace {

TEST(ReferenceCudaCompute, EqualsTheCpuReference) {
  if (std::string reason; !cuda::device_available(&reason)) GTEST_SKIP() << reason;
  std::mt19937_64 rng(tb::case_seed(15));
  constexpr unsigned kRounds = 15;  // every format with every choice of the accumulator
  std::size_t compared = 0;
  for (const KernelTraits& traits : kKernels) {
    for (unsigned round = 0; round < 3 * kRounds; ++round) {
      const Format format = tb::kFormats[round % 5];
      const tb::Owned owned = tb::draw_computation(rng, traits.kernel, format);
      const UnitSettings settings{.datapath_width = rng() % 2 == 0 ? 512u : 96u,
                                  .saturate = rng() % 2 == 0,
                                  .accumulator = static_cast<AccumulatorChoice>(round % 3)};
      for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
        ASSERT_EQ(cuda::compute(owned.computation, mode, settings),
                  ref::compute(owned.computation, mode, settings))
            << traits.name << " mode " << static_cast<int>(mode) << " round " << round;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, kKernels.size() * 3 * kRounds * 3);
}

TEST(ReferenceCudaCompute, ABadComputationIsNamedBeforeTheDeviceIsTouched) {
  EXPECT_THROW(cuda::compute({.kernel = Kernel::kAdd, .rows = 1, .columns = 1}, Mode::kFast),
               std::invalid_argument);
}

}  // namespace
}  // namespace opd
