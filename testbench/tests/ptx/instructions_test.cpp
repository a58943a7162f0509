// Every instruction that the translator knows, executed: one launch per instruction, one case per thread. The cases and
// what they must give are written by instruction_cases.py.
// Testplan: GPU-02
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <span>
#include <string>

#include "ptx/device.hpp"

namespace opd::ptx {
namespace {

struct Case {
  const char* instruction;
  const char* kernel;
  std::array<std::uint64_t, 4> inputs, expected;
};

constexpr Case kCases[] = {
#include "instruction_cases.inc"
};

TEST(EmulatedInstructions, EveryCaseGivesItsValue) {
  execution() = {.shuffle = true, .races = true};
  std::set<std::string> instructions;
  for (std::size_t begin = 0, end = 0; begin < std::size(kCases); begin = end) {
    const std::string name = kCases[begin].kernel;
    while (end < std::size(kCases) && kCases[end].kernel == name) ++end;
    const std::span cases(kCases + begin, end - begin);
    SCOPED_TRACE(kCases[begin].instruction);
    const Kernel* kernel = find_kernel(name);
    ASSERT_NE(kernel, nullptr);
    std::vector<std::array<std::uint64_t, 4>> values(cases.size()), results(cases.size());
    for (std::size_t k = 0; k < cases.size(); ++k) values[k] = cases[k].inputs;
    std::byte* in = allocate(32 * cases.size());
    std::byte* out = allocate(32 * cases.size());
    copy_memory(in, values.data(), 32 * cases.size());
    copy_memory(out, results.data(), 32 * cases.size());
    std::vector<std::byte> parameters(kernel->parameter_bytes);
    std::memcpy(parameters.data(), &in, 8);
    std::memcpy(parameters.data() + 8, &out, 8);
    if (kernel->parameter_bytes > 16)
      std::memcpy(parameters.data() + 16, values[0].data(), 32);  // for ld.param
    run(*kernel, 1, static_cast<std::uint32_t>(cases.size()), 0, parameters);
    copy_memory(results.data(), out, 32 * cases.size());
    for (std::size_t k = 0; k < cases.size(); ++k) {
      EXPECT_EQ(results[k], cases[k].expected)
          << "case " << k << " of " << kCases[begin].instruction;
    }
    EXPECT_TRUE(release(in) && release(out));
    instructions.insert(kCases[begin].instruction);
  }
  EXPECT_GT(instructions.size(), 500u);
}

}  // namespace
}  // namespace opd::ptx
