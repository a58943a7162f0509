#pragma once
// Comparison of what two paths produced, down to the first difference.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "opd/types/device.hpp"
#include "stored_state.hpp"

namespace opd::tb {

/// What a path said of one completion, and when (rtl and systemc only).
struct Completion {
  std::size_t tag = 0;                ///< operator in program order
  std::uint64_t last_beat_cycle = 0;  ///< edge that sampled the last beat or accepted the statistic
  std::uint64_t record_cycle = 0;     ///< first edge that can use the new mode
  Mode mode_at_issue = Mode::kFast;   ///< what the vector unit read before executing the operator
  bool from_beats = false;            ///< through the datapath, not the sideband
  OpRecord record;
  TapCounts counts;
};

/// Where a difference of stored state became visible.
struct Consequence {
  std::string field;               ///< record field or pin; empty: nowhere in this run
  std::uint64_t completions = 0;   ///< later; 0: the completion that stored it
  std::optional<OpRecord> record;  ///< of the first such difference, where it has one
};

/// Of a field of the stored state, in Divergence::field.
inline constexpr std::string_view kStatePrefix = "state.";

/// A place where two paths differ.
struct Divergence {
  std::string left, right;  ///< path names
  std::string field;        ///< record field, pin, or `state.` and a field of the stored state
  std::string left_value, right_value;
  std::string quantity;                ///< that mismatches are counted by; empty: the field
  std::optional<OpRecord> record;      ///< of the left path: names op, step and seq
  std::optional<std::uint64_t> cycle;  ///< where known
  std::optional<std::uint64_t> last_beat_cycle;
  std::optional<std::uint16_t>
      state_op;  ///< whose stored state it is; `record`: after which completion
  std::optional<Consequence> consequence;  ///< of a difference of state with which it starts
};

/// Mismatches of one kind: of one pair of paths, in one quantity.
struct MismatchKind {
  [[nodiscard]] const std::string& quantity() const {
    return first.quantity.empty() ? first.field : first.quantity;
  }
  [[nodiscard]] bool is_like(const MismatchKind& other) const {
    return first.left == other.first.left && first.right == other.first.right &&
           quantity() == other.quantity();
  }
  std::uint64_t count = 0;
  Divergence first, last;
};

/// Adds a mismatch to its kind, as the last one.
void note(std::vector<MismatchKind>& kinds, Divergence divergence);
/// Adds the counts of others, which come after those that are there.
void merge(std::vector<MismatchKind>& kinds, const std::vector<MismatchKind>& others);

/// First differing pin of two cycles, records included; nullopt when equal.
[[nodiscard]] std::optional<Divergence> compare_cycles(const std::string& left_name,
                                                       const CycleOutput& left,
                                                       const std::string& right_name,
                                                       const CycleOutput& right,
                                                       std::uint64_t cycle);

/// First differing field of two records.
[[nodiscard]] std::optional<Divergence> compare_records(
    const std::string& left_name, const OpRecord& left, const TapCounts& left_counts,
    const std::string& right_name, const OpRecord& right, const TapCounts& right_counts);

/// Outcome of comparing two record streams keyed by seq.
struct RecordComparison {
  std::string left, right;
  std::uint64_t compared = 0;
  std::uint64_t events_compared = 0;
  std::uint64_t executions_compared = 0;
  std::uint64_t states_compared = 0;
  std::uint64_t mismatches = 0;
  std::optional<Divergence> first;
  std::vector<MismatchKind> kinds;
};

/// Records are matched by seq, which rises in either stream; one that the other stream lacks is a
/// mismatch of its own and does not disturb the rest.
[[nodiscard]] RecordComparison compare_streams(const std::string& left_name,
                                               std::span<const Completion> left,
                                               const std::string& right_name,
                                               std::span<const Completion> right);

/// Every field in which the stored states of an operator differ, after the completion of `where`.
[[nodiscard]] std::vector<Divergence> compare_states(const std::string& left_name,
                                                     const StoredState& left,
                                                     const std::string& right_name,
                                                     const StoredState& right, std::uint16_t op,
                                                     const Completion& where);

/// Outcome of comparing the events that two paths report.
struct EventComparison {
  std::uint64_t compared = 0;
  std::uint64_t mismatches = 0;
  std::optional<Divergence> first;  ///< without a record: an event has no seq
  std::vector<MismatchKind> kinds;
};

/// `left` and `right` in order. Of the events in `right` that are missing in `left` there must be
/// exactly `lost`, wherever they are: those found the event queue full.
[[nodiscard]] EventComparison compare_events(const std::string& left_name,
                                             std::span<const Event> left, std::uint32_t lost,
                                             const std::string& right_name,
                                             std::span<const Event> right);

/// "loss scale 2^-8, clip 2^-1, learning rate 6554/65536"; "none" while no hint is in force.
[[nodiscard]] std::string hints_text(const Hints& hints);

/// "step 7, op 3: FAST to STABLE, RISK, flags FORECAST, risk 128"
[[nodiscard]] std::string event_text(const Event& event);

/// "RISK|FORECAST"-style text of a flag word.
[[nodiscard]] std::string flags_text(std::uint16_t flags);

}  // namespace opd::tb
