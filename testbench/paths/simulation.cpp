#include "paths/simulation.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <systemc>
#include <tlm>
#include <utility>

#include "opd/driver/driver.hpp"
#include "opd/driver/fields.hpp"
#include "opd/sc/device_signals.hpp"
#include "opd/sc/loosely_timed_device.hpp"
#include "opd/sc/loosely_timed_unit.hpp"
#include "opd/types/unit_registers.hpp"
#include "paths/apb_bus.hpp"
#include "paths/pin_comparison.hpp"
#include "paths/stored_state_of.hpp"
#include "paths/tlm_bus.hpp"

namespace opd::tb {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

const sc_core::sc_time kPeriod(1, sc_core::SC_NS);  // 1 GHz

/// A clock that stops, so that a simulation with nothing left to do returns by itself. It is high for
/// one delta cycle. `before_edge` is called before every rising edge, when everything that the one
/// before has set off is settled; no edge follows when it stops the clock.
class GatedClock : public sc_core::sc_module {
 public:
  sc_core::sc_out<bool> clk{"clk"};
  SC_HAS_PROCESS(GatedClock);
  GatedClock(sc_core::sc_module_name name, std::function<void()> before_edge)
      : sc_core::sc_module(name), before_edge_(std::move(before_edge)) {
    SC_METHOD(tick_);
    dont_initialize();
    sensitive << next_;
  }
  void start() {
    running_ = true;
    next_.notify(kPeriod);
  }
  void stop() {
    running_ = false;
    if (!level_) next_.cancel();  // always ends low
  }

 private:
  void tick_() {
    if (!level_) before_edge_();
    if (!level_ && !running_) return;
    level_ = !level_;
    clk.write(level_);
    if (level_) {
      next_.notify(sc_core::SC_ZERO_TIME);
    } else if (running_) {
      next_.notify(kPeriod);
    }
  }
  const std::function<void()> before_edge_;
  sc_core::sc_event next_;
  bool running_ = false;
  bool level_ = false;
};

/// Ends a host in the middle of an access when its run has been stopped.
struct RunStopped {};

/// The register in which two configurations differ.
std::optional<std::uint16_t> differing_register(const Config& left, const Config& right) {
  for (const ConfigField& field : kConfigFields) {
    if (field.get(left) != field.get(right)) return field.address;
  }
  return std::nullopt;
}

struct Push {
  std::uint64_t cycle;
  bool from_beats;
};
struct Issued {
  std::size_t tag;
  std::uint64_t last_beat_cycle;
  Mode mode;
};

std::optional<PolicyTurn> turn_of(PolicyAnswers* policy) {
  return policy == nullptr ? std::nullopt : std::optional(PolicyTurn(*policy));
}

/// What has to be said of the host's side of a run.
struct HostLog {
  HostLog() = default;
  HostLog(const HostLog&) = delete;  // hints refers to view
  HostLog& operator=(const HostLog&) = delete;
  HostView view;
  HintLog hints{view.hint_changes};
  std::uint32_t last_step = 0;  ///< of the events so far
};

/// A lockstep run. A new one starts from these values.
struct LockstepRun {
  const OperatorStream* operators = nullptr;
  PinComparison* comparison = nullptr;  ///< with the RTL device, if there is one
  const OperandFault* fault = nullptr;
  std::function<void(std::size_t)> on_progress;
  std::optional<LearningRateSchedule> schedule;
  std::optional<PolicyTurn> policy;

  LockstepExtras extras;
  std::vector<bool> states_differ;  ///< by op, as of the last completion

  unsigned reset_cycles = 0;
  std::uint64_t cycle = 0;
  std::size_t next_tag = 0;
  std::size_t dealt =
      0;  ///< completions to come of the operators dealt so far, and those that came
  std::vector<Push> pushes;    ///< by seq
  std::vector<Issued> issued;  ///< by seq
  LockstepResult result;

