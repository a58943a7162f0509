#pragma once
// One operator execution as the vector unit receives it, and how its end is reported.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "opd/sc/format.hpp"
#include "opd/types/computation.hpp"
#include "opd/types/device.hpp"

namespace opd::sc {

/// One execution of an operator: the recorded elements of its output, a statistic of an output that
/// never passes the tap, or a computation.
struct Operation {
  OpDescriptor descriptor;
  /// Packed, little endian, in the descriptor's format. Valid until the operation's completion.
  std::span<const std::byte> elements;
  /// If set, it goes to the sideband and `elements` is not read.
  std::optional<TapSummary> statistic;
  /// The caller's own; it comes back with the completion.
  std::uint64_t tag = 0;
  /// If set, the unit computes the elements, in the mode read at issue; `elements` and `statistic`
  /// are unset, and its operands are valid until the operator is issued. The descriptor has the
  /// operator's own format; the beats carry that of the mode's output.
  std::optional<Computation> computation;
  /// If set, the statistic of the accumulators follows by the sideband as a completion of this
  /// operator, of the descriptor's step, with a tag of its own. Only of a kernel that accumulates.
  std::optional<std::uint16_t> accumulator_op;
  std::uint64_t accumulator_tag = 0;
  /// If set, the mode register of this operator counts as well, read before the other one: a
  /// computation runs in the more careful of the two. Meant for accumulators, which go non-finite
  /// while the output does not.
  std::optional<std::uint16_t> second_mode_op;
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
///   mode_at_issue   : its mode register when it was issued, or the one beside it. A recorded operation has its own
///                     elements in every mode; a computed one ran in this mode, which CONTROL of
///                     the unit's registers may have forced
using CompletionCallback = std::function<void(std::uint64_t tag, std::uint64_t issue_cycle,
                                              std::uint64_t last_beat_cycle, Mode mode_at_issue)>;

/// A computed operator was issued: what ran, what came out, what it takes. Valid during the call;
/// its completion follows when the last beat is written back.
using ExecutionCallback =
    std::function<void(std::uint64_t tag, std::uint64_t issue_cycle, const Execution&)>;

/// Names what is wrong with a computed operation, and the remedy; empty when it can be computed.
std::optional<std::string> operation_error(const Operation& operation);

/// The accumulators' completion of a computed operation.
Statistic accumulator_statistic(const Operation& operation, const Execution& execution);

/// Bytes of one element. An unknown format has no elements; its bytes are moved one per lane.
constexpr std::size_t element_bytes(Format format) {
  return is_format(format) ? properties(format).element_bytes() : 1;
}

/// Beats of an output of `byte_count` bytes. An empty output takes one beat without enabled lanes.
constexpr std::size_t beat_count(std::size_t byte_count, std::size_t beat_bytes) {
  return byte_count == 0 ? 1 : (byte_count + beat_bytes - 1) / beat_bytes;
}

}  // namespace opd::sc
