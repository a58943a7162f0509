#include "replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>

#include "comparison.hpp"
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
  if (!options.plant_fault || options.waveform)
    return;  // a waveform may end before the fault shows
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
    throw std::runtime_error(
        fmt::format("--plant-fault {}: it does not act on {}: its operators have one usable sample "
                    "each, or stand "
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
    lockstep = simulation->run_lockstep(
        operators, rtl.get(), on_progress, fault_of("systemc"), policy,
        {.compare_state = options.compare_state, .waveform = waveform ? &*waveform : nullptr});
    order = completion_order(lockstep.systemc);
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
      result.paths.push_back(simulation->run_loosely_timed(operators, order, fault_of("systemc-lt"),
                                                           policy, options.compare_state));
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
  compare_results(operators, lockstep, options.compare_state, result);
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
  return results;
}

void write_records(const std::filesystem::path& folder, const TraceResult& result) {
  const auto write = [&](const std::string& extension, const auto& values) {
    trace::write_whole(folder / fmt::format("{}.{}", result.name, extension),
                       std::as_bytes(std::span(values)));
  };
  for (const PathResult& path : result.paths) {
    std::vector<OpRecord> records;
    records.reserve(path.completions.size());
    for (const Completion& completion : path.completions) records.push_back(completion.record);
    write(path.path + ".records", records);
    if (path.path == "cpu") {
      write("baseline", path.baseline_log2);
      write("z", path.z);
    }
  }
}

}  // namespace opd::tb