  // Between host, operator source and monitor.
  bool configured = false;                   ///< by the host: operators may start
  std::vector<std::uint32_t> announcements;  ///< by the source: steps that the host must announce
  bool policy_turn = false;  ///< by the source: the policy's commands are to be given
  std::exception_ptr error;  ///< of the policy: the run was stopped
  std::optional<std::uint32_t> unseen_count;  ///< at a divergence
  unsigned idle_cycles = 0;                   ///< since the last sign of an operator
  bool host_done = false;
  /// While the planted fault is written: data that the RTL gets instead of what is on the pins
  std::optional<std::uint32_t> rtl_data;
};

/// A loosely timed run.
struct LooselyTimedRun {
  const OperatorStream* operators = nullptr;
  std::span<const std::size_t> order;
  const OperandFault* fault = nullptr;
  std::optional<LearningRateSchedule> schedule;
  std::optional<PolicyTurn> policy;
  bool keep_states = false;
  std::exception_ptr error;  ///< of the policy: the run was stopped
  std::size_t next = 0;
  std::vector<Issued> issued;  ///< by seq
  PathResult result;
};

}  // namespace

/// Everything that is elaborated; the monitor, which samples the pins before a rising edge: the
/// outputs of the last one and the inputs of this one are both settled; and the host, which drives the
/// APB pins right after a rising edge as the vector unit drives its own.
struct Simulation::Modules : public sc_core::sc_module {
  SC_HAS_PROCESS(Modules);

  Modules(sc_core::sc_module_name name, const SimulationOptions& the_options)
      : sc_core::sc_module(name),
        options(the_options),
        clock("clock", [this] { monitor_(); }),
        unit(
            "vector_unit", options.device,
            {.lane_latency = options.lane_latency,
             .bubbles = options.bubbles,
             .streams = options.streams},
            [this](sc::Operation& operation) { return next_(operation); },
            [this](std::uint64_t tag, std::uint64_t, std::uint64_t last_beat_cycle,
                   Mode mode_at_issue) {
              run.issued.push_back({tag, last_beat_cycle, mode_at_issue});
            },
            [this](std::uint64_t tag, std::uint64_t, const Execution& execution) {
              run.result.systemc.executions.push_back({tag, execution});
            }),
        device("device", options.device),
        apb([this](const ApbRequest& request) { return apb_clock_(request); }),
        lt_unit(
            "lt_unit",
            {.bubbles = options.bubbles,
             .settings = {.datapath_width = options.device.datapath_width}},
            [this](sc::Operation& operation) { return next_loosely_timed_(operation); },
            [this](const OpRecord& record, const TapCounts& record_counts) {
              lt.result.completions.push_back({.record = record, .counts = record_counts});
              if (lt.keep_states)
                lt.result.states.push_back(stored_state_of(lt_device.stored(record.op)));
            },
            [this](std::uint64_t tag, std::uint64_t, std::uint64_t, Mode mode_at_issue) {
              lt.issued.push_back({tag, 0, mode_at_issue});
            },
            [this](std::uint64_t tag, std::uint64_t, const Execution& execution) {
              lt.result.executions.push_back({tag, execution});
            }),
        lt_device("lt_device", options.device),
        lt_bus("lt_bus"),
        unit_bus("unit_bus"),
        lt_unit_bus("lt_unit_bus") {
    clock.clk(pins.clk);
    pins.bind(unit);
    unit.done(done);
    pins.bind(device);
    lt_unit.socket.bind(lt_device.socket);
    lt_bus.socket.bind(lt_device.socket);
    unit_bus.socket.bind(unit.registers);
    lt_unit_bus.socket.bind(lt_unit.registers);

    SC_THREAD(host_);
    SC_METHOD(answer_);
    dont_initialize();
    sensitive << asked;
  }

  // --- monitor ---

