#include "paths/simulation.hpp"

#include <chrono>
#include <stdexcept>
#include <systemc>
#include <tlm>

#include "opd/sc/device_signals.hpp"
#include "opd/sc/loosely_timed_device.hpp"
#include "opd/sc/loosely_timed_unit.hpp"
#include "paths/cpu_path.hpp"

namespace opd::tb {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

const sc_core::sc_time kHalfPeriod(0.5, sc_core::SC_NS);  // 1 GHz

/// A clock that stops, so that a simulation with nothing left to do returns by itself.
class GatedClock : public sc_core::sc_module {
 public:
  sc_core::sc_out<bool> clk{"clk"};
  SC_HAS_PROCESS(GatedClock);
  explicit GatedClock(sc_core::sc_module_name name) : sc_core::sc_module(name) {
    SC_METHOD(toggle_);
    dont_initialize();
    sensitive << tick_;
  }
  void start() {
    running_ = true;
    tick_.notify(kHalfPeriod);
  }
  void stop() {
    running_ = false;
    if (!level_) tick_.cancel();  // always ends low
  }

 private:
  void toggle_() {
    level_ = !level_;
    clk.write(level_);
    if (running_ || level_) tick_.notify(kHalfPeriod);
  }
  sc_core::sc_event tick_;
  bool running_ = false;
  bool level_ = false;
};

}  // namespace

/// Everything that is elaborated, and the monitor that samples the pins between two edges: at the
/// falling edge the outputs of the last rising edge and the inputs of the next one are both
/// settled.
struct Simulation::Modules : public sc_core::sc_module {
  SC_HAS_PROCESS(Modules);

  Modules(sc_core::sc_module_name name, const SimulationOptions& options)
      : sc_core::sc_module(name),
        clock("clock"),
        unit(
            "vector_unit", options.device,
            {.lane_latency = options.lane_latency,
             .bubbles = options.bubbles,
             .streams = options.streams},
            [this](sc::Operation& operation) { return next_(operation); },
            [this](std::uint64_t tag, std::uint64_t, std::uint64_t last_beat_cycle,
                   Mode mode_at_issue) {
              issued.push_back({tag, last_beat_cycle, mode_at_issue});
            }),
        device("device", options.device, options.config),
        lt_unit(
            "lt_unit", {.bubbles = options.bubbles},
            [this](sc::Operation& operation) { return next_loosely_timed_(operation); },
            [this](const OpRecord& record, const TapCounts& record_counts) {
              lt_result.completions.push_back({.record = record, .counts = record_counts});
            },
            [this](std::uint64_t tag, std::uint64_t, std::uint64_t, Mode mode_at_issue) {
              lt_issued.push_back({tag, 0, mode_at_issue});
            }),
        lt_device("lt_device", options.device, options.loosely_timed_config) {
    clock.clk(pins.clk);
    pins.bind(unit);
    unit.done(done);
    pins.bind(device);
    lt_unit.socket.bind(lt_device.socket);

    SC_METHOD(monitor_);
    dont_initialize();
    sensitive << pins.clk.negedge_event();
  }

  void monitor_() {
    if (!pins.rst_n.read()) {
      // Two cycles of reset, then one edge that nothing happens at: edge 0 of the run.
      if (++reset_cycles == 2) pins.rst_n.write(true);
      return;
    }
    ++cycle;
    pins.read(input);
    const CycleOutput out = pins.outputs();
    note_pushes_();
    note_record_(out, result.systemc);
    if (on_progress && out.record_valid && result.systemc.completions.size() % 8192 == 0) {
      on_progress(result.systemc.completions.size());
    }
    if (rtl != nullptr) compare_(out);
    const bool quiet = done.read() && out.queue_level == 0 && !out.record_valid &&
                       !input.beat_valid && !input.stat_valid;
    idle_cycles = quiet ? idle_cycles + 1 : 0;
    if (idle_cycles == kDrainCycles) clock.stop();
  }

  /// Completions in the order of their seq: a statistic accepted at an edge is pushed at that edge,
  /// a last beat one later.
  void note_pushes_() {
    if (input.stat_valid && pins.stat_ready.read()) push_cycles.push_back({cycle, false});
    if (input.beat_valid) {
      ++result.systemc.beats;
      if (input.beat.last) push_cycles.push_back({cycle, true});
    }
  }

  void note_record_(const CycleOutput& out, PathResult& path) {
    if (!out.record_valid) return;
    const std::size_t seq = out.record.seq;
    if (seq >= push_cycles.size() || seq >= issued.size() ||
        push_cycles[seq].cycle != issued[seq].last_beat_cycle) {
      throw std::logic_error("a record's seq does not belong to a completion of the vector unit");
    }
    path.completions.push_back({.tag = issued[seq].tag,
                                .last_beat_cycle = push_cycles[seq].cycle,
                                .record_cycle = cycle,
                                .mode_at_issue = issued[seq].mode,
                                .from_beats = push_cycles[seq].from_beats,
                                .record = out.record,
                                .counts = out.counts});
  }

