#pragma once
// What the emulated runtime holds, shared by its files.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "ptx/runtime.hpp"

namespace opd::ptx {

/// What a stream records instead of running it.
struct Capture {
  cudaStreamCaptureMode mode;
  std::vector<std::function<void()>> nodes;
  bool valid = true;
};

struct Stream {
  std::deque<std::function<void()>> work;
  std::uint64_t enqueued = 0, done = 0;
  std::optional<Capture> capture;
};

/// The nodes of a graph, in order; an executable one is the same.
struct Graph {
  std::vector<std::function<void()>> nodes;
};

struct Event {
  std::shared_ptr<Stream> stream;  // null: never recorded
  std::uint64_t position = 0;
  bool captured = false;  // the last record was one of a capture: it never happens
};

struct Runtime {
  RuntimeSettings settings;
  std::mt19937_64 rng{1};
  std::map<const void*, std::shared_ptr<Stream>> streams;  // the default stream's key is null
  std::map<const void*, std::unique_ptr<Event>> events;
  std::map<const void*, std::unique_ptr<Graph>> graphs;
  std::map<const std::byte*, std::unique_ptr<std::byte[]>> pinned;
  std::map<const std::byte*, std::size_t> pinned_bytes;
  std::map<const void*, std::string> kernels;  // nvcc's stub -> the kernel's name
  std::uint64_t calls = 0, fail_at = 0, plant_at = 0;
  cudaError_t failure = cudaSuccess, last_error = cudaSuccess;
  std::string failed;
  std::function<void()> planted;

  Runtime();
  void apply(const RuntimeSettings& next);
};

Runtime& runtime();

/// The call's own error, kept for whoever asks for the last one.
cudaError_t give(cudaError_t error);
void drain(Stream& stream, std::uint64_t position);
/// Puts work on a stream: at its end, or into the graph that it captures.
void enqueue(Stream& stream, std::function<void()> work);
/// Every call that can fail begins with this one.
bool fails(const char* name);
std::shared_ptr<Stream> stream_of(cudaStream_t handle);
Event& event_of(cudaEvent_t handle);

/// cudaErrorStreamCaptureInvalidated where a call has spoiled what the stream captures.
cudaError_t state_of_capture(const Stream& stream);
/// What a call gives that no capture takes: of this stream or, null, of any stream in a mode that watches all calls. It spoils
/// the capture.
cudaError_t spoil_capture(Stream* stream);

}  // namespace opd::ptx

// The first statement of a call that can fail; of one that no capture of whatever stream may see.
#define OPD_CAN_FAIL \
  if (opd::ptx::fails(__func__)) return opd::ptx::give(opd::ptx::runtime().failure)
#define OPD_NOT_IN_CAPTURE                                                                \
  OPD_CAN_FAIL;                                                                           \
  if (const cudaError_t spoilt = opd::ptx::spoil_capture(nullptr); spoilt != cudaSuccess) \
  return opd::ptx::give(spoilt)
