// Batches of completions on the device: one kernel summarises chunks (memory bound, the only one
// that touches elements), CUB reduces the chunks of every completion, Thrust runs one detector
// thread per operator.
//
//   order  : one stream; a batch starts when the one before it has ended, so its detectors see the
//            new state
//   sync   : none in submit; one copy takes elements and tables in, one takes results out, both
//            through pinned memory
//   graphs : what `enqueue` puts on a stream depends on the shape of the batch alone; whatever else
//            changes from batch to batch, the learning rate's step too, lies in its table
#include <cuda_runtime.h>
#include <thrust/system/cuda/execution_policy.h>

#include <algorithm>
#include <cstring>
#include <cub/device/device_segmented_reduce.cuh>
#include <deque>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "batch_table.hpp"
#include "opd/reference/cpu.hpp"
#include "opd/reference/cuda.hpp"
#include "opd/reference/segmented.hpp"
#include "resources.hpp"

namespace opd::cuda {
namespace {

constexpr unsigned kBlockThreads = 256;
constexpr unsigned kWarps = kBlockThreads / 32;

/// Reduces a summary over the warp with the redux instructions (sm_80). A chunk has fewer than 2^32
/// elements, so the sums do not wrap.
__device__ TapSummary reduce_warp(TapSummary summary) {
  constexpr unsigned kAll = 0xFFFFFFFFu;
  summary.max_mag = __reduce_max_sync(kAll, summary.max_mag);
  summary.first_nonfinite = __reduce_min_sync(kAll, summary.first_nonfinite);
  summary.element_count = __reduce_add_sync(kAll, summary.element_count);
  summary.nonfinite_count = __reduce_add_sync(kAll, summary.nonfinite_count);
  summary.saturated_count = __reduce_add_sync(kAll, summary.saturated_count);
  summary.subnormal_count = __reduce_add_sync(kAll, summary.subnormal_count);
  summary.zero_count = __reduce_add_sync(kAll, summary.zero_count);
  return summary;
}

/// partials[c] = summary of chunk c; one block per chunk.
__global__ void __launch_bounds__(kBlockThreads)
    summarise_chunks(const ref::Chunk* __restrict__ chunks,
                     const ref::Segment* __restrict__ segments, unsigned counter_width,
                     TapSummary* __restrict__ partials) {
  const ref::Chunk chunk = chunks[blockIdx.x];
  const TapSummary own =
      reduce_warp(ref::summarise_slice(segments[chunk.segment], chunk, threadIdx.x, kBlockThreads));
  __shared__ TapSummary of_warp[kWarps];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x == 0) {
    TapSummary total = of_warp[0];
    for (unsigned warp = 1; warp < kWarps; ++warp) total = ref::combine(total, of_warp[warp], 32);
    partials[blockIdx.x] = ref::clamp_summary(total, counter_width);
  }
}

/// A completion's record and summary, as they travel back: all records, then all summaries.
constexpr std::size_t kResultBytes = sizeof(OpRecord) + sizeof(TapSummary);

}  // namespace

struct PreparedBatch::State {
  PinnedArray<std::byte> table, results;
  Shape shape;
  std::uint32_t first_seq = 0;
  std::size_t completion_count = 0;
};

PreparedBatch::PreparedBatch(std::unique_ptr<State> state) : state_(std::move(state)) {}
PreparedBatch::~PreparedBatch() = default;
PreparedBatch::PreparedBatch(PreparedBatch&&) noexcept = default;
PreparedBatch& PreparedBatch::operator=(PreparedBatch&&) noexcept = default;

bool device_available(std::string* reason) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return true;
  if (reason != nullptr) {
    *reason = status == cudaSuccess
                  ? "no CUDA device"
                  : std::string("cudaGetDeviceCount: ") + cudaGetErrorString(status);
  }
  return false;
}

struct CudaReference::Impl {
  using Batch = PreparedBatch::State;

  /// Memory of one batch in flight.
  struct Slot {
    Batch batch;
    Event done;
  };

  DeviceParameters parameters;
  ref::DetectorSetup setup;  // as of the batches that are planned next
  Limits limits;
  std::size_t max_chunks;
  std::uint32_t unseen_count = 0;

