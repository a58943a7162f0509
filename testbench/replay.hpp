#pragma once
// One trace through the chosen paths, compared bit for bit and measured.
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compute.hpp"
#include "metrics.hpp"
#include "paths/path_result.hpp"
#include "paths/waveform.hpp"
#include "policy.hpp"

namespace opd::tb {

/// All paths, in the order in which they are reported.
inline const std::vector<std::string> kPathNames = {"rtl", "systemc", "systemc-lt",
                                                    "cpu", "cuda",    "cuda-emulated"};
/// Those that run where the user names none.
inline const std::vector<std::string> kDefaultPaths = {"rtl", "systemc", "systemc-lt", "cpu",
                                                       "cuda"};

/// Those whose stored state can be compared.
inline constexpr std::array<std::string_view, 4> kStatePaths = {"rtl", "systemc", "systemc-lt",
                                                                "cpu"};

/// Of a planted fault in what a path computes.
inline constexpr std::string_view kComputeFault = "compute-";
/// Of a planted fault in the state that a path stores.
inline constexpr std::string_view kStateFault = "state-";

struct ReplayOptions {
  std::vector<std::filesystem::path> traces;
  std::vector<std::string> paths = kDefaultPaths;
  bool paths_by_name = false;  ///< the user asked for these: one that does not run is an error
  std::filesystem::path out;   ///< folder for results; empty = none are written
  DeviceParameters device;
  std::string profile{kProfileNames[0]};  ///< whose weights `config` started from; for the report
  Config config;
  unsigned lane_latency = 4;
  unsigned bubbles = 1;  ///< with one stream, no completion ever finds the op queue full
  unsigned streams = 1;
  std::optional<ComputeOptions> compute;  ///< operators with operands are computed
  /// Path whose configuration is falsified, to see the check bite; or kComputeFault and a path that
  /// computes: of whose unit an operand is falsified; or kStateFault and a path whose state is
  /// compared: whose baseline moves at another rate
  std::optional<std::string> plant_fault;
  bool compare_state = false;  ///< what is stored of the operators, after each completion
  std::optional<WaveformWindow> waveform;  ///< cycles of the (single) trace to dump
  std::shared_ptr<HostPolicy> policy;      ///< null: the built-in controller alone
};

/// What a policy did in a trace.
struct PolicyOutcome {
  std::array<std::uint64_t, kHostCommandNames.size()> commands{};  ///< by kHostCommandNames
  double seconds = 0;                                              ///< in the policy
};

/// Everything that is known of one replayed trace.
struct TraceResult {
  std::filesystem::path file;
  std::string name, label;
  std::vector<std::string> probe_names;  ///< by op id, accumulators included
  bool raw = false;                      ///< any operator went through the datapath
  std::size_t steps = 0, probes = 0;
  std::size_t raw_operators = 0, statistic_operators = 0;  ///< that were replayed
  std::uint64_t raw_bytes = 0, raw_elements = 0;
  std::vector<std::uint32_t> learning_rate_changes;  ///< steps announced to the device
  std::vector<PathResult> paths;
  std::map<std::string, std::string> skipped;  ///< path -> reason
  std::vector<RecordComparison> comparisons;   ///< each path against the first one
  std::uint64_t cycles_compared = 0;
  std::uint64_t cycle_mismatches = 0;  ///< 0 or 1: lockstep stops at the first
  std::uint64_t records_compared = 0;  ///< per path: the smallest number of any comparison
  std::uint64_t beats_compared = 0;
  std::uint64_t events_compared = 0;  ///< as records_compared
  /// As records_compared, of the paths that keep them; nothing unless states are compared
  std::optional<std::uint64_t> states_compared;
  std::uint64_t mismatches = 0;
  std::optional<Divergence> divergence;  ///< the earliest
  std::vector<MismatchKind> kinds;       ///< all mismatches; that of `divergence` first
  std::optional<ComputeResult> compute;
  DetectionQuality quality;
  ModeShares modes;  ///< on the first path
  std::optional<PolicyOutcome> policy;
  std::vector<SampledDetection> sampled;
  std::vector<EngineDetection> engines;
  std::optional<Spread> reaction_cycles;  ///< operators through the tap, rtl = systemc
  std::optional<Spread> sideband_cycles;  ///< statistics
  std::string waveform;       ///< file name of the dump around the divergence, if there is one
  std::string waveform_view;  ///< of its GTKWave save file
  /// Whether anything of it was held against anything.
  [[nodiscard]] bool compared() const { return cycles_compared + records_compared > 0; }
  /// The first path whose host reports events and hints; null when only cuda or cuda-emulated ran.
  [[nodiscard]] const PathResult* host_path() const;
  [[nodiscard]] const PathResult* path(const std::string& name) const;
  /// The first path with executions of its own; null when none was computed.
  [[nodiscard]] const PathResult* computing_path() const;
  /// Completions that the device never saw; 0 when neither rtl nor systemc ran.
  [[nodiscard]] std::uint32_t unseen() const;
};

/// What a replay shows. Only kEqual is a pass.
enum class Verdict { kEqual, kNothingCompared, kPathMissing, kMismatch };
inline constexpr std::array<std::string_view, 4> kVerdictNames = {"equal", "nothing compared",
                                                                  "path missing", "mismatch"};

/// Of one trace, and the worst of several; nothing is compared where there is none. kPathMissing: a
/// path that was asked for by name did not run.
[[nodiscard]] Verdict verdict_of(const ReplayOptions& options, const TraceResult& result);
[[nodiscard]] Verdict verdict_of(const ReplayOptions& options,
                                 const std::vector<TraceResult>& results);

/// Configuration with one field changed so that the first record of any trace differs: WARMUP is
/// never, or once, raised.
[[nodiscard]] Config falsified(Config config);

/// Configuration with one field changed so that the baseline of an operator that moves differs from
/// its second sample on, and records do when the forecast that follows from it does.
[[nodiscard]] Config falsified_state(Config config);

/// Replays every trace; all of them are read and checked before the first one runs. `progress` gets
/// one line of text at a time. Errors: trace::TraceError for a bad trace, std::runtime_error when
/// no chosen path can run, one that was asked for by name cannot run here, a planted fault cannot
/// act, or the policy fails. Record streams are written when all have run.
[[nodiscard]] std::vector<TraceResult> replay(
    const ReplayOptions& options, const std::function<void(const std::string&)>& progress);

/// The records of every path, and the baseline and z of the reference, as files of the folder named
/// after the trace (docs/formats.md). Throws trace::TraceError.
void write_records(const std::filesystem::path& folder, const TraceResult& result);

/// The text with control characters replaced by '?': names come from files and go to terminals.
[[nodiscard]] std::string printable(std::string_view text);

/// Mismatches of all traces by kind, in the order of the traces.
struct MismatchSummary {
  MismatchKind kind;
  std::size_t traces = 0;
  const TraceResult* first = nullptr;  ///< the trace of the kind's first mismatch, of its last
  const TraceResult* last = nullptr;
  /// The first in which a difference of stored state became visible, and that difference.
  const TraceResult* shown = nullptr;
  const Divergence* shown_start = nullptr;
};
[[nodiscard]] std::vector<MismatchSummary> mismatch_kinds(const std::vector<TraceResult>& results);

/// Where it became visible: "shown 12 completions later by flags of op 3 (..), step 7, seq 90".
[[nodiscard]] std::string describe(const Consequence& consequence,
                                   const std::vector<std::string>& probe_names);

/// One sentence that names path pair, op, step, seq, field, both values and cycle, and of a state
/// where it shows.
[[nodiscard]] std::string describe(const Divergence& divergence,
                                   const std::vector<std::string>& probe_names);

}  // namespace opd::tb
