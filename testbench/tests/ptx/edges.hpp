#pragma once
// Batches at the edges of the summarising kernel, compared with the CPU reference: every format and alignment, sizes
// around one load, one round of loads, one chunk, several content kinds, counters that saturate.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "opd/reference/cpu.hpp"
#include "opd/reference/cuda.hpp"
#include "tests/reference/oracle.hpp"

namespace opd::tb {

inline void require(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw std::runtime_error(call);
}

/// Device memory with a copy of the host's.
class DeviceCopy {
 public:
  DeviceCopy(std::span<const std::byte> bytes, cudaStream_t stream) {
    require(cudaMalloc(&pointer_, bytes.size()), "cudaMalloc");
    require(cudaMemcpyAsync(pointer_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream),
            "cudaMemcpyAsync");
  }
  ~DeviceCopy() { static_cast<void>(cudaFree(pointer_)); }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  const std::byte* get() const { return static_cast<const std::byte*>(pointer_); }

 private:
  void* pointer_ = nullptr;
};

struct EdgeTally {
  std::size_t compared = 0, different = 0;
  std::string first;  // what differs first
};

constexpr std::size_t kEdgeChunk = std::size_t{256} << 10;     // bytes of a chunk
constexpr std::size_t kEdgeRound = std::size_t{4} * 256 * 16;  // bytes that a block reads at once

/// Sizes in bytes at one alignment: from nothing to three loads, then around the borders.
inline std::vector<std::size_t> edge_sizes(std::mt19937_64& rng, std::size_t size, bool chunks) {
  std::vector<std::size_t> sizes;
  for (std::size_t n = 0; n < 3 * 16 / size + 3; ++n) sizes.push_back(n * size);
  std::vector<std::size_t> borders = {kEdgeRound / 4, kEdgeRound, 2 * kEdgeRound};
  if (chunks) borders.insert(borders.end(), {kEdgeChunk, 2 * kEdgeChunk});
  for (const std::size_t border : borders) {
    for (std::size_t e = 0; e <= 4; ++e) sizes.push_back(border + e * size - 2 * size);
  }
  for (int k = 0; k < 3; ++k) sizes.push_back(rng() % (2 * kEdgeRound) / size * size);
  return sizes;
}

/// contents: how many of the kinds of Content. chunks: of the first three, at one alignment each,
/// sizes around a chunk as well.
inline EdgeTally compare_edges(std::uint64_t seed, Format format, unsigned counter_width,
                               unsigned contents, bool chunks) {
  std::mt19937_64 rng(seed);
  const DeviceParameters parameters{.num_ops = 4, .counter_width = counter_width};
  cuda::CudaReference device(
      parameters, {},
      {.completions = 4096, .element_bytes = std::size_t{1} << 28, .staging_bytes = 0});
  ref::CpuReference cpu(parameters);
  const std::size_t size = element_size(format);
  EdgeTally tally;
  std::uint32_t seq = 0;
  for (unsigned content = 0; content < contents; ++content) {
    const std::vector<std::byte> host =
        draw_elements(rng, format, static_cast<Content>(content), (2 * kEdgeChunk + 256) / size, 0);
    const DeviceCopy copy(host, device.stream());
    std::vector<cuda::Completion> batch;
    std::vector<std::span<const std::byte>> spans;
    for (std::size_t offset = 0; offset < 16; offset += size) {
      for (const std::size_t bytes :
           edge_sizes(rng, size, chunks && content < 3 && offset == content % (16 / size) * size)) {
        const std::size_t begin = offset + 16 * (rng() % 8);
        cuda::Completion completion;
        completion.descriptor = {
            .op = static_cast<std::uint16_t>(rng() % 4), .format = format, .step = content};
        completion.elements = {copy.get() + begin, bytes};
        batch.push_back(completion);
        spans.push_back(std::span(host).subspan(begin, bytes));
      }
    }
    device.submit(seq, batch, cuda::Memory::kDevice);
    const std::vector<cuda::Result> results = device.fetch();
    for (std::size_t k = 0; k < batch.size(); ++k, ++seq) {
      const TapSummary summary = ref::summarise(format, spans[k], counter_width);
      const auto detection = cpu.complete(seq, batch[k].descriptor, summary);
      ++tally.compared;
      if (results[k].summary == summary && results[k].record == detection->record) continue;
      if (tally.different++ == 0) {
        tally.first = "content " + std::to_string(content) + ", address " +
                      std::to_string((spans[k].data() - host.data()) % 16) + " of 16, " +
                      std::to_string(spans[k].size()) + " bytes";
      }
    }
  }
  const std::vector<ref::OpState> states = device.states();
  for (unsigned op = 0; op < 4; ++op) {
    ++tally.compared;
    if (!(states[op] == cpu.states()[op]) && tally.different++ == 0)
      tally.first = "state of op " + std::to_string(op);
  }
  return tally;
}

/// Completions of more chunks than a warp has lanes: CUB's segmented reduction takes other ways then.
inline EdgeTally compare_chunks(std::uint64_t seed, std::size_t chunk_count) {
  std::mt19937_64 rng(seed);
  std::vector<std::byte> host(chunk_count * kEdgeChunk - 777 * 4);
  for (int k = 0; k < 500; ++k) {
    host[rng() % host.size()] = static_cast<std::byte>(rng());
    std::fill_n(&host[rng() % (host.size() / 4) * 4], 4, std::byte{0xFF});  // NaN in all formats
  }
  constexpr Format kOf[] = {Format::kE4m3, Format::kFp16, Format::kFp32};
  cuda::CudaReference device(
      {.num_ops = 1}, {}, {.completions = 3, .element_bytes = 3 * host.size(), .staging_bytes = 0});
  const DeviceCopy copy(host, device.stream());
  std::vector<cuda::Completion> batch(3);
  for (unsigned k = 0; k < 3; ++k) {
    batch[k].descriptor.format = kOf[k];
    batch[k].elements = {copy.get() + 4 * k, host.size() - 16};
  }
  device.submit(0, batch, cuda::Memory::kDevice);
  const std::vector<cuda::Result> results = device.fetch();
  EdgeTally tally;
  for (unsigned k = 0; k < 3; ++k) {
    const TapSummary summary =
        ref::summarise(kOf[k], std::span(host).subspan(4 * k, host.size() - 16));
    ++tally.compared;
    if (results[k].summary == summary && summary.nonfinite_count > 0) continue;
    if (tally.different++ == 0) tally.first = "completion " + std::to_string(k);
  }
  return tally;
}

}  // namespace opd::tb
