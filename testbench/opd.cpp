// The opd command line. Exit status: 0 equal, 1 a mismatch between paths, 2 bad input or usage, or
// nothing was compared.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string_view>
#include <systemc>

#include "bench.hpp"
#include "command_line.hpp"
#include "config_file.hpp"
#include "opd/driver/fields.hpp"
#include "opd/reference/cpu.hpp"
#include "opd/trace/whole_file.hpp"
#include "paths/rtl_factory.hpp"
#include "python_policy.hpp"
#include "replay.hpp"
#include "report.hpp"
#include "results_folder.hpp"
#include "say.hpp"
#include "summary.hpp"
#include "trace_files.hpp"

extern char** environ;

namespace {

using namespace opd;
using namespace opd::tb;
namespace fs = std::filesystem;

/// What the user chose the configuration with.
struct Choice {
  std::vector<std::string> settings;  ///< NAME=VALUE, on top
  fs::path file;                      ///< of --config; empty = a profile
  bool profile = false;               ///< --profile was given
};

/// What of the vector unit the user chose.
struct UnitChoice {
  bool compute = false;
  std::string force_mode, accumulator;  ///< empty = not given
  bool saturate = false;
};

/// Bad input on the command line: option, what is wrong, remedy.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void show_progress(const std::string& line) {
  static const bool terminal = isatty(STDERR_FILENO) != 0;
  if (terminal) {
    complain("\r\033[K{}", line);
  } else {
    complain("{}\n", line);
  }
  std::fflush(stderr);
}
void end_progress() {
  if (isatty(STDERR_FILENO) != 0) complain("\r\033[K");
}

std::string value_text(const ConfigField& field, std::int32_t value) {
  return field.is_float ? fmt::format("{}", std::bit_cast<float>(value)) : std::to_string(value);
}

/// The bits of a decimal number as binary32; nothing when it is no number.
std::optional<std::int64_t> float_bits(const std::string& text) {
  float value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (text.empty() || parsed.ec != std::errc{} || parsed.ptr != end) return std::nullopt;
  return std::bit_cast<std::int32_t>(value);
}

/// An integer, decimal or 0x hex; nothing when it is none.
std::optional<std::int64_t> integer(const std::string& text) {
  try {
    std::size_t used = 0;
    const std::int64_t value = std::stoll(text, &used, 0);
    if (used == text.size()) return value;
  } catch (const std::exception&) {
  }
  return std::nullopt;
}

/// NAME=VALUE of --set, checked against the register's range.
void set_field(Config& config, const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  const std::string name = assignment.substr(0, equals);
  for (const ConfigField& field : kConfigFields) {
    if (field.name != name) continue;
    const std::string text = equals == std::string::npos ? "" : assignment.substr(equals + 1);
    // Bits of non-negative binary32 numbers sort like the numbers.
    const auto value = field.is_float ? float_bits(text) : integer(text);
    if (!value || *value < field.minimum || *value > field.maximum) {
      throw UsageError(fmt::format("--set {}: '{}' is no value of this field; give {} in {}..{}",
                                   name, text, field.is_float ? "a number" : "an integer",
                                   value_text(field, field.minimum),
                                   value_text(field, field.maximum)));
    }
    field.set(config, static_cast<std::int32_t>(*value));
    return;
  }
  std::string known;
  for (const ConfigField& field : kConfigFields) known += " " + std::string(field.name);
  throw UsageError(fmt::format("--set {}: no such configuration field; known are:{}", name, known));
}

WaveformWindow parse_window(const std::string& text, const fs::path& file) {
  WaveformWindow window{.file = file};
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, window.first);
  const bool colon = first.ec == std::errc{} && first.ptr != end && *first.ptr == ':';
  const auto last = std::from_chars(colon ? first.ptr + 1 : end, end, window.last);
  if (!colon || last.ec != std::errc{} || last.ptr != end || window.first > window.last) {
    throw UsageError(fmt::format(
        "--waveform {}: not a range of cycles; give FIRST:LAST, for example 1000:1200", text));
  }
  return window;
}