  // The stream is declared before all that it uses and the wait after it: on destruction, of a half
  // constructed object too, the wait comes first, then the arrays go.
  Stream stream;
  DeviceArray<std::byte> table, results;
  DeviceArray<TapSummary> partials;
  DeviceArray<ref::OpState> states;
  DeviceArray<std::byte> reduce_storage;
  std::size_t reduce_bytes = 0;
  std::vector<Slot> slots;
  std::deque<std::size_t> in_flight;  // slots, oldest first
  std::size_t next_slot = 0;
  std::string lost;  // the error that took a batch whose detectors had begun; empty: none
  Wait wait;

  Impl(const DeviceParameters& p, const Config& c, const Limits& l)
      : parameters(p),
        setup{.config = c,
              .forecast_engine = p.forecast_engine,
              .published_engine = p.published_engine,
              .learning_rate_change = {}},
        limits(l) {
    ref::validate(p);
    ref::validate(c);
    constexpr std::size_t kMaxCount = std::numeric_limits<std::int32_t>::max() / 2;
    if (limits.completions < 1 || limits.completions > kMaxCount) {
      throw std::invalid_argument("Limits: completions must be 1.." + std::to_string(kMaxCount));
    }
    if (limits.element_bytes / kChunkBytes > kMaxCount) {
      throw std::invalid_argument("Limits: element_bytes must be at most " +
                                  std::to_string(kMaxCount * kChunkBytes));
    }
    if (limits.in_flight < 1) throw std::invalid_argument("Limits: in_flight must be at least 1");
    max_chunks = limits.completions + limits.element_bytes / kChunkBytes;

    forget_error();
    stream = make_stream();
    wait.stream = stream.get();
    const Shape largest{.staged = limits.staging_bytes / 16 * 16,
                        .segments = limits.completions,
                        .chunks = max_chunks,
                        .operators = limits.completions};
    table = device_array<std::byte>(Table(largest).bytes);
    results = device_array<std::byte>(limits.completions * kResultBytes);
    partials = device_array<TapSummary>(max_chunks);
    states = device_array<ref::OpState>(parameters.num_ops);
    const std::vector<ref::OpState> reset(parameters.num_ops);
    check(cudaMemcpyAsync(states.get(), reset.data(), reset.size() * sizeof(ref::OpState),
                          cudaMemcpyHostToDevice, stream.get()),
          "cudaMemcpyAsync(states)");
    check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize(states)");
    reduce(nullptr, reduce_bytes, limits.completions, nullptr, nullptr, stream.get());
    reduce_storage = device_array<std::byte>(reduce_bytes);
    slots.resize(limits.in_flight);
    for (Slot& slot : slots) {
      allocate(slot.batch, largest);
      slot.done = make_event();
    }
  }

  static void allocate(Batch& batch, const Shape& shape) {
    batch.table = pinned_array<std::byte>(Table(shape).bytes);
    batch.results = pinned_array<std::byte>(shape.segments * kResultBytes);
  }

  /// Reduces the chunks of every segment; with storage == nullptr only asks for the storage size.
  void reduce(void* storage, std::size_t& bytes, std::size_t segment_count,
              const std::uint32_t* chunk_begin, TapSummary* summaries, cudaStream_t on) const {
    check(
        cub::DeviceSegmentedReduce::Reduce(
            storage, bytes, partials.get(), summaries, static_cast<int>(segment_count), chunk_begin,
            chunk_begin + 1, ref::Combine{parameters.counter_width}, TapSummary{}, on),
        "cub::DeviceSegmentedReduce::Reduce");
  }

  void require_states() const {
    if (lost.empty()) return;
    throw std::runtime_error("CudaReference: the states are lost since a batch failed half way (" +
                             lost + "); construct a new one");
  }

  Draft draft(std::uint32_t first_seq, std::span<const Completion> completions,
              Memory memory) const {
    return draft_batch(parameters, limits, table.get(), first_seq, completions, memory);
  }

