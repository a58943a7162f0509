#include "bench.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <Eigen/Core>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "computing_bench.hpp"
#include "opd/reference/byte_sum.hpp"
#include "opd/reference/compute.hpp"
#include "opd/reference/cpu.hpp"
#include "opd/trace/whole_file.hpp"
#include "opd/trace/writer.hpp"
#include "paths/cpu_path.hpp"
#include "paths/cuda_path.hpp"
#include "paths/rtl_factory.hpp"
#include "paths/simulation.hpp"
#include "replay.hpp"
#include "report.hpp"
#include "say.hpp"

namespace opd::tb {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Best of five, in seconds: what the code costs, not what else the machine was doing.
template <class Work>
double best_of_five(Work work) {
  double best = 1e300;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    work();
    best = std::min(best, seconds_since(start));
  }
  return best;
}

/// A table of figures beside their yardsticks.
class Table {
 public:
  Table() {
    say("  {:<44} {:>22} {:>34} {:>6}  {}\n", "what", "measured", "yardstick, same run", "ratio",
        "goal");
  }
  /// A figure beside a yardstick measured in the same run; `goal` is the least ratio wanted, 0 =
  /// none.
  void row(const std::string& what, double value, const std::string& unit,
           const std::string& yardstick_name, double yardstick, double ratio, double goal) {
    line(what, value, unit, fmt::format("{} {:.3g} {}", yardstick_name, yardstick, unit),
         fmt::format("{:.2f}", ratio),
         goal > 0 ? fmt::format(">= {:g}{}", goal, ratio < goal ? ", missed" : "") : "");
    rows_.push_back({{"what", what},
                     {"value", value},
                     {"unit", unit},
                     {"yardstick", yardstick_name},
                     {"yardstick_value", yardstick},
                     {"ratio", ratio},
                     {"goal_ratio", goal}});
  }
  /// A figure with a goal of its own.
  void goal_row(const std::string& what, double value, const std::string& unit, double goal) {
    line(what, value, unit, "", "",
         fmt::format(">= {:g} {}{}", goal, unit, value < goal ? ", missed" : ""));
    rows_.push_back({{"what", what}, {"value", value}, {"unit", unit}, {"goal", goal}});
  }
  void skipped(const std::string& what, const std::string& reason) {
    say("  {:<44} skipped: {}\n", what, reason);
    rows_.push_back({{"what", what}, {"skipped", reason}});
  }
  [[nodiscard]] const nlohmann::ordered_json& rows() const { return rows_; }

 private:
  static void line(const std::string& what, double value, const std::string& unit,
                   const std::string& yardstick, const std::string& ratio,
                   const std::string& goal) {
    say("  {:<44} {:>22} {:>34} {:>6}  {}\n", what, fmt::format("{:.3g} {}", value, unit),
        yardstick, ratio, goal);
    std::fflush(stdout);
  }

  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

/// Halves around zero, as an activation holds them: no zeros, subnormals or non-finite values in
/// particular.
std::vector<std::byte> ordinary_elements(std::size_t bytes) {
  std::vector<std::byte> buffer(bytes);
  std::mt19937_64 rng(1);
  for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word = rng() & 0xBFFFBFFFBFFFBFFFu;
    for (unsigned b = 0; b < 8; ++b) buffer[i + b] = static_cast<std::byte>(word >> (8 * b));
  }
  return buffer;
}

/// FP16 statistics on a thread for every processor, beside the byte sum in the same chunks.
void bench_cpu_threads(Table& table, std::span<const std::byte> buffer) {
  const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1u, ref::kMaxThreads);
  const double gigabytes = static_cast<double>(buffer.size()) / 1e9;
  std::uint64_t sink = 0;
  const double plain = best_of_five([&] { sink += ref::byte_sum_on_threads(buffer, threads); });
  const double time = best_of_five(
      [&] { sink += ref::summarise_on_threads(Format::kFp16, buffer, threads).max_mag; });
  table.row(fmt::format("cpu statistics, FP16, {} threads", threads), gigabytes / time, "GB/s",
            "byte sum", gigabytes / plain, plain / time, 0.85);
  if (sink == 1) say("\n");  // keeps the results alive
}

