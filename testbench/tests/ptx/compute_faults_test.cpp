// The comparison of the vector unit's kernels bites: each fault of compute_faults.toml, planted in their PTX, is found.
// Testplan: GPU-05
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "opd/reference/compute.hpp"
#include "opd/reference/cuda_compute.hpp"
#include "ptx/device.hpp"
#include "tests/reference/computation_draw.hpp"

namespace opd {
namespace {

bool every_kernel_is_equal(std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  for (const KernelTraits& traits : kKernels) {
    for (const Format format : tb::kFormats) {
      const tb::Owned owned = tb::draw_computation(rng, traits.kernel, format);
      const auto mode = static_cast<Mode>(rng() % 3);
      if (cuda::compute(owned.computation, mode) != ref::compute(owned.computation, mode))
        return false;
    }
  }
  return true;
}

/// 0: everything is equal; 1: something differs, or an error; ptx::kFaultStatus: the device found a fault.
int judge(unsigned fault) {
  const pid_t child = fork();
  if (child == 0) {
    ptx::execution() = {.shuffle = true, .races = true, .seed = fault + 1, .mutant = fault};
    int different = 1;
    try {
      different = every_kernel_is_equal(92) && every_kernel_is_equal(93) ? 0 : 1;
    } catch (const std::exception&) {
    }
    std::_Exit(different);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(EmulatedComputeFaults, WithoutOneTheKernelsAreEqual) { EXPECT_EQ(judge(0), 0); }

class EmulatedPlantedComputeFault : public testing::TestWithParam<unsigned> {};

TEST_P(EmulatedPlantedComputeFault, IsFound) {
  const int status = judge(GetParam());
  EXPECT_TRUE(status == 1 || status == ptx::kFaultStatus) << "status " << status;
}

INSTANTIATE_TEST_SUITE_P(Of, EmulatedPlantedComputeFault, testing::Range(1u, OPD_FAULT_COUNT + 1u),
                         [](const auto& info) { return "Fault" + std::to_string(info.param); });

}  // namespace
}  // namespace opd