  void write(Batch& batch, const Draft& draft, std::uint32_t first_seq,
             std::size_t completion_count) const {
    const Table place(draft.shape);
    const auto put = [&batch](std::size_t at, const void* from, std::size_t bytes) {
      if (bytes > 0) std::memcpy(batch.table.get() + at, from, bytes);
    };
    const auto put_all = [&put](std::size_t at, const auto& values) {
      put(at, values.data(), values.size() * sizeof(values[0]));
    };
    for (const auto& [at, elements] : draft.staged) put(at, elements.data(), elements.size());
    put(place.setup, &setup, sizeof setup);
    put_all(place.segments, draft.plan.segments);
    put_all(place.chunks, draft.plan.chunks);
    put_all(place.chunk_begin, draft.plan.chunk_begin);
    put_all(place.op_begin, draft.plan.op_begin);
    batch.shape = draft.shape;
    batch.first_seq = first_seq;
    batch.completion_count = completion_count;
  }

  template <class T>
  const T* in_table(std::size_t offset) const {
    return reinterpret_cast<const T*>(table.get() + offset);
  }

  /// The work of a batch: calls that a capture takes, with addresses that stay. detecting: set when
  /// the states are about to change.
  void enqueue(const Batch& batch, cudaStream_t on, bool& detecting) const {
    const Shape& shape = batch.shape;
    if (shape.segments == 0) return;
    const Table place(shape);
    const auto* segments = in_table<ref::Segment>(place.segments);
    auto* records = reinterpret_cast<OpRecord*>(results.get());
    auto* summaries =
        reinterpret_cast<TapSummary*>(results.get() + shape.segments * sizeof(OpRecord));
    check(cudaMemcpyAsync(table.get(), batch.table.get(), place.bytes, cudaMemcpyHostToDevice, on),
          "cudaMemcpyAsync(table)");
    summarise_chunks<<<static_cast<unsigned>(shape.chunks), kBlockThreads, 0, on>>>(
        in_table<ref::Chunk>(place.chunks), segments, parameters.counter_width, partials.get());
    check(cudaGetLastError(), "summarise_chunks");
    std::size_t bytes = reduce_bytes;
    reduce(reduce_storage.get(), bytes, shape.segments, in_table<std::uint32_t>(place.chunk_begin),
           summaries, on);
    detecting = true;
    ref::advance_ops(
        thrust::cuda::par_nosync.on(on),
        ref::AdvanceOp{segments, summaries, in_table<std::uint32_t>(place.op_begin), states.get(),
                       records, in_table<ref::DetectorSetup>(place.setup),
                       parameters.counter_width},
        shape.operators);
    check(cudaGetLastError(), "advance_ops");
    check(cudaMemcpyAsync(batch.results.get(), results.get(), shape.segments * kResultBytes,
                          cudaMemcpyDeviceToHost, on),
          "cudaMemcpyAsync(results)");
  }

  /// Runs `put`, which enqueues on `on`. What it had enqueued when it failed has ended when this
  /// throws; in a capture nothing runs.
  template <class Put>
  void enqueue_or_leave(cudaStream_t on, Put put) {
    forget_error();
    bool detecting = false;
    try {
      put(detecting);
    } catch (const std::exception& error) {
      cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
      if (cudaStreamIsCapturing(on, &capture) == cudaSuccess &&
          capture != cudaStreamCaptureStatusNone) {
        forget_error();
        throw;
      }
      const bool ended = cudaStreamSynchronize(on) == cudaSuccess;
      forget_error();
      if (detecting || !ended) lost = error.what();
      throw;
    }
  }

  static std::vector<Result> read(const Batch& batch) {
    std::vector<Result> results(batch.completion_count);
    const auto* records = reinterpret_cast<const OpRecord*>(batch.results.get());
    const auto* summaries = reinterpret_cast<const TapSummary*>(
        batch.results.get() + batch.shape.segments * sizeof(OpRecord));
    for (std::size_t s = 0; s < batch.shape.segments;
         ++s) {  // segments are grouped by operator; seq tells the place
      const std::uint32_t k = records[s].seq - batch.first_seq;
      if (k >= results.size()) {
        throw std::logic_error("CudaReference::results: the work of this batch has not run");
      }
      results[k] = {records[s], summaries[s]};
    }
    return results;
  }
};

CudaReference::CudaReference(const DeviceParameters& parameters, const Config& config,
                             const Limits& limits)
    : impl_(std::make_unique<Impl>(parameters, config, limits)) {}
CudaReference::~CudaReference() = default;
CudaReference::CudaReference(CudaReference&&) noexcept = default;
CudaReference& CudaReference::operator=(CudaReference&&) noexcept = default;

