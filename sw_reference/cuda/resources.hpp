#pragma once
// What the CUDA runtime hands out, owned; and its errors as exceptions.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace opd::cuda {

/// The runtime keeps an error until somebody asks for it, and a launch, CUB's as well, has no other
/// way to report its own. One that was reported, here or by the caller, is no longer news.
inline void forget_error() { static_cast<void>(cudaGetLastError()); }

inline void check(cudaError_t status, const char* call) {
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

inline Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return Stream(stream);
}

inline Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return Event(event);
}

}  // namespace opd::cuda
