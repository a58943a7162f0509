#include "operators.hpp"

#include <fmt/format.h>

#include "opd/reference/cpu.hpp"

namespace opd::tb {

OperatorStream::OperatorStream(const trace::Trace& trace, unsigned num_ops)
    : trace_(trace), steps_(trace.steps().size()), probes_(trace.probes().size()) {
  if (probes_ > num_ops) {
    throw trace::TraceError(
        trace.file(), "probes",
        fmt::format("{} probes, but the device has {} operators", probes_, num_ops),
        "capture fewer probes or build with a larger OPD_NUM_OPS");
  }
  for (std::size_t step = 0; step < steps_; ++step) {
    for (std::size_t probe = 0; probe < probes_; ++probe) {
      const auto elements = trace.raw(probe, step);
      if (elements.empty()) continue;
      ++raw_operators_;
      raw_bytes_ += elements.size();
      raw_elements_ += trace.probes()[probe].elements;
      const TapSummary told = trace.statistic(step, probe);
      const TapSummary seen = ref::summarise(trace.probes()[probe].format, elements);
      if (told.max_mag != seen.max_mag || told.nonfinite_count != seen.nonfinite_count) {
        throw trace::TraceError(
            trace.file(), "raw/" + trace.probes()[probe].name,
            fmt::format(
                "step {}: max_abs and nonfinite say 0x{:X} and {}, the elements say 0x{:X} and {}",
                trace.steps()[step], told.max_mag, told.nonfinite_count, seen.max_mag,
                seen.nonfinite_count),
            "capture the trace again: its statistics are not those of its elements");
      }
    }
  }
}

bool OperatorStream::learning_rate_changes(std::size_t step_index) const {
  const std::span<const float> lr = trace_.lr();
  if (step_index == 0 || step_index >= lr.size()) return false;
  const double before = lr[step_index - 1], now = lr[step_index];
  return now > 1.25 * before || now < 0.8 * before;
}

Operator OperatorStream::at(std::size_t tag) const {
  const std::size_t step = tag / probes_;
  const std::size_t probe = tag % probes_;
  Operator result;
  result.descriptor = {.op = static_cast<std::uint16_t>(probe),
                       .format = trace_.probes()[probe].format,
                       .step = static_cast<std::uint32_t>(trace_.steps()[step]),
                       .scale_log2 = trace_.scale_log2(step, probe)};
  result.elements = trace_.raw(probe, step);
  if (result.elements.empty()) result.statistic = trace_.statistic(step, probe);
  return result;
}

}  // namespace opd::tb
