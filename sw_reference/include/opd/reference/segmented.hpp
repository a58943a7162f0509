#pragma once
// A batch of completions as data-parallel steps, written once for every Thrust back end: the
// summaries of all completions (a segmented reduction), then the detectors (one thread per
// operator).
//
//   order  : completions are grouped by operator and stay in seq order within it; the detector
//            walks its group
//   exact  : equal to CpuReference, completion by completion
//   source : docs/numerics.md, docs/controller.md
#include <thrust/for_each.h>
#include <thrust/functional.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/discard_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/reduce.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "opd/reference/detector.hpp"
#include "opd/reference/slice.hpp"

namespace opd::ref {

/// One legal completion. Elements and statistic are parts of one summary; usually one of them is
/// empty.
struct Segment {
  OpDescriptor descriptor;
  std::uint32_t seq = 0;
  const std::byte* elements = nullptr;  ///< a multiple of the element size
  std::uint64_t count = 0;              ///< elements
  TapSummary statistic;                 ///< of elements that never pass the tap
};

/// Part of a segment that one thread block (or one host iteration) summarises.
struct Chunk {
  std::uint64_t first = 0;  ///< element index
  std::uint32_t count = 0;  ///< elements
  std::uint32_t segment = 0;
};

/// Where everything lies in a batch. Every segment has at least one chunk.
struct BatchPlan {
  std::vector<Segment> segments;           ///< by operator, then by seq
  std::vector<Chunk> chunks;               ///< by segment
  std::vector<std::uint32_t> chunk_begin;  ///< first chunk of every segment, and the end
  /// First segment of every operator in the batch, and the end
  std::vector<std::uint32_t> op_begin;
};

/// Plans a batch of legal completions given in seq order. chunk_bytes: a multiple of 16.
inline BatchPlan make_plan(std::vector<Segment> segments, std::size_t chunk_bytes) {
  std::stable_sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) {
    return a.descriptor.op < b.descriptor.op;
  });
  BatchPlan plan;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    if (s == 0 || segment.descriptor.op != segments[s - 1].descriptor.op) {
      plan.op_begin.push_back(static_cast<std::uint32_t>(s));
    }
    plan.chunk_begin.push_back(static_cast<std::uint32_t>(plan.chunks.size()));
    const std::uint64_t per_chunk = chunk_bytes / layout_of(segment.descriptor.format).bytes();
    std::uint64_t first = 0;
    do {
      const std::uint64_t count = std::min(per_chunk, segment.count - first);
      plan.chunks.push_back({.first = first,
                             .count = static_cast<std::uint32_t>(count),
                             .segment = static_cast<std::uint32_t>(s)});
      first += count;
    } while (first < segment.count);
  }
  plan.chunk_begin.push_back(static_cast<std::uint32_t>(plan.chunks.size()));
  plan.op_begin.push_back(static_cast<std::uint32_t>(segments.size()));
  plan.segments = std::move(segments);
  return plan;
}

/// One thread's share of a chunk, counters not yet saturated.
OPD_HOST_DEVICE inline TapSummary summarise_slice(const Segment& segment, const Chunk& chunk,
                                                  unsigned thread, unsigned num_threads) {
  const Format format = segment.descriptor.format;
  const std::byte* elements = segment.elements + chunk.first * layout_of(format).bytes();
  switch (format) {
    case Format::kFp16:
      return summarise_slice<Format::kFp16>(elements, chunk.count, chunk.first, thread,
                                            num_threads);
    case Format::kBf16:
      return summarise_slice<Format::kBf16>(elements, chunk.count, chunk.first, thread,
                                            num_threads);
    case Format::kE4m3:
      return summarise_slice<Format::kE4m3>(elements, chunk.count, chunk.first, thread,
                                            num_threads);
    case Format::kE5m2:
      return summarise_slice<Format::kE5m2>(elements, chunk.count, chunk.first, thread,
                                            num_threads);
    case Format::kFp32:
      break;
  }
  return summarise_slice<Format::kFp32>(elements, chunk.count, chunk.first, thread, num_threads);
}

/// Summary of a whole chunk by one thread: the definition, element by element.
struct SummariseChunk {
  const Segment* segments;
  unsigned counter_width;

  OPD_HOST_DEVICE TapSummary operator()(const Chunk& chunk) const {
    const Segment& segment = segments[chunk.segment];
    const Format format = segment.descriptor.format;
    const unsigned size = layout_of(format).bytes();
    const std::byte* element = segment.elements + chunk.first * size;
    TapSummary summary;
    for (std::uint32_t k = 0; k < chunk.count; ++k, element += size) {
      std::uint32_t bits = 0;
      for (unsigned byte = 0; byte < size; ++byte) {  // little endian, any alignment
        bits |= static_cast<std::uint32_t>(element[byte]) << (8 * byte);
      }
      accumulate(summary, format, bits, chunk.first + k, true, counter_width);
    }
    return summary;
  }
};

struct SegmentOfChunk {
  OPD_HOST_DEVICE std::uint32_t operator()(const Chunk& chunk) const { return chunk.segment; }
};

/// Walks the completions of one operator in seq order.
struct AdvanceOp {
  const Segment* segments;
  TapSummary* summaries;  ///< in: of the elements; out: with the ready statistic
  const std::uint32_t* op_begin;
  OpState* states;
  OpRecord* records;
  const DetectorSetup* setup;
  unsigned counter_width;

  OPD_HOST_DEVICE void operator()(std::size_t group) const {
    OpState& stored = states[segments[op_begin[group]].descriptor.op];
    OpState state = stored;
    for (std::uint32_t s = op_begin[group]; s < op_begin[group + 1]; ++s) {
      const Segment& segment = segments[s];
      const TapSummary statistic =
          sideband_summary(segment.descriptor.format, segment.statistic, counter_width);
      summaries[s] = combine(statistic, summaries[s], counter_width);
      records[s] =
          complete(segment.seq, segment.descriptor, summaries[s], *setup, Upset::kNone, state)
              .record;
    }
    stored = state;
  }
};

/// summaries[s] = summary of the elements of segment s. All pointers belong to the policy's memory.
/// Waits for the result on a CUDA policy: reduce_by_key returns where its output ends.
template <class Policy>
void summarise_segments(const Policy& policy, const Chunk* chunks, std::size_t chunk_count,
                        const Segment* segments, unsigned counter_width, TapSummary* summaries) {
  const auto keys = thrust::make_transform_iterator(chunks, SegmentOfChunk{});
  const auto values =
      thrust::make_transform_iterator(chunks, SummariseChunk{segments, counter_width});
  thrust::reduce_by_key(policy, keys, keys + static_cast<std::ptrdiff_t>(chunk_count), values,
                        thrust::make_discard_iterator(), summaries,
                        thrust::equal_to<std::uint32_t>(), Combine{counter_width});
}

/// Advances the detectors of `group_count` operators. All pointers of `advance` belong to the
/// policy's memory.
template <class Policy>
void advance_ops(const Policy& policy, const AdvanceOp& advance, std::size_t group_count) {
  thrust::for_each_n(policy, thrust::counting_iterator<std::size_t>(0), group_count, advance);
}

}  // namespace opd::ref
