// Batches of completions on the device: one kernel summarises chunks (memory bound, the only one
// that touches elements), CUB reduces the chunks of every completion, Thrust runs one detector
// thread per operator.
//
//   order  : one stream; a batch starts when the one before it has ended, so its detectors see the
//            new state
//   sync   : none in submit; tables and results travel through pinned memory
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

#include "opd/reference/cpu.hpp"
#include "opd/reference/cuda.hpp"
#include "opd/reference/segmented.hpp"

namespace opd::cuda {
namespace {

constexpr unsigned kBlockThreads = 256;
constexpr unsigned kWarps = kBlockThreads / 32;
// 256 KiB per block are 64 loads of 16 bytes per thread: the reduction at the end is small beside
// them, and a GiB still makes 4096 blocks.
constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

/// The runtime keeps an error until somebody asks for it, and a launch, CUB's as well, has no other
/// way to report its own. One that was reported, here or by the caller, is no longer news.
void forget_error() { static_cast<void>(cudaGetLastError()); }

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    forget_error();
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
  }
}

struct FreeDevice {
  void operator()(void* pointer) const { static_cast<void>(cudaFree(pointer)); }
};
struct FreePinned {
  void operator()(void* pointer) const { static_cast<void>(cudaFreeHost(pointer)); }
};
struct DestroyStream {
  void operator()(cudaStream_t stream) const { static_cast<void>(cudaStreamDestroy(stream)); }
};
/// Nothing may be freed while the device still works on it. An error here was or will be reported by
/// another call.
struct Wait {
  cudaStream_t stream = nullptr;
  ~Wait() {
    if (stream != nullptr) static_cast<void>(cudaStreamSynchronize(stream));
  }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { static_cast<void>(cudaEventDestroy(event)); }
};
template <class T>
using DeviceArray = std::unique_ptr<T[], FreeDevice>;
template <class T>
using PinnedArray = std::unique_ptr<T[], FreePinned>;
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;

template <class T>
DeviceArray<T> device_array(std::size_t count) {
  void* pointer = nullptr;
  check(cudaMalloc(&pointer, std::max<std::size_t>(count, 1) * sizeof(T)), "cudaMalloc");
  return DeviceArray<T>(static_cast<T*>(pointer));
}

template <class T>
PinnedArray<T> pinned_array(std::size_t count) {
  void* pointer = nullptr;
  check(cudaMallocHost(&pointer, std::max<std::size_t>(count, 1) * sizeof(T)), "cudaMallocHost");
  return PinnedArray<T>(static_cast<T*>(pointer));
}

Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return Stream(stream);
}

Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return Event(event);
}

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