void bench_cpu(Table& table, std::size_t bytes) {
  const std::vector<std::byte> buffer = ordinary_elements(bytes);
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  std::uint64_t sink = 0;
  const double plain = best_of_five([&] { sink += ref::byte_sum(buffer); });
  double fp16 = 0;
  for (std::size_t f = 0; f < kFormatNames.size(); ++f) {
    const auto format = static_cast<Format>(f);
    const double time = best_of_five([&] { sink += ref::summarise(format, buffer).max_mag; });
    if (format == Format::kFp16) fp16 = time;
    table.row(fmt::format("cpu statistics, {}, {} MiB", kFormatNames[f], bytes >> 20),
              gigabytes / time, "GB/s", "byte sum", gigabytes / plain, plain / time, 0.9);
  }
  bench_cpu_threads(table, buffer);
  const double torch = torch_abs_max_seconds(bytes);
  if (torch > 0) {
    table.row("cpu statistics, FP16, against PyTorch", gigabytes / fp16, "GB/s", "abs().max()",
              gigabytes / torch, torch / fp16, 12);
  } else {
    table.skipped("cpu statistics against PyTorch",
                  "PyTorch is not installed; scripts/setup --for test installs it");
  }
  if (sink == 1) say("\n");  // keeps the results alive
}

/// FP16 numbers around 0, as a residual stream holds them: uniform in -2..2.
std::vector<std::byte> uniform_halves(std::size_t count, std::mt19937_64& rng) {
  std::vector<std::byte> elements(2 * count);
  for (std::size_t k = 0; k < count; ++k) {
    const float value = static_cast<float>(rng() >> 40) * 0x1p-22f - 2.0f;
    const std::uint32_t bits = ref::cast(Format::kFp16, value);
    elements[2 * k] = static_cast<std::byte>(bits);
    elements[2 * k + 1] = static_cast<std::byte>(bits >> 8);
  }
  return elements;
}

/// A row kernel in FP16 with its default attribute; `vectors` are its gain and bias where it has them.
Computation row_kernel(Kernel kernel, std::span<const std::byte> x, std::uint32_t rows,
                       std::uint32_t columns,
                       const std::array<std::span<const std::byte>, kMaxOperands>& vectors) {
  const KernelTraits& traits = traits_of(kernel);
  Computation computation{.kernel = kernel,
                          .rows = rows,
                          .columns = columns,
                          .attribute = static_cast<float>(traits.attribute_default)};
  computation.operands[0] = {x, Format::kFp16, rows, columns};
  for (std::size_t i = 1; i < kMaxOperands; ++i) {
    if (traits.operands[i] == "gain" || traits.operands[i] == "bias")
      computation.operands[i] = {vectors[i], Format::kFp16, 1, columns};
  }
  return computation;
}

/// The row kernels of the vector unit's reference in FAST beside PyTorch's on the same shapes.
void bench_row_kernels(Table& table) {
  constexpr std::uint32_t kRows = 4096, kColumns = 1024;
  constexpr double kElements = double{kRows} * kColumns / 1e9;
  std::mt19937_64 rng(2);
  const std::vector<std::byte> x = uniform_halves(std::size_t{kRows} * kColumns, rng);
  const std::vector<std::byte> gain = uniform_halves(kColumns, rng);
  const std::vector<std::byte> bias = uniform_halves(kColumns, rng);
  std::uint64_t sink = 0;
  for (const Kernel kernel : {Kernel::kSoftmax, Kernel::kLayerNorm, Kernel::kRmsNorm}) {
    const KernelTraits& traits = traits_of(kernel);
    const Computation computation = row_kernel(kernel, x, kRows, kColumns, {x, gain, bias});
    const double time = best_of_five([&] {
      sink += std::to_integer<std::uint64_t>(ref::compute(computation, Mode::kFast).output[0]);
    });
    const std::string what =
        fmt::format("cpu vector unit, {}, FP16, {} x {}", traits.name, kRows, kColumns);
    const double torch = torch_row_kernel_seconds(std::string(traits.name), kRows, kColumns);
    if (torch > 0) {
      table.row(what, kElements / time, "G elements/s", "PyTorch", kElements / torch, torch / time,
                1);
    } else {
      table.skipped(what, "PyTorch is not installed; scripts/setup --for test installs it");
    }
  }
  if (sink == 1) say("\n");  // keeps the results alive
}

/// Completions per second of the CPU reference, statistics given: detection, risk and decision.
double detection_speed(const DeviceParameters& device) {
  constexpr std::uint32_t kCompletions = 1u << 20;
  std::uint64_t risk = 0;
  const double time = best_of_five([&] {
    ref::CpuReference reference(device, {});
    for (std::uint32_t seq = 0; seq < kCompletions; ++seq) {
      const OpDescriptor descriptor{.op = static_cast<std::uint16_t>(seq % device.num_ops),
                                    .step = seq / device.num_ops};
      // Magnitudes around 1 that never repeat in an operator's neighbouring steps.
      const std::uint32_t max_mag = 0x3C00 + (seq * 2654435761u >> 23);
      risk += reference.complete(seq, descriptor, {.max_mag = max_mag, .element_count = 1})
                  ->record.risk;
    }
  });
  if (risk == 1) say("\n");  // keeps the results alive
  return kCompletions / time;
}

