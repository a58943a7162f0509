// The two orders of the published engine on the shipped training runs: after the update no z passes
// sqrt((W - 1) / 2), whatever happened in the run.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "opd/reference/cpu.hpp"
#include "opd/trace/trace.hpp"

namespace opd {
namespace {

struct Largest {
  double z = 0;
  std::size_t scored = 0;
  std::size_t flagged = 0;  ///< samples that raise Z
};

/// Every statistic of the trace through a device with the published engine.
Largest replay(const trace::Trace& trace, Order order, unsigned window) {
  Config config;
  config.published_order = static_cast<std::uint8_t>(order);
  config.published_alpha = 2.0f / static_cast<float>(window + 1);
  ref::CpuReference reference({.num_ops = static_cast<unsigned>(trace.probes().size())}, config);
  Largest largest;
  std::uint32_t seq = 0;
  for (std::size_t step = 0; step < trace.steps().size(); ++step) {
    for (std::size_t probe = 0; probe < trace.probes().size(); ++probe) {
      const OpDescriptor descriptor{.op = static_cast<std::uint16_t>(probe),
                                    .format = trace.probes()[probe].format,
                                    .step = trace.steps()[step],
                                    .scale_log2 = trace.scale_log2(step, probe)};
      const auto detection = reference.complete(seq++, descriptor, trace.statistic(step, probe));
      if (detection->score.scored) {
        ++largest.scored;
        largest.z = std::max(largest.z, std::fabs(detection->score.z()));
      }
      largest.flagged += (detection->record.flags & flag_bit(Flag::kZ)) != 0;
    }
  }
  return largest;
}

class ReferenceOrders : public testing::TestWithParam<const char*> {};

TEST_P(ReferenceOrders, AfterTheUpdateZIsCapped) {
  const std::filesystem::path file =
      std::filesystem::path(OPD_CAPTURED_TRACES) / (std::string(GetParam()) + ".safetensors");
  if (!std::filesystem::exists(file)) GTEST_SKIP() << file.string() << " is absent";
  const trace::Trace trace = trace::Trace::read(file);
  for (const unsigned window : {32u, 128u}) {
    const double cap = std::sqrt((window - 1) / 2.0);
    const Largest before = replay(trace, Order::kBefore, window);
    const Largest after = replay(trace, Order::kAfter, window);
    std::printf(
        "%s, W = %u: %zu scored; largest |z| %.4g before, %.5g after (cap %.5g); Z %zu, %zu\n",
        GetParam(), window, after.scored, before.z, after.z, cap, before.flagged, after.flagged);
    EXPECT_GT(after.scored, 10000u);
    EXPECT_LE(after.z, cap * 1.001);
    EXPECT_GT(before.z, cap);
    EXPECT_GT(before.flagged, 0u);
    if (Config{}.z_threshold > cap) {
      EXPECT_EQ(after.flagged, 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shipped, ReferenceOrders,
                         testing::Values("healthy", "near_limit", "qk_overflow"),
                         [](const auto& trace) { return std::string(trace.param); });

}  // namespace
}  // namespace opd
