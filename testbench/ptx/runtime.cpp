#include "ptx/runtime.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "ptx/device.hpp"
#include "ptx/runtime_state.hpp"

namespace opd::ptx {

Runtime::Runtime() {
  streams[nullptr] = std::make_shared<Stream>();
  if (const char* list = std::getenv("OPD_EMULATED_CUDA")) {
    try {
      apply(parse_settings(list));
    } catch (const std::invalid_argument& error) {
      fault(nullptr, 0, std::string("OPD_EMULATED_CUDA: ") + error.what());
    }
  }
}

void Runtime::apply(const RuntimeSettings& next) {
  settings = next;
  rng.seed(next.seed);
  execution().shuffle = next.shuffle;
  execution().races = next.races;
  execution().seed = next.seed;
}

Runtime& runtime() {
  static auto* instance = new Runtime;  // nvcc's code unregisters after other statics are gone
  return *instance;
}

cudaError_t give(cudaError_t error) {
  if (error != cudaSuccess) runtime().last_error = error;
  return error;
}

static void run_first(Stream& stream) {
  const std::function<void()> work = std::move(stream.work.front());
  stream.work.pop_front();
  ++stream.done;
  work();
}

void drain(Stream& stream, std::uint64_t position) {
  while (stream.done < position) run_first(stream);
}

void enqueue(Stream& stream, std::function<void()> work) {
  if (stream.capture) {
    stream.capture->nodes.push_back(std::move(work));
    return;
  }
  stream.work.push_back(std::move(work));
  ++stream.enqueued;
  if (runtime().settings.order == Order::kEager) drain(stream, stream.enqueued);
}

bool fails(const char* name) {
  Runtime& r = runtime();
  ++r.calls;
  if (r.calls == r.plant_at) std::exchange(r.planted, nullptr)();
  if (r.settings.order == Order::kRandom) {
    for (std::uint64_t n = r.rng() % 4; n > 0; --n) {
      auto chosen = r.streams.begin();
      std::advance(chosen, r.rng() % r.streams.size());
      if (!chosen->second->work.empty()) run_first(*chosen->second);
    }
  }
  if (r.fail_at == 0 || r.calls != r.fail_at) return false;
  r.failed = name;
  return true;
}

std::shared_ptr<Stream> stream_of(cudaStream_t handle) {
  const bool standard = handle == cudaStreamLegacy || handle == cudaStreamPerThread;
  const auto found = runtime().streams.find(standard ? nullptr : handle);
  if (found == runtime().streams.end()) fault(nullptr, 0, "a stream that does not exist");
  return found->second;
}

Event& event_of(cudaEvent_t handle) {
  const auto found = runtime().events.find(handle);
  if (found == runtime().events.end()) fault(nullptr, 0, "an event that does not exist");
  return *found->second;
}

namespace {

bool is_pinned(const void* pointer, std::size_t bytes) {
  const auto* address = static_cast<const std::byte*>(pointer);
  auto found = runtime().pinned_bytes.upper_bound(address);
  if (found == runtime().pinned_bytes.begin()) return false;
  --found;
  return address + bytes <= found->first + found->second;
}

cudaError_t launch(const std::string& name, dim3 grid, dim3 block, void** arguments,
                   std::size_t shared, cudaStream_t handle) {
  const Kernel* kernel = find_kernel(name);
  if (kernel == nullptr) fault(nullptr, 0, "launch: no translation of the kernel " + name);
  if (grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1) {
    fault(nullptr, 0, "launch: more than one dimension is not emulated");
  }
  if (grid.x < 1 || grid.x > 0x7FFFFFFFu || block.x < 1 || block.x > kernel->max_threads ||
      shared > kSharedLimit || kernel->static_shared + shared > kSharedLimit) {
    return cudaErrorInvalidConfiguration;
  }
  std::vector<std::byte> parameters(kernel->parameter_bytes);
  for (std::size_t k = 0; k < kernel->parameters.size(); ++k) {
    std::memcpy(parameters.data() + kernel->parameters[k].offset, arguments[k],
                kernel->parameters[k].bytes);
  }
  Stream& stream = *stream_of(handle);
  if (const cudaError_t spoilt = state_of_capture(stream); spoilt != cudaSuccess) return spoilt;
  enqueue(stream, [=, parameters = std::move(parameters)] {
    run(*kernel, grid.x, block.x, static_cast<std::uint32_t>(shared), parameters);
  });
  return cudaSuccess;
}

/// The kind must say what the addresses are.
void check_kind(const void* to, const void* from, cudaMemcpyKind kind) {
  const bool to_device = is_device_address(to), from_device = is_device_address(from);
  const bool right = kind == cudaMemcpyDefault ||
                     (kind == cudaMemcpyHostToDevice && to_device && !from_device) ||
                     (kind == cudaMemcpyDeviceToHost && !to_device && from_device) ||
                     (kind == cudaMemcpyDeviceToDevice && to_device && from_device) ||
                     (kind == cudaMemcpyHostToHost && !to_device && !from_device);
  if (!right)
    fault(nullptr, 0, fmt::format("copy: kind {} from {} to {}", static_cast<int>(kind), from, to));
}

}  // namespace

RuntimeSettings parse_settings(const std::string& list) {
  RuntimeSettings settings;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string entry = list.substr(begin, end - begin);
    if (entry == "shuffle") {
      settings.shuffle = true;
    } else if (entry == "races") {
      settings.races = true;
    } else if (entry == "order=eager" || entry == "order=lazy" || entry == "order=random") {
      settings.order = entry == "order=eager"  ? Order::kEager
                       : entry == "order=lazy" ? Order::kLazy
                                               : Order::kRandom;
    } else {
      const char* last = entry.data() + entry.size();
      const bool is_seed = entry.starts_with("seed=");
      const auto [end_of_number, error] =
          std::from_chars(is_seed ? entry.data() + 5 : last, last, settings.seed);
      if (error != std::errc() || end_of_number != last) {
        throw std::invalid_argument(
            "\"" + entry +
            "\": must be order=eager, order=lazy, order=random, seed=N, shuffle or races");
      }
    }
    begin = end + 1;
  }
  return settings;
}