  void monitor_() {
    if (!pins.rst_n.read()) {
      // Two edges in reset, then one that nothing happens at: edge 0 of the run.
      if (run.reset_cycles++ == 2) pins.rst_n.write(true);
      return;
    }
    ++run.cycle;
    const CycleOutput out = pins.outputs();
    const bool beat_valid = pins.beat_valid.read(), stat_valid = pins.stat_valid.read();
    note_pushes_(beat_valid, stat_valid, out.stat_ready);
    if (out.record_valid) note_record_(run.cycle, out.record, out.counts, run.result.systemc);
    if (run.on_progress && out.record_valid && run.result.systemc.completions.size() % 8192 == 0) {
      run.on_progress(run.result.systemc.completions.size());
    }
    if (run.extras.waveform != nullptr) tell_waveform_(*run.extras.waveform, out);
    if (run.comparison != nullptr) {
      compare_(out);
    } else if (run.extras.compare_state && out.record_valid) {
      keep_state_(out.record);
    }
    const bool quiet = run.issued.size() == run.dealt && out.queue_level == 0 &&
                       !out.record_valid && !beat_valid && !stat_valid;
    run.idle_cycles = quiet ? run.idle_cycles + 1 : 0;
    if (drained_()) wake_host.notify();  // at once: the host may wait for the edge to come
    if (run.host_done) clock.stop();
  }

  /// Every operator dealt so far has been recorded or has gone unseen.
  bool drained_() const { return run.idle_cycles >= kDrainCycles; }

  /// Completions in the order of their seq: a statistic accepted at an edge is pushed at that edge,
  /// a last beat one later.
  void note_pushes_(bool beat_valid, bool stat_valid, bool stat_ready) {
    if (stat_valid && stat_ready) run.pushes.push_back({run.cycle, false});
    if (stat_valid && !stat_ready) ++run.result.systemc.sideband_wait_cycles;
    if (beat_valid) {
      ++run.result.systemc.beats;
      if (pins.beat.read().last) run.pushes.push_back({run.cycle, true});
    }
  }

  void note_record_(std::uint64_t cycle, const OpRecord& record, const TapCounts& counts,
                    PathResult& path) {
    const std::size_t seq = record.seq;
    if (seq >= run.pushes.size() || seq >= run.issued.size() ||
        run.pushes[seq].cycle != run.issued[seq].last_beat_cycle) {
      throw std::logic_error("a record's seq does not belong to a completion of the vector unit");
    }
    path.completions.push_back({.tag = run.issued[seq].tag,
                                .last_beat_cycle = run.pushes[seq].cycle,
                                .record_cycle = cycle,
                                .mode_at_issue = run.issued[seq].mode,
                                .from_beats = run.pushes[seq].from_beats,
                                .record = record,
                                .counts = counts});
  }

  void compare_(const CycleOutput& out) {
    PinClock& now = run.comparison->next();
    pins.read(now.input);
    if (run.rtl_data && now.input.apb.write) now.input.apb.data = *run.rtl_data;
    now.output = out;
    now.cycle = run.cycle;
    now.beats = run.result.systemc.beats;
    now.executions = run.result.systemc.executions.size();
    now.sideband_wait_cycles = run.result.systemc.sideband_wait_cycles;
    run.comparison->push();
    if (run.comparison->ended()) clock.stop();
  }

  /// What asks for both devices at the same clock: stored state, which is compared between two edges,
  /// and a waveform, for which the run goes on after a divergence.
  std::optional<PinComparison::InStep> in_step_(PinDevice& rtl, const LockstepExtras& extras) {
    if (!extras.compare_state && extras.waveform == nullptr) return std::nullopt;
    PinComparison::InStep in_step{.to_the_end = extras.waveform != nullptr};
    if (extras.compare_state) {
      in_step.before_edge = [this, &rtl](const PinClock& now, const CycleOutput& out) {
        if (!now.output.record_valid) return;
        const OpRecord& record = now.output.record;
        keep_state_(record);
        compare_states_(rtl, record, out.record_valid && out.record.seq == record.seq);
      };
    }
    return in_step;
  }

