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
  ref::CpuReference reference(parameters, config);
  for (std::size_t seq = 0; seq < count; ++seq) {
    const std::size_t tag = order.empty() ? seq : order[seq];
    if (tag == kUnseen) continue;
    const Operator op = operators.at(tag);
    const auto start = Clock::now();
    const TapSummary summary =
        op.statistic ? *op.statistic
                     : ref::summarise(op.descriptor.format, op.elements, parameters.counter_width);
    const auto record = reference.complete(static_cast<std::uint32_t>(seq), op.descriptor, summary);
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    result.seconds += elapsed;
    if (!record) continue;
    result.bytes_read += op.elements.size();
    (op.statistic ? result.statistic_reaction_ns : result.reaction_ns).push_back(elapsed * 1e9);
    const ref::ForecastState& state = reference.states()[op.descriptor.op].forecast;
    result.baseline_log2.push_back(state.age == 0 ? std::numeric_limits<double>::quiet_NaN()
                                                  : std::ldexp(state.baseline, -7));
    result.completions.push_back(
        {.tag = tag,
         .from_beats = !op.statistic,
         .record = *record,
         .counts = {summary.element_count, summary.subnormal_count, summary.zero_count}});
  }
  result.unseen_count = reference.unseen_count();
  return result;
}

}  // namespace opd::tb