void make_folder(const fs::path& out) {
  std::error_code error;
  fs::create_directories(out, error);
  if (!error && access(out.c_str(), W_OK | X_OK) != 0) error.assign(errno, std::generic_category());
  if (error) {
    throw UsageError(fmt::format("--out {}: cannot write there ({}); choose a writable folder",
                                 out.string(), error.message()));
  }
}

/// Whether a planted fault is one of what rtl and systemc do.
bool in_waveform(std::string_view fault) {
  return fault == "rtl" || fault == "systemc" || fault == "compute-systemc" ||
         fault == "state-rtl" || fault == "state-systemc";
}

/// Repeats the run of one trace in a process of its own (SystemC elaborates once per process) and
/// dumps the cycles around its divergence. Returns the file's name, empty when there is none.
std::string dump_waveform(const ReplayOptions& options, const fs::path& folder,
                          const TraceResult& result, const Choice& choice) {
  constexpr std::uint64_t kBefore = 64, kAfter = 16;
  const Divergence& divergence = *result.divergence;
  const std::uint64_t cycle = *divergence.cycle;
  const std::uint16_t op =
      divergence.state_op.value_or(divergence.record ? divergence.record->op : std::uint16_t{0});
  const std::string name = result.name + ".fst";
  const WaveformWindow window{.first = cycle > kBefore ? cycle - kBefore : 1,
                              .last = cycle + kAfter,
                              .file = folder / name,
                              .op = op};
  std::vector<std::string> words = {"opd",
                                    "replay",
                                    result.file.string(),
                                    "--out",
                                    folder.string(),
                                    "--waveform",
                                    fmt::format("{}:{}", window.first, window.last),
                                    "--waveform-op",
                                    std::to_string(op),
                                    "--bubbles",
                                    std::to_string(options.bubbles),
                                    "--streams",
                                    std::to_string(options.streams),
                                    "--lane-latency",
                                    std::to_string(options.lane_latency)};
  if (choice.file.empty()) {
    words.insert(words.end(), {"--profile", options.profile});
  } else {
    words.insert(words.end(), {"--config", choice.file.string()});
  }
  for (const std::string& setting : choice.settings) words.insert(words.end(), {"--set", setting});
  if (options.policy) {
    words.insert(words.end(), {"--policy", options.policy->file() + ":" + options.policy->name()});
  }
  if (options.compute) {
    words.emplace_back("--compute");
    if (const auto mode = options.compute->force_mode) {
      words.insert(words.end(),
                   {"--force-mode", std::string(kModeNames[static_cast<std::size_t>(*mode)])});
    }
    words.insert(
        words.end(),
        {"--accumulator",
         std::string(
             kAccumulatorChoiceNames[static_cast<std::size_t>(options.compute->accumulator)])});
    if (options.compute->saturate) words.emplace_back("--saturate");
  }
  if (options.plant_fault && in_waveform(*options.plant_fault))
    words.insert(words.end(), {"--plant-fault", *options.plant_fault});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  int status = -1;
  posix_spawn_file_actions_t actions;  // what it found is said already
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  if (posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments.data(), environ) == 0)
    waitpid(child, &status, 0);
  posix_spawn_file_actions_destroy(&actions);
  if (status == -1 || !WIFEXITED(status) || WEXITSTATUS(status) == kBadInput) {
    complain("opd: {}: the waveform of cycle {} could not be written\n",
             (options.out / name).string(), cycle);
    return {};
  }
  write_save_file(window, cycle, divergence.field);
  say("waveform: {}, cycles {}:{}\n", (options.out / name).string(), window.first, window.last);
  return name;
}

