// A prepared batch in a CUDA graph, on the emulated device: launched again and again with new data it is the eager batch, and
// a call in it that waits or allocates makes the capture fail.
// Testplan: GPU-06
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "opd/reference/cpu.hpp"
#include "opd/reference/cuda.hpp"
#include "ptx/device.hpp"
#include "ptx/runtime.hpp"
#include "tests/reference/oracle.hpp"

namespace opd {
namespace {

constexpr cuda::Limits kLimits{
    .completions = 16, .element_bytes = 1 << 21, .staging_bytes = 1 << 21};
constexpr DeviceParameters kParameters{.num_ops = 5};
constexpr std::uint32_t kCompletions = 12;

struct Batch {
  std::vector<std::vector<std::byte>> storage;
  std::vector<cuda::Completion> completions;
};

/// Batches of one shape, whatever the step: the same operators and sizes, other values. One is longer than a chunk, some
/// have a ready statistic.
Batch batch_of(std::mt19937_64& rng, std::uint32_t step) {
  Batch batch{.storage = std::vector<std::vector<std::byte>>(kCompletions),
              .completions = std::vector<cuda::Completion>(kCompletions)};
  for (std::uint32_t k = 0; k < kCompletions; ++k) {
    const Format format = tb::kFormats[k % 5];
    cuda::Completion& completion = batch.completions[k];
    completion.descriptor = {
        .op = static_cast<std::uint16_t>(k % 5), .format = format, .step = step};
    if (k == 3) {
      completion.statistic = {.max_mag = static_cast<std::uint32_t>(rng() % 0x7F),
                              .element_count = 7};
      continue;
    }
    const auto content =
        static_cast<tb::Content>(rng() % static_cast<unsigned>(tb::Content::kCount));
    batch.storage[k] = tb::draw_elements(rng, format, content, k == 0 ? 70'000 : 100 + 13 * k, 0);
    completion.elements = batch.storage[k];
  }
  return batch;
}

std::vector<cuda::Result> expected_results(ref::CpuReference& cpu, std::uint32_t first_seq,
                                           const Batch& batch) {
  std::vector<cuda::Result> results;
  for (std::uint32_t k = 0; k < kCompletions; ++k) {
    const cuda::Completion& completion = batch.completions[k];
    const TapSummary summary = completion.elements.empty()
                                   ? completion.statistic
                                   : ref::summarise(completion.descriptor.format, batch.storage[k]);
    results.push_back(
        {cpu.complete(first_seq + k, completion.descriptor, summary)->record, summary});
  }
  return results;
}

void expect_equal(const std::vector<cuda::Result>& results,
                  const std::vector<cuda::Result>& expected) {
  ASSERT_EQ(results.size(), expected.size());
  for (std::size_t k = 0; k < results.size(); ++k) {
    ASSERT_EQ(results[k].record, expected[k].record) << k;
    ASSERT_EQ(results[k].summary, expected[k].summary) << k;
  }
}

/// A stream with an executable graph of what `put` enqueued on it while it captured.
class Graph {
 public:
  template <class Put>
  Graph(cudaStream_t stream, cudaStreamCaptureMode mode, Put put) : stream_(stream) {
    EXPECT_EQ(cudaStreamBeginCapture(stream_, mode), cudaSuccess);
    put();
    status_ = cudaStreamEndCapture(stream_, &graph_);
    if (status_ == cudaSuccess) status_ = cudaGraphInstantiate(&executable_, graph_, 0);
  }
  ~Graph() {
    if (graph_ != nullptr) static_cast<void>(cudaGraphDestroy(graph_));
    if (executable_ != nullptr) static_cast<void>(cudaGraphExecDestroy(executable_));
    static_cast<void>(cudaGetLastError());
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  cudaError_t status() const { return status_; }
  void launch() const {
    ASSERT_EQ(cudaGraphLaunch(executable_, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  cudaError_t status_ = cudaSuccess;
};

class EmulatedGraph : public testing::TestWithParam<ptx::Order> {
 protected:
  void SetUp() override {
    ptx::configure({.order = GetParam(), .seed = 5, .shuffle = true, .races = true});
  }
};

TEST_P(EmulatedGraph, LaunchedWithNewDataItIsTheEagerBatch) {
  const std::uint64_t seed = tb::case_seed(84);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  cuda::CudaReference device(kParameters, {}, kLimits), eager(kParameters, {}, kLimits);
  ref::CpuReference cpu(kParameters);
  std::uint32_t seq = 100;
  Batch batch = batch_of(rng, 0);
  cuda::PreparedBatch prepared = device.prepare(seq, batch.completions);
  std::uint64_t captured_calls = ptx::calls();
  const Graph graph(device.stream(), cudaStreamCaptureModeGlobal,
                    [&] { device.enqueue(prepared); });
  captured_calls = ptx::calls() - captured_calls;
  ASSERT_EQ(graph.status(), cudaSuccess);
  EXPECT_GT(captured_calls, 5u);
  EXPECT_EQ(device.states(), std::vector<ref::OpState>(kParameters.num_ops));  // nothing has run
  for (std::uint32_t step = 0; step < 6; ++step, seq += kCompletions) {
    if (step == 3) {
      for (cuda::CudaReference* reference : {&device, &eager}) reference->announce_learning_rate(3);
      cpu.announce_learning_rate(3);
    }
    if (step > 0) {
      batch = batch_of(rng, step);
      const std::uint64_t calls = ptx::calls();
      device.renew(prepared, seq, batch.completions);
      EXPECT_EQ(ptx::calls(), calls);
    }
    graph.launch();
    const std::vector<cuda::Result> results = device.results(prepared);
    eager.submit(seq, batch.completions);
    expect_equal(results, eager.fetch());
    expect_equal(results, expected_results(cpu, seq, batch));
  }
  EXPECT_TRUE(std::ranges::equal(device.states(), cpu.states()));
  // Eager batches and graphs share the states.
  batch = batch_of(rng, 9);
  device.submit(seq, batch.completions);
  expect_equal(device.fetch(), expected_results(cpu, seq, batch));
}

TEST_P(EmulatedGraph, ElementsOnTheDeviceAreReadAtEachLaunch) {
  std::mt19937_64 rng(tb::case_seed(85));
  cuda::CudaReference device(kParameters, {}, kLimits);
  ref::CpuReference cpu(kParameters);
  constexpr std::size_t kBytes = 3000;
  void* pointer = nullptr;
  ASSERT_EQ(cudaMalloc(&pointer, kBytes), cudaSuccess);
  std::vector<cuda::Completion> batch(1);
  batch[0].elements = {static_cast<const std::byte*>(pointer), kBytes};
  cuda::PreparedBatch prepared = device.prepare(0, batch, cuda::Memory::kDevice);
  const Graph graph(device.stream(), cudaStreamCaptureModeThreadLocal,
                    [&] { device.enqueue(prepared); });
  ASSERT_EQ(graph.status(), cudaSuccess);
  for (std::uint32_t step = 0; step < 3; ++step) {
    const std::vector<std::byte> elements =
        tb::draw_elements(rng, Format::kFp16, tb::Content::kModerate, kBytes / 2, 0);
    ASSERT_EQ(
        cudaMemcpyAsync(pointer, elements.data(), kBytes, cudaMemcpyHostToDevice, device.stream()),
        cudaSuccess);
    batch[0].descriptor.step = step;
    device.renew(prepared, step, batch, cuda::Memory::kDevice);
    graph.launch();
    const TapSummary summary = ref::summarise(Format::kFp16, elements);
    const cuda::Result result = device.results(prepared)[0];
    EXPECT_EQ(result.summary, summary);
    EXPECT_EQ(result.record, cpu.complete(step, batch[0].descriptor, summary)->record);
  }
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
}

// The mutants: a call planted before each of enqueue's own.
TEST_P(EmulatedGraph, ACallThatWaitsOrAllocatesFailsTheCapture) {
  std::mt19937_64 rng(tb::case_seed(86));
  cuda::CudaReference device(kParameters, {}, kLimits);
  ref::CpuReference cpu(kParameters);
  const Batch batch = batch_of(rng, 0);
  const cuda::PreparedBatch prepared = device.prepare(0, batch.completions);
  std::uint64_t calls = ptx::calls();
  {
    const Graph graph(device.stream(), cudaStreamCaptureModeGlobal,
                      [&] { device.enqueue(prepared); });
  }
  calls = ptx::calls() - calls - 5;  // without begin, end, instantiate and twice destroy
  ASSERT_GT(calls, 5u);
  const std::size_t objects = ptx::allocations() + ptx::host_objects();
  void* pointer = nullptr;
  const std::function<void()> waits = [&] {
    static_cast<void>(cudaStreamSynchronize(device.stream()));
  };
  const std::function<void()> allocates = [&] { static_cast<void>(cudaMalloc(&pointer, 64)); };
  for (const std::function<void()>& planted : {waits, allocates}) {
    for (std::uint64_t before = 1; before <= calls; ++before) {
      const Graph graph(device.stream(), cudaStreamCaptureModeGlobal, [&] {
        ptx::plant(before, planted);
        try {
          device.enqueue(prepared);
        } catch (const std::runtime_error&) {  // the next call on the stream says it already
        }
      });
      EXPECT_EQ(graph.status(), cudaErrorStreamCaptureInvalidated) << "before call " << before;
      ASSERT_EQ(pointer, nullptr);
    }
  }
  EXPECT_EQ(ptx::allocations() + ptx::host_objects(), objects);
  EXPECT_EQ(ptx::pending(), 0u);
  device.enqueue(prepared);  // no state was lost
  ASSERT_EQ(cudaStreamSynchronize(device.stream()), cudaSuccess);
  expect_equal(device.results(prepared), expected_results(cpu, 0, batch));
}

TEST_P(EmulatedGraph, SubmitIsNoneOfAGraphsForItsEventIsWaitedFor) {
  cuda::CudaReference device(kParameters, {}, kLimits);
  const Graph graph(device.stream(), cudaStreamCaptureModeGlobal, [&] {
    device.submit(0, std::vector<cuda::Completion>(1));
    EXPECT_THROW(device.fetch(), std::runtime_error);
  });
  EXPECT_EQ(graph.status(), cudaErrorStreamCaptureInvalidated);
}

INSTANTIATE_TEST_SUITE_P(Orders, EmulatedGraph,
                         testing::Values(ptx::Order::kEager, ptx::Order::kLazy,
                                         ptx::Order::kRandom),
                         [](const auto& info) {
                           return std::string(info.param == ptx::Order::kEager  ? "Eager"
                                              : info.param == ptx::Order::kLazy ? "Lazy"
                                                                                : "Random");
                         });

TEST(EmulatedPreparedBatch, WhatItsShapeDoesNotAllowIsRefusedAndChangesNothing) {
  std::mt19937_64 rng(tb::case_seed(87));
  cuda::CudaReference device(kParameters, {}, kLimits);
  ref::CpuReference cpu(kParameters);
  const Batch batch = batch_of(rng, 0);
  cuda::PreparedBatch prepared = device.prepare(0, batch.completions);
  EXPECT_THROW(device.results(prepared), std::logic_error);
  const auto refused = [&](std::vector<cuda::Completion> completions, const char* text) {
    try {
      device.renew(prepared, 50, completions);
      FAIL() << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  std::vector<cuda::Completion> other = batch.completions;
  other[1].elements = other[1].elements.first(16);
  refused(other, "prepare another one");
  other = batch.completions;
  other.pop_back();
  refused(other, "completions: 11 completions of 5 operators");
  other = batch.completions;
  other[4].descriptor.op = 5;
  refused(other, "completions[4].descriptor: op 5 must be below num_ops = 5");
  other[4].descriptor.op = 4;
  other[4].descriptor.format = static_cast<Format>(9);
  refused(other, "format 9 is unknown");
  EXPECT_THROW(device.prepare(0, {}), std::invalid_argument);
  device.enqueue(prepared);
  ASSERT_EQ(cudaStreamSynchronize(device.stream()), cudaSuccess);
  expect_equal(device.results(prepared), expected_results(cpu, 0, batch));
}

TEST(EmulatedCapture, WhatACaptureDoesNotTake) {
  ptx::configure({.order = ptx::Order::kLazy});
  cudaStream_t stream = nullptr, other = nullptr;
  cudaEvent_t event = nullptr, inside = nullptr;
  void *device = nullptr, *pinned = nullptr;
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&inside), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device, 64), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&pinned, 64), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, other), cudaSuccess);
  const auto copy = [&] {
    return cudaMemcpyAsync(device, pinned, 64, cudaMemcpyHostToDevice, stream);
  };
  struct Call {
    const char* name;
    std::function<cudaError_t()> call;
    cudaError_t error;
    bool relaxed;  // a capture in relaxed mode takes it
  };
  void* more = nullptr;
  const std::vector<Call> calls = {
      {"cudaStreamSynchronize", [&] { return cudaStreamSynchronize(stream); },
       cudaErrorStreamCaptureUnsupported, false},
      {"cudaMalloc", [&] { return cudaMalloc(&more, 64); }, cudaErrorStreamCaptureUnsupported,
       true},
      {"cudaFree", [&] { return cudaFree(more); }, cudaErrorStreamCaptureUnsupported, true},
      {"cudaMemcpy", [&] { return cudaMemcpy(pinned, device, 64, cudaMemcpyDeviceToHost); },
       cudaErrorStreamCaptureUnsupported, true},
      {"cudaStreamWaitEvent", [&] { return cudaStreamWaitEvent(stream, event, 0); },
       cudaErrorStreamCaptureIsolation, false},
      {"cudaEventSynchronize", [&] { return cudaEventSynchronize(inside); }, cudaErrorCapturedEvent,
       false},
  };
  ASSERT_EQ(cudaMemcpy(device, pinned, 64, cudaMemcpyHostToDevice), cudaSuccess);
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeRelaxed}) {
    for (const Call& c : calls) {
      SCOPED_TRACE(c.name);
      const bool taken = c.relaxed && mode == cudaStreamCaptureModeRelaxed;
      ASSERT_EQ(cudaStreamBeginCapture(stream, mode), cudaSuccess);
      EXPECT_EQ(cudaStreamBeginCapture(stream, mode), cudaErrorIllegalState);
      EXPECT_EQ(copy(), cudaSuccess);
      EXPECT_EQ(cudaEventRecord(inside, stream), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);  // another stream may be waited for
      EXPECT_EQ(c.call(), taken ? cudaSuccess : c.error);
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
      EXPECT_EQ(status, taken ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated);
      EXPECT_EQ(copy(), taken ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
      EXPECT_EQ(cudaStreamEndCapture(stream, &graph),
                taken ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
      EXPECT_EQ(graph != nullptr, taken);
      if (taken) {
        EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
      }
      EXPECT_EQ(ptx::pending(), 0u);
    }
  }
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal),
            cudaErrorStreamCaptureUnsupported);
  static_cast<void>(cudaGetLastError());
  EXPECT_EXIT(
      {
        char pageable[64];
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
        cudaMemcpyAsync(device, pageable, 64, cudaMemcpyHostToDevice, stream);
      },
      testing::ExitedWithCode(ptx::kFaultStatus), "pageable memory in a capture");
  EXPECT_EXIT(
      {
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
        cudaEventRecord(inside, stream);
        cudaStreamWaitEvent(other, inside, 0);
      },
      testing::ExitedWithCode(ptx::kFaultStatus), "more than one stream");
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(inside), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

}  // namespace
}  // namespace opd