  /// What the comparison has found. After a divergence the run is as it was in that clock.
  void file_(ComparisonResult comparison) {
    LockstepResult& result = run.result;
    result.rtl.seconds = comparison.seconds;
    result.rtl.sideband_wait_cycles = comparison.sideband_wait_cycles;
    result.cycles_compared = comparison.cycles;
    for (const FollowingRecord& r : comparison.records)
      note_record_(r.cycle, r.record, r.counts, result.rtl);
    if (!comparison.divergence) return;
    const PinClock& at = *comparison.differing;
    Divergence& divergence = *comparison.divergence;
    result.cycle_mismatches = 1;
    if (divergence.record && divergence.record->seq < run.pushes.size() &&
        run.pushes[divergence.record->seq].cycle <= at.cycle) {
      divergence.last_beat_cycle = run.pushes[divergence.record->seq].cycle;
    }
    result.divergence = std::move(divergence);
    std::erase_if(result.systemc.completions,
                  [&at](const Completion& c) { return c.record_cycle > at.cycle; });
    result.systemc.executions.resize(at.executions);
    result.systemc.beats = at.beats;
    result.systemc.sideband_wait_cycles = at.sideband_wait_cycles;
    if (at.cycle < run.cycle) result.systemc.host = result.rtl.host = std::nullopt;
    run.cycle = at.cycle;
    run.unseen_count = at.output.unseen_count;
    run.error = nullptr;  // of a turn that a divergence before it would have prevented
  }

  void keep_state_(const OpRecord& record) {
    run.result.systemc.states.push_back(stored_state_of(device.stored(record.op)));
  }

  /// Both words of every operator, now that a completion has been stored; a word that stays
  /// different is counted once per completion of its operator. Keeps that of the operator itself
  /// where the RTL's record will be filed.
  void compare_states_(PinDevice& rtl, const OpRecord& record, bool filed) {
    if (filed) run.result.rtl.states.push_back(rtl.stored_state(record.op).value());
    ++run.result.states_compared;
    run.states_differ.resize(options.device.num_ops);
    for (unsigned i = 0; i < options.device.num_ops; ++i) {
      const auto op = static_cast<std::uint16_t>(i);
      const StoredState left = rtl.stored_state(op).value();
      const StoredState right = stored_state_of(device.stored(op));
      const bool differ = left != right;
      if (differ && (op == record.op || !run.states_differ[op])) {
        for (Divergence& d : compare_states("rtl", left, "systemc", right, op,
                                            run.result.systemc.completions.back()))
          note(run.result.state_kinds, std::move(d));
      }
      run.states_differ[op] = differ;
    }
  }

  void tell_waveform_(Waveform& waveform, const CycleOutput& out) {
    if (run.cycle > waveform.window().last) clock.stop();
    if (!waveform.wants(run.cycle)) return;
    CycleInput input;
    pins.read(input);
    waveform.note_inputs(input);
    waveform.note_systemc(out, stored_state_of(device.stored(waveform.window().op)),
                          static_cast<unsigned>(device.detection_state()));
  }

  // --- operators ---

  sc::SourceAnswer next_(sc::Operation& operation) {
    if (!run.configured || run.policy_turn || !run.announcements.empty())
      return sc::SourceAnswer::kWait;
    if (run.next_tag == run.operators->size()) return sc::SourceAnswer::kEnd;
    const bool step_starts = run.next_tag % run.operators->probes() == 0;
    if (run.operators->computes() && step_starts && !drained_()) return sc::SourceAnswer::kWait;
    if (run.policy && run.policy->due(run.operators->step_index(run.next_tag))) {
      run.policy_turn = true;
      return sc::SourceAnswer::kWait;
    }
    run.schedule->before(run.next_tag,
                         [this](std::uint32_t step) { run.announcements.push_back(step); });
    if (!run.announcements.empty()) return sc::SourceAnswer::kWait;
    operation = operation_of_(*run.operators, run.next_tag++, run.fault);
    run.dealt += operation.accumulator_op ? 2 : 1;
    return sc::SourceAnswer::kOperation;
  }

  static sc::Operation operation_of_(const OperatorStream& stream, std::size_t tag,
                                     const OperandFault* fault) {
    const Operator op = stream.at(tag);
    sc::Operation result{.descriptor = op.descriptor,
                         .elements = op.elements,
                         .statistic = op.statistic,
                         .tag = tag};
    if (op.computation) {
      result.computation = with_fault(*op.computation, fault, tag);
      result.accumulator_op = op.accumulator_op;
      result.accumulator_tag = stream.accumulator_tag(tag);
      result.second_mode_op = op.accumulator_op;
    }
    return result;
  }

  // --- host ---