/// --waveform: one trace through rtl and systemc, for the dump alone.
int run_waveform(ReplayOptions options, const std::string& window, std::uint16_t op) {
  if (options.paths_by_name)
    throw UsageError("--paths: a waveform is made of rtl and systemc; drop one of the two options");
  if (options.traces.size() != 1 || options.out.empty()) {
    throw UsageError("--waveform: needs exactly one trace and --out; the file is OUT/<trace>.fst");
  }
  if (options.compare_state)
    throw UsageError("--compare-state: a waveform compares nothing; drop one of the two options");
  if (options.plant_fault && !in_waveform(*options.plant_fault)) {
    throw UsageError(
        fmt::format("--waveform: a fault in {} is in no waveform; plant it in rtl or systemc",
                    *options.plant_fault));
  }
  const std::string name = trace::Trace::read(options.traces.front()).name();
  const fs::path file = options.out / (name + ".fst");
  StagedFile staged(file);
  options.waveform = parse_window(window, staged.path());
  options.waveform->op = op;
  options.paths = {"rtl", "systemc"};
  const TraceResult result = std::move(replay(options, [](const std::string&) {}).front());
  if (!fs::exists(options.waveform->file)) {
    throw UsageError(fmt::format(
        "--waveform {}: {} was not written; the run has {} cycles, and the folder must be writable",
        window, file.string(), result.paths.front().cycles));
  }
  staged.publish();
  options.waveform->file = file;
  write_save_file(*options.waveform, 0, "");
  say("waveform: {}, cycles {}:{}\n", file.string(), options.waveform->first,
      options.waveform->last);
  if (result.mismatches == 0) return kEqual;
  say("MISMATCH in {}: {}\n", result.name, describe(*result.divergence, result.probe_names));
  return kMismatch;
}

/// Records, waveforms, summary.json and report.html: all of them or none. After a mismatch a failure
/// here must not hide it.
void write_results(const ReplayOptions& options, ResultsFolder& results_folder,
                   std::vector<TraceResult>& results, const Choice& choice) {
  const std::string summary = "summary.json";
  const fs::path& stage = results_folder.stage();
  std::string report;
  try {
    for (TraceResult& result : results) {
      write_records(stage, result);
      if (result.divergence && result.divergence->cycle && result.path("rtl") != nullptr) {
        result.waveform = dump_waveform(options, stage, result, choice);
        if (!result.waveform.empty()) result.waveform_view = result.name + ".gtkw";
      }
    }
    trace::write_whole(stage / summary, summary_json(options, results).dump(2) + "\n");
    report = write_report(stage, options.traces);
  } catch (const std::exception& error) {
    throw std::runtime_error(results_folder.in_place(error.what()));
  }
  const std::vector<std::string> words = triage_sentences(options.traces);
  results_folder.publish(summary);
  say("\nIn words\n");
  for (const std::string& line : words) say("  {}\n", line);
  say("\nwrote {} and {}\n", (options.out / summary).string(), results_folder.in_place(report));
}

/// Profile and configuration in force: a file or a profile, and --set on top.
void configure(ReplayOptions& options, const Choice& choice) {
  if (choice.file.empty()) {
    const auto profile = std::find(kProfileNames.begin(), kProfileNames.end(), options.profile);
    if (profile == kProfileNames.end()) {
      throw UsageError(fmt::format("--profile {}: no such risk profile; known are {}",
                                   options.profile, fmt::join(kProfileNames, ", ")));
    }
    options.config = with_profile({}, static_cast<std::size_t>(profile - kProfileNames.begin()));
  } else {
    if (choice.profile) {
      throw UsageError(fmt::format(
          "--profile {}: {} names its profile itself; drop --profile, or write it into the file",
          options.profile, choice.file.string()));
    }
    ConfigFile file = read_config_file(choice.file);
    options.profile = std::move(file.profile);
    options.config = file.config;
  }
  std::set<std::string> names;
  for (const std::string& setting : choice.settings) {
    const std::string name = setting.substr(0, setting.find('='));
    if (!names.insert(name).second)
      throw UsageError(fmt::format("--set {}: is given twice; give every field once", name));
    set_field(options.config, setting);
  }
  ref::validate(options.config);
}

