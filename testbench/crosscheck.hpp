#pragma once
// Comparison of what two paths produced, down to the first difference.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "opd/types/device.hpp"

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

/// The first place where two paths differ.
struct Divergence {
  std::string left, right;  ///< path names
  std::string field;        ///< record field or pin
  std::string left_value, right_value;
  std::optional<OpRecord> record;      ///< of the left path: names op, step and seq
  std::optional<std::uint64_t> cycle;  ///< where known
  std::optional<std::uint64_t> last_beat_cycle;
};

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
  std::uint64_t mismatches = 0;
  std::optional<Divergence> first;
};

/// Records are matched by seq, which rises in either stream; one that the other stream lacks is a
/// mismatch of its own and does not disturb the rest.
[[nodiscard]] RecordComparison compare_streams(const std::string& left_name,
                                               std::span<const Completion> left,
                                               const std::string& right_name,
                                               std::span<const Completion> right);

/// Outcome of comparing the events that two paths report.
struct EventComparison {
  std::uint64_t compared = 0;
  std::uint64_t mismatches = 0;
  std::optional<Divergence> first;  ///< without a record: an event has no seq
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