void bench_detection(Table& table) {
  const DeviceParameters both = rtl_parameters();
  DeviceParameters forecast = both, published = both;
  forecast.published_engine = false;
  published.forecast_engine = false;
  const double alone = detection_speed(forecast) / 1e6;
  for (const auto& [what, device] :
       {std::pair("both engines", both), std::pair("published engine alone", published)}) {
    const double speed = detection_speed(device) / 1e6;
    table.row(fmt::format("cpu detection, {}", what), speed, "M samples/s", "forecast alone", alone,
              speed / alone, 0);
  }
}

/// A stimulus for the device alone: ordinary operators of 16 beats, back to back.
std::vector<CycleInput> device_stimulus(const DeviceParameters& device) {
  constexpr std::size_t kBeats = 4096, kBeatsPerOp = 16;
  const std::size_t beat_bytes = device.datapath_width / 8;
  const std::vector<std::byte> elements = ordinary_elements(kBeats * beat_bytes);
  std::vector<CycleInput> stimulus(kBeats);
  for (std::size_t i = 0; i < kBeats; ++i) {
    CycleInput& input = stimulus[i];
    input.beat_valid = true;
    input.beat.descriptor.op = static_cast<std::uint16_t>(i / kBeatsPerOp % device.num_ops);
    input.beat.last = i % kBeatsPerOp == kBeatsPerOp - 1;
    input.beat.lane_enable = ~std::uint64_t{0};
    std::copy_n(reinterpret_cast<const std::uint8_t*>(elements.data()) + i * beat_bytes, beat_bytes,
                input.beat.data.begin());
  }
  return stimulus;
}

/// Four operators of 4 MiB over four steps, raw: the sizes of a real layer, where the elements
/// outweigh the bookkeeping.
trace::Trace large_tensors() {
  constexpr std::size_t kOps = 4, kSteps = 4, kElements = std::size_t{2} << 20;
  trace::TraceContent content{.name = "large-tensors", .label = trace::Label::kData};
  const std::vector<std::byte> elements = ordinary_elements(2 * kElements);
  const TapSummary summary = ref::summarise(Format::kFp16, elements);
  const auto max_abs = static_cast<float>(
      Eigen::numext::bit_cast<Eigen::half>(static_cast<std::uint16_t>(summary.max_mag)));
  for (std::size_t op = 0; op < kOps; ++op) {
    content.probes.push_back(
        {.name = fmt::format("op{}", op), .format = Format::kFp16, .shape = {kElements}});
  }
  for (std::size_t step = 0; step < kSteps; ++step) {
    content.step.push_back(static_cast<std::int64_t>(step));
    content.raw_step.push_back(static_cast<std::int64_t>(step));
    for (const trace::Probe& probe : content.probes) {
      content.max_abs.push_back(max_abs);
      content.nonfinite.push_back(0);
      auto& rows = content.raw[probe.name];
      rows.insert(rows.end(), elements.begin(), elements.end());
    }
  }
  return trace::Trace::parse(trace::serialize(content, content.name), content.name);
}

/// FP16 softmax, LayerNorm and RMSNorm with gain and bias, rows of 1024, in FAST.
void bench_computing(Table& table, ComputingBench& bench) {
  constexpr std::uint32_t kRows = 1024, kColumns = 1024;
  const std::vector<std::byte> elements = ordinary_elements(std::size_t{kRows} * kColumns * 2);
  const auto row = std::span(elements).first(kColumns * 2);
  for (const Kernel kernel : {Kernel::kSoftmax, Kernel::kLayerNorm, Kernel::kRmsNorm}) {
    const KernelTraits& traits = traits_of(kernel);
    const Computation computation = row_kernel(kernel, elements, kRows, kColumns, {row, row, row});
    const ComputingBench::Speed accurate = bench.cycle_accurate(computation, 4);
    table.goal_row(fmt::format("computing vector unit, {}, beats of its lanes", traits.name),
                   static_cast<double>(accurate.lane_beats) / accurate.seconds / 1e6, "M beats/s",
                   0.5);
    say("  {:<44} {:>22}\n", "  in beats written back",
        fmt::format("{:.3g} M beats/s",
                    static_cast<double>(accurate.output_beats) / accurate.seconds / 1e6));
    say("  {:<44} {:>22}\n", "  in clock cycles",
        fmt::format("{:.3g} M cycles/s",
                    static_cast<double>(accurate.cycles) / accurate.seconds / 1e6));
    constexpr unsigned kCount = 16;
    const double lt = best_of_five([&] { bench.loosely_timed(computation, kCount); }) / kCount;
    std::uint64_t sink = 0;
    const double reference = best_of_five([&] {
      sink += std::to_integer<std::uint64_t>(ref::compute(computation, Mode::kFast).output[0]);
    });
    if (sink == 1) say("\n");  // keeps the results alive
    const double count = static_cast<double>(computation.output_elements()) / 1e6;
    table.row(fmt::format("computing vector unit, loosely timed, {}", traits.name), count / lt,
              "M elements/s", "cpu vector unit", count / reference, reference / lt, 0.3);
  }
}

