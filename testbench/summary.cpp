#include "summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <numeric>

#include "compute_summary.hpp"
#include "paths/cuda_emulated_path.hpp"

namespace opd::tb {
namespace {

using nlohmann::ordered_json;

ordered_json spread_json(const std::optional<Spread>& s) {
  if (!s) return nullptr;
  return {{"minimum", s->minimum}, {"median", s->median}, {"p99", s->p99}, {"maximum", s->maximum}};
}

/// The same for counts of cycles: integers.
ordered_json cycles_json(const std::optional<Spread>& s) {
  if (!s) return nullptr;
  const auto whole = [](double cycles) { return static_cast<std::uint64_t>(cycles); };
  return {{"minimum", whole(s->minimum)},
          {"median", whole(s->median)},
          {"p99", whole(s->p99)},
          {"maximum", whole(s->maximum)}};
}

std::string probe_name(const TraceResult& result, std::uint16_t op) {
  return op < result.probe_names.size() ? result.probe_names[op] : fmt::format("op {}", op);
}

ordered_json incident_json(const TraceResult& result, const Incident& incident) {
  return {{"op", incident.op},
          {"probe", probe_name(result, incident.op)},
          {"step", incident.step},
          {"lead_steps", incident.lead_steps},
          {"first_alarm_step",
           incident.first_alarm ? ordered_json(*incident.first_alarm) : ordered_json()},
          {"mode_before", kModeNames[static_cast<std::size_t>(incident.mode_before)]}};
}

/// Where a difference of stored state became visible; null: nowhere in this run.
ordered_json consequence_json(const TraceResult& result, const Consequence& shown) {
  if (shown.field.empty()) return nullptr;
  ordered_json json{{"field", shown.field}, {"completions", shown.completions}};
  if (shown.record) {
    json["op"] = shown.record->op;
    json["probe"] = probe_name(result, shown.record->op);
    json["step"] = shown.record->step;
    json["seq"] = shown.record->seq;
  }
  return json;
}

ordered_json divergence_json(const TraceResult& result, const Divergence& d) {
  ordered_json json{{"paths", {d.left, d.right}},
                    {"field", d.field},
                    {"values", {d.left_value, d.right_value}},
                    {"text", describe(d, result.probe_names)}};
  if (d.record) {
    const std::uint16_t op = d.state_op.value_or(d.record->op);
    json["op"] = op;
    json["probe"] = probe_name(result, op);
    json["step"] = d.record->step;
    json["seq"] = d.record->seq;
  }
  if (d.consequence) json["shown"] = consequence_json(result, *d.consequence);
  if (d.cycle) json["cycle"] = *d.cycle;
  if (d.last_beat_cycle) json["last_beat_cycle"] = *d.last_beat_cycle;
  return json;
}

/// Mismatches by path pair and quantity, each with its first and last place.
ordered_json mismatch_kinds_json(const std::vector<TraceResult>& results) {
  ordered_json json = ordered_json::array();
  const auto place = [](const TraceResult& result, const Divergence& d) {
    ordered_json object{{"trace", result.name}};
    object.update(divergence_json(result, d));
    return object;
  };
  for (const MismatchSummary& s : mismatch_kinds(results)) {
    json.push_back({{"paths", {s.kind.first.left, s.kind.first.right}},
                    {"quantity", s.kind.quantity()},
                    {"count", s.kind.count},
                    {"traces", s.traces},
                    {"first", place(*s.first, s.kind.first)},
                    {"last", place(*s.last, s.kind.last)}});
  }
  return json;
}

/// By the names of the modes.
ordered_json by_mode_json(const std::array<std::uint64_t, kModeNames.size()>& counts) {
  ordered_json json;
  for (std::size_t mode = 0; mode < counts.size(); ++mode)
    json[std::string(kModeNames[mode])] = counts[mode];
  return json;
}

/// Reaction and overhead of one path (docs/metrics.md). Every figure says how it came about.
ordered_json path_json(const ReplayOptions& options, const TraceResult& result,
                       const PathResult& path) {
  ordered_json json{{"path", path.path},
                    {"ran", true},
                    {"records", path.completions.size()},
                    {"unseen", path.unseen_count},
                    {"seconds", path.seconds}};
  if (path.host) {
    json["events"] = path.host->events.size();
    json["events_lost"] = path.host->events_lost;
  }
  if (path.path == "rtl" || path.path == "systemc") {
    json["reaction"] = {{"basis", "counted"},
                        {"cycles", cycles_json(result.reaction_cycles)},
                        {"sideband_cycles", cycles_json(result.sideband_cycles)}};
    json["cycles"] = path.cycles;
    json["beats"] = path.beats;
    json["sideband_wait_cycles"] = path.sideband_wait_cycles;
    if (path.host) {
      json["queue_high_water"] = path.host->counters.queue_high_water;
      json["event_high_water"] = path.host->counters.event_high_water;
      json["upsets"] = path.host->counters.upsets;
    }
    // Elements that are replayed are those of the trace, whatever the mode.
    json["operators_issued_in_mode"] = by_mode_json(mode_shares(path.completions).issued);
    json["extra_element_bytes"] = 0;
    json["extra_operations"] = 0;
    const std::uint64_t through_tap =
        result.raw_operators + (result.compute ? result.compute->executions : 0);
    const double beats_per_operator =
        through_tap == 0 ? 0.0 : static_cast<double>(path.beats) / static_cast<double>(through_tap);
    json["energy"] = {
        {"basis", "modelled"},
        {"picojoule_per_beat", TapModel::picojoule_per_beat(options.device.datapath_width)},
        {"nanojoule_per_operator",
         beats_per_operator * TapModel::picojoule_per_beat(options.device.datapath_width) / 1000}};
  } else if (path.path == "systemc-lt") {
    json["reaction"] = {{"basis", "annotated"}};
    json["extra_element_bytes"] = 0;
  } else if (path.path == kCudaEmulated) {
    json["reaction"] = {{"basis", "emulated"}};
    json["extra_element_bytes"] = path.bytes_read;
    json["extra_operations"] = result.raw_elements * TapModel::kOperationsPerElement;
  } else {
    json["reaction"] = {
        {"basis", "measured"},
        {"nanoseconds", spread_json(spread_of(path.reaction_ns))},
        {"statistic_nanoseconds", spread_json(spread_of(path.statistic_reaction_ns))}};
    json["extra_element_bytes"] = path.bytes_read;
    json["extra_operations"] = result.raw_elements * TapModel::kOperationsPerElement;
    json["microseconds_per_step"] =
        result.steps == 0 ? 0.0 : path.seconds * 1e6 / static_cast<double>(result.steps);
  }
  return json;
}

/// Bytes of an operator's output in the middle of the raw ones: what a software monitor must read
/// again.
double mean_raw_bytes(const TraceResult& result) {
  return result.raw_operators == 0
             ? 0.0
             : static_cast<double>(result.raw_bytes) / static_cast<double>(result.raw_operators);
}

ordered_json modelled_gpu_json(const TraceResult& result) {
  const GpuModel gpu;
  const double bytes = mean_raw_bytes(result);
  const ordered_json assumptions = {{"launch_and_synchronise_us", gpu.launch_and_synchronise_us},
                                    {"host_decision_us", gpu.host_decision_us},
                                    {"register_write_us", gpu.register_write_us},
                                    {"bandwidth_bytes_per_us", gpu.bandwidth_bytes_per_us},
                                    {"bytes_per_operator", bytes}};
  return {{"path", "cuda"},
          {"ran", false},
          {"reaction",
           {{"basis", "modelled"},
            {"nanoseconds", gpu.reaction_us(bytes) * 1000},
            {"assumptions", assumptions}}},
          {"extra_element_bytes", result.raw_bytes},
          {"extra_operations", result.raw_elements * TapModel::kOperationsPerElement},
          {"energy",
           {{"basis", "modelled"},
            {"nanojoule_per_operator", bytes * 8 * TapModel::kReadPicojoulePerBit / 1000}}}};
}

std::string_view mode_name(Mode mode) { return kModeNames[static_cast<std::size_t>(mode)]; }

ordered_json engines_json(const TraceResult& result) {
  ordered_json json = ordered_json::array();
  for (const EngineDetection& e : result.engines) {
    const bool published = e.name == kProfileNames[1];
    ordered_json engine{
        {"name", e.name},
        {"order",
         published ? ordered_json(kOrderNames[static_cast<std::size_t>(e.order)]) : ordered_json()},
        {"records_flagged", e.flagged},
        {"alarms", e.alarms},
        {"alarms_per_1000", e.alarms_per_1000()},
        {"downshifts", e.downshifts}};
    engine["lead_steps"] = e.incident ? ordered_json(e.incident->lead_steps) : ordered_json();
    engine["mode_before"] =
        e.incident ? ordered_json(mode_name(e.incident->mode_before)) : ordered_json();
    engine["largest_z"] = ordered_json();
    if (e.largest_z) {
      engine["largest_z"] = {{"z", e.largest_z->z},
                             {"op", e.largest_z->op},
                             {"probe", probe_name(result, e.largest_z->op)},
                             {"step", e.largest_z->step}};
    }
    json.push_back(std::move(engine));
  }
  return json;
}

ordered_json factors_json(const driver::TrainingSettings& factors) {
  return {{"loss_scale", factors.loss_scale},
          {"clip_threshold", factors.clip_threshold},
          {"learning_rate", factors.learning_rate}};
}

/// What the host's driver read, or where neither device ran, what the reference says it would have.
ordered_json host_json(const TraceResult& result) {
  const PathResult* path = result.host_path();
  if (path == nullptr) return nullptr;
  const HostView& host = *path->host;
  ordered_json json{{"path", path->path}, {"events_lost", host.events_lost}};
  json["events"] = ordered_json::array();
  for (const Event& e : host.events) {
    json["events"].push_back({{"step", e.step},
                              {"op", e.op},
                              {"old_mode", mode_name(e.old_mode)},
                              {"new_mode", mode_name(e.new_mode)},
                              {"cause", kCauseNames[static_cast<std::size_t>(e.cause)]},
                              {"flags", e.flags},
                              {"risk", e.risk}});
  }
  json["hints"] = ordered_json::array();
  for (const HintChange& change : host.hint_changes) {
    json["hints"].push_back({{"step", change.step}, {"factors", factors_json(change.factors)}});
  }
  json["stable_ops"] = host.mode_counts.stable;
  json["safe_ops"] = host.mode_counts.safe;
  json["last_clean_step"] =
      host.last_clean_step ? ordered_json(*host.last_clean_step) : ordered_json();
  json["learning_rate_changes"] = result.learning_rate_changes;
  return json;
}

ordered_json modes_json(const ModeShares& modes) {
  return {{"issued", by_mode_json(modes.issued)},
          {"outside_fast", modes.outside_fast()},
          {"incidents", by_mode_json(modes.incidents)}};
}

/// What the policy did in a trace; null without one.
ordered_json policy_json(const std::optional<PolicyOutcome>& policy) {
  if (!policy) return nullptr;
  ordered_json commands;
  for (std::size_t i = 0; i < kHostCommandNames.size(); ++i)
    commands[std::string(kHostCommandNames[i])] = policy->commands[i];
  return {{"commands", commands}, {"seconds", policy->seconds}};
}

ordered_json trace_json(const ReplayOptions& options, const TraceResult& result) {
  ordered_json json{{"name", result.name},
                    {"file", result.file.filename().string()},
                    {"label", result.label},
                    {"kind", result.raw ? "raw" : "statistics"},
                    {"steps", result.steps},
                    {"probes", result.probes},
                    {"operators_raw", result.raw_operators},
                    {"operators_statistic", result.statistic_operators},
                    {"raw_bytes", result.raw_bytes}};
  json["paths"] = ordered_json::array();
  for (const PathResult& path : result.paths) json["paths"].push_back(path.path);
  json["paths_skipped"] = result.skipped;
  json["records_compared"] = result.records_compared;
  json["beats_compared"] = result.beats_compared;
  json["cycles_compared"] = result.cycles_compared;
  json["events_compared"] = result.events_compared;
  json["states_compared"] =
      result.states_compared ? ordered_json(*result.states_compared) : ordered_json();
  json["mismatches"] = result.mismatches;
  json["verdict"] = kVerdictNames[static_cast<std::size_t>(verdict_of(options, result))];
  json["comparisons"] = ordered_json::array();
  for (const RecordComparison& c : result.comparisons) {
    json["comparisons"].push_back({{"left", c.left},
                                   {"right", c.right},
                                   {"records", c.compared},
                                   {"events", c.events_compared},
                                   {"executions", c.executions_compared},
                                   {"states", c.states_compared},
                                   {"mismatches", c.mismatches}});
  }
  if (result.divergence) json["first_divergence"] = divergence_json(result, *result.divergence);
  if (!result.waveform.empty()) {
    json["waveform"] = result.waveform;
    json["waveform_view"] = result.waveform_view;
  }

  const DetectionQuality& q = result.quality;
  json["lead_steps"] = q.first ? ordered_json(q.first->lead_steps) : ordered_json();
  json["first_incident"] = q.first ? incident_json(result, *q.first) : ordered_json();
  json["incidents"] = ordered_json::array();
  for (const Incident& incident : q.incidents)
    json["incidents"].push_back(incident_json(result, incident));
  json["detection"] = {{"probe_steps", q.probe_steps},
                       {"alarms", q.alarms},
                       {"alarms_per_1000", q.alarms_per_1000()},
                       {"records_with_alarm_flags", q.flagged},
                       {"downshifts", q.downshifts}};
  ordered_json flags;
  for (std::size_t i = 0; i < kFlagNames.size(); ++i)
    flags[std::string(kFlagNames[i])] = q.flag_counts[i];
  json["detection"]["flags"] = flags;
  json["modes"] = modes_json(result.modes);
  json["policy"] = policy_json(result.policy);
  json["compute"] = compute_json(options, result);
  json["engines"] = engines_json(result);
  json["host"] = host_json(result);
  json["lead_when_sampled"] = ordered_json::array();
  for (const SampledDetection& s : result.sampled) {
    json["lead_when_sampled"].push_back(
        {{"every", s.every}, {"lead_steps", s.lead_steps}, {"alarms_per_1000", s.alarms_per_1000}});
  }
  json["reaction_cycles"] =
      result.reaction_cycles
          ? ordered_json(static_cast<std::uint64_t>(result.reaction_cycles->maximum))
          : ordered_json();
  json["reaction_and_overhead"] = ordered_json::array();
  for (const PathResult& path : result.paths)
    json["reaction_and_overhead"].push_back(path_json(options, result, path));
  if (result.path("cuda") == nullptr && result.raw_operators > 0) {
    json["reaction_and_overhead"].push_back(modelled_gpu_json(result));
  }
  return json;
}

/// Area, state and critical path of the RTL as scripts/synth found them; null when the file is gone
/// or is not its own.
ordered_json synthesis_json() {
  std::ifstream stream(OPD_SYNTHESIS_JSON);
  ordered_json figures = stream ? ordered_json::parse(stream, nullptr, false) : ordered_json();
  return figures.contains("per_op") && figures.contains("parts") ? figures : ordered_json();
}

/// "4..4 cycles" of the tap, or the sideband's figure where nothing went through the tap.
std::string reaction_text(const TraceResult& result) {
  const auto& spread = result.reaction_cycles ? result.reaction_cycles : result.sideband_cycles;
  if (!spread) return "-";
  return fmt::format("{}{}..{} cycles", result.reaction_cycles ? "" : "sideband ", spread->minimum,
                     spread->maximum);
}

/// Both engines on every trace, whatever profile the replay ran with.
std::string engines_table(const std::vector<TraceResult>& results) {
  std::string text = "\nEngines, each with its own risk profile\n";
  text += fmt::format("  {:<16} {:<10} {:<7} {:>8} {:>8} {:>10} {:>10} {:>10}  {}\n", "trace",
                      "engine", "order", "flagged", "alarms", "per 1000", "downshifts", "largest z",
                      "first incident");
  for (const TraceResult& r : results) {
    for (const EngineDetection& e : r.engines) {
      const bool published = e.name == kProfileNames[1];
      text += fmt::format(
          "  {:<16} {:<10} {:<7} {:>8} {:>8} {:>10.3f} {:>10} {:>10}  {}\n", r.name, e.name,
          published ? kOrderNames[static_cast<std::size_t>(e.order)] : "-", e.flagged, e.alarms,
          e.alarms_per_1000(), e.downshifts,
          e.largest_z ? fmt::format("{:.1f}", e.largest_z->z) : "-",
          e.incident ? fmt::format("lead {} steps, in {}", e.incident->lead_steps,
                                   kModeNames[static_cast<std::size_t>(e.incident->mode_before)])
                     : "none");
    }
  }
  return text;
}

/// "1/256", "0.1": a factor as a person writes it.
std::string factor_text(double factor) {
  return factor < 1 && 1 / factor == std::floor(1 / factor) ? fmt::format("1/{:.0f}", 1 / factor)
                                                            : fmt::format("{:.3g}", factor);
}

std::string asked_text(const driver::TrainingSettings& f) {
  if (f == driver::TrainingSettings{}) return "own settings again";
  return fmt::format("loss scale x {}, clip threshold x {}, learning rate x {}",
                     factor_text(f.loss_scale), factor_text(f.clip_threshold),
                     factor_text(f.learning_rate));
}

/// What the policy commanded and what came of it; nothing without one.
std::string policy_table(const std::vector<TraceResult>& results) {
  if (results.empty() || !results.front().policy) return {};
  std::string text = "\nPolicy: what it commanded, and the modes that came of it\n";
  text += fmt::format("  {:<16} {:>9} {:>12}   incidents met in FAST, STABLE, SAFE\n", "trace",
                      "commands", "outside FAST");
  for (const TraceResult& r : results) {
    const auto& commands = r.policy->commands;
    text += fmt::format("  {:<16} {:>9} {:>10.2f} %   {}\n", r.name,
                        std::accumulate(commands.begin(), commands.end(), std::uint64_t{0}),
                        100 * r.modes.outside_fast(), fmt::join(r.modes.incidents, ", "));
  }
  return text;
}

/// What the host read and what the training loop was asked to do.
std::string host_table(const std::vector<TraceResult>& results) {
  constexpr std::size_t kShown = 4;
  std::string text = "\nHost: what its driver read, and what the training loop was asked to do\n";
  text +=
      fmt::format("  {:<16} {:<11} {:>8} {:>6} {:>12} {:>12} {:>7} {:>7} {:>12}\n", "trace", "path",
                  "events", "lost", "event queue", "op queue", "STABLE", "SAFE", "last clean");
  for (const TraceResult& r : results) {
    const PathResult* path = r.host_path();
    if (path == nullptr) continue;
    const HostView& host = *path->host;
    const bool device = path->path != "cpu";  // the reference has no queues
    const auto level = [&](unsigned value) { return device ? std::to_string(value) : "-"; };
    text += fmt::format(
        "  {:<16} {:<11} {:>8} {:>6} {:>12} {:>12} {:>7} {:>7} {:>12}\n", r.name, path->path,
        host.events.size(), host.events_lost, level(host.counters.event_high_water),
        level(host.counters.queue_high_water), host.mode_counts.stable, host.mode_counts.safe,
        host.last_clean_step ? std::to_string(*host.last_clean_step) : "none");
  }
  for (const TraceResult& r : results) {
    const PathResult* path = r.host_path();
    if (path == nullptr) continue;
    const std::vector<HintChange>& changes = path->host->hint_changes;
    for (std::size_t i = 0; i < std::min(kShown, changes.size()); ++i)
      text += fmt::format("  {}, step {}: {}\n", r.name, changes[i].step,
                          asked_text(changes[i].factors));
    if (changes.size() > kShown)
      text += fmt::format("  {}: {} more changes\n", r.name, changes.size() - kShown);
  }
  return text;
}

/// Without a comparison there is no number of mismatches, not even 0.
std::string mismatches_text(const TraceResult& result) {
  return result.compared() || result.mismatches > 0 ? std::to_string(result.mismatches) : "-";
}

std::string joined(const std::vector<PathResult>& paths) {
  std::string text;
  for (const PathResult& path : paths) text += (text.empty() ? "" : " ") + path.path;
  return text;
}

}  // namespace

nlohmann::ordered_json summary_json(const ReplayOptions& options,
                                    const std::vector<TraceResult>& results) {
  ordered_json json{{"format", "opd-summary"}, {"version", 1}};
  json["device"] = {{"num_ops", options.device.num_ops},
                    {"datapath_width", options.device.datapath_width},
                    {"num_streams", options.device.num_streams},
                    {"queue_depth", options.device.queue_depth},
                    {"counter_width", options.device.counter_width},
                    {"event_depth", options.device.event_depth},
                    {"forecast_engine", options.device.forecast_engine},
                    {"published_engine", options.device.published_engine}};
  json["profile"] = options.profile;
  ordered_json config;
  for (const ConfigField& field : kConfigFields) {
    const std::int32_t value = field.get(options.config);
    config[std::string(field.name)] =
        field.is_float ? ordered_json(std::bit_cast<float>(value)) : ordered_json(value);
  }
  json["config"] = config;
  json["policy"] = nullptr;
  if (options.policy) {
    json["policy"] = {{"file", std::filesystem::path(options.policy->file()).filename().string()},
                      {"class", options.policy->name()},
                      {"sha256", options.policy->sha256()}};
  }
  json["synthesis"] = synthesis_json();
  std::uint64_t records = 0, beats = 0, cycles = 0, events = 0, states = 0, mismatches = 0;
  json["traces"] = ordered_json::array();
  for (const TraceResult& result : results) {
    json["traces"].push_back(trace_json(options, result));
    records += result.records_compared;
    beats += result.beats_compared;
    cycles += result.cycles_compared;
    events += result.events_compared;
    states += result.states_compared.value_or(0);
    mismatches += result.mismatches;
  }
  json["records_compared"] = records;
  json["beats_compared"] = beats;
  json["cycles_compared"] = cycles;
  json["events_compared"] = events;
  json["states_compared"] = options.compare_state ? ordered_json(states) : ordered_json();
  json["mismatches"] = mismatches;
  json["mismatch_kinds"] = mismatch_kinds_json(results);
  json["verdict"] = kVerdictNames[static_cast<std::size_t>(verdict_of(options, results))];
  return json;
}

std::string summary_table(const std::vector<TraceResult>& results) {
  std::string text = "\nCross-check\n";
  text +=
      fmt::format("  {:<16} {:<11} {:>9} {:>8} {:>10} {:>11} {:>8} {:>10}  {}\n", "trace", "kind",
                  "records", "unseen", "beats", "cycles", "events", "mismatches", "paths");
  std::uint64_t records = 0, unseen = 0, beats = 0, cycles = 0, events = 0, mismatches = 0;
  for (const TraceResult& r : results) {
    text +=
        fmt::format("  {:<16} {:<11} {:>9} {:>8} {:>10} {:>11} {:>8} {:>10}  {}\n", r.name,
                    r.raw ? "raw" : "statistics", r.records_compared, r.unseen(), r.beats_compared,
                    r.cycles_compared, r.events_compared, mismatches_text(r), joined(r.paths));
    events += r.events_compared;
    unseen += r.unseen();
    records += r.records_compared;
    beats += r.beats_compared;
    cycles += r.cycles_compared;
    mismatches += r.mismatches;
  }
  text += fmt::format("  {:<16} {:<11} {:>9} {:>8} {:>10} {:>11} {:>8} {:>10}\n", "all", "",
                      records, unseen, beats, cycles, events, mismatches);
  if (unseen > 0)
    text +=
        "  unseen: completions that found the op queue full; the detection unit took no notice of "
        "them\n";

  text += "\nDetection (an alarm is a risk of at least RISK.STABLE)\n";
  text += fmt::format("  {:<16} {:<11} {:>8} {:>10} {:>9}  {}\n", "trace", "label", "alarms",
                      "per 1000", "downshifts",
                      "first incident (first non-finite value of an operator)");
  for (const TraceResult& r : results) {
    std::string incident = "none";
    if (r.quality.first) {
      const Incident& i = *r.quality.first;
      incident = fmt::format("step {} at {}: warned {} steps before, in {} when it happened",
                             i.step, probe_name(r, i.op), i.lead_steps,
                             kModeNames[static_cast<std::size_t>(i.mode_before)]);
    }
    text +=
        fmt::format("  {:<16} {:<11} {:>8} {:>10.3f} {:>9}  {}\n", r.name, r.label,
                    r.quality.alarms, r.quality.alarms_per_1000(), r.quality.downshifts, incident);
  }
  for (const TraceResult& r : results) {
    if (r.sampled.empty()) continue;
    text += fmt::format(
        "  {}, looked at every n-th step only; lead (alarms per 1000 samples):\n   ", r.name);
    for (const SampledDetection& s : r.sampled)
      text += fmt::format(" n={} {} ({:.1f})", s.every, s.lead_steps, s.alarms_per_1000);
    text += '\n';
  }

  text +=
      compute_table(results) + policy_table(results) + engines_table(results) + host_table(results);

  text +=
      "\nReaction: an operator's last element to the new value of its mode register; overhead\n";
  text += fmt::format("  {:<16} {:<14} {:<10} {:>26} {:>13} {:>15} {:>14}\n", "trace", "path",
                      "basis", "reaction", "sideband waits", "bytes re-read", "us per step");
  for (const TraceResult& r : results) {
    for (const PathResult& p : r.paths) {
      if (p.path == "rtl" || p.path == "systemc") {
        text += fmt::format("  {:<16} {:<14} {:<10} {:>26} {:>13} {:>15} {:>14}\n", r.name, p.path,
                            "counted", reaction_text(r), p.sideband_wait_cycles, 0, "-");
      } else if (p.path == "cpu" || p.path == "cuda") {
        const auto ns = spread_of(p.reaction_ns);
        text += fmt::format(
            "  {:<16} {:<14} {:<10} {:>26} {:>13} {:>15} {:>14.1f}\n", r.name, p.path, "measured",
            ns ? fmt::format("{:.0f} ns (p99 {:.0f})", ns->median, ns->p99) : "-", "-",
            p.bytes_read, p.seconds * 1e6 / static_cast<double>(std::max<std::size_t>(1, r.steps)));
      }
    }
    if (const PathResult* p = r.path(kCudaEmulated); p != nullptr) {
      text += fmt::format("  {:<16} {:<14} {:<10} {:>26} {:>13} {:>15} {:>14}\n", r.name, p->path,
                          "emulated", fmt::format("none: {:.1f} s on the CPU", p->seconds), "-",
                          p->bytes_read, "-");
    }
    if (r.path("cuda") == nullptr && r.raw_operators > 0) {
      text += fmt::format("  {:<16} {:<14} {:<10} {:>26} {:>13} {:>15} {:>14}\n", r.name,
                          "cuda, not run", "modelled",
                          fmt::format("{:.1f} us", GpuModel{}.reaction_us(mean_raw_bytes(r))), "-",
                          r.raw_bytes, "-");
    }
  }
  if (const ordered_json s = synthesis_json(); !s.is_null()) {
    const auto& top = s["parts"]["opd_top"];
    const auto& op = s["per_op"];
    text += fmt::format(
        "  synthesised ({}, {} operators): {:.0f} NAND2 equivalents, critical path {:.1f} ns; each "
        "further operator {:.0f} state "
        "bits, {:.0f} NAND2\n",
        s["library"].get<std::string>(), s["parameters"]["NumOps"].get<int>(),
        top["nand2_equivalents"].get<double>(), top["critical_path_ns"].get<double>(),
        op["state_bits"].get<double>(), op["nand2_equivalents"].get<double>());
    double cycles = 0;
    for (const TraceResult& r : results)
      if (r.reaction_cycles) cycles = std::max(cycles, r.reaction_cycles->maximum);
    if (cycles > 0) {
      text += fmt::format(
          "  in time: {:.0f} cycles are {:.0f} ns at the clock of that path, in 180 nm and without "
          "wires; no faster clock has been mapped\n",
          cycles, cycles * top["critical_path_ns"].get<double>());
    }
  }
  bool any_skipped = false;
  for (const TraceResult& r : results) {
    for (const auto& [path, reason] : r.skipped) {
      if (!any_skipped) text += '\n';
      any_skipped = true;
      text += fmt::format("skipped: {}: path {}: {}\n", r.name, path, reason);
    }
  }
  for (const MismatchSummary& s : mismatch_kinds(results)) {
    text += fmt::format("\nMISMATCH in {}: {}\n", s.first->name,
                        describe(s.kind.first, s.first->probe_names));
    if (s.shown != nullptr && s.shown != s.first) {
      text += fmt::format("  in {} {}\n", s.shown->name,
                          describe(*s.shown_start->consequence, s.shown->probe_names));
    }
    if (s.kind.count == 1) continue;
    text += fmt::format("  {} of this kind ({} and {}: {})", s.kind.count, s.kind.first.left,
                        s.kind.first.right, s.kind.quantity());
    if (s.traces > 1) text += fmt::format(" in {} traces", s.traces);
    text += fmt::format("; the last in {}: {}\n", s.last->name,
                        describe(s.kind.last, s.last->probe_names));
  }
  return text;
}

std::string verdict_line(const ReplayOptions& options, const std::vector<TraceResult>& results) {
  std::uint64_t mismatches = 0;
  for (const TraceResult& result : results) mismatches += result.mismatches;
  switch (verdict_of(options, results)) {
    case Verdict::kNothingCompared:
      return results.size() == 1 ? "nothing was compared"
                                 : "nothing was compared in one trace or more";
    case Verdict::kPathMissing:
      return "a path that was asked for did not run";
    case Verdict::kEqual:
    case Verdict::kMismatch:
      break;
  }
  return fmt::format("{} mismatches", mismatches);
}

std::string why_no_pass(const ReplayOptions& options, const std::vector<TraceResult>& results) {
  for (const TraceResult& result : results) {
    const Verdict verdict = verdict_of(options, result);
    if (verdict == Verdict::kPathMissing) {
      const auto& [path, reason] = *result.skipped.begin();
      return fmt::format("--paths {}: did not run for {} ({}); leave it out", path, result.name,
                         reason);
    }
    if (verdict == Verdict::kNothingCompared) {
      std::string skipped;
      for (const auto& [path, reason] : result.skipped)
        skipped += fmt::format("; {} cannot: {}", path, reason);
      return fmt::format(
          "nothing was compared in {}: only {} ran{}; give --paths two that can run here, for "
          "instance systemc,cpu",
          result.name, joined(result.paths), skipped);
    }
  }
  return "nothing was compared: there is no trace; name one";
}

}  // namespace opd::tb
