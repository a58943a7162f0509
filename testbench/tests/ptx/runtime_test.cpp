// The emulated CUDA runtime: stream order, what waits for what, the last error, and what it refuses.
// Testplan: GPU-02
#include "ptx/runtime.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

#include "ptx/device.hpp"

namespace opd::ptx {
namespace {

#define OPD_EXPECT_FAULT(statement, text) \
  EXPECT_EXIT(statement, testing::ExitedWithCode(kFaultStatus), text)

struct EmulatedRuntime : testing::Test {
  void SetUp() override {
    configure({.order = Order::kLazy});
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&device, 64), cudaSuccess);
    void* memory = nullptr;
    ASSERT_EQ(cudaMallocHost(&memory, 64), cudaSuccess);
    pinned = static_cast<char*>(memory);
  }
  void TearDown() override {
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(cudaFree(device), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
    EXPECT_EQ(allocations() + host_objects(), 0u);
  }
  void to_device(cudaStream_t on) {
    ASSERT_EQ(cudaMemcpyAsync(device, pinned, 64, cudaMemcpyHostToDevice, on), cudaSuccess);
  }
  void to_host(cudaStream_t on) {
    ASSERT_EQ(cudaMemcpyAsync(pinned, device, 64, cudaMemcpyDeviceToHost, on), cudaSuccess);
  }

  cudaStream_t stream = nullptr;
  void* device = nullptr;
  char* pinned = nullptr;
};

TEST(EmulatedRuntimeSettings, AListIsRead) {
  const RuntimeSettings settings = parse_settings("order=random,seed=77,shuffle,races");
  EXPECT_EQ(settings.order, Order::kRandom);
  EXPECT_EQ(settings.seed, 77u);
  EXPECT_TRUE(settings.shuffle && settings.races);
  EXPECT_EQ(parse_settings("order=lazy").order, Order::kLazy);
  EXPECT_EQ(parse_settings("").order, Order::kEager);
  for (const char* wrong : {"order=late", "seed=", "seed=1x", "seed=-1", "shuffle=1", "race", ",",
                            "seed=99999999999999999999"}) {
    EXPECT_THROW(parse_settings(wrong), std::invalid_argument) << wrong;
  }
}

TEST_F(EmulatedRuntime, WorkRunsAtOnceOrWhenItIsWaitedFor) {
  for (const Order order : {Order::kEager, Order::kLazy}) {
    configure({.order = order});
    std::memset(pinned, 1, 64);
    to_device(stream);
    std::memset(pinned, 2, 64);  // too early where the copy has not run
    EXPECT_EQ(pending(), order == Order::kEager ? 0u : 1u);
    to_host(stream);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(pending(), 0u);
    EXPECT_EQ(pinned[63], order == Order::kEager ? 1 : 2);
  }
}

TEST_F(EmulatedRuntime, RandomOrderKeepsTheOrderOfAStream) {
  configure({.order = Order::kRandom, .seed = 3});
  std::size_t early = 0;
  for (int k = 0; k < 50; ++k) {
    std::memset(pinned, k, 64);
    to_device(stream);
    to_host(stream);
    if (pending() < 2) ++early;
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    ASSERT_EQ(pinned[0], k);
  }
  EXPECT_GT(early, 5u);
  EXPECT_LT(early, 50u);
}

TEST_F(EmulatedRuntime, PageableMemoryIsReadAndWrittenWithinTheCall) {
  char pageable[64];
  std::memset(pageable, 5, 64);
  ASSERT_EQ(cudaMemcpyAsync(device, pageable, 64, cudaMemcpyHostToDevice, stream), cudaSuccess);
  std::memset(pageable, 6, 64);
  EXPECT_EQ(pending(), 1u);
  ASSERT_EQ(cudaMemcpyAsync(pageable, device, 64, cudaMemcpyDefault, stream), cudaSuccess);
  EXPECT_EQ(pageable[0], 5);
  EXPECT_EQ(pending(), 0u);
}

TEST_F(EmulatedRuntime, EventsOrderStreams) {
  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);  // never recorded
  std::memset(pinned, 9, 64);
  to_device(other);
  ASSERT_EQ(cudaEventRecord(event, other), cudaSuccess);
  to_device(other);
  ASSERT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(pending(), 1u);  // the copy after the event
  ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  float time = 0;
  EXPECT_EQ(cudaEventElapsedTime(&time, event, event), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  ASSERT_EQ(cudaEventDestroy(event), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

TEST_F(EmulatedRuntime, AnErrorIsKeptUntilItIsAskedFor) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, std::size_t{1} << 40), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(EmulatedRuntime, TheDefaultStreamFillsLateAndCopiesAtOnce) {
  std::memset(pinned, 1, 64);
  ASSERT_EQ(cudaMemcpy(device, pinned, 64, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemset(device, 0x1A5, 60), cudaSuccess);
  EXPECT_EQ(pending(), 1u);
  ASSERT_EQ(cudaMemcpy(pinned, device, 64, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(pending(), 0u);
  EXPECT_EQ(static_cast<unsigned char>(pinned[59]), 0xA5);
  EXPECT_EQ(pinned[60], 1);
  EXPECT_EQ(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(cudaMemset(nullptr, 0, 0), cudaSuccess);
  OPD_EXPECT_FAULT(cudaMemset(pinned, 0, 64), "cudaMemset: no device memory");
  OPD_EXPECT_FAULT(cudaMemcpy(device, pinned, 64, cudaMemcpyDeviceToHost), "copy: kind");
  OPD_EXPECT_FAULT(
      {
        cudaMemset(device, 0, 1000);
        cudaMemcpy(pinned, device, 64, cudaMemcpyDeviceToHost);
      },
      "outside every allocation");
}

TEST_F(EmulatedRuntime, OneCallFailsOnDemand) {
  const std::uint64_t before = calls();
  fail_call(2, cudaErrorUnknown);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(device, pinned, 64, cudaMemcpyHostToDevice, stream), cudaErrorUnknown);
  EXPECT_EQ(failed_call(), "cudaMemcpyAsync");
  EXPECT_EQ(pending(), 0u);
  EXPECT_EQ(cudaGetLastError(), cudaErrorUnknown);
  to_device(stream);
  EXPECT_EQ(calls(), before + 3);
}

TEST_F(EmulatedRuntime, WhatWouldBeUndefinedIsAFault) {
  OPD_EXPECT_FAULT(
      {
        to_host(stream);
        cudaFreeHost(pinned);
        cudaStreamSynchronize(stream);
      },
      "its pinned memory has been freed");
  OPD_EXPECT_FAULT(
      {
        to_device(stream);
        cudaFree(device);
        cudaStreamSynchronize(stream);
      },
      "outside every allocation");
  OPD_EXPECT_FAULT(cudaFree(pinned), "cudaFree: no allocation");
  OPD_EXPECT_FAULT(cudaFreeHost(pinned + 1), "cudaFreeHost: no allocation");
  OPD_EXPECT_FAULT(cudaMemcpyAsync(pinned, device, 64, cudaMemcpyHostToDevice, stream),
                   "copy: kind");
  OPD_EXPECT_FAULT(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(pinned)),
                   "a stream that does not exist");
  OPD_EXPECT_FAULT(cudaEventDestroy(reinterpret_cast<cudaEvent_t>(pinned)),
                   "an event that does not exist");
  OPD_EXPECT_FAULT(cudaLaunchKernel(pinned, 1, 1, nullptr, 0, stream),
                   "a kernel that is not registered");
}

TEST_F(EmulatedRuntime, WhatIsNotEmulatedIsRefused) {
  cudaStream_t blocking = nullptr;
  int value = 0;
  OPD_EXPECT_FAULT(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault),
                   "waits for the default one is not emulated");
  OPD_EXPECT_FAULT(cudaDeviceGetAttribute(&value, cudaDevAttrClockRate, 0),
                   "attribute 13 is not emulated");
  EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_NE(std::string(properties.name).find("emulated"), std::string::npos);
}

}  // namespace
}  // namespace opd::ptx
