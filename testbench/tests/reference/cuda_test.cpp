// CudaReference through its public interface with host memory. opd_cuda_check compares far more on
// a device.
#include "opd/reference/cuda.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "opd/reference/cpu.hpp"
#include "oracle.hpp"

namespace opd {
namespace {

class ReferenceCuda : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (!cuda::device_available(&reason)) GTEST_SKIP() << reason;
  }
};

TEST(ReferenceCudaAvailability, ReasonIsGivenExactlyWhenThereIsNoDevice) {
  std::string reason;
  const bool available = cuda::device_available(&reason);
  EXPECT_EQ(available, reason.empty()) << reason;
  EXPECT_EQ(available, cuda::device_available());
}

TEST(ReferenceCudaAvailability, BadArgumentsAreNamedBeforeTheDeviceIsTouched) {
  EXPECT_THROW(cuda::CudaReference({.num_ops = 0}), std::invalid_argument);
  EXPECT_THROW(cuda::CudaReference({}, {}, {.completions = 0}), std::invalid_argument);
  EXPECT_THROW(cuda::CudaReference({}, {}, {.in_flight = 0}), std::invalid_argument);
}

TEST_F(ReferenceCuda, RecordsEqualTheCpuReference) {
  std::mt19937_64 rng(tb::case_seed(14));
  const DeviceParameters parameters{.num_ops = 5};
  ref::CpuReference cpu(parameters);
  cuda::CudaReference device(
      parameters, {}, {.completions = 64, .element_bytes = 1 << 20, .staging_bytes = 1 << 20});
  std::size_t compared = 0;
  for (std::uint32_t batch = 0; batch < 50; ++batch) {
    std::vector<std::vector<std::byte>> storage(64);
    std::vector<cuda::Completion> completions(64);
    for (std::size_t k = 0; k < completions.size(); ++k) {
      const Format format = tb::kFormats[rng() % 5];
      storage[k] =
          tb::draw_elements(rng, format, static_cast<tb::Content>(rng() % 6), rng() % 3000, 0);
      completions[k].descriptor = {
          .op = static_cast<std::uint16_t>(rng() % 6), .format = format, .step = batch};
      completions[k].elements = storage[k];
    }
    if (batch == 20) {
      cpu.announce_learning_rate(batch);
      device.announce_learning_rate(batch);
    }
    device.submit(batch * 64, completions);
    const std::vector<cuda::Result> results = device.fetch();
    ASSERT_EQ(results.size(), completions.size());
    for (std::size_t k = 0; k < completions.size(); ++k) {
      const TapSummary summary = ref::summarise(completions[k].descriptor.format, storage[k]);
      const auto detection = cpu.complete(batch * 64 + static_cast<std::uint32_t>(k),
                                          completions[k].descriptor, summary);
      const auto record = detection ? std::optional(detection->record) : std::nullopt;
      ASSERT_EQ(results[k].record, record);
      ASSERT_EQ(results[k].summary, record ? summary : TapSummary{});
      ++compared;
    }
  }
  EXPECT_EQ(compared, 3200u);
  EXPECT_EQ(device.unseen_count(), cpu.unseen_count());
  EXPECT_GT(cpu.unseen_count(), 0u);
}

TEST_F(ReferenceCuda, LimitsAreKept) {
  cuda::CudaReference device({}, {}, {.completions = 2, .staging_bytes = 64, .in_flight = 1});
  EXPECT_THROW(device.fetch(), std::logic_error);
  EXPECT_THROW(device.submit(0, std::vector<cuda::Completion>(3)), std::invalid_argument);
  const std::vector<std::byte> bytes(128);
  std::vector<cuda::Completion> completions(1);
  completions[0].elements = bytes;
  EXPECT_THROW(device.submit(0, completions), std::invalid_argument);
  completions[0].elements = std::span(bytes).first(3);
  EXPECT_THROW(device.submit(0, completions), std::invalid_argument);
  completions[0].elements = {};
  device.submit(0, completions);
  EXPECT_THROW(device.submit(1, completions), std::logic_error);
  EXPECT_EQ(device.fetch().size(), 1u);
}

}  // namespace
}  // namespace opd
