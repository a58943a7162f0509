#include "paths/cpu_path.hpp"

#include <chrono>
#include <cmath>
#include <limits>

#include "opd/reference/cpu.hpp"

namespace opd::tb {

PathResult run_cpu(const OperatorStream& operators, const DeviceParameters& parameters,
                   const Config& config, std::span<const std::size_t> order) {
  using Clock = std::chrono::steady_clock;
  PathResult result{.path = "cpu"};
  const std::size_t count = order.empty() ? operators.size() : order.size();
  result.completions.reserve(count);
  result.baseline_log2.reserve(count);
  result.z.reserve(count);
  HostView& host = result.host.emplace();
  HintLog hints(host.hint_changes);
  LearningRateSchedule schedule(operators);
  ref::CpuReference reference(parameters, config);
  for (std::size_t seq = 0; seq < count; ++seq) {
    const std::size_t tag = order.empty() ? seq : order[seq];
    if (tag == kUnseen) continue;
    schedule.before(tag, [&](std::uint32_t step) { reference.announce_learning_rate(step); });
    const Operator op = operators.at(tag);
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
    result.z.push_back(detection->score.scored ? detection->score.z() : nothing);
    if (const auto event = detection->event()) {
      host.events.push_back(*event);
      hints.update(event->step, reference.hints());
    }
    result.completions.push_back(
        {.tag = tag,
         .from_beats = !op.statistic,
         .record = detection->record,
         .counts = {summary.element_count, summary.subnormal_count, summary.zero_count}});
  }
  result.unseen_count = reference.unseen_count();
  host.hints = reference.hints();
  host.mode_counts = {reference.stable_ops(), reference.safe_ops()};
  host.last_clean_step = reference.last_clean_step();
  return result;
}

}  // namespace opd::tb