/// The vector unit's registers, and whether it computes at all.
std::optional<ComputeOptions> compute_options(const UnitChoice& choice,
                                              const std::optional<std::string>& fault) {
  const auto given_alone = [](std::string_view option) {
    return UsageError(fmt::format("{}: says how operators are computed; add --compute", option));
  };
  if (!choice.compute) {
    if (!choice.force_mode.empty()) throw given_alone("--force-mode");
    if (!choice.accumulator.empty()) throw given_alone("--accumulator");
    if (choice.saturate) throw given_alone("--saturate");
    if (fault && fault->starts_with(kComputeFault)) throw given_alone("--plant-fault " + *fault);
    return std::nullopt;
  }
  const auto place_of = [](const std::string& option, const std::string& value,
                           const auto& names) -> std::optional<std::size_t> {
    if (value.empty()) return std::nullopt;
    const auto found = std::find(names.begin(), names.end(), value);
    if (found == names.end()) {
      throw UsageError(fmt::format("{} {}: no such value; give one of {}", option, value,
                                   fmt::join(names, ", ")));
    }
    return static_cast<std::size_t>(found - names.begin());
  };
  ComputeOptions options{.saturate = choice.saturate};
  if (const auto mode = place_of("--force-mode", choice.force_mode, kModeNames))
    options.force_mode = static_cast<Mode>(*mode);
  options.accumulator = static_cast<AccumulatorChoice>(
      place_of("--accumulator", choice.accumulator, kAccumulatorChoiceNames).value_or(0));
  return options;
}

/// Paths in which a fault can be planted; computing paths of a replay that computes; where stored
/// states are compared or seen, paths that store them.
void check_fault(const ReplayOptions& options, bool states_seen) {
  if (!options.plant_fault) return;
  std::vector<std::string> known = options.paths;
  for (const std::string_view path : kComputingPaths) {
    if (options.compute &&
        std::find(options.paths.begin(), options.paths.end(), path) != options.paths.end())
      known.push_back(fmt::format("{}{}", kComputeFault, path));
  }
  for (const std::string_view path : kStatePaths) {
    if (states_seen &&
        std::find(options.paths.begin(), options.paths.end(), path) != options.paths.end())
      known.push_back(fmt::format("{}{}", kStateFault, path));
  }
  if (std::find(known.begin(), known.end(), *options.plant_fault) == known.end()) {
    throw UsageError(fmt::format("--plant-fault {}: not one of the chosen paths; give one of {}",
                                 *options.plant_fault, fmt::join(known, ", ")));
  }
}

int run_replay(ReplayOptions options, const Choice& choice, const UnitChoice& unit,
               const std::string& policy, const std::string& window,
               std::optional<std::uint16_t> waveform_op) {
  configure(options, choice);
  options.compute = compute_options(unit, options.plant_fault);
  for (const std::string& path : options.paths) {
    if (std::find(kPathNames.begin(), kPathNames.end(), path) == kPathNames.end()) {
      throw UsageError(
          fmt::format("--paths {}: no such path; known are {}", path, fmt::join(kPathNames, ", ")));
    }
  }
  check_fault(options, options.compare_state || !window.empty());
  options.device = rtl_parameters();
  if (options.streams < 1 || options.streams > options.device.num_streams) {
    throw UsageError(fmt::format("--streams {}: the device has {} streams; give 1..{}",
                                 options.streams, options.device.num_streams,
                                 options.device.num_streams));
  }
  if (waveform_op && window.empty())
    throw UsageError("--waveform-op: says whose state is in the waveform; add --waveform");
  if (waveform_op.value_or(0) >= options.device.num_ops) {
    throw UsageError(fmt::format("--waveform-op {}: the device has {} operators; give 0..{}",
                                 *waveform_op, options.device.num_ops, options.device.num_ops - 1));
  }
  if (!policy.empty()) options.policy = python_policy(policy);
  if (!options.out.empty()) make_folder(options.out);
  if (!window.empty()) return run_waveform(std::move(options), window, waveform_op.value_or(0));
  std::optional<ResultsFolder> folder;
  if (!options.out.empty()) folder.emplace(options.out);

  std::vector<TraceResult> results = replay(options, show_progress);
  end_progress();
  say("{}", summary_table(results));
  std::fflush(stdout);
  const Verdict verdict = verdict_of(options, results);
  if (folder) {
    try {
      write_results(options, *folder, results, choice);
    } catch (const std::exception& error) {
      if (verdict != Verdict::kMismatch) throw;
      complain("opd: {}\n", error.what());
    }
  }
  say("{}\n", verdict_line(options, results));
  if (verdict == Verdict::kEqual) return kEqual;
  if (verdict == Verdict::kMismatch) return kMismatch;
  std::fflush(stdout);
  complain("opd: {}\n", why_no_pass(options, results));
  return kBadInput;
}

