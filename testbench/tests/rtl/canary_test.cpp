// Assertions are alive in the simulator that runs all other tests.
#include <gtest/gtest.h>
#include <unistd.h>
#include <verilated.h>

#include <csignal>

#include "Vcanary.h"

TEST(CanaryDeathTest, AFalsePropertyAbortsTheRun) {
  const auto run = [] {
    dup2(STDERR_FILENO, STDOUT_FILENO);  // Verilator reports on standard output
    VerilatedContext context;
    Vcanary dut{&context};
    dut.rst_ni = 1;
    for (int half = 0; half < 4; ++half) {
      dut.clk_i = half & 1;
      dut.eval();
    }
  };
  EXPECT_EXIT(run(), testing::KilledBySignal(SIGABRT), "AlwaysFalse_A");
}