  /// One run after the other. An access that its run's end has cut short ends with RunStopped.
  void host_() {
    for (;;) {
      while (served_run == run_number || !pins.rst_n.read()) wait(pins.clk.posedge_event());
      served_run = run_number;
      try {
        serve_();
      } catch (const RunStopped&) {
        pins.apb_request.write({});  // of an access in the middle
      }
    }
  }

  ApbResponse apb_clock_(const ApbRequest& request) {
    pins.apb_request.write(request);
    wait_for_edge_();
    pins.apb_request.write({});  // unless the next access follows at once
    return pins.apb_response.read();
  }

  void wait_for_edge_() {
    wait(pins.clk.posedge_event());
    if (served_run != run_number) throw RunStopped{};
  }

  void serve_() {
    driver::Driver host(apb);
    bring_up_(host, options.config);
    plant_fault_();
    unit_bus.write(unit_reg::kControl, unit_control_());
    run.configured = true;
    HostLog log;
    for (;;) {
      while (pins.irq.read()) react_(host, log);
      if (drained_() && run.policy_turn) {
        take_turn_(host, log, *run.policy, run.result.systemc, run.error);
        if (run.error) {
          clock.stop();
          throw RunStopped{};
        }
        run.policy_turn = false;
        continue;  // a command may have raised the interrupt
      }
      if (drained_() && !run.announcements.empty()) {
        for (const std::uint32_t step : run.announcements) host.announce_learning_rate(step);
        run.announcements.clear();
      }
      if (drained_() && done.read()) {
        if (!run.policy || !run.policy->due(run.operators->steps())) break;
        run.policy_turn = true;
        continue;
      }
      wait(pins.irq.posedge_event() | wake_host);
      wait_for_edge_();
    }
    finish_(host, log);
    for (PathResult* path : {&run.result.systemc, &run.result.rtl}) path->host = log.view;
    run.host_done = true;
  }

  /// Checks that the device is the one that the replay was told, and sets it up.
  void bring_up_(driver::Driver& host, const Config& config) const {
    if (host.identify() != options.device)
      throw std::logic_error("the capabilities are not the parameters of the device");
    host.configure(config);
    host.enable_interrupts(driver::kAllInterrupts);
  }

  /// CONTROL of the vector units.
  std::uint32_t unit_control_() const {
    const ComputeOptions& compute = options.compute;
    std::uint32_t control =
        unit_reg::kControlSaturate.put(compute.saturate) |
        unit_reg::kControlAccumulator.put(static_cast<std::uint32_t>(compute.accumulator));
    if (compute.force_mode) {
      control |= unit_reg::kControlForce.put(1) |
                 unit_reg::kControlForcedMode.put(static_cast<std::uint32_t>(*compute.force_mode));
    }
    return control;
  }

  static void react_(driver::Driver& host, HostLog& log) {
    const driver::EventReport report = host.handle_events([&](const Event& event) {
      log.view.events.push_back(event);
      log.last_step = event.step;
    });
    if (report.interrupts.hint) log.hints.update(log.last_step, host.hints());
  }

  /// Gives the policy's next commands. `error` is set when it failed.
  void take_turn_(driver::Driver& host, HostLog& log, PolicyTurn& policy, const PathResult& path,
                  std::exception_ptr& error) {
    const std::uint32_t step = policy.step();
    const Hints hints = host.hints();
    const std::optional<std::uint32_t> last_clean_step = host.last_clean_step();
    const std::vector<HostCommand>* commands = nullptr;
    const auto take = [&] {
      commands = &policy.take(path.completions, log.view.events, hints, last_clean_step);
    };
    if (policy.asks()) {
      question = [&] {
        try {
          take();
        } catch (...) {
          error = std::current_exception();
        }
      };
      asked.notify(sc_core::SC_ZERO_TIME);
      wait(answered);
    } else {
      take();
    }
    if (!error) give(*commands, step, host, log.hints);
  }

  /// Asks a policy outside of the threads: their stacks are too small for an interpreter.
  void answer_() {
    question();
    answered.notify(sc_core::SC_ZERO_TIME);
  }