/// "[2, 32, 32] over 16" of a matrix kernel, "[4, 7]" of others.
std::string shape_text(const trace::TracedOperator& op) {
  if (traits_of(op.kernel).shape == KernelShape::kMatrix)
    return fmt::format("[{}, {}, {}] over {}", op.batch, op.rows, op.columns, op.depth);
  return fmt::format("[{}, {}]", op.rows, op.columns);
}

/// Operators that a trace can be asked to compute; nothing when there is none.
void say_operators(const trace::Trace& trace) {
  if (trace.operators().empty()) return;
  const auto& steps = trace.operand_steps();
  say("  operators: {}, {}\n", trace.operators().size(),
      steps.empty() ? "shapes only"
                    : fmt::format("operands at {} of {} steps, {}..{}", steps.size(),
                                  trace.steps().size(), steps.front(), steps.back()));
  say("  {:>4}  {:<32} {:<14} {:<24} {:<18} {:>5}  {}\n", "op", "probe", "kernel", "shape",
      "attribute", "steps", "operands");
  for (const trace::TracedOperator& op : trace.operators()) {
    const KernelTraits& traits = traits_of(op.kernel);
    std::vector<std::string> operands;
    for (const trace::TracedOperand& operand : op.operands) {
      const bool is_mask = operand.name == "mask";
      operands.push_back(
          fmt::format("{}{}{} [{}, {}]", operand.name, is_mask ? "" : " ",
                      is_mask ? "" : kFormatNames[static_cast<std::size_t>(operand.format)],
                      operand.rows, operand.columns));
    }
    say("  {:>4}  {:<32} {:<14} {:<24} {:<18} {:>5}  {}\n", op.probe,
        printable(trace.probes()[op.probe].name), traits.name, shape_text(op),
        traits.attribute.empty() ? "" : fmt::format("{} {}", traits.attribute, op.attribute),
        op.has_elements ? steps.size() : 0, fmt::join(operands, ", "));
  }
}

int run_info(const std::vector<fs::path>& files) {
  for (const fs::path& file : files) {
    if (file.extension() == ".journal") {
      say("{}", journal_text(file));
      continue;
    }
    const trace::Trace trace = trace::Trace::read(file);
    say("{}: {} ({}), {} steps {}..{}, {} probes{}\n", file.string(), trace.name(),
        trace.label_name(), trace.steps().size(), trace.steps().front(), trace.steps().back(),
        trace.probes().size(), trace.has_raw() ? ", with raw elements" : "");
    if (trace.first_bad())
      say("  first non-finite forward value: step {}, {}\n", trace.first_bad()->step,
          printable(trace.first_bad()->op));
    say("  {:>4}  {:<32} {:<11} {:<5} {:>12} {:>14} {:>10}\n", "op", "probe", "kind", "fmt",
        "elements", "max |x|", "non-finite");
    for (std::size_t p = 0; p < trace.probes().size(); ++p) {
      const trace::Probe& probe = trace.probes()[p];
      float largest = 0;
      std::uint64_t nonfinite = 0;
      for (std::size_t s = 0; s < trace.steps().size(); ++s) {
        largest = std::max(largest, trace.max_abs(s, p));
        nonfinite += trace.nonfinite(s, p);
      }
      say("  {:>4}  {:<32} {:<11} {:<5} {:>12} {:>14.6g} {:>10}\n", p, printable(probe.name),
          trace::kProbeKindNames[static_cast<std::size_t>(probe.kind)],
          kFormatNames[static_cast<std::size_t>(probe.format)], probe.elements, largest, nonfinite);
    }
    say_operators(trace);
  }
  return kEqual;
}

