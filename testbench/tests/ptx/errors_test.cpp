// What the CUDA reference leaves behind after an error: every runtime call made to fail once, on the emulated device.
// Testplan: GPU-04
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "opd/reference/cpu.hpp"
#include "opd/reference/cuda.hpp"
#include "ptx/device.hpp"
#include "ptx/runtime.hpp"
#include "tests/reference/oracle.hpp"

namespace opd {
namespace {

constexpr cuda::Limits kLimits{
    .completions = 8, .element_bytes = 1 << 21, .staging_bytes = 1 << 21};

struct Batch {
  std::vector<std::vector<std::byte>> storage;
  std::vector<cuda::Completion> completions;
};

Batch draw_batch(std::mt19937_64& rng, std::uint32_t step) {
  Batch batch{.storage = std::vector<std::vector<std::byte>>(8),
              .completions = std::vector<cuda::Completion>(8)};
  for (std::size_t k = 0; k < 8; ++k) {
    const Format format = tb::kFormats[rng() % 5];
    const std::size_t count =
        k == 0 ? (std::size_t{257} << 10) / tb::element_size(format) : rng() % 500;
    batch.storage[k] = tb::draw_elements(rng, format, tb::Content::kModerate, count, 0);
    batch.completions[k].descriptor = {
        .op = static_cast<std::uint16_t>(rng() % 4), .format = format, .step = step};
    batch.completions[k].elements = batch.storage[k];
  }
  return batch;
}

std::vector<cuda::Result> expected_results(ref::CpuReference& cpu, std::uint32_t first_seq,
                                           const Batch& batch) {
  std::vector<cuda::Result> results;
  for (std::size_t k = 0; k < batch.completions.size(); ++k) {
    const OpDescriptor& descriptor = batch.completions[k].descriptor;
    const TapSummary summary = ref::summarise(descriptor.format, batch.storage[k]);
    results.push_back(
        {cpu.complete(first_seq + static_cast<std::uint32_t>(k), descriptor, summary)->record,
         summary});
  }
  return results;
}

void expect_equal(const std::vector<cuda::Result>& results,
                  const std::vector<cuda::Result>& expected) {
  ASSERT_EQ(results.size(), expected.size());
  for (std::size_t k = 0; k < results.size(); ++k) {
    ASSERT_EQ(results[k].record, expected[k].record);
    ASSERT_EQ(results[k].summary, expected[k].summary);
  }
}

TEST(EmulatedErrors, AnErrorOfTheConstructorDoesNotReachTheNextObject) {
  EXPECT_THROW(cuda::CudaReference({}, {}, {.completions = 300'000'000, .in_flight = 1}),
               std::runtime_error);
  cuda::CudaReference device({}, {}, kLimits);
  device.submit(0, std::vector<cuda::Completion>(1));
  EXPECT_EQ(device.fetch().size(), 1u);
}

TEST(EmulatedErrors, AnErrorThatTheCallerHandledIsNotReportedAgain) {
  cuda::CudaReference device({}, {}, kLimits);
  void* pointer = nullptr;
  ASSERT_EQ(cudaMalloc(&pointer, std::size_t{1} << 40), cudaErrorMemoryAllocation);
  device.submit(0, std::vector<cuda::Completion>(1));
  EXPECT_EQ(device.fetch().size(), 1u);
  ASSERT_EQ(cudaMalloc(&pointer, std::size_t{1} << 40), cudaErrorMemoryAllocation);
  const cuda::CudaReference second({}, {}, kLimits);
}

TEST(EmulatedErrors, AFailedSubmitLeavesNothingOnTheStream) {
  ptx::configure({.order = ptx::Order::kLazy});
  std::mt19937_64 rng(tb::case_seed(81));
  cuda::CudaReference device({.num_ops = 4}, {}, kLimits);
  ref::CpuReference cpu({.num_ops = 4});
  const Batch batch = draw_batch(rng, 0), next = draw_batch(rng, 1);
  // One copy, then the kernel: it and the copy before it are enqueued when CUB's call fails.
  ptx::fail_call(4, cudaErrorUnknown);
  EXPECT_THROW(device.submit(0, batch.completions), std::runtime_error);
  EXPECT_FALSE(ptx::failed_call().empty());
  EXPECT_EQ(ptx::pending(), 0u);
  device.submit(0, next.completions);  // takes the same slot
  expect_equal(device.fetch(), expected_results(cpu, 0, next));
  EXPECT_TRUE(std::ranges::equal(device.states(), cpu.states()));
}

/// Batches through a device of which one call fails. What fails is tried again; results must be right, or the object must
/// say that its states are lost.
struct Sweep {
  std::size_t errors = 0;
  bool constructed = false, lost = false;
};

template <class Call>
bool succeeds(Sweep& sweep, Call call) {
  try {
    call();
    return true;
  } catch (const std::runtime_error& error) {
    ++sweep.errors;
    if (std::string(error.what()).find("states are lost") != std::string::npos) sweep.lost = true;
    return false;
  }
}

Sweep run_batches(std::uint64_t failing) {
  std::mt19937_64 rng(tb::case_seed(82));
  Sweep sweep;
  ptx::fail_call(failing, cudaErrorUnknown);
  std::optional<cuda::CudaReference> device;
  for (int k = 0; k < 2 && !device; ++k) {
    succeeds(sweep, [&] { device.emplace(DeviceParameters{.num_ops = 4}, Config{}, kLimits); });
  }
  sweep.constructed = device.has_value();
  if (!device) return sweep;
  ref::CpuReference cpu({.num_ops = 4});
  std::vector<Batch> batches;
  for (std::uint32_t b = 0; b < 4; ++b) batches.push_back(draw_batch(rng, b));
  std::uint32_t fetched = 0;
  const auto fetch = [&] {
    std::vector<cuda::Result> results;
    bool got = false;
    for (int k = 0; k < 2 && !got; ++k) got = succeeds(sweep, [&] { results = device->fetch(); });
    ASSERT_TRUE(got) << "a batch in flight was not given the second time";
    expect_equal(results, expected_results(cpu, 8 * fetched, batches[fetched]));
    ++fetched;
  };
  std::uint32_t submitted = 0;
  for (; submitted < batches.size() && !sweep.lost; ++submitted) {
    bool done = false;
    for (int k = 0; k < 2 && !done; ++k) {
      done =
          succeeds(sweep, [&] { device->submit(8 * submitted, batches[submitted].completions); });
    }
    if (!done) break;
    if (submitted > 0) fetch();  // one stays in flight
  }
  while (fetched < submitted) fetch();  // those before an error as well
  std::vector<ref::OpState> states;
  bool known = false;
  for (int k = 0; k < 2 && !known; ++k) known = succeeds(sweep, [&] { states = device->states(); });
  EXPECT_NE(known, sweep.lost);
  EXPECT_TRUE(!known || std::ranges::equal(states, cpu.states()));
  return sweep;
}

class EmulatedFailures : public testing::TestWithParam<ptx::Order> {};

TEST_P(EmulatedFailures, EveryCallFailsOnceAndIsReportedOnce) {
  ptx::configure({.order = GetParam(), .seed = 4, .races = true});
  run_batches(0);
  const std::uint64_t before = ptx::calls();
  ASSERT_EQ(run_batches(0).errors, 0u);
  const std::uint64_t calls = ptx::calls() - before;
  std::size_t reported = 0, lost = 0, silent = 0;
  for (std::uint64_t failing = 1; failing <= calls; ++failing) {
    const std::size_t device_objects = ptx::allocations(), host_objects = ptx::host_objects();
    const Sweep sweep = run_batches(failing);
    const std::string call = ptx::failed_call();
    SCOPED_TRACE("call " + std::to_string(failing) + ", " + call);
    ASSERT_FALSE(call.empty());
    EXPECT_TRUE(sweep.constructed);
    // What releases has nobody to report to, and keeps what it was to release.
    const bool releases = call == "cudaFree" || call == "cudaFreeHost" ||
                          call == "cudaEventDestroy" || call == "cudaStreamDestroy";
    EXPECT_EQ(ptx::allocations() + ptx::host_objects() - device_objects - host_objects,
              releases ? 1u : 0u);
    if (sweep.errors == 0) ++silent;
    if (sweep.lost) {
      EXPECT_GE(sweep.errors, 2u);  // the call, then that the states are lost
      ++lost;
    } else if (sweep.errors > 0) {
      EXPECT_EQ(sweep.errors, 1u);
      ++reported;
    }
    EXPECT_EQ(ptx::pending(), 0u);
  }
  EXPECT_EQ(reported + lost + silent, calls);
  EXPECT_GT(reported, 40u);
  EXPECT_GT(lost, 4u);
  RecordProperty("calls", static_cast<int>(calls));
  std::printf("%llu calls failed: %zu reported, %zu with lost states, %zu of no consequence\n",
              static_cast<unsigned long long>(calls), reported, lost, silent);
}

INSTANTIATE_TEST_SUITE_P(Orders, EmulatedFailures,
                         testing::Values(ptx::Order::kLazy, ptx::Order::kRandom),
                         [](const auto& info) {
                           return info.param == ptx::Order::kLazy ? "Lazy" : "Random";
                         });

TEST(EmulatedErrors, ElementsOfAnotherStreamAreWaitedFor) {
  ptx::configure({.order = ptx::Order::kLazy});
  std::mt19937_64 rng(tb::case_seed(83));
  const std::vector<std::byte> elements =
      tb::draw_elements(rng, Format::kFp16, tb::Content::kModerate, 5000, 0);
  const auto submit = [&elements](bool wait) {
    cuda::CudaReference device({}, {}, kLimits);
    cudaStream_t producer = nullptr;
    cudaEvent_t ready = nullptr;
    void* pinned = nullptr;
    void* pointer = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&producer, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaMallocHost(&pinned, elements.size()), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&pointer, elements.size()), cudaSuccess);
    std::memcpy(pinned, elements.data(), elements.size());
    EXPECT_EQ(cudaMemcpyAsync(pointer, pinned, elements.size(), cudaMemcpyHostToDevice, producer),
              cudaSuccess);
    EXPECT_EQ(cudaEventRecord(ready, producer), cudaSuccess);
    std::vector<cuda::Completion> batch(1);
    batch[0].elements = {static_cast<const std::byte*>(pointer), elements.size()};
    device.submit(0, batch, cuda::Memory::kDevice, wait ? ready : nullptr);
    const TapSummary summary = device.fetch()[0].summary;
    EXPECT_EQ(cudaFree(pointer), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(ready), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(producer), cudaSuccess);
    return summary;
  };
  EXPECT_EQ(submit(true), ref::summarise(Format::kFp16, elements));
  EXPECT_EXIT(submit(false), testing::ExitedWithCode(ptx::kFaultStatus),
              "summarise_chunks.*load: never written");
}

}  // namespace
}  // namespace opd