void configure(const RuntimeSettings& settings) { runtime().apply(settings); }
std::uint64_t calls() { return runtime().calls; }

void fail_call(std::uint64_t n, int error) {
  runtime().fail_at = n == 0 ? 0 : runtime().calls + n;
  runtime().failure = static_cast<cudaError_t>(error);
  runtime().failed.clear();
}

void plant(std::uint64_t n, std::function<void()> call) {
  runtime().plant_at = n == 0 ? 0 : runtime().calls + n;
  runtime().planted = std::move(call);
}

const std::string& failed_call() { return runtime().failed; }

std::uint64_t host_objects() {
  return runtime().pinned.size() + runtime().events.size() + runtime().streams.size() - 1 +
         runtime().graphs.size();
}

std::uint64_t pending() {
  std::uint64_t sum = 0;
  for (const auto& [handle, stream] : runtime().streams) sum += stream->work.size();
  return sum;
}

}  // namespace opd::ptx

// The names, types and meanings of the CUDA runtime.
using namespace opd::ptx;

extern "C" {

// ---- What nvcc's host code calls before main and at a launch.

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  runtime().kernels[stub] = name;
}

namespace {
struct {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
} configuration;
}  // namespace

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** arguments,
                             size_t shared, cudaStream_t stream) {
  OPD_CAN_FAIL;
  const auto found = runtime().kernels.find(stub);
  if (found == runtime().kernels.end())
    fault(nullptr, 0, "launch of a kernel that is not registered");
  return give(launch(found->second, grid, block, arguments, shared, stream));
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

// ---- Memory

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  OPD_NOT_IN_CAPTURE;
  *pointer = allocate(bytes);
  return give(*pointer == nullptr && bytes > 0 ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFree(void* pointer) {
  OPD_NOT_IN_CAPTURE;
  if (pointer != nullptr && !release(pointer)) fault(nullptr, 0, "cudaFree: no allocation");
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  OPD_NOT_IN_CAPTURE;
  auto memory = std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes]);
  if (memory == nullptr) return give(cudaErrorMemoryAllocation);
  std::memset(memory.get(), 0xA5, bytes);
  *pointer = memory.get();
  runtime().pinned_bytes[memory.get()] = bytes;
  runtime().pinned[memory.get()] = std::move(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  OPD_NOT_IN_CAPTURE;
  if (pointer == nullptr) return cudaSuccess;
  if (runtime().pinned.erase(static_cast<std::byte*>(pointer)) == 0)
    fault(nullptr, 0, "cudaFreeHost: no allocation");
  runtime().pinned_bytes.erase(static_cast<std::byte*>(pointer));
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  OPD_CAN_FAIL;
  if (bytes == 0) return cudaSuccess;
  check_kind(to, from, kind);
  Stream& stream = *stream_of(handle);
  if (const cudaError_t spoilt = state_of_capture(stream); spoilt != cudaSuccess)
    return give(spoilt);
  const bool to_pinned = is_pinned(to, bytes), from_pinned = is_pinned(from, bytes);
  if (stream.capture &&
      ((!is_device_address(from) && !from_pinned) || (!is_device_address(to) && !to_pinned)))
    fault(nullptr, 0, "a copy of pageable memory in a capture is not emulated");
  if (!is_device_address(from) && !from_pinned) {  // pageable: read before the call returns
    const auto* first = static_cast<const std::byte*>(from);
    enqueue(stream, [to, staged = std::vector<std::byte>(first, first + bytes)] {
      copy_memory(to, staged.data(), staged.size());
    });
  } else {
    enqueue(stream, [=] {
      if ((to_pinned && !is_pinned(to, bytes)) || (from_pinned && !is_pinned(from, bytes))) {
        fault(nullptr, 0, "copy: its pinned memory has been freed since it was enqueued");
      }
      copy_memory(to, from, bytes);
    });
  }
  if (!is_device_address(to) && !to_pinned)
    drain(stream, stream.enqueued);  // pageable: written when the call returns
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  OPD_NOT_IN_CAPTURE;
  if (bytes == 0) return cudaSuccess;
  check_kind(to, from, kind);
  Stream& stream = *stream_of(nullptr);
  drain(stream, stream.enqueued);
  copy_memory(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  OPD_NOT_IN_CAPTURE;
  if (bytes == 0) return cudaSuccess;
  if (!is_device_address(to)) fault(nullptr, 0, "cudaMemset: no device memory");
  enqueue(*stream_of(nullptr), [=] {
    const std::vector<std::byte> filled(bytes, static_cast<std::byte>(value));
    copy_memory(to, filled.data(), bytes);
  });
  return cudaSuccess;
}

// ---- Streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  OPD_CAN_FAIL;
  if (flags != cudaStreamNonBlocking)
    fault(nullptr, 0, "a stream that waits for the default one is not emulated");
  auto stream = std::make_shared<Stream>();
  *handle = reinterpret_cast<cudaStream_t>(stream.get());
  runtime().streams[stream.get()] = std::move(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  OPD_CAN_FAIL;
  const std::shared_ptr<Stream> stream = stream_of(handle);
  if (stream->capture) fault(nullptr, 0, "a stream is destroyed while it captures");
  drain(*stream, stream->enqueued);
  runtime().streams.erase(handle);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  OPD_CAN_FAIL;
  Stream& stream = *stream_of(handle);
  if (stream.capture) return give(spoil_capture(&stream));
  drain(stream, stream.enqueued);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  OPD_CAN_FAIL;
  const Event recorded = event_of(event);  // as it is now: a later record changes nothing
  Stream& stream = *stream_of(handle);
  if (const cudaError_t spoilt = state_of_capture(stream); spoilt != cudaSuccess)
    return give(spoilt);
  if (recorded.captured && recorded.stream.get() == &stream) return cudaSuccess;
  if (recorded.captured) fault(nullptr, 0, "a capture of more than one stream is not emulated");
  if (stream.capture && recorded.stream != nullptr) {
    spoil_capture(&stream);
    return give(cudaErrorStreamCaptureIsolation);
  }
  if (recorded.stream != nullptr) {
    enqueue(stream, [recorded] { drain(*recorded.stream, recorded.position); });
  }
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned) {
  OPD_CAN_FAIL;
  auto event = std::make_unique<Event>();
  *handle = reinterpret_cast<cudaEvent_t>(event.get());
  runtime().events[event.get()] = std::move(event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  return cudaEventCreateWithFlags(handle, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  OPD_CAN_FAIL;
  static_cast<void>(event_of(handle));
  runtime().events.erase(handle);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  OPD_CAN_FAIL;
  Event& event = event_of(handle);
  const std::shared_ptr<Stream> on = stream_of(stream);
  if (const cudaError_t spoilt = state_of_capture(*on); spoilt != cudaSuccess) return give(spoilt);
  event.captured = on->capture.has_value();
  event.stream = on;
  event.position = event.stream->enqueued;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  OPD_CAN_FAIL;
  const Event event = event_of(handle);
  if (event.captured) {
    if (event.stream->capture) spoil_capture(event.stream.get());
    return give(cudaErrorCapturedEvent);
  }
  if (event.stream != nullptr) drain(*event.stream, event.position);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) {
  OPD_CAN_FAIL;
  return give(cudaErrorNotSupported);
}

// ---- The device

cudaError_t cudaGetDeviceCount(int* number) {
  OPD_CAN_FAIL;
  *number = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  OPD_CAN_FAIL;
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  OPD_CAN_FAIL;
  return give(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  OPD_CAN_FAIL;
  if (device != 0) return give(cudaErrorInvalidDevice);
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "emulated from PTX (no GPU)");
  properties->major = static_cast<int>(target() / 10);
  properties->minor = static_cast<int>(target() % 10);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  OPD_CAN_FAIL;
  if (device != 0) return give(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = static_cast<int>(target() / 10);
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = static_cast<int>(target() % 10);
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 4;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kSharedLimit;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = 0x7FFFFFFF;
      break;
    case cudaDevAttrWarpSize:
      *value = kWarpSize;
      break;
    default:
      fault(nullptr, 0,
            fmt::format("the device attribute {} is not emulated", static_cast<int>(attribute)));
  }
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* stub) {
  OPD_CAN_FAIL;
  const auto found = runtime().kernels.find(stub);
  const Kernel* kernel = found == runtime().kernels.end() ? nullptr : find_kernel(found->second);
  if (kernel == nullptr) return give(cudaErrorInvalidDeviceFunction);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->ptxVersion = attributes->binaryVersion = static_cast<int>(target());
  attributes->maxThreadsPerBlock = static_cast<int>(kernel->max_threads);
  attributes->sharedSizeBytes = kernel->static_shared;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  OPD_CAN_FAIL;
  *blocks = 4;
  return cudaSuccess;
}

// ---- Errors

cudaError_t cudaGetLastError() { return std::exchange(runtime().last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return runtime().last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaError (emulated)";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory (emulated)";
    case cudaErrorNotSupported:
      return "not emulated: time";
    case cudaErrorStreamCaptureUnsupported:
      return "not permitted while a stream is capturing (emulated)";
    case cudaErrorStreamCaptureInvalidated:
      return "the capture has failed before (emulated)";
    case cudaErrorStreamCaptureIsolation:
      return "an event from outside the capture (emulated)";
    case cudaErrorCapturedEvent:
      return "the event is one of a capture (emulated)";
    case cudaErrorIllegalState:
      return "the stream captures already, or not (emulated)";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration (emulated)";
    default:
      return "failure on demand (emulated)";
  }
}

}  // extern "C"