void CudaReference::announce_learning_rate(std::uint32_t step) {
  impl_->setup.learning_rate_change = {true, step};
}

void CudaReference::submit(std::uint32_t first_seq, std::span<const Completion> completions,
                           Memory memory, CUevent_st* ready) {
  Impl& impl = *impl_;
  impl.require_states();
  if (impl.in_flight.size() == impl.slots.size()) {
    throw std::logic_error("CudaReference::submit: " + std::to_string(impl.slots.size()) +
                           " batches in flight, fetch one first");
  }
  Impl::Slot& slot = impl.slots[impl.next_slot];
  const Draft draft = impl.draft(first_seq, completions, memory);
  impl.write(slot.batch, draft, first_seq, completions.size());
  const cudaStream_t on = impl.stream.get();
  impl.enqueue_or_leave(on, [&](bool& detecting) {
    if (ready != nullptr) check(cudaStreamWaitEvent(on, ready, 0), "cudaStreamWaitEvent");
    impl.enqueue(slot.batch, on, detecting);
    check(cudaEventRecord(slot.done.get(), on), "cudaEventRecord");
  });

  const auto illegal = static_cast<std::uint32_t>(draft.illegal.size());
  impl.unseen_count +=
      std::min(illegal, std::numeric_limits<std::uint32_t>::max() - impl.unseen_count);
  impl.in_flight.push_back(impl.next_slot);
  impl.next_slot = (impl.next_slot + 1) % impl.slots.size();
}

std::vector<Result> CudaReference::fetch() {
  Impl& impl = *impl_;
  if (impl.in_flight.empty()) throw std::logic_error("CudaReference::fetch: no batch in flight");
  const Impl::Slot& slot = impl.slots[impl.in_flight.front()];
  check(cudaEventSynchronize(slot.done.get()), "cudaEventSynchronize");
  impl.in_flight.pop_front();
  return Impl::read(slot.batch);
}

PreparedBatch CudaReference::prepare(std::uint32_t first_seq,
                                     std::span<const Completion> completions, Memory memory) const {
  const Draft draft = impl_->draft(first_seq, completions, memory);
  require_legal(draft, impl_->parameters, completions);
  auto state = std::make_unique<PreparedBatch::State>();
  forget_error();
  Impl::allocate(*state, draft.shape);
  impl_->write(*state, draft, first_seq, completions.size());
  return PreparedBatch(std::move(state));
}

void CudaReference::renew(PreparedBatch& batch, std::uint32_t first_seq,
                          std::span<const Completion> completions, Memory memory) const {
  const Draft draft = impl_->draft(first_seq, completions, memory);
  require_legal(draft, impl_->parameters, completions);
  if (draft.shape != batch.state_->shape) {
    throw std::invalid_argument("completions: " + to_string(draft.shape) +
                                "; the prepared batch has " + to_string(batch.state_->shape) +
                                ": prepare another one");
  }
  impl_->write(*batch.state_, draft, first_seq, completions.size());
}

void CudaReference::enqueue(const PreparedBatch& batch, CUstream_st* stream) {
  impl_->require_states();
  const cudaStream_t on = stream == nullptr ? impl_->stream.get() : stream;
  impl_->enqueue_or_leave(on,
                          [&](bool& detecting) { impl_->enqueue(*batch.state_, on, detecting); });
}

std::vector<Result> CudaReference::results(const PreparedBatch& batch) const {
  return Impl::read(*batch.state_);
}

std::vector<ref::OpState> CudaReference::states() const {
  impl_->require_states();
  std::vector<ref::OpState> states(impl_->parameters.num_ops);
  check(cudaMemcpyAsync(states.data(), impl_->states.get(), states.size() * sizeof(ref::OpState),
                        cudaMemcpyDeviceToHost, impl_->stream.get()),
        "cudaMemcpyAsync(states)");
  check(cudaStreamSynchronize(impl_->stream.get()), "cudaStreamSynchronize(states)");
  return states;
}

std::uint32_t CudaReference::unseen_count() const { return impl_->unseen_count; }

CUstream_st* CudaReference::stream() const { return impl_->stream.get(); }

}  // namespace opd::cuda
