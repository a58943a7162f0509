#include "paths/cpu_path.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "opd/reference/compute.hpp"
#include "opd/reference/cpu.hpp"
#include "paths/stored_state_of.hpp"

namespace opd::tb {
namespace {

/// A completion: what the detection unit is given of it.
struct Arrival {
  OpDescriptor descriptor;
  std::span<const std::byte> elements;
  std::optional<TapSummary> statistic;
  Mode mode = Mode::kFast;  ///< at issue
};

/// Operators as they arrive; computes those that are to be computed, once.
class Arrivals {
 public:
  Arrivals(const OperatorStream& operators, const ref::CpuReference& reference,
           const UnitSettings& settings, const std::optional<Mode>& force_mode,
           const OperandFault* fault, std::vector<ComputedExecution>& executions)
      : operators_(operators),
        reference_(reference),
        settings_(settings),
        force_mode_(force_mode),
        fault_(fault),
        executions_(executions) {
    executions_.reserve(operators.computed_operators());  // spans into it stay valid
  }

  Arrival at(std::size_t tag) {
    if (operators_.is_accumulator(tag)) {
      const std::size_t owner = operators_.operator_tag(tag);
      const Execution& execution = executed(owner, operators_.at(owner)).execution;
      OpDescriptor descriptor = operators_.descriptor(tag);
      descriptor.format = execution.accumulator_format;
      return {descriptor, {}, execution.accumulators, execution.status.mode};
    }
    Operator op = operators_.at(tag);
    if (!op.computation)
      return {op.descriptor, op.elements, op.statistic, reference_.mode(op.descriptor.op)};
    const Execution& execution = executed(tag, op).execution;
    op.descriptor.format = execution.status.format;
    return {op.descriptor, execution.output, std::nullopt, execution.status.mode};
  }

 private:
  const ComputedExecution& executed(std::size_t tag, const Operator& op) {
    const auto [place, is_new] = by_tag_.try_emplace(tag, executions_.size());
    if (is_new) {
      Mode mode = reference_.mode(op.descriptor.op);
      if (op.accumulator_op) mode = std::max(mode, reference_.mode(*op.accumulator_op));
      mode = force_mode_.value_or(mode);
      executions_.push_back(
          {tag, ref::compute(with_fault(*op.computation, fault_, tag), mode, settings_)});
    }
    return executions_[place->second];
  }

  const OperatorStream& operators_;
  const ref::CpuReference& reference_;
  const UnitSettings settings_;
  const std::optional<Mode> force_mode_;
  const OperandFault* fault_;
  std::vector<ComputedExecution>& executions_;
  std::unordered_map<std::size_t, std::size_t> by_tag_;
};

}  // namespace

PathResult run_cpu(const OperatorStream& operators, const DeviceParameters& parameters,
                   const Config& config, std::span<const std::size_t> order,
                   const ComputeOptions& compute, const OperandFault* fault, PolicyAnswers* policy,
                   bool keep_states) {
  using Clock = std::chrono::steady_clock;
  PathResult result{.path = "cpu"};
  const std::size_t count = order.empty() ? operators.size() : order.size();
  result.completions.reserve(count);
  result.baseline_log2.reserve(count);
  result.z.reserve(count);
  HostView& host = result.host.emplace();
  HintLog hints(host.hint_changes);
  LearningRateSchedule schedule(operators);
  std::optional<PolicyTurn> turn;
  if (policy != nullptr) turn.emplace(*policy);
  ref::CpuReference reference(parameters, config);
  Arrivals arrivals(operators, reference, unit_settings(parameters, compute), compute.force_mode,
                    fault, result.executions);
  const auto take_turns = [&](std::size_t step_index) {
    while (turn->due(step_index)) {
      const std::uint32_t step = turn->step();
      give(turn->take(result.completions, host.events, reference.hints(),
                      reference.last_clean_step()),
           step, reference, hints);
    }
  };
  for (std::size_t seq = 0; seq < count; ++seq) {
    const std::size_t tag = order.empty() ? seq : order[seq];
    if (tag == kUnseen) continue;
    if (turn) take_turns(operators.step_index(tag));
    schedule.before(tag, [&](std::uint32_t step) { reference.announce_learning_rate(step); });
    const Arrival op = arrivals.at(tag);
    const auto start = Clock::now();
    const TapSummary summary =
        op.statistic ? *op.statistic
                     : ref::summarise(op.descriptor.format, op.elements, parameters.counter_width);
    const auto detection =
        reference.complete(static_cast<std::uint32_t>(seq), op.descriptor, summary);
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    result.seconds += elapsed;
    if (!detection) continue;
    const double nothing = std::numeric_limits<double>::quiet_NaN();
    result.bytes_read += op.elements.size();
    (op.statistic ? result.statistic_reaction_ns : result.reaction_ns).push_back(elapsed * 1e9);
    const ref::OpState& state = reference.states()[op.descriptor.op];
    result.baseline_log2.push_back(
        state.history.age == 0 ? nothing : std::ldexp(state.forecast.baseline, -7));
    if (keep_states) result.states.push_back(stored_state_of(state));
    result.z.push_back(detection->score.scored ? detection->score.z() : nothing);
    if (const auto event = detection->event()) {
      host.events.push_back(*event);
      hints.update(event->step, reference.hints());
    }
    result.completions.push_back(
        {.tag = tag,
         .mode_at_issue = op.mode,
         .from_beats = !op.statistic,
         .record = detection->record,
         .counts = {summary.element_count, summary.subnormal_count, summary.zero_count}});
  }
  if (turn) take_turns(operators.steps());
  result.unseen_count = reference.unseen_count();
  host.hints = reference.hints();
  host.mode_counts = {reference.stable_ops(), reference.safe_ops()};
  host.last_clean_step = reference.last_clean_step();
  return result;
}

}  // namespace opd::tb