/// "w" of a field whose register reads 0 there, "r", "rw" or "r, w1c".
std::string_view access_of(const Register& r, std::uint32_t bits) {
  if ((r.writable & bits) == 0) return "r";
  if ((r.write_one_clears & bits) != 0) return "r, w1c";
  return (r.readable & bits) != 0 ? "rw" : "w";
}

/// The register map with the reset values of the device that was built.
int run_registers() {
  say("{:<8} {:<36} {:>6}  {:<7} {:>12}  {:<24} {}\n", "address", "register.field", "bits",
      "access", "reset", "range", "--set");
  for (const RegisterField& f : kRegisterFields) {
    const auto r = std::find_if(kRegisters.begin(), kRegisters.end(),
                                [&](const Register& c) { return c.address == f.address; });
    const std::uint32_t bits = driver::place(f, -1);
    const auto config = std::find_if(kConfigFields.begin(), kConfigFields.end(),
                                     [&](const ConfigField& c) { return c.path == f.path; });
    const bool is_config = config != kConfigFields.end();
    const bool is_float = is_config && config->is_float;
    const auto shown = [&](std::int64_t value) {
      return is_float ? value_text(*config, static_cast<std::int32_t>(value))
                      : std::to_string(value);
    };
    const bool varies = (r->volatile_bits & bits) != 0;  // what a parameter or the state decides
    say("0x{:03X}    {:<36} {:>6}  {:<7} {:>12}  {:<24} {}\n", f.address, f.path,
        f.width == 1 ? fmt::format("{}", f.low_bit)
                     : fmt::format("{}:{}", f.low_bit + f.width - 1, f.low_bit),
        access_of(*r, bits), varies ? "-" : shown(driver::extract(f, r->reset)),
        f.writable ? fmt::format("{}..{}", shown(f.minimum), shown(f.maximum)) : "",
        is_config ? config->name : "");
  }
  return kEqual;
}

/// Commands that are Python: name and what it does (sw_reference/python/opd/__main__.py has the same).
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kPythonCommands = {{
    {"calibrate", "Register settings for a wanted false-alarm rate, from healthy runs"},
    {"capture", "Record any PyTorch training run as a trace"},
    {"evaluate", "Detectors on a corpus of traces: recall, lead, false alarms, cost"},
    {"governor", "Loss scales and FP8 scales: what chooses them, compared on recorded runs"},
    {"guard", "Guard a training script: stop bad steps, change operators' modes"},
    {"import", "Make traces of other tools' telemetry"},
    {"localise", "Name the first bad operator of an incident, and why"},
    {"triage",
     "Tell the incidents of a trace in words: what, since when, how fast, why, what to do"},
}};

/// Becomes the Python command, with its arguments; returns only if that cannot be started.
int become_python_command(char** argv) {
  const char* path = std::getenv("PYTHONPATH");
  const std::string packages =
      path == nullptr ? OPD_PYTHON_PACKAGES : fmt::format("{}:{}", OPD_PYTHON_PACKAGES, path);
  setenv("PYTHONPATH", packages.c_str(), 1);
  setenv("OPD_BUILD", OPD_BUILD_FOLDER, 0);
  std::vector<char*> arguments = {const_cast<char*>(OPD_PYTHON_EXECUTABLE), const_cast<char*>("-m"),
                                  const_cast<char*>("opd")};
  for (char** argument = argv + 1; *argument != nullptr; ++argument) arguments.push_back(*argument);
  arguments.push_back(nullptr);
  execv(OPD_PYTHON_EXECUTABLE, arguments.data());
  complain("opd: {}: cannot be started; run scripts/setup again\n", OPD_PYTHON_EXECUTABLE);
  return kBadInput;
}

