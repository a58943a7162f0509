#include "operators.hpp"

#include <fmt/format.h>

#include "opd/reference/cpu.hpp"

namespace opd::tb {

OperatorStream::OperatorStream(const trace::Trace& trace, unsigned num_ops, bool compute)
    : trace_(trace),
      steps_(trace.steps().size()),
      probes_(trace.probes().size()),
      compute_(compute),
      accumulator_ops_(probes_) {
  if (compute) number_accumulators();
  if (ops() > num_ops) {
    const std::string found =
        accumulators_.empty()
            ? fmt::format("{} probes", probes_)
            : fmt::format("{} probes and {} accumulators of them", probes_, accumulators_.size());
    throw trace::TraceError(trace.file(), "probes",
                            fmt::format("{}, but the device has {} operators", found, num_ops),
                            "capture fewer probes or build with a larger OPD_NUM_OPS");
  }
  for (std::size_t step = 0; step < steps_; ++step) {
    for (std::size_t probe = 0; probe < probes_; ++probe) {
      const auto elements = trace.raw(probe, step);
      const bool computed = compute && trace.computation(probe, step).has_value();
      computed_operators_ += computed;
      if (elements.empty()) continue;
      if (!computed) {
        ++raw_operators_;
        raw_bytes_ += elements.size();
        raw_elements_ += trace.probes()[probe].elements;
      }
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

/// Operator numbers of the accumulators: after the probes, in the order of the operators' list.
void OperatorStream::number_accumulators() {
  bool any = false;
  for (const trace::TracedOperator& op : trace_.operators()) {
    any = any || op.has_elements;
    if (!op.has_elements || !traits_of(op.kernel).accumulates) continue;
    accumulator_ops_[op.probe] = static_cast<std::uint16_t>(ops());
    accumulators_.push_back(op.probe);
  }
  if (!any) {
    throw trace::TraceError(
        trace_.file(), "operators",
        fmt::format("{}: nothing can be computed",
                    trace_.operators().empty() ? "there are none" : "none has its operands"),
        "record some with opd capture --operands LIST, or drop --compute");
  }
}

std::string OperatorStream::name_of(std::size_t op) const {
  const std::string& probe = trace_.probes()[probe_of(op)].name;
  return op < probes_ ? probe : probe + "/accumulator";
}

bool OperatorStream::learning_rate_changes(std::size_t step_index) const {
  const std::span<const float> lr = trace_.lr();
  if (step_index == 0 || step_index >= lr.size()) return false;
  const double before = lr[step_index - 1], now = lr[step_index];
  return now > 1.25 * before || now < 0.8 * before;
}

OpDescriptor OperatorStream::descriptor(std::size_t tag) const {
  const std::size_t step = step_index(tag);
  const std::size_t probe = operator_tag(tag) % probes_;
  OpDescriptor result{.op = static_cast<std::uint16_t>(probe),
                      .format = trace_.probes()[probe].format,
                      .step = static_cast<std::uint32_t>(trace_.steps()[step]),
                      .scale_log2 = trace_.scale_log2(step, probe)};
  if (is_accumulator(tag)) {
    result.op = accumulator_ops_[probe].value();
    result.scale_log2 = 0;
  }
  return result;
}

Operator OperatorStream::at(std::size_t tag) const {
  const std::size_t step = tag / probes_;
  const std::size_t probe = tag % probes_;
  Operator result{.descriptor = descriptor(tag)};
  if (compute_) result.computation = trace_.computation(probe, step);
  if (result.computation) {
    result.accumulator_op = accumulator_ops_[probe];
    return result;
  }
  result.elements = trace_.raw(probe, step);
  if (result.elements.empty()) result.statistic = trace_.statistic(step, probe);
  return result;
}

std::vector<std::size_t> OperatorStream::program_order() const {
  std::vector<std::size_t> order;
  for (std::size_t tag = 0; tag < size(); ++tag) {
    order.push_back(tag);
    if (at(tag).accumulator_op) order.push_back(accumulator_tag(tag));
  }
  return order;
}

}  // namespace opd::tb
