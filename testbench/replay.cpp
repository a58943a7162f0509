#include "replay.hpp"

#include <algorithm>
#include <fstream>
#include <memory>

#include <fmt/format.h>

#include "operators.hpp"
#include "paths/cpu_path.hpp"
#include "paths/cuda_path.hpp"
#include "paths/rtl_factory.hpp"
#include "paths/simulation.hpp"

namespace opd::tb {
namespace {

bool selected(const ReplayOptions& options, const std::string& path) {
  return std::find(options.paths.begin(), options.paths.end(), path) != options.paths.end();
}

Config config_of(const ReplayOptions& options, const std::string& path) {
  return options.plant_fault == path ? falsified(options.config) : options.config;
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

void compare_paths(TraceResult& result) {
  if (result.paths.size() < 2) return;
  const PathResult& first = result.paths.front();
  result.records_compared = first.completions.size();
  for (std::size_t i = 1; i < result.paths.size(); ++i) {
    const PathResult& other = result.paths[i];
    RecordComparison comparison =
        compare_streams(first.path, first.completions, other.path, other.completions);
    result.records_compared = std::min(result.records_compared, comparison.compared);
    result.mismatches += comparison.mismatches;
    if (comparison.first && !result.divergence) result.divergence = comparison.first;
    result.comparisons.push_back(std::move(comparison));
  }
}

void write_binary(const std::filesystem::path& file, const void* data, std::size_t bytes) {
  std::ofstream stream(file, std::ios::binary);
  stream.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  if (!stream) {
    throw trace::TraceError(file.string(), "output", "cannot be written", "check the folder given with --out and its free space");
  }
}

void write_records(const std::filesystem::path& out, const TraceResult& result) {
  for (const PathResult& path : result.paths) {
    std::vector<OpRecord> records;
    records.reserve(path.completions.size());
    for (const Completion& completion : path.completions) records.push_back(completion.record);
    write_binary(out / fmt::format("{}.{}.records", result.name, path.path), records.data(),
                 records.size() * sizeof(OpRecord));
    if (!path.baseline_log2.empty()) {
      write_binary(out / fmt::format("{}.baseline", result.name), path.baseline_log2.data(),
                   path.baseline_log2.size() * sizeof(double));
    }
  }
}

/// Results are filed by the trace's name: two traces of one name would overwrite each other.
void refuse_twins(const std::vector<std::filesystem::path>& files) {
  std::map<std::string, std::filesystem::path> seen;
  for (const std::filesystem::path& file : files) {
    const trace::Trace trace = trace::Trace::read(file);
    const auto [first, fresh] = seen.emplace(trace.name(), file);
    if (!fresh) {
      throw trace::TraceError(file.string(), "name", fmt::format("'{}' is also the name of {}", trace.name(), first->second.string()),
                              "replay them one at a time or capture one under another --name");
    }
  }
}

TraceResult replay_one(const ReplayOptions& options, const std::filesystem::path& file, Simulation* simulation,
                       const std::string& heading, const std::function<void(const std::string&)>& progress) {
  const trace::Trace trace = trace::Trace::read(file);
  const OperatorStream operators(trace, options.device.num_ops);
  TraceResult result{.file = file,
                     .name = trace.name(),
                     .label = std::string(trace.label_name()),
                     .raw = operators.raw_operators() > 0,
                     .steps = operators.steps(),
                     .probes = operators.probes(),
                     .raw_operators = operators.raw_operators(),
                     .statistic_operators = operators.size() - operators.raw_operators(),
                     .raw_bytes = operators.raw_bytes(),
                     .raw_elements = operators.raw_elements()};
  for (const trace::Probe& probe : trace.probes()) result.probe_names.push_back(probe.name);
  progress(fmt::format("{} {}: {} steps, {} probes, {} operators, {:.1f} MB of raw elements", heading, result.name,
                       result.steps, result.probes, operators.size(), static_cast<double>(result.raw_bytes) / 1e6));

  std::vector<std::size_t> order;
  if (selected(options, "rtl") || selected(options, "systemc")) {
    std::unique_ptr<PinDevice> rtl;
    if (selected(options, "rtl")) rtl = make_rtl_device(config_of(options, "rtl"), options.waveform);
    const auto on_progress = [&](std::size_t done) {
      progress(fmt::format("{} {}: lockstep {} of {} operators", heading, result.name, done, operators.size()));
    };
    LockstepResult lockstep = simulation->run_lockstep(operators, rtl.get(), {}, on_progress);
    order = completion_order(lockstep.systemc);
    measure_reaction(lockstep.systemc, result);
    result.beats_compared = lockstep.systemc.beats;
    result.cycles_compared = lockstep.cycles_compared;
    result.mismatches += lockstep.cycle_mismatches;
    result.divergence = lockstep.divergence;
    if (rtl) result.paths.push_back(std::move(lockstep.rtl));
    if (selected(options, "systemc")) result.paths.push_back(std::move(lockstep.systemc));
  }
  if (selected(options, "systemc-lt")) {
    if (std::find(order.begin(), order.end(), kUnseen) == order.end()) {
      result.paths.push_back(simulation->run_loosely_timed(operators, order));
    } else {
      result.skipped["systemc-lt"] = "the op queue overflowed; the loosely timed model has no queue to lose completions in";
    }
  }
  if (selected(options, "cpu")) {
    result.paths.push_back(run_cpu(operators, options.device, config_of(options, "cpu"), order));
  }
  if (selected(options, "cuda")) {
    std::string reason;
    if (cuda_available(&reason)) {
      result.paths.push_back(run_cuda(operators, options.device, config_of(options, "cuda"), order));
    } else {
      result.skipped["cuda"] = reason;
    }
  }
  if (result.paths.size() == 1) result.beats_compared = 0;
  compare_paths(result);

  if (!result.paths.empty()) {
    // Detection is judged on the records of one path: they are all the same, or the run has failed already.
    result.quality = assess(operators, result.paths.front().completions, options.config);
    if (result.quality.first) {
      result.sampled = detect_sampled(operators, *result.quality.first, options.device, options.config);
    }
  }
  if (!options.out.empty()) write_records(options.out, result);
  return result;
}

}  // namespace

const PathResult* TraceResult::path(const std::string& wanted) const {
  const auto found = std::find_if(paths.begin(), paths.end(), [&](const PathResult& p) { return p.path == wanted; });
  return found == paths.end() ? nullptr : &*found;
}

std::uint32_t TraceResult::unseen() const {
  std::uint32_t most = 0;
  for (const PathResult& path : paths) most = std::max(most, path.unseen_count);
  return most;
}

Config falsified(Config config) {
  config.baseline_warmup_samples ^= 1u;  // WARMUP falls one sample early or late
  return config;
}

std::vector<TraceResult> replay(const ReplayOptions& options, const std::function<void(const std::string&)>& progress) {
  refuse_twins(options.traces);
  std::unique_ptr<Simulation> simulation;
  const auto needs_simulation = [](const std::string& p) { return p != "cpu" && p != "cuda"; };
  if (std::any_of(options.paths.begin(), options.paths.end(), needs_simulation)) {
    simulation = std::make_unique<Simulation>(SimulationOptions{.device = options.device,
                                                                .config = config_of(options, "systemc"),
                                                                .loosely_timed_config = config_of(options, "systemc-lt"),
                                                                .lane_latency = options.lane_latency,
                                                                .bubbles = options.bubbles,
                                                                .streams = options.streams});
  }
  std::vector<TraceResult> results;
  for (std::size_t i = 0; i < options.traces.size(); ++i) {
    const std::string heading = fmt::format("[{}/{}]", i + 1, options.traces.size());
    results.push_back(replay_one(options, options.traces[i], simulation.get(), heading, progress));
  }
  return results;
}

std::string describe(const Divergence& d, const std::vector<std::string>& probe_names) {
  std::string text;
  if (d.record) {
    const std::string name = d.record->op < probe_names.size() ? probe_names[d.record->op] : "unknown";
    text = fmt::format("op {} ({}), step {}, seq {}: ", d.record->op, name, d.record->step, d.record->seq);
  }
  text += fmt::format("{}: {} = {}, {} = {}", d.field, d.left, d.left_value, d.right, d.right_value);
  if (d.cycle) text += fmt::format("; cycle {}", *d.cycle);
  if (d.last_beat_cycle) text += fmt::format(", last beat at cycle {}", *d.last_beat_cycle);
  return text;
}

}  // namespace opd::tb
