#pragma once
// A batch on its way to the device: checked, planned, and laid out in the one table that is copied.
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "opd/reference/cuda.hpp"
#include "opd/reference/segmented.hpp"

namespace opd::cuda {

// 256 KiB per block are 64 loads of 16 bytes per thread: the reduction at the end is small beside
// them, and a GiB still makes 4096 blocks.
inline constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

inline std::size_t round_up_16(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

/// Of what a batch consists, apart from its values: two of one shape are the same work.
struct Shape {
  std::size_t staged = 0;  ///< bytes of host elements, a multiple of 16
  std::size_t segments = 0, chunks = 0, operators = 0;
  bool operator==(const Shape&) const = default;
};

inline std::string to_string(const Shape& shape) {
  return std::to_string(shape.segments) + " completions of " + std::to_string(shape.operators) +
         " operators in " + std::to_string(shape.chunks) + " chunks with " +
         std::to_string(shape.staged) + " bytes of host elements";
}

/// What travels to the device in one copy: host elements, then the tables. Places are offsets.
struct Table {
  std::size_t setup, segments, chunks, chunk_begin, op_begin, bytes;

  explicit Table(const Shape& shape) {
    std::size_t end = shape.staged;
    const auto place = [&end](std::size_t size) {
      return std::exchange(end, end + round_up_16(size));
    };
    setup = place(sizeof(ref::DetectorSetup));
    segments = place(shape.segments * sizeof(ref::Segment));
    chunks = place(shape.chunks * sizeof(ref::Chunk));
    chunk_begin = place((shape.segments + 1) * sizeof(std::uint32_t));
    op_begin = place((shape.operators + 1) * sizeof(std::uint32_t));
    bytes = end;
  }
};
static_assert(std::is_trivially_copyable_v<ref::DetectorSetup> &&
              std::is_trivially_copyable_v<ref::Segment>);

/// A batch on its way into a table: places of host elements, and where they come from.
struct Draft {
  ref::BatchPlan plan;
  std::vector<std::pair<std::size_t, std::span<const std::byte>>> staged;
  Shape shape;
  std::vector<std::size_t> illegal;  ///< places of completions that the device does not see
};

/// Plans a batch. staging: where the device will find its host elements. Nothing is written yet.
/// Errors: as CudaReference::submit.
inline Draft draft_batch(const DeviceParameters& parameters, const Limits& limits,
                         const std::byte* staging, std::uint32_t first_seq,
                         std::span<const Completion> completions, Memory memory) {
  if (completions.size() > limits.completions) {
    throw std::invalid_argument(
        "completions: " + std::to_string(completions.size()) +
        " are more than Limits::completions = " + std::to_string(limits.completions));
  }
  Draft draft;
  std::vector<ref::Segment> legal;
  legal.reserve(completions.size());
  std::size_t staged = 0, total = 0;
  for (std::size_t k = 0; k < completions.size(); ++k) {
    const Completion& completion = completions[k];
    const OpDescriptor& descriptor = completion.descriptor;
    if (descriptor.op >= parameters.num_ops || !ref::is_known(descriptor.format)) {
      draft.illegal.push_back(k);
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
      draft.staged.emplace_back(staged, elements);
      address = staging + staged;
      staged += round_up_16(elements.size());
    }
    legal.push_back({.descriptor = descriptor,
                     .seq = first_seq + static_cast<std::uint32_t>(k),
                     .elements = address,
                     .count = elements.size() / size,
                     .statistic = completion.statistic});
  }
  draft.plan = ref::make_plan(std::move(legal), kChunkBytes);
  draft.shape = {.staged = staged,
                 .segments = draft.plan.segments.size(),
                 .chunks = draft.plan.chunks.size(),
                 .operators = draft.plan.op_begin.size() - 1};
  return draft;
}

/// Throws unless the batch may be enqueued more than once: all of it legal.
inline void require_legal(const Draft& planned, const DeviceParameters& parameters,
                          std::span<const Completion> completions) {
  if (!planned.illegal.empty()) {
    const std::size_t k = planned.illegal.front();
    const OpDescriptor& descriptor = completions[k].descriptor;
    throw std::invalid_argument(
        "completions[" + std::to_string(k) + "].descriptor: " +
        (descriptor.op >= parameters.num_ops
             ? "op " + std::to_string(descriptor.op) +
                   " must be below num_ops = " + std::to_string(parameters.num_ops)
             : "format " + std::to_string(static_cast<unsigned>(descriptor.format)) +
                   " is unknown"));
  }
  if (planned.shape.segments == 0) {
    throw std::invalid_argument("completions: a prepared batch must have one at least");
  }
}

}  // namespace opd::cuda
