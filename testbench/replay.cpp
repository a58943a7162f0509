#include "replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>

#include "opd/trace/whole_file.hpp"
#include "operators.hpp"
#include "paths/cpu_path.hpp"
#include "paths/cuda_emulated_path.hpp"
#include "paths/cuda_path.hpp"
#include "paths/rtl_factory.hpp"
#include "paths/simulation.hpp"

namespace opd::tb {
namespace {

constexpr const char* kCudaDoesNotCompute = "operators are not computed there";
constexpr const char* kCudaTakesNoCommands =
    "a policy's commands come between steps, and it has none";

bool computes(std::string_view path) {
  return std::find(kComputingPaths.begin(), kComputingPaths.end(), path) != kComputingPaths.end();
}

/// The path of a fault in what it computes.
std::optional<std::string> computing_fault(const ReplayOptions& options) {
  if (!options.plant_fault || !options.plant_fault->starts_with(kComputeFault)) return std::nullopt;
  return options.plant_fault->substr(kComputeFault.size());
}

bool selected(const ReplayOptions& options, const std::string& path) {
  return std::find(options.paths.begin(), options.paths.end(), path) != options.paths.end();
}

/// The path whose configuration the planted fault is in.
std::optional<std::string> configured_fault(const ReplayOptions& options) {
  if (!options.plant_fault || computing_fault(options)) return std::nullopt;
  const bool state = options.plant_fault->starts_with(kStateFault);
  return options.plant_fault->substr(state ? kStateFault.size() : 0);
}

Config faulty_config(const ReplayOptions& options) {
  const bool state = options.plant_fault && options.plant_fault->starts_with(kStateFault);
  return state ? falsified_state(options.config) : falsified(options.config);
}

Config config_of(const ReplayOptions& options, const std::string& path) {
  return configured_fault(options) == path ? faulty_config(options) : options.config;
}

/// Tags by seq as the device saw them; completions that it dropped keep their seq.
std::vector<std::size_t> completion_order(const PathResult& device) {
  std::vector<std::size_t> order;
  for (const Completion& completion : device.completions) {
    order.resize(completion.record.seq, kUnseen);
    order.push_back(completion.tag);
  }
  return order;
}

void measure_reaction(const PathResult& device, TraceResult& result) {
  std::vector<double> tap, sideband;
  for (const Completion& completion : device.completions) {
    const auto cycles = static_cast<double>(completion.record_cycle - completion.last_beat_cycle);
    (completion.from_beats ? tap : sideband).push_back(cycles);
  }
  result.reaction_cycles = spread_of(std::move(tap));
  result.sideband_cycles = spread_of(std::move(sideband));
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
/// says how much later that is.
void put_first(RecordComparison& comparison, const std::vector<MismatchKind>& states,
               std::uint64_t completions_seen) {
  if (states.empty()) return;
  Divergence start = states.front().first;
  if (!comparison.first) {
    start.consequence.emplace();
  } else if (const Divergence& shown = *comparison.first; is_before(start, shown)) {
    const std::uint64_t last = shown.record ? std::uint64_t{shown.record->seq} : completions_seen;
    start.consequence = {.field = shown.field,
                         .completions = std::max(last, std::uint64_t{start.record->seq}) - start.record->seq,
                         .record = shown.record};
  }
  std::vector<MismatchKind> kinds = states;
  if (start.consequence) {
    kinds.front().first = start;
    if (kinds.front().count == 1) kinds.front().last = start;
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
void compare_stored_states(TraceResult& result, const LockstepResult& lockstep,
                           std::size_t completions_seen) {
  std::optional<std::uint64_t> fewest;
  const auto file = [&](RecordComparison& comparison, const std::vector<MismatchKind>& states,
                        std::uint64_t compared) {
    comparison.states_compared = compared;
    fewest = std::min(fewest.value_or(compared), compared);
    const std::uint64_t before = comparison.mismatches;
    put_first(comparison, states, completions_seen);
    result.mismatches += comparison.mismatches - before;
    note_earlier(result.divergence, comparison.first);
  };
  if (lockstep.states_compared > 0)
    file(comparison_of(result, "rtl", "systemc"), lockstep.state_kinds, lockstep.states_compared);
  const auto first =
      std::find_if(result.paths.begin(), result.paths.end(),
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
      for (Divergence& d : compare_states(first->path, first->states[i], other->path,
                                          other->states[place], l.record.op,
                                          l.record_cycle != 0 ? l : *r))
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
  std::stable_sort(result.kinds.begin(), result.kinds.end(),
                   [&](const MismatchKind& a, const MismatchKind& b) {
                     const auto place = [&](const MismatchKind& kind) {
                       const Divergence &d = kind.first, &first = *result.divergence;
                       const bool is_first = d.left == first.left && d.right == first.right &&
                                             d.field == first.field;
                       return std::pair(!is_first, d.record ? std::uint64_t{d.record->seq}
                                                            : std::uint64_t{1} << 32);
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

template <typename T>
void write_binary(const std::filesystem::path& file, const std::vector<T>& values) {
  trace::write_whole(file, std::as_bytes(std::span(values)));
}

void write_records(const std::filesystem::path& out, const TraceResult& result) {
  for (const PathResult& path : result.paths) {
    std::vector<OpRecord> records;
    records.reserve(path.completions.size());
    for (const Completion& completion : path.completions) records.push_back(completion.record);
    write_binary(out / fmt::format("{}.{}.records", result.name, path.path), records);
    if (path.path == "cpu") {
      write_binary(out / fmt::format("{}.baseline", result.name), path.baseline_log2);
      write_binary(out / fmt::format("{}.z", result.name), path.z);
    }
  }
}

/// A trace and its operators, read and checked.
struct Loaded {
  Loaded(const std::filesystem::path& path, const ReplayOptions& options)
      : file(path),
        trace(trace::Trace::read(path)),
        operators(trace, options.device.num_ops, options.compute.has_value()) {}
  std::filesystem::path file;
  trace::Trace trace;
  OperatorStream operators;
};

/// Results are filed by the trace's name: two traces of one name would overwrite each other.
std::vector<std::unique_ptr<Loaded>> load_all(const ReplayOptions& options) {
  std::vector<std::unique_ptr<Loaded>> loaded;
  for (const std::filesystem::path& file : options.traces) {
    auto next = std::make_unique<Loaded>(file, options);
    for (const auto& before : loaded) {
      if (before->trace.name() != next->trace.name()) continue;
      throw trace::TraceError(
          file.string(), "name",
          fmt::format("'{}' is also the name of {}", next->trace.name(), before->file.string()),
          "replay them one at a time or capture one under another --name");
    }
    loaded.push_back(std::move(next));
  }
  return loaded;
}

/// A path that cannot run here is reported; a replay without any path, or whose planted fault sits
/// in one, is refused.
void refuse_idle_replay(const ReplayOptions& options, const TraceResult& result) {
  std::string reasons;
  for (const auto& [path, reason] : result.skipped)
    reasons += fmt::format("; {}: {}", path, reason);
  if (result.paths.empty()) {
    throw std::runtime_error(fmt::format(
        "--paths: none of the chosen paths can run{}; choose rtl, systemc, systemc-lt or cpu",
        reasons));
  }
  if (!options.plant_fault || options.waveform) return;  // a waveform may end before the fault shows
  const std::optional<std::string> computing = computing_fault(options);
  const std::string faulty = computing ? *computing : *configured_fault(options);
  if (result.path(faulty) == nullptr) {
    throw std::runtime_error(
        fmt::format("--plant-fault {}: that path did not run{}; choose another",
                    *options.plant_fault, reasons));
  }
  if (computing && std::count_if(result.paths.begin(), result.paths.end(),
                                 [](const PathResult& p) { return computes(p.path); }) < 2) {
    throw std::runtime_error(
        fmt::format("--plant-fault {}: no second path that computes; add one of {} to --paths",
                    *options.plant_fault, fmt::join(kComputingPaths, ", ")));
  }
  if (result.paths.size() < 2 && faulty != "rtl") {
    throw std::runtime_error(
        fmt::format("--plant-fault {}: no second path to compare with; add one to --paths",
                    *options.plant_fault));
  }
  if (result.mismatches == 0 && options.plant_fault->starts_with(kStateFault)) {
    throw std::runtime_error(fmt::format(
        "--plant-fault {}: it does not act on {}: its operators have one usable sample each, or stand "
        "still; choose another trace",
        *options.plant_fault, result.name));
  }
  if (result.mismatches == 0)
    throw std::runtime_error(
        "--plant-fault: the fault was not found; the cross-check does not work");
}

/// Whether an incident is in the trace as well, not only in what was computed.
bool recorded(const trace::Trace& trace, const Incident& incident) {
  if (incident.op >= trace.probes().size()) return false;
  const auto steps = trace.steps();
  const auto step = std::lower_bound(steps.begin(), steps.end(), incident.step) - steps.begin();
  return trace.nonfinite(static_cast<std::size_t>(step), incident.op) > 0;
}

TraceResult replay_one(const ReplayOptions& options, const Loaded& loaded, Simulation* simulation,
                       const std::string& heading,
                       const std::function<void(const std::string&)>& progress) {
  const trace::Trace& trace = loaded.trace;
  const OperatorStream& operators = loaded.operators;
  TraceResult result{.file = loaded.file,
                     .name = trace.name(),
                     .label = std::string(trace.label_name()),
                     .raw = operators.raw_operators() + operators.computed_operators() > 0,
                     .steps = operators.steps(),
                     .probes = operators.probes(),
                     .raw_operators = operators.raw_operators(),
                     .statistic_operators = operators.size() - operators.raw_operators() -
                                            operators.computed_operators(),
                     .raw_bytes = operators.raw_bytes(),
                     .raw_elements = operators.raw_elements()};
  for (std::size_t op = 0; op < operators.ops(); ++op)
    result.probe_names.push_back(printable(operators.name_of(op)));
  for (std::size_t step = 0; step < operators.steps(); ++step) {
    if (operators.learning_rate_changes(step))
      result.learning_rate_changes.push_back(trace.steps()[step]);
  }
  progress(fmt::format("{} {}: {} steps, {} probes, {} operators, {:.1f} MB of raw elements",
                       heading, result.name, result.steps, result.probes, operators.size(),
                       static_cast<double>(result.raw_bytes) / 1e6));

  const ComputeOptions compute = options.compute.value_or(ComputeOptions{});
  const UnitSettings settings = unit_settings(options.device, compute);
  std::optional<OperandFault> fault;
  if (computing_fault(options)) fault = operand_fault(operators, settings);
  const auto fault_of = [&](std::string_view path) {
    return fault && *computing_fault(options) == path ? &*fault : nullptr;
  };
  if (operators.computes()) result.compute.emplace();
  std::optional<PolicyAnswers> answers;
  if (options.policy) answers.emplace(*options.policy, operators, options.config);
  PolicyAnswers* const policy = answers ? &*answers : nullptr;

  std::vector<std::size_t> order;
  LockstepResult lockstep;
  std::size_t completions_seen = 0;
  if (selected(options, "rtl") || selected(options, "systemc")) {
    std::optional<Waveform> waveform;
    if (options.waveform) waveform.emplace(*options.waveform);
    std::unique_ptr<PinDevice> rtl;
    if (selected(options, "rtl"))
      rtl = waveform ? make_traced_rtl_device(*waveform) : make_rtl_device();
    const auto on_progress = [&](std::size_t done) {
      progress(fmt::format("{} {}: lockstep {} of {} operators", heading, result.name, done,
                           operators.size()));
    };
    lockstep = simulation->run_lockstep(operators, rtl.get(), on_progress, fault_of("systemc"),
                                        policy,
                                        {.compare_state = options.compare_state,
                                         .waveform = waveform ? &*waveform : nullptr});
    order = completion_order(lockstep.systemc);
    completions_seen = lockstep.systemc.completions.size();
    measure_reaction(lockstep.systemc, result);
    result.beats_compared = lockstep.systemc.beats;
    result.cycles_compared = lockstep.cycles_compared;
    result.cycle_mismatches = lockstep.cycle_mismatches;
    result.mismatches += lockstep.cycle_mismatches;
    result.divergence = lockstep.divergence;
    if (rtl) result.paths.push_back(std::move(lockstep.rtl));
    if (selected(options, "systemc")) result.paths.push_back(std::move(lockstep.systemc));
  }
  if (order.empty() && operators.computes()) order = operators.program_order();
  if (selected(options, "systemc-lt")) {
    if (std::find(order.begin(), order.end(), kUnseen) == order.end()) {
      result.paths.push_back(
          simulation->run_loosely_timed(operators, order, fault_of("systemc-lt"), policy,
                                        options.compare_state));
    } else {
      result.skipped["systemc-lt"] =
          "the op queue overflowed; the loosely timed model has no queue to lose completions in";
    }
  }
  if (selected(options, "cpu")) {
    result.paths.push_back(run_cpu(operators, options.device, config_of(options, "cpu"), order,
                                   compute, fault_of("cpu"), policy, options.compare_state));
  }
  if (selected(options, "cuda")) {
    std::string reason;
    if (operators.computes()) {
      result.skipped["cuda"] = kCudaDoesNotCompute;
    } else if (policy != nullptr) {
      result.skipped["cuda"] = kCudaTakesNoCommands;
    } else if (cuda_available(&reason)) {
      result.paths.push_back(
          run_cuda(operators, options.device, config_of(options, "cuda"), order));
    } else {
      result.skipped["cuda"] = reason;
    }
  }
  if (selected(options, kCudaEmulated)) {
    std::string reason;
    if (operators.computes()) {
      result.skipped[kCudaEmulated] = kCudaDoesNotCompute;
    } else if (policy != nullptr) {
      result.skipped[kCudaEmulated] = kCudaTakesNoCommands;
    } else if (cuda_emulated_available(&reason)) {
      const auto on_batch = [&](std::size_t done, std::size_t count) {
        progress(fmt::format("{} {}: {}, step {} of {}", heading, result.name, kCudaEmulated,
                             done + 1, count));
      };
      result.paths.push_back(run_cuda_emulated(operators, options.device,
                                               config_of(options, kCudaEmulated), order, on_batch));
    } else {
      result.skipped[kCudaEmulated] = reason;
    }
  }
  if (result.paths.size() == 1) result.beats_compared = 0;
  compare_paths(result);
  compare_computing(operators, result);
  compare_hosts(result);
  file_pin_mismatch(result);
  if (options.compare_state) compare_stored_states(result, lockstep, completions_seen);
  collect_kinds(result);
  refuse_idle_replay(options, result);

  // Detection is judged on the records of one path: they are all the same, or the run has failed
  // already.
  result.quality = assess(operators, result.paths.front().completions, options.config,
                          options.policy != nullptr);
  result.modes = mode_shares(result.paths.front().completions);
  if (policy != nullptr) result.policy = {policy->counts(), policy->seconds()};
  if (result.quality.first && recorded(trace, *result.quality.first)) {
    result.sampled =
        detect_sampled(operators, *result.quality.first, options.device, options.config);
  }
  result.engines =
      compare_engines(operators, result.paths.front().completions,
                      result.quality.first ? std::optional(result.quality.first->op) : std::nullopt,
                      options.device, options.config);
  if (result.compute && !options.waveform) {
    const auto on_answers = [&](std::size_t done, std::size_t count) {
      progress(
          fmt::format("{} {}: modes of operator {} of {}", heading, result.name, done + 1, count));
    };
    const PathResult* computing = result.computing_path();
    ComputeResult answers = answer_compute(
        operators, result.paths.front(), computing == nullptr ? PathResult{} : *computing,
        result.quality.first ? std::optional(result.quality.first->op) : std::nullopt, settings,
        compute.force_mode, on_answers);
    answers.executions_compared = result.compute->executions_compared;
    answers.elements_compared = result.compute->elements_compared;
    result.compute = std::move(answers);
  }
  return result;
}

}  // namespace

const PathResult* TraceResult::host_path() const {
  const auto found = std::find_if(paths.begin(), paths.end(),
                                  [](const PathResult& p) { return p.host.has_value(); });
  return found == paths.end() ? nullptr : &*found;
}

const PathResult* TraceResult::path(const std::string& wanted) const {
  const auto found = std::find_if(paths.begin(), paths.end(),
                                  [&](const PathResult& p) { return p.path == wanted; });
  return found == paths.end() ? nullptr : &*found;
}

const PathResult* TraceResult::computing_path() const {
  const auto found = std::find_if(paths.begin(), paths.end(),
                                  [](const PathResult& p) { return !p.executions.empty(); });
  return found == paths.end() ? nullptr : &*found;
}

Verdict verdict_of(const ReplayOptions& options, const TraceResult& result) {
  if (result.mismatches > 0) return Verdict::kMismatch;
  if (options.paths_by_name && !result.skipped.empty()) return Verdict::kPathMissing;
  return result.compared() ? Verdict::kEqual : Verdict::kNothingCompared;
}

Verdict verdict_of(const ReplayOptions& options, const std::vector<TraceResult>& results) {
  Verdict worst = results.empty() ? Verdict::kNothingCompared : Verdict::kEqual;
  for (const TraceResult& result : results) worst = std::max(worst, verdict_of(options, result));
  return worst;
}

std::uint32_t TraceResult::unseen() const {
  std::uint32_t most = 0;
  for (const PathResult& path : paths) most = std::max(most, path.unseen_count);
  return most;
}

std::string printable(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return result;
}

Config falsified(Config config) {
  config.baseline_warmup_samples = config.baseline_warmup_samples == 0 ? 1 : 0;
  return config;
}

Config falsified_state(Config config) {
  config.baseline_shift =
      static_cast<std::uint8_t>(config.baseline_shift == 1 ? 2 : config.baseline_shift - 1);
  return config;
}

std::vector<MismatchSummary> mismatch_kinds(const std::vector<TraceResult>& results) {
  std::vector<MismatchKind> kinds;
  for (const TraceResult& result : results) merge(kinds, result.kinds);
  std::vector<MismatchSummary> summaries;
  for (const MismatchKind& kind : kinds) {
    MismatchSummary& summary = summaries.emplace_back(MismatchSummary{.kind = kind});
    for (const TraceResult& result : results) {
      const bool has = std::any_of(
          result.kinds.begin(), result.kinds.end(), [&](const MismatchKind& k) {
            return k.first.left == kind.first.left && k.first.right == kind.first.right &&
                   k.quantity() == kind.quantity();
          });
      if (!has) continue;
      ++summary.traces;
      if (summary.first == nullptr) summary.first = &result;
      summary.last = &result;
    }
  }
  return summaries;
}

std::vector<TraceResult> replay(const ReplayOptions& options,
                                const std::function<void(const std::string&)>& progress) {
  for (const auto& [path, available] :
       {std::pair{"cuda", &cuda_available}, std::pair{kCudaEmulated, &cuda_emulated_available}}) {
    if (!options.paths_by_name || !selected(options, path)) continue;
    if (options.compute) {
      throw std::runtime_error(fmt::format("--paths {}: {}; leave it out, or drop --compute", path,
                                           kCudaDoesNotCompute));
    }
    if (options.policy) {
      throw std::runtime_error(fmt::format("--paths {}: {}; leave it out, or drop --policy", path,
                                           kCudaTakesNoCommands));
    }
    if (std::string reason; !available(&reason)) {
      throw std::runtime_error(
          fmt::format("--paths {}: cannot run here ({}); leave it out", path, reason));
    }
  }
  const std::vector<std::unique_ptr<Loaded>> traces = load_all(options);
  std::unique_ptr<Simulation> simulation;
  const auto needs_simulation = [](const std::string& p) {
    return p != "cpu" && p != "cuda" && p != kCudaEmulated;
  };
  if (std::any_of(options.paths.begin(), options.paths.end(), needs_simulation)) {
    simulation = std::make_unique<Simulation>(
        SimulationOptions{.device = options.device,
                          .config = options.config,
                          .faulty_config = faulty_config(options),
                          .plant_fault = configured_fault(options),
                          .compute = options.compute.value_or(ComputeOptions{}),
                          .lane_latency = options.lane_latency,
                          .bubbles = options.bubbles,
                          .streams = options.streams});
  }
  std::vector<TraceResult> results;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    const std::string heading = fmt::format("[{}/{}]", i + 1, traces.size());
    results.push_back(replay_one(options, *traces[i], simulation.get(), heading, progress));
  }
  if (!options.out.empty() && !options.waveform) {
    for (const TraceResult& result : results) write_records(options.out, result);
  }
  return results;
}

std::string describe(const Divergence& d, const std::vector<std::string>& probe_names) {
  const auto operator_text = [&](std::uint16_t op) {
    return fmt::format("op {} ({})", op, op < probe_names.size() ? probe_names[op] : "unknown");
  };
  std::string text;
  if (d.record) {
    text = fmt::format("{}, step {}, seq {}: ", operator_text(d.state_op.value_or(d.record->op)),
                       d.record->step, d.record->seq);
  }
  text +=
      fmt::format("{}: {} = {}, {} = {}", d.field, d.left, d.left_value, d.right, d.right_value);
  if (d.cycle) text += fmt::format("; cycle {}", *d.cycle);
  if (d.last_beat_cycle) text += fmt::format(", last beat at cycle {}", *d.last_beat_cycle);
  if (d.state_op && d.record && *d.state_op != d.record->op)
    text += fmt::format("; after a completion of {}", operator_text(d.record->op));
  if (!d.consequence) return text;
  const Consequence& shown = *d.consequence;
  if (shown.field.empty()) return text + "; no record, event or pin of this run shows it";
  text += shown.completions == 0
              ? fmt::format("; shown at once by {}", shown.field)
              : fmt::format("; shown {} completion{} later by {}", shown.completions,
                            shown.completions == 1 ? "" : "s", shown.field);
  if (shown.record) {
    text += fmt::format(" of {}, step {}, seq {}", operator_text(shown.record->op),
                        shown.record->step, shown.record->seq);
  }
  return text;
}

}  // namespace opd::tb
