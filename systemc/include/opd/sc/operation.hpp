#pragma once
// One operator execution as the vector unit receives it, and how its end is reported.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "opd/sc/format.hpp"
#include "opd/types/record.hpp"

namespace opd::sc {

/// One execution of an operator: the elements of its output, or a statistic of an output that never
/// passes the tap.
struct Operation {
  OpDescriptor descriptor;
  /// Packed, little endian, in the descriptor's format. Valid until the operation's completion.
  std::span<const std::byte> elements;
  /// If set, it goes to the sideband and `elements` is not read.
  std::optional<TapSummary> statistic;
  /// The caller's own; it comes back with the completion.
  std::uint64_t tag = 0;
};

/// What a source answers when it is asked for the next operation.
enum class SourceAnswer {
  kOperation,  ///< here it is
  kWait,       ///< not yet: asked again at the next clock
  kEnd,        ///< no more: asked again only after a restart
};

/// Fills in the next operation, passed with default values. Answering kWait holds the next training
/// step back, for instance until a host has written its registers.
using OperationSource = std::function<SourceAnswer(Operation&)>;

/// One operation is written back. Cycles are edge numbers, 0 = the first rising edge after reset.
///   issue_cycle     : the edge at which the operation's mode was read
///   last_beat_cycle : the edge that sampled its last beat, or accepted its statistic
///   mode_at_issue   : its mode register when it was issued; the elements are the operation's own
///                     in every mode
using CompletionCallback = std::function<void(std::uint64_t tag, std::uint64_t issue_cycle,
                                              std::uint64_t last_beat_cycle, Mode mode_at_issue)>;

/// Bytes of one element. An unknown format has no elements; its bytes are moved one per lane.
constexpr std::size_t element_bytes(Format format) {
  return is_format(format) ? properties(format).element_bytes() : 1;
}

/// Beats of an output of `byte_count` bytes. An empty output takes one beat without enabled lanes.
constexpr std::size_t beat_count(std::size_t byte_count, std::size_t beat_bytes) {
  return byte_count == 0 ? 1 : (byte_count + beat_bytes - 1) / beat_bytes;
}

}  // namespace opd::sc