std::size_t round_up_16(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

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
  /// Pinned memory of one batch in flight.
  struct Slot {
    PinnedArray<ref::Segment> segments;
    PinnedArray<ref::Chunk> chunks;
    PinnedArray<std::uint32_t> chunk_begin, op_begin;
    PinnedArray<std::byte> staging;
    PinnedArray<TapSummary> summaries;
    PinnedArray<OpRecord> records;
    Event done;
    std::uint32_t first_seq = 0;
    std::size_t completion_count = 0;
    std::size_t segment_count = 0;
  };

  DeviceParameters parameters;
  ref::DetectorSetup setup;  // travels by value with every batch
  Limits limits;
  std::size_t max_chunks;
  std::uint32_t unseen_count = 0;

  // The stream is declared before all that it uses and the wait after it: on destruction, of a half
  // constructed object too, the wait comes first, then the arrays go.
  Stream stream;
  DeviceArray<ref::Segment> segments;
  DeviceArray<ref::Chunk> chunks;
  DeviceArray<std::uint32_t> chunk_begin, op_begin;
  DeviceArray<std::byte> staging;
  DeviceArray<TapSummary> partials, summaries;
  DeviceArray<OpRecord> records;
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
    segments = device_array<ref::Segment>(limits.completions);
    chunks = device_array<ref::Chunk>(max_chunks);
    chunk_begin = device_array<std::uint32_t>(limits.completions + 1);
    op_begin = device_array<std::uint32_t>(limits.completions + 1);
    staging = device_array<std::byte>(limits.staging_bytes);
    partials = device_array<TapSummary>(max_chunks);
    summaries = device_array<TapSummary>(limits.completions);
    records = device_array<OpRecord>(limits.completions);
    states = device_array<ref::OpState>(parameters.num_ops);
    const std::vector<ref::OpState> reset(parameters.num_ops);
    check(cudaMemcpyAsync(states.get(), reset.data(), reset.size() * sizeof(ref::OpState),
                          cudaMemcpyHostToDevice, stream.get()),
          "cudaMemcpyAsync(states)");
    check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize(states)");
    reduce(nullptr, reduce_bytes, limits.completions);
    reduce_storage = device_array<std::byte>(reduce_bytes);
    slots.resize(limits.in_flight);
    for (Slot& slot : slots) {
      slot.segments = pinned_array<ref::Segment>(limits.completions);
      slot.chunks = pinned_array<ref::Chunk>(max_chunks);
      slot.chunk_begin = pinned_array<std::uint32_t>(limits.completions + 1);
      slot.op_begin = pinned_array<std::uint32_t>(limits.completions + 1);
      slot.staging = pinned_array<std::byte>(limits.staging_bytes);
      slot.summaries = pinned_array<TapSummary>(limits.completions);
      slot.records = pinned_array<OpRecord>(limits.completions);
      slot.done = make_event();
    }
  }

  /// Reduces the chunks of every segment; with storage == nullptr only asks for the storage size.
  void reduce(void* storage, std::size_t& bytes, std::size_t segment_count) const {
    check(cub::DeviceSegmentedReduce::Reduce(
              storage, bytes, partials.get(), summaries.get(), static_cast<int>(segment_count),
              chunk_begin.get(), chunk_begin.get() + 1, ref::Combine{parameters.counter_width},
              TapSummary{}, stream.get()),
          "cub::DeviceSegmentedReduce::Reduce");
  }

  void require_states() const {
    if (lost.empty()) return;
    throw std::runtime_error("CudaReference: the states are lost since a batch failed half way (" +
                             lost + "); construct a new one");
  }

  /// Legal completions as segments, host elements packed into the slot's staging memory. Returns
  /// the staged bytes.
  std::size_t stage(Slot& slot, std::uint32_t first_seq, std::span<const Completion> completions,
                    Memory memory, std::vector<ref::Segment>& legal, std::uint32_t& illegal) const {
    std::size_t staged = 0, total = 0;
    for (std::size_t k = 0; k < completions.size(); ++k) {
      const Completion& completion = completions[k];
      const OpDescriptor& descriptor = completion.descriptor;
      if (descriptor.op >= parameters.num_ops || !ref::is_known(descriptor.format)) {
        ++illegal;
        continue;
      }
      const auto fail = [k](const std::string& what) {
        throw std::invalid_argument("completions[" + std::to_string(k) + "].elements: " + what);
      };
      const std::span<const std::byte> elements = completion.elements;
      const std::size_t size = ref::layout_of(descriptor.format).bytes();
      if (elements.size() % size != 0) {
        fail(std::to_string(elements.size()) + " bytes must be a multiple of the element size " +
             std::to_string(size));
      }
      total += elements.size();
      if (total > limits.element_bytes) {
        fail("more than Limits::element_bytes = " + std::to_string(limits.element_bytes) +
             " in one batch");
      }
      const std::byte* address = elements.data();
      if (memory == Memory::kDevice) {
        if (reinterpret_cast<std::uintptr_t>(address) % size != 0) {
          fail("device address must be a multiple of the element size " + std::to_string(size));
        }
      } else if (!elements.empty()) {
        if (round_up_16(elements.size()) > limits.staging_bytes - staged) {
          fail("more than Limits::staging_bytes = " + std::to_string(limits.staging_bytes) +
               " in one batch");
        }
        std::memcpy(slot.staging.get() + staged, address, elements.size());
        address = staging.get() + staged;
        staged += round_up_16(elements.size());
      }
      legal.push_back({.descriptor = descriptor,
                       .seq = first_seq + static_cast<std::uint32_t>(k),
                       .elements = address,
                       .count = elements.size() / size,
                       .statistic = completion.statistic});
    }
    return staged;
  }

  template <class T>
  void to_device(T* device, T* pinned, const std::vector<T>& values, const char* call) const {
    std::copy(values.begin(), values.end(), pinned);
    check(cudaMemcpyAsync(device, pinned, values.size() * sizeof(T), cudaMemcpyHostToDevice,
                          stream.get()),
          call);
  }

  /// detecting: set when the states are about to change.
  void enqueue(Slot& slot, const ref::BatchPlan& plan, std::size_t staged, cudaEvent_t ready,
               bool& detecting) const {
    const std::size_t segment_count = plan.segments.size();
    if (ready != nullptr) {
      check(cudaStreamWaitEvent(stream.get(), ready, 0), "cudaStreamWaitEvent");
    }
    if (segment_count > 0) {
      to_device(segments.get(), slot.segments.get(), plan.segments, "cudaMemcpyAsync(segments)");
      to_device(chunks.get(), slot.chunks.get(), plan.chunks, "cudaMemcpyAsync(chunks)");
      to_device(chunk_begin.get(), slot.chunk_begin.get(), plan.chunk_begin,
                "cudaMemcpyAsync(chunk_begin)");
      to_device(op_begin.get(), slot.op_begin.get(), plan.op_begin, "cudaMemcpyAsync(op_begin)");
      if (staged > 0) {
        check(cudaMemcpyAsync(staging.get(), slot.staging.get(), staged, cudaMemcpyHostToDevice,
                              stream.get()),
              "cudaMemcpyAsync(elements)");
      }
      summarise_chunks<<<static_cast<unsigned>(plan.chunks.size()), kBlockThreads, 0,
                         stream.get()>>>(chunks.get(), segments.get(), parameters.counter_width,
                                         partials.get());
      check(cudaGetLastError(), "summarise_chunks");
      std::size_t bytes = reduce_bytes;
      reduce(reduce_storage.get(), bytes, segment_count);
      detecting = true;
      ref::advance_ops(thrust::cuda::par_nosync.on(stream.get()),
                       ref::AdvanceOp{segments.get(), summaries.get(), op_begin.get(), states.get(),
                                      records.get(), setup, parameters.counter_width},
                       plan.op_begin.size() - 1);
      check(cudaGetLastError(), "advance_ops");
      check(
          cudaMemcpyAsync(slot.summaries.get(), summaries.get(), segment_count * sizeof(TapSummary),
                          cudaMemcpyDeviceToHost, stream.get()),
          "cudaMemcpyAsync(summaries)");
      check(cudaMemcpyAsync(slot.records.get(), records.get(), segment_count * sizeof(OpRecord),
                            cudaMemcpyDeviceToHost, stream.get()),
            "cudaMemcpyAsync(records)");
    }
    check(cudaEventRecord(slot.done.get(), stream.get()), "cudaEventRecord");
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
  if (completions.size() > impl.limits.completions) {
    throw std::invalid_argument(
        "completions: " + std::to_string(completions.size()) +
        " are more than Limits::completions = " + std::to_string(impl.limits.completions));
  }
  Impl::Slot& slot = impl.slots[impl.next_slot];
  std::vector<ref::Segment> legal;
  legal.reserve(completions.size());
  std::uint32_t illegal = 0;
  const std::size_t staged = impl.stage(slot, first_seq, completions, memory, legal, illegal);
  const ref::BatchPlan plan = ref::make_plan(std::move(legal), kChunkBytes);
  forget_error();
  bool detecting = false;
  try {
    impl.enqueue(slot, plan, staged, ready, detecting);
  } catch (const std::exception& error) {
    // What was enqueued still uses the slot's memory.
    const bool ended = cudaStreamSynchronize(impl.stream.get()) == cudaSuccess;
    forget_error();
    if (detecting || !ended) impl.lost = error.what();
    throw;
  }

  slot.first_seq = first_seq;
  slot.completion_count = completions.size();
  slot.segment_count = plan.segments.size();
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
  std::vector<Result> results(slot.completion_count);
  for (std::size_t s = 0; s < slot.segment_count;
       ++s) {  // segments are grouped by operator; seq tells the place
    results[slot.records[s].seq - slot.first_seq] = {slot.records[s], slot.summaries[s]};
  }
  return results;
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