int run(int argc, char** argv) {
  for (const auto& [name, description] : kPythonCommands) {
    if (argc > 1 && argv[1] == name) return become_python_command(argv);
  }
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit is an error of the write
  CLI::App app{
      "opd: replay training traces through models of an on-chip overflow-precursor detector"};
  app.require_subcommand(1);
  app.footer(
      "Exit status: 0 equal, 1 a mismatch between paths, 2 bad input or usage, or nothing was "
      "compared.");

  ReplayOptions options;
  Choice choice;
  UnitChoice unit;
  std::string fault, policy, window;
  std::optional<std::uint16_t> waveform_op;
  CLI::App* replay_command = app.add_subcommand(
      "replay", "Run traces through every path and compare the records bit for bit");
  replay_command
      ->add_option("traces", options.traces,
                   "Trace files (docs/formats.md), or folders with *.safetensors")
      ->required();
  const CLI::Option* const paths =
      replay_command
          ->add_option("--paths", options.paths,
                       "Paths to run, at least two that can be compared: rtl, systemc, "
                       "systemc-lt, cpu, cuda (default: all of these that can run here), "
                       "cuda-emulated (slow: the CUDA kernels on the CPU)")
          ->delimiter(',')
          ->allow_extra_args(false);
  replay_command->add_option("--out", options.out,
                             "Folder for summary.json, report.html and the record streams");
  const CLI::Option* const profile =
      replay_command->add_option("--profile", options.profile,
                                 "Risk profile: forecast (default) lets the forecast engine "
                                 "decide, published the engine of the literature");
  replay_command->add_option("--config", choice.file,
                             "Device configuration file instead of a profile (docs/formats.md); "
                             "opd calibrate writes one");
  replay_command
      ->add_option(
          "--set", choice.settings,
          "Configuration field NAME=VALUE on top of the profile or file; opd registers lists the "
          "names and ranges; may be repeated, a field only once")
      ->allow_extra_args(false);
  replay_command
      ->add_option("--bubbles", options.bubbles,
                   "Idle clocks between operators of one stream (default 1: with one stream no "
                   "completion is ever lost)")
      ->check(CLI::Range(0u, 65535u));
  replay_command
      ->add_option("--lane-latency", options.lane_latency,
                   "Clocks from an operator's issue to its first beat")
      ->check(CLI::Range(1u, 1024u));
  replay_command->add_option("--streams", options.streams, "Operators interleaved beat by beat");
  replay_command->add_flag(
      "--compute", unit.compute,
      "Compute the operators of which the trace has operands, in the mode that "
      "their register holds at issue");
  replay_command->add_option("--force-mode", unit.force_mode,
                             "With --compute: FAST, STABLE or SAFE, whatever the controller says");
  replay_command->add_option("--accumulator", unit.accumulator,
                             "With --compute: accumulators of FAST: per-operator (default), narrow "
                             "(the operator's own format) or wide (FP32)");
  replay_command->add_flag("--saturate", unit.saturate,
                           "With --compute: casts to the output clip to the largest finite value");
  replay_command->add_option("--policy", policy,
                             "FILE or FILE:CLASS: a policy in Python that commands the device "
                             "between two steps (docs/policies.md)");
  replay_command->add_option("--plant-fault", fault,
                             "Falsify the configuration of one path, to see the check fail; with "
                             "--compute also compute-PATH: an operand on that path; with "
                             "--compare-state also state-PATH: what that path stores");
  replay_command->add_flag(
      "--compare-state", options.compare_state,
      "Compare what is stored of the operators after each completion as well: a mismatch is named "
      "where it starts, not where a record shows it (not on cuda; slower)");
  replay_command->add_option(
      "--waveform", window,
      "Dump cycles FIRST:LAST of one trace, rtl and systemc side by side, to "
      "OUT/<trace>.fst, with OUT/<trace>.gtkw to open it, and nothing else");
  replay_command->add_option("--waveform-op", waveform_op,
                             "Operator whose stored state is in the waveform (default 0)");

  std::vector<fs::path> info_files;
  CLI::App* info_command =
      app.add_subcommand("info", "Say what a trace, or the journal of a capture, holds");
  info_command->add_option("traces", info_files, "Trace files, folders or journals")->required();

  CLI::App* registers_command =
      app.add_subcommand("registers", "List the device's registers with their reset values");

  BenchOptions bench;
  CLI::App* bench_command =
      app.add_subcommand("bench", "Measure every hot path beside its yardstick");
  bench_command->add_option("traces", bench.traces,
                            "Real traces to measure with, beside large synthetic tensors");
  bench_command->add_option("--megabytes", bench.megabytes, "Buffer of the CPU pass, in MiB")
      ->check(CLI::Range(1u, 16384u));
  bench_command->add_option("--seconds", bench.seconds, "Time given to each simulation")
      ->check(CLI::Range(0.1, 600.0));
  bench_command->add_option("--json", bench.json, "Also write the figures to this file");

  for (const auto& [name, description] : kPythonCommands)  // for --help; they never get here
    app.add_subcommand(std::string(name), std::string(description));

  if (const std::optional<int> status = parse_command_line(app, argc, argv)) return *status;
  try {
    if (*replay_command) {
      options.traces = trace_files(options.traces);
      options.paths_by_name = paths->count() > 0;
      if (!fault.empty()) options.plant_fault = fault;
      choice.profile = profile->count() > 0;
      return run_replay(options, choice, unit, policy, window, waveform_op);
    }
    if (*info_command) return run_info(trace_files(info_files));
    if (*registers_command) return run_registers();
    bench.traces = trace_files(bench.traces);
    return run_bench(bench);
  } catch (const std::exception& error) {
    end_progress();
    std::fflush(stdout);
    complain("opd: {}\n", error.what());
    return kBadInput;
  }
}