void bench_models(Table& table, const BenchOptions& options) {
  const DeviceParameters device = rtl_parameters();
  ComputingBench computing(device);  // elaborated with the simulation, before anything runs
  const std::vector<CycleInput> stimulus = device_stimulus(device);
  const double rtl = measure_rtl_speed(stimulus, options.seconds) / 1e6;
  table.goal_row("rtl, Verilated, 512-bit beats", rtl, "M beats/s", 8);
  const std::vector<CycleInput> nothing(stimulus.size());
  const double idle = measure_rtl_speed(nothing, options.seconds) / 1e6;
  table.row("rtl, Verilated, idle clocks", idle, "M clocks/s", "a beat in each", rtl, idle / rtl,
            0);
  Simulation simulation({.device = device});
  bench_computing(table, computing);
  std::vector<trace::Trace> traces;
  traces.push_back(large_tensors());
  for (const auto& file : options.traces) traces.push_back(trace::Trace::read(file));
  for (const trace::Trace& trace : traces) {
    const OperatorStream operators(trace, device.num_ops);
    const LockstepResult alone = simulation.run_lockstep(operators, nullptr);
    const double beats = static_cast<double>(alone.systemc.beats);
    const double cycles = static_cast<double>(alone.systemc.cycles);
    table.goal_row(fmt::format("systemc, cycle-accurate, {}", trace.name()),
                   beats / alone.systemc.seconds / 1e6, "M beats/s", 5);
    say("  {:<44} {:>22}\n", "  in clock cycles",
        fmt::format("{:.3g} M cycles/s", cycles / alone.systemc.seconds / 1e6));
    const PathResult lt = simulation.run_loosely_timed(operators);
    const PathResult cpu = run_cpu(operators, device, {});
    table.row(fmt::format("systemc-lt, {}", trace.name()), beats / lt.seconds / 1e6, "M beats/s",
              "cpu path", beats / cpu.seconds / 1e6, cpu.seconds / lt.seconds, 0.6);
    const auto start = Clock::now();
    const auto rtl_device = make_rtl_device();
    const LockstepResult both = simulation.run_lockstep(operators, rtl_device.get());
    (void)simulation.run_loosely_timed(operators);
    (void)run_cpu(operators, device, {});
    const double elapsed = seconds_since(start);
    table.goal_row(fmt::format("end to end, four paths, {}", trace.name()),
                   static_cast<double>(both.cycles_compared) / elapsed / 1e6, "M cycles/s", 3);
  }
}

}  // namespace

int run_bench(const BenchOptions& options) {
  if (!options.json.empty()) {  // before the work
    const std::filesystem::path folder = std::filesystem::absolute(options.json).parent_path();
    if (access(folder.c_str(), W_OK | X_OK) != 0) {
      throw std::runtime_error(
          fmt::format("--json {}: cannot be written; choose another file", options.json.string()));
    }
  }
  say("opd bench: best of five for memory passes, {} s for the Verilated device; one thread where "
      "none are "
      "named, and two for rtl beside systemc\n",
      options.seconds);
  Table table;
  bench_cpu(table, std::size_t{options.megabytes} << 20);
  bench_row_kernels(table);
  bench_detection(table);
  bench_models(table, options);
  std::string reason;
  table.skipped("cuda statistics", cuda_available(&reason)
                                       ? "opd_cuda_check measures it beside a device copy"
                                       : reason);
  if (!options.json.empty()) trace::write_whole(options.json, table.rows().dump(2) + "\n");
  return 0;
}

}  // namespace opd::tb
