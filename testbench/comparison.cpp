#include "comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

namespace opd::tb {
namespace {

std::string operator_text(std::uint16_t op, const std::vector<std::string>& probe_names) {
  return fmt::format("op {} ({})", op, op < probe_names.size() ? probe_names[op] : "unknown");
}

/// The comparison of two paths, whichever is left; a new one where there is none.
RecordComparison& comparison_of(TraceResult& result, const std::string& left,
                                const std::string& right) {
  for (RecordComparison& c : result.comparisons) {
    if ((c.left == left && c.right == right) || (c.left == right && c.right == left)) return c;
  }
  return result.comparisons.emplace_back(RecordComparison{.left = left, .right = right});
}

void compare_paths(TraceResult& result) {
  if (result.paths.size() < 2) return;
  const PathResult& first = result.paths.front();
  result.records_compared = first.completions.size();
  // A divergence stops the lockstep run: what the other paths did after it has no counterpart.
  std::size_t equal = std::numeric_limits<std::size_t>::max();
  if (result.cycle_mismatches > 0) {
    for (const PathResult& path : result.paths) equal = std::min(equal, path.completions.size());
    if (result.divergence->record)
      equal = std::min(equal, std::size_t{result.divergence->record->seq});
  }
  const auto comparable = [&](const PathResult& path) {
    return std::span<const Completion>(path.completions)
        .first(std::min(equal, path.completions.size()));
  };
  for (std::size_t i = 1; i < result.paths.size(); ++i) {
    const PathResult& other = result.paths[i];
    RecordComparison comparison =
        compare_streams(first.path, comparable(first), other.path, comparable(other));
    result.records_compared = std::min(result.records_compared, comparison.compared);
    result.mismatches += comparison.mismatches;
    if (comparison.first && !result.divergence) result.divergence = comparison.first;
    RecordComparison& filed = comparison_of(result, first.path, other.path);
    filed.compared = comparison.compared;
    filed.mismatches += comparison.mismatches;
    merge(filed.kinds, comparison.kinds);
    if (!filed.first) filed.first = std::move(comparison.first);
  }
}

/// Whether it comes before a mismatch of records or pins. Flags and mode of a record follow from the
/// state before it: at the same completion it is the record that is first.
bool is_before(const Divergence& state, const Divergence& other) {
  if (!other.record && !other.cycle) return true;  // seen by the host when all was over
  if (other.record && !other.state_op) return state.record->seq < other.record->seq;
  return other.cycle && state.cycle && *state.cycle < *other.cycle;
}

/// A difference of state that comes before the first mismatch of records or pins is the first, and
/// says how much later that is; that nothing shows it, unless the run was stopped before its end.
void put_first(RecordComparison& comparison, const std::vector<MismatchKind>& states,
               std::uint64_t completions_seen, bool stopped) {
  if (states.empty()) return;
  Divergence start = states.front().first;
  bool is_first = !comparison.first;
  if (is_first) {
    if (!stopped) start.consequence.emplace();
  } else if (const Divergence& shown = *comparison.first; is_before(start, shown)) {
    is_first = true;
    const std::uint64_t last = shown.record ? std::uint64_t{shown.record->seq} : completions_seen;
    start.consequence = {
        .field = shown.field,
        .completions = std::max(last, std::uint64_t{start.record->seq}) - start.record->seq,
        .record = shown.record};
  }
  std::vector<MismatchKind> kinds = states;
  if (is_first) {
    kinds.front().first = start;
    comparison.first = start;
    merge(kinds, comparison.kinds);
    comparison.kinds = std::move(kinds);
  } else {
    merge(comparison.kinds, kinds);
  }
  for (const MismatchKind& kind : states) comparison.mismatches += kind.count;
}

/// The earlier of the divergence of the trace and that of a comparison: by seq, else as it is.
void note_earlier(std::optional<Divergence>& earliest, const std::optional<Divergence>& found) {
  if (!found) return;
  if (!earliest) earliest = found;
  const auto& [a, b] = std::pair(*earliest, *found);
  if (a.record && b.record ? b.record->seq < a.record->seq : b.state_op && is_before(b, a))
    earliest = found;
}

/// What the paths store, after each completion: each against the first, where both keep it. Rtl and
/// systemc have been compared in lockstep, all words of theirs.
void compare_stored_states(TraceResult& result, const LockstepResult& lockstep) {
  std::optional<std::uint64_t> fewest;
  const auto file = [&](RecordComparison& comparison, const std::vector<MismatchKind>& states,
                        std::uint64_t compared) {
    comparison.states_compared = compared;
    fewest = std::min(fewest.value_or(compared), compared);
    const std::uint64_t before = comparison.mismatches;
    put_first(comparison, states, lockstep.completions, result.cycle_mismatches > 0);
    result.mismatches += comparison.mismatches - before;
    note_earlier(result.divergence, comparison.first);
  };
  if (lockstep.states_compared > 0)
    file(comparison_of(result, "rtl", "systemc"), lockstep.state_kinds, lockstep.states_compared);
  const auto first = std::find_if(result.paths.begin(), result.paths.end(),
                                  [](const PathResult& path) { return !path.states.empty(); });
  for (auto other = first; other != result.paths.end(); ++other) {
    if (other == first || other->states.empty()) continue;
    if (first->path == "rtl" && other->path == "systemc") continue;
    std::vector<MismatchKind> kinds;
    std::uint64_t compared = 0;
    auto r = other->completions.begin();
    for (std::size_t i = 0; i < first->states.size(); ++i) {
      const Completion& l = first->completions[i];
      while (r != other->completions.end() && r->record.seq < l.record.seq) ++r;
      if (r == other->completions.end()) break;
      if (r->record.seq != l.record.seq) continue;
      ++compared;
      const auto place = static_cast<std::size_t>(r - other->completions.begin());
      for (Divergence& d :
           compare_states(first->path, first->states[i], other->path, other->states[place],
                          l.record.op, l.record_cycle != 0 ? l : *r))
        note(kinds, std::move(d));
    }
    file(comparison_of(result, first->path, other->path), kinds, compared);
  }
  result.states_compared = fewest.value_or(0);
}

/// All kinds of all pairs, by where they begin.
void collect_kinds(TraceResult& result) {
  for (const RecordComparison& comparison : result.comparisons)
    merge(result.kinds, comparison.kinds);
  std::stable_sort(
      result.kinds.begin(), result.kinds.end(), [&](const MismatchKind& a, const MismatchKind& b) {
        const auto place = [&](const MismatchKind& kind) {
          const Divergence &d = kind.first, &first = *result.divergence;
          const bool is_first =
              d.left == first.left && d.right == first.right && d.field == first.field;
          return std::pair(!is_first,
                           d.record ? std::uint64_t{d.record->seq} : std::uint64_t{1} << 32);
        };
        return place(a) < place(b);
      });
}

/// What the paths computed, each against the first that computes. A difference comes before that of
/// the record of the same execution, which follows from it.
void compare_computing(const OperatorStream& operators, TraceResult& result) {
  const PathResult* first = result.computing_path();
  if (first == nullptr) return;
  std::optional<ExecutionComparison> fewest;
  const auto note = [](std::optional<Divergence>& earliest, const Divergence& found) {
    const bool pins = earliest && !earliest->record;
    if (!earliest || (!pins && found.record->seq <= earliest->record->seq)) earliest = found;
  };
  const bool may_lack = result.cycle_mismatches > 0 || result.unseen() > 0;
  for (const PathResult& path : result.paths) {
    if (&path == first || !computes(path.path)) continue;
    ExecutionComparison executions = compare_executions(operators, *first, path, may_lack);
    if (!fewest || executions.compared < fewest->compared) fewest = executions;
    RecordComparison& comparison = comparison_of(result, first->path, path.path);
    comparison.executions_compared = executions.compared;
    comparison.mismatches += executions.mismatches;
    merge(comparison.kinds, executions.kinds);
    result.mismatches += executions.mismatches;
    if (!executions.first) continue;
    note(comparison.first, *executions.first);
    if (result.cycle_mismatches == 0) note(result.divergence, *executions.first);
  }
  if (fewest) {
    result.compute->executions_compared = fewest->compared;
    result.compute->elements_compared = fewest->elements;
  }
}

/// A mismatch of pins is filed with the comparison of rtl and systemc: their records up to there are
/// equal, the two are not.
void file_pin_mismatch(TraceResult& result) {
  if (result.cycle_mismatches == 0) return;
  auto pair = std::find_if(
      result.comparisons.begin(), result.comparisons.end(),
      [](const RecordComparison& c) { return c.left == "rtl" && c.right == "systemc"; });
  if (pair == result.comparisons.end()) {
    pair =
        result.comparisons.insert(result.comparisons.begin(), {.left = "rtl", .right = "systemc"});
  }
  pair->mismatches += result.cycle_mismatches;
  note(pair->kinds, *result.divergence);
  if (!pair->first) pair->first = result.divergence;
}

/// Events one by one, and hints, mode counts and last clean step at the end of the run: what the
/// driver read of each device against what the reference derives, or where the reference did not
/// run, against the first device.
void compare_hosts(TraceResult& result) {
  if (result.cycle_mismatches > 0) return;  // the run was stopped
  const PathResult* base = result.path("cpu");
  if (base == nullptr) base = result.host_path();
  if (base == nullptr) return;
  std::optional<std::uint64_t> fewest;
  const auto note = [&](RecordComparison& comparison, Divergence divergence) {
    ++comparison.mismatches;
    ++result.mismatches;
    tb::note(comparison.kinds, divergence);
    if (!comparison.first) comparison.first = divergence;
    if (!result.divergence) result.divergence = std::move(divergence);
  };
  for (const PathResult& path : result.paths) {
    if (&path == base || !path.host) continue;
    const HostView &seen = *path.host, &expected = *base->host;
    if (expected.events_lost > 0) continue;  // a device that lost events is no yardstick
    RecordComparison* const comparison = &comparison_of(result, path.path, base->path);
    EventComparison events =
        compare_events(path.path, seen.events, seen.events_lost, base->path, expected.events);
    comparison->events_compared = events.compared;
    fewest = std::min(fewest.value_or(events.compared), events.compared);
    if (events.first) {
      comparison->mismatches += events.mismatches;
      result.mismatches += events.mismatches;
      merge(comparison->kinds, events.kinds);
      if (!comparison->first) comparison->first = events.first;
      if (!result.divergence) result.divergence = std::move(events.first);
    }
    const auto same = [&](const char* field, const std::string& l, const std::string& r) {
      if (l == r) return;
      note(*comparison, Divergence{.left = path.path,
                                   .right = base->path,
                                   .field = field,
                                   .left_value = l,
                                   .right_value = r});
    };
    same("hints", hints_text(seen.hints), hints_text(expected.hints));
    const auto counts = [](const driver::ModeCounts& c) {
      return fmt::format("{} STABLE, {} SAFE", c.stable, c.safe);
    };
    same("mode counts", counts(seen.mode_counts), counts(expected.mode_counts));
    const auto step = [](const std::optional<std::uint32_t>& s) {
      return s ? std::to_string(*s) : std::string("none");
    };
    same("last clean step", step(seen.last_clean_step), step(expected.last_clean_step));
  }
  result.events_compared = fewest.value_or(0);
}

}  // namespace

bool computes(std::string_view path) {
  return std::find(kComputingPaths.begin(), kComputingPaths.end(), path) != kComputingPaths.end();
}

void compare_results(const OperatorStream& operators, const LockstepResult& lockstep,
                     bool compare_state, TraceResult& result) {
  compare_paths(result);
  compare_computing(operators, result);
  compare_hosts(result);
  file_pin_mismatch(result);
  if (compare_state) compare_stored_states(result, lockstep);
  collect_kinds(result);
}

std::vector<MismatchSummary> mismatch_kinds(const std::vector<TraceResult>& results) {
  std::vector<MismatchKind> kinds;
  for (const TraceResult& result : results) merge(kinds, result.kinds);
  std::vector<MismatchSummary> summaries;
  for (const MismatchKind& kind : kinds) {
    MismatchSummary& summary = summaries.emplace_back(MismatchSummary{.kind = kind});
    for (const TraceResult& result : results) {
      const auto own = std::find_if(result.kinds.begin(), result.kinds.end(),
                                    [&](const MismatchKind& k) { return k.is_like(kind); });
      if (own == result.kinds.end()) continue;
      const auto& consequence = own->first.consequence;
      if (summary.shown == nullptr && consequence && !consequence->field.empty()) {
        summary.shown = &result;
        summary.shown_start = &own->first;
      }
      ++summary.traces;
      if (summary.first == nullptr) summary.first = &result;
      summary.last = &result;
    }
  }
  return summaries;
}

std::string describe(const Consequence& shown, const std::vector<std::string>& probe_names) {
  if (shown.field.empty()) return "no record, event or pin of this run shows it";
  std::string text = "shown at once";
  if (shown.completions > 0) {
    text = fmt::format("shown {} completion{} later", shown.completions,
                       shown.completions == 1 ? "" : "s");
  }
  text += fmt::format(" by {}", shown.field);
  if (shown.record) {
    text += fmt::format(" of {}, step {}, seq {}", operator_text(shown.record->op, probe_names),
                        shown.record->step, shown.record->seq);
  }
  return text;
}

std::string describe(const Divergence& d, const std::vector<std::string>& probe_names) {
  std::string text;
  if (d.record) {
    text = fmt::format(
        "{}, step {}, seq {}: ", operator_text(d.state_op.value_or(d.record->op), probe_names),
        d.record->step, d.record->seq);
  }
  text +=
      fmt::format("{}: {} = {}, {} = {}", d.field, d.left, d.left_value, d.right, d.right_value);
  if (d.cycle) text += fmt::format("; cycle {}", *d.cycle);
  if (d.last_beat_cycle) text += fmt::format(", last beat at cycle {}", *d.last_beat_cycle);
  if (d.state_op && d.record && *d.state_op != d.record->op)
    text += fmt::format("; after a completion of {}", operator_text(d.record->op, probe_names));
  if (d.consequence) text += "; " + describe(*d.consequence, probe_names);
  return text;
}

}  // namespace opd::tb
