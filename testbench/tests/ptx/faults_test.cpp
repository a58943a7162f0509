// The comparisons bite: each fault of faults.toml, planted in the kernels' PTX, is found.
// Testplan: GPU-05
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "edges.hpp"
#include "ptx/device.hpp"

namespace opd {
namespace {

/// 0: every format is equal; 1: something differs, or an error; ptx::kFaultStatus: the device found a fault.
int judge(unsigned fault) {
  const pid_t child = fork();
  if (child == 0) {
    ptx::execution() = {.shuffle = true, .races = true, .seed = fault + 1, .mutant = fault};
    int different = 0;
    try {
      different = tb::compare_chunks(91, 65).different != 0;
      for (const Format format : tb::kFormats) {
        if (different == 0) different = tb::compare_edges(90, format, 32, 3, true).different != 0;
      }
    } catch (const std::exception&) {
      different = 1;
    }
    std::_Exit(different);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(EmulatedFaults, WithoutOneTheKernelsAreEqual) { EXPECT_EQ(judge(0), 0); }

class EmulatedPlantedFault : public testing::TestWithParam<unsigned> {};

TEST_P(EmulatedPlantedFault, IsFound) {
  const int status = judge(GetParam());
  EXPECT_TRUE(status == 1 || status == ptx::kFaultStatus) << "status " << status;
}

INSTANTIATE_TEST_SUITE_P(Of, EmulatedPlantedFault, testing::Range(1u, OPD_FAULT_COUNT + 1u),
                         [](const auto& info) { return "Fault" + std::to_string(info.param); });

}  // namespace
}  // namespace opd