  static void finish_(driver::Driver& host, HostLog& log) {
    react_(host, log);
    log.view.counters = host.counters();
    log.view.events_lost = log.view.counters.events_lost;
    log.view.hints = host.hints();
    log.view.mode_counts = host.mode_counts();
    log.view.last_clean_step = host.last_clean_step();
  }

  /// Writes the register that the planted fault is in: as it should be to one device, falsified to
  /// the other.
  void plant_fault_() {
    const auto address = differing_register(options.config, options.faulty_config);
    if (!address || (options.plant_fault != "rtl" && options.plant_fault != "systemc")) return;
    const std::uint32_t right = driver::configuration_value(options.config, *address);
    const std::uint32_t wrong = driver::configuration_value(options.faulty_config, *address);
    const bool in_rtl = options.plant_fault == "rtl";
    run.rtl_data = in_rtl ? wrong : right;
    apb.write(*address, in_rtl ? right : wrong);
    run.rtl_data.reset();
  }

  // --- loosely timed ---

  /// Asked between two operators: the host takes its turn here.
  sc::SourceAnswer next_loosely_timed_(sc::Operation& operation) {
    if (lt.operators == nullptr) return sc::SourceAnswer::kEnd;
    if (!lt_log) {
      lt_log.emplace();
      bring_up_(lt_host,
                options.plant_fault == "systemc-lt" ? options.faulty_config : options.config);
      lt_unit_bus.write(unit_reg::kControl, unit_control_());
    }
    while (lt_device.irq()) react_(lt_host, *lt_log);
    const bool ended = lt.next == (lt.order.empty() ? lt.operators->size() : lt.order.size());
    const std::size_t next = ended || lt.order.empty() ? lt.next : lt.order[lt.next];
    if (lt.policy &&
        !take_turns_loosely_timed_(ended ? lt.operators->steps() : lt.operators->step_index(next)))
      return sc::SourceAnswer::kEnd;
    if (ended) {
      finish_(lt_host, *lt_log);
      lt.result.host = lt_log->view;
      return sc::SourceAnswer::kEnd;
    }
    const std::size_t tag = next;
    ++lt.next;
    lt.schedule->before(tag, [this](std::uint32_t step) { lt_host.announce_learning_rate(step); });
    if (lt.operators->is_accumulator(tag)) {
      operation = late_accumulators_(tag);
      return sc::SourceAnswer::kOperation;
    }
    operation = operation_of_(*lt.operators, tag, lt.fault);
    if (operation.accumulator_op) {
      const bool at_once =
          lt.next < lt.order.size() && lt.order[lt.next] == operation.accumulator_tag;
      if (at_once) {
        ++lt.next;
      } else {
        operation.accumulator_op.reset();
      }
    }
    return sc::SourceAnswer::kOperation;
  }

  /// False when the policy failed.
  bool take_turns_loosely_timed_(std::size_t step_index) {
    while (lt.policy->due(step_index)) {
      take_turn_(lt_host, *lt_log, *lt.policy, lt.result, lt.error);
      if (lt.error) return false;
      while (lt_device.irq()) react_(lt_host, *lt_log);
    }
    return true;
  }

  /// Accumulators before whose completion those of other streams came: a statistic of its own.
  sc::Operation late_accumulators_(std::size_t tag) const {
    const std::vector<ComputedExecution>& executions = lt.result.executions;
    const auto owner = std::find_if(executions.rbegin(), executions.rend(),
                                    [owner_tag = lt.operators->operator_tag(tag)](
                                        const ComputedExecution& e) { return e.tag == owner_tag; });
    if (owner == executions.rend())
      throw std::logic_error("accumulators complete before their operator");
    OpDescriptor descriptor = lt.operators->descriptor(tag);
    descriptor.format = owner->execution.accumulator_format;
    return {.descriptor = descriptor, .statistic = owner->execution.accumulators, .tag = tag};
  }

  /// Longer than the pipeline from the last beat to its record.
  static constexpr unsigned kDrainCycles = 16;

  const SimulationOptions options;
  sc::DeviceSignals pins;
  sc_core::sc_signal<bool> done{"done"};
  sc_core::sc_event wake_host{"wake_host"};
  std::function<void()> question;  ///< to the policy, from a thread that waits for the answer
  sc_core::sc_event asked{"asked"}, answered{"answered"};