  void compare_(const CycleOutput& out) {
    const auto start = Clock::now();
    const CycleOutput rtl_out = rtl->peek(input);
    rtl->edge();
    result.rtl.seconds += seconds_since(start);
    ++result.cycles_compared;
    // A record with a seq of its own cannot be filed; the comparison below names it.
    if (rtl_out.record_valid && out.record_valid && rtl_out.record.seq == out.record.seq) {
      note_record_(rtl_out, result.rtl);
    }
    if (auto divergence = compare_cycles("rtl", rtl_out, "systemc", out, cycle)) {
      result.cycle_mismatches = 1;
      if (divergence->record && divergence->record->seq < push_cycles.size()) {
        divergence->last_beat_cycle = push_cycles[divergence->record->seq].cycle;
      }
      result.divergence = std::move(divergence);
      clock.stop();
    }
  }

  /// Longer than the pipeline from the last beat to its record.
  static constexpr unsigned kDrainCycles = 8;

  struct Push {
    std::uint64_t cycle;
    bool from_beats;
  };
  struct Issued {
    std::size_t tag;
    std::uint64_t last_beat_cycle;
    Mode mode;
  };

  bool next_(sc::Operation& operation) {
    if (operators == nullptr || next_tag == operators->size()) return false;
    operation = operation_of_(*operators, next_tag++);
    return true;
  }
  bool next_loosely_timed_(sc::Operation& operation) {
    if (lt_operators == nullptr ||
        lt_next == (lt_order.empty() ? lt_operators->size() : lt_order.size()))
      return false;
    operation = operation_of_(*lt_operators, lt_order.empty() ? lt_next : lt_order[lt_next]);
    ++lt_next;
    return true;
  }
  static sc::Operation operation_of_(const OperatorStream& stream, std::size_t tag) {
    const Operator op = stream.at(tag);
    return {.descriptor = op.descriptor,
            .elements = op.elements,
            .statistic = op.statistic,
            .tag = tag};
  }

  sc::DeviceSignals pins;
  sc_core::sc_signal<bool> done{"done"};

  GatedClock clock;
  sc::VectorUnit unit;
  sc::Device device;
  sc::LooselyTimedUnit lt_unit;
  sc::LooselyTimedDevice lt_device;

  // State of the run in progress.
  const OperatorStream* operators = nullptr;
  std::size_t next_tag = 0;
  unsigned reset_cycles = 0;
  PinDevice* rtl = nullptr;
  std::function<void(std::size_t)> on_progress;
  std::uint64_t cycle = 0;
  unsigned idle_cycles = 0;
  CycleInput input;
  std::vector<Push> push_cycles;  // by seq
  std::vector<Issued> issued;     // by seq
  LockstepResult result;

  // The same, loosely timed.
  const OperatorStream* lt_operators = nullptr;
  std::span<const std::size_t> lt_order;
  std::size_t lt_next = 0;
  std::vector<Issued> lt_issued;  // by seq
  PathResult lt_result;
};

Simulation::Simulation(const SimulationOptions& options)
    : modules_(std::make_unique<Modules>("opd", options)) {
  // Local time may run ahead: nothing else happens while the loosely timed unit runs.
  tlm::tlm_global_quantum::instance().set(sc_core::sc_time(100, sc_core::SC_US));
}
Simulation::~Simulation() = default;

LockstepResult Simulation::run_lockstep(const OperatorStream& operators, PinDevice* rtl,
                                        const std::function<void(std::size_t)>& on_progress) {
  Modules& m = *modules_;
  m.operators = &operators;
  m.next_tag = 0;
  m.reset_cycles = 0;
  m.rtl = rtl;
  m.on_progress = on_progress;
  m.cycle = 0;
  m.idle_cycles = 0;
  m.input = {};
  m.push_cycles.clear();
  m.issued.clear();
  m.result = {};
  m.result.rtl.path = "rtl";
  m.result.systemc.path = "systemc";
  if (rtl != nullptr) rtl->reset();

  m.pins.rst_n.write(false);
  m.clock.start();
  const auto start = Clock::now();
  sc_core::sc_start();  // returns when the clock has stopped
  m.result.systemc.seconds = seconds_since(start) - m.result.rtl.seconds;

  const sc::VectorUnitCounts& counts = m.unit.counts();
  for (PathResult* path : {&m.result.systemc, &m.result.rtl}) {
    path->cycles = m.cycle;
    path->beats = m.result.systemc.beats;
    path->stall_cycles = counts.tap_stall_cycles;
    path->queue_high_water = m.pins.queue_high_water.read();
    path->unseen_count = m.pins.unseen_count.read();
  }
  m.operators = nullptr;
  m.rtl = nullptr;
  return std::move(m.result);
}

PathResult Simulation::run_loosely_timed(const OperatorStream& operators,
                                         std::span<const std::size_t> order) {
  Modules& m = *modules_;
  m.lt_operators = &operators;
  m.lt_order = order;
  m.lt_next = 0;
  m.lt_issued.clear();
  m.lt_result = {.path = "systemc-lt"};
  m.lt_device.reset();
  m.lt_unit.restart();
  const auto start = Clock::now();
  sc_core::sc_start();  // returns when the unit waits for a restart
  m.lt_result.seconds = seconds_since(start);
  for (Completion& completion : m.lt_result.completions) {
    const Modules::Issued& issued = m.lt_issued.at(completion.record.seq);
    completion.tag = issued.tag;
    completion.mode_at_issue = issued.mode;
  }
  m.lt_operators = nullptr;
  return std::move(m.lt_result);
}

}  // namespace opd::tb
