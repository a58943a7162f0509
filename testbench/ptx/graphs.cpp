// Stream capture and graphs of the emulated runtime: one stream, a list of its work in order.
//
//   source : NVIDIA, CUDA Runtime API 13 "Stream Management", "Graph Management"; CUDA C++ Programming Guide, "CUDA Graphs":
//            what a capture prohibits
//   strict : in the modes global and thread-local every call that allocates, frees or copies at once spoils each capture
//   not    : captures that fork to other streams, updates of an executable graph, nodes made by hand
#include "ptx/device.hpp"
#include "ptx/runtime_state.hpp"

namespace opd::ptx {

cudaError_t state_of_capture(const Stream& stream) {
  return stream.capture && !stream.capture->valid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

cudaError_t spoil_capture(Stream* stream) {
  if (stream != nullptr) {
    stream->capture->valid = false;
    return cudaErrorStreamCaptureUnsupported;
  }
  cudaError_t error = cudaSuccess;
  for (const auto& [handle, other] : runtime().streams) {
    if (!other->capture || other->capture->mode == cudaStreamCaptureModeRelaxed) continue;
    error = spoil_capture(other.get());
  }
  return error;
}

namespace {

template <class Handle>
Handle keep(Graph graph) {
  auto kept = std::make_unique<Graph>(std::move(graph));
  const auto handle = reinterpret_cast<Handle>(kept.get());
  runtime().graphs[kept.get()] = std::move(kept);
  return handle;
}

Graph& graph_of(const void* handle) {
  const auto found = runtime().graphs.find(handle);
  if (found == runtime().graphs.end()) fault(nullptr, 0, "a graph that does not exist");
  return *found->second;
}

}  // namespace
}  // namespace opd::ptx

using namespace opd::ptx;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  OPD_CAN_FAIL;
  if (handle == nullptr || handle == cudaStreamLegacy)
    return give(cudaErrorStreamCaptureUnsupported);
  Stream& stream = *stream_of(handle);
  if (stream.capture) return give(cudaErrorIllegalState);
  stream.capture = Capture{.mode = mode};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  OPD_CAN_FAIL;
  Stream& stream = *stream_of(handle);
  *graph = nullptr;
  if (!stream.capture) return give(cudaErrorIllegalState);
  const Capture capture = std::move(*stream.capture);
  stream.capture.reset();
  if (!capture.valid) return give(cudaErrorStreamCaptureInvalidated);
  *graph = keep<cudaGraph_t>({.nodes = capture.nodes});
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  OPD_CAN_FAIL;
  const Stream& stream = *stream_of(handle);
  *status = !stream.capture         ? cudaStreamCaptureStatusNone
            : stream.capture->valid ? cudaStreamCaptureStatusActive
                                    : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  OPD_CAN_FAIL;
  if (flags != 0) fault(nullptr, 0, "flags of cudaGraphInstantiate are not emulated");
  *executable = keep<cudaGraphExec_t>(graph_of(graph));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  OPD_CAN_FAIL;
  Stream& stream = *stream_of(handle);
  if (stream.capture) fault(nullptr, 0, "a graph within a capture is not emulated");
  enqueue(stream, [nodes = graph_of(executable).nodes] {
    for (const auto& node : nodes) node();
  });
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  OPD_CAN_FAIL;
  static_cast<void>(graph_of(graph));
  runtime().graphs.erase(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  OPD_CAN_FAIL;
  static_cast<void>(graph_of(executable));
  runtime().graphs.erase(executable);
  return cudaSuccess;
}

}  // extern "C"