/// A mapped trace that another process cuts short ends here: a message and the status of bad input
/// instead of a crash.
void on_bus_error(int) {
  constexpr std::string_view kText =
      "opd: a trace file became shorter while it was read; replay it when nothing writes to it\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kText.data(), kText.size());
  _exit(kBadInput);
}

/// A standard stream that is closed would lend its number to the next file that is opened. In its
/// place: an input without a byte, an output that cannot be written, an error that goes nowhere.
void occupy_closed_streams() {
  constexpr std::array<int, 3> kModes = {O_RDONLY, O_RDONLY, O_WRONLY};
  for (int stream = 0; stream < 3; ++stream) {
    if (fcntl(stream, F_GETFD) != -1) continue;
    [[maybe_unused]] const int opened = open("/dev/null", kModes[static_cast<std::size_t>(stream)]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  occupy_closed_streams();
  std::signal(SIGBUS, on_bus_error);
  clear_stage_on_signals();
  setenv("SYSTEMC_DISABLE_COPYRIGHT_MESSAGE", "1",
         0);  // its banner would precede every output of ours
  return sc_core::sc_elab_and_sim(argc, argv);
}

int sc_main(int argc, char** argv) {
  // A model that refuses its configuration throws; the text reaches the user through run().
  sc_core::sc_report_handler::set_actions(sc_core::SC_FATAL, sc_core::SC_THROW);
  sc_core::sc_report_handler::set_actions("/IEEE_Std_1666/deprecated", sc_core::SC_DO_NOTHING);
  const int status = run(argc, argv);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    complain("opd: standard output cannot be written; check the disk or the pipe behind it\n");
    return status == kMismatch ? kMismatch : kBadInput;
  }
  return status;
}