  GatedClock clock;
  sc::VectorUnit unit;
  sc::Device device;
  ApbBus apb;
  sc::LooselyTimedUnit lt_unit;
  sc::LooselyTimedDevice lt_device;
  TlmBus lt_bus;
  TlmBus unit_bus, lt_unit_bus;  ///< to the vector units' own registers
  driver::Driver lt_host{lt_bus};

  LockstepRun run;
  std::uint64_t run_number = 0;
  std::uint64_t served_run = 0;  ///< by the host
  LooselyTimedRun lt;
  std::optional<HostLog> lt_log;
};

Simulation::Simulation(const SimulationOptions& options)
    : modules_(std::make_unique<Modules>("opd", options)) {
  // Local time may run ahead: nothing else happens while the loosely timed unit runs.
  tlm::tlm_global_quantum::instance().set(sc_core::sc_time(100, sc_core::SC_US));
}
Simulation::~Simulation() = default;

LockstepResult Simulation::run_lockstep(const OperatorStream& operators, PinDevice* rtl,
                                        const std::function<void(std::size_t)>& on_progress,
                                        const OperandFault* fault, PolicyAnswers* policy,
                                        const LockstepExtras& extras) {
  Modules& m = *modules_;
  std::optional<PinComparison> comparison;
  if (rtl != nullptr) {
    rtl->reset();
    comparison.emplace(*rtl, "rtl", "systemc", m.in_step_(*rtl, extras));
  }
  m.run = {.operators = &operators,
           .comparison = comparison ? &*comparison : nullptr,
           .fault = fault,
           .on_progress = on_progress,
           .schedule = LearningRateSchedule(operators),
           .policy = turn_of(policy),
           .extras = extras};
  LockstepResult& result = m.run.result;
  result.rtl.path = "rtl";
  result.systemc.path = "systemc";

  ++m.run_number;
  m.wake_host.notify(sc_core::SC_ZERO_TIME);  // a host whose last run was stopped
  m.pins.rst_n.write(false);
  m.clock.start();
  const auto start = Clock::now();
  sc_core::sc_start();  // returns when the clock has stopped
  double waited = 0;
  if (comparison) {
    ComparisonResult compared = comparison->finish();
    waited = compared.waited;
    m.file_(std::move(compared));
  }
  result.systemc.seconds = seconds_since(start) - waited;
  if (m.run.error) std::rethrow_exception(m.run.error);

  result.completions = result.systemc.completions.size();
  for (PathResult* path : {&result.systemc, &result.rtl}) {
    path->cycles = m.run.cycle;
    path->beats = result.systemc.beats;
    path->unseen_count = path->host ? path->host->counters.unseen
                                    : m.run.unseen_count.value_or(m.pins.unseen_count.read());
  }
  return std::move(result);
}

PathResult Simulation::run_loosely_timed(const OperatorStream& operators,
                                         std::span<const std::size_t> order,
                                         const OperandFault* fault, PolicyAnswers* policy,
                                         bool keep_states) {
  Modules& m = *modules_;
  m.lt = {.operators = &operators,
          .order = order,
          .fault = fault,
          .schedule = LearningRateSchedule(operators),
          .policy = turn_of(policy),
          .keep_states = keep_states,
          .result = {.path = "systemc-lt"}};
  m.lt.issued.reserve(operators.size());
  m.lt.result.completions.reserve(operators.size());
  m.lt_log.reset();
  m.lt_device.reset();
  m.lt_unit.restart();
  const auto start = Clock::now();
  sc_core::sc_start();  // returns when the unit waits for a restart
  if (m.lt.error) std::rethrow_exception(m.lt.error);
  m.lt.result.seconds = seconds_since(start);
  for (Completion& completion : m.lt.result.completions) {
    const Issued& issued = m.lt.issued.at(completion.record.seq);
    completion.tag = issued.tag;
    completion.mode_at_issue = issued.mode;
  }
  m.lt.operators = nullptr;
  return std::move(m.lt.result);
}

}  // namespace opd::tb
