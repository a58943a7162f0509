// The CUDA reference on the emulated device, at the edges of its kernel.
// Testplan: GPU-03
#include <gtest/gtest.h>

#include "edges.hpp"

namespace opd {
namespace {

void expect_equal(const tb::EdgeTally& tally, std::size_t at_least) {
  EXPECT_EQ(tally.different, 0u) << tally.first;
  EXPECT_GE(tally.compared, at_least);
}

class EmulatedEdges : public testing::TestWithParam<Format> {};

TEST_P(EmulatedEdges, EveryAlignmentTailAndChunkBorderIsTheCpuReference) {
  const std::uint64_t seed = tb::case_seed(60 + static_cast<unsigned>(GetParam()));
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  expect_equal(
      tb::compare_edges(seed, GetParam(), 32, static_cast<unsigned>(tb::Content::kCount), true),
      500);
  expect_equal(tb::compare_edges(seed + 100, GetParam(), 5, 2, false), 100);
}

INSTANTIATE_TEST_SUITE_P(Formats, EmulatedEdges, testing::ValuesIn(tb::kFormats),
                         [](const auto& info) {
                           return std::string(kFormatNames[static_cast<unsigned>(info.param)]);
                         });

TEST(EmulatedChunks, MoreThan64OfACompletionAreTheCpuReference) {
  const std::uint64_t seed = tb::case_seed(71);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  expect_equal(tb::compare_chunks(seed, 65), 3);
  expect_equal(tb::compare_chunks(seed + 1, 140), 3);
}

// Counters and the index end below 2^32. Takes 9 GiB of memory and some minutes.
TEST(EmulatedChunks, MoreThan2To32ElementsSaturate) {
  if (std::getenv("OPD_EMULATED_BIG") == nullptr)
    GTEST_SKIP() << "2^32 elements: set OPD_EMULATED_BIG=1 (9 GiB of memory)";
  const std::size_t count = (std::size_t{1} << 32) + 100;
  cuda::CudaReference device({.num_ops = 1}, {},
                             {.completions = 1, .element_bytes = count, .staging_bytes = 0});
  const std::vector<std::byte> zeros(std::size_t{64} << 20);
  void* pointer = nullptr;
  ASSERT_EQ(cudaMalloc(&pointer, count), cudaSuccess);
  auto* elements = static_cast<std::byte*>(pointer);
  const auto put = [&](std::size_t at, const std::byte* bytes, std::size_t size) {
    ASSERT_EQ(cudaMemcpyAsync(elements + at, bytes, size, cudaMemcpyHostToDevice, device.stream()),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(device.stream()), cudaSuccess);
  };
  for (std::size_t at = 0; at < count; at += zeros.size())
    put(at, zeros.data(), std::min(zeros.size(), count - at));
  const std::byte nan{0x7F}, largest{0x7E}, smallest{0x01};
  put(count - 50, &nan, 1);
  put(count - 3, &largest, 1);
  put(std::size_t{1} << 31, &smallest, 1);
  std::vector<cuda::Completion> batch(1);
  batch[0].descriptor.format = Format::kE4m3;
  batch[0].elements = {elements, count};
  device.submit(0, batch, cuda::Memory::kDevice);
  const TapSummary expected{.max_mag = 0x7E,
                            .element_count = 0xFFFFFFFF,
                            .nonfinite_count = 1,
                            .first_nonfinite = 0xFFFFFFFE,
                            .saturated_count = 1,
                            .subnormal_count = 1,
                            .zero_count = 0xFFFFFFFF};
  EXPECT_EQ(device.fetch()[0].summary, expected);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
}

}  // namespace
}  // namespace opd
