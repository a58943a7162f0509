#include "compute.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <unordered_map>

#include "opd/reference/compute.hpp"
#include "opd/reference/cpu.hpp"
#include "opd/reference/element.hpp"

namespace opd::tb {
namespace {

std::string_view mode_name(Mode mode) { return kModeNames[static_cast<std::size_t>(mode)]; }
std::string_view format_name(Format format) {
  return kFormatNames[static_cast<std::size_t>(format)];
}

/// "0x7C00 (inf)"
std::string element_text(Format format, std::uint32_t bits) {
  return fmt::format("0x{:0{}X} ({:.9g})", bits, 2 * ref::layout_of(format).bytes(),
                     ref::to_double(format, bits));
}

std::size_t element_count(Format format, std::span<const std::byte> elements) {
  return elements.size() / ref::layout_of(format).bytes();
}

bool is_finite(Format format, std::uint32_t bits) { return !ref::classify(format, bits).nonfinite; }

bool operand_is_mask(Kernel kernel, std::size_t operand) {
  return traits_of(kernel).operands[operand] == "mask";
}

bool operands_finite(const Computation& computation) {
  for (std::size_t i = 0; i < kMaxOperands; ++i) {
    if (!computation.has(i) || operand_is_mask(computation.kernel, i)) continue;
    const Operand& operand = computation.operand(i);
    if (ref::summarise(operand.format, operand.elements).nonfinite_count > 0) return false;
  }
  return true;
}

/// Position of an element among the numbers of its format: neighbours differ by 1, the zeros are
/// one.
std::int64_t rank_of(Format format, std::uint32_t bits) {
  const std::int64_t magnitude = bits & ref::layout_of(format).magnitude_mask();
  return magnitude == bits ? magnitude : -magnitude;
}

bool is_nan(Format format, std::uint32_t bits) { return std::isnan(ref::to_double(format, bits)); }

/// Unit in the last place of the format at a value that need not be one of its numbers.
double ulp_of(Format format, double value) {
  const ref::FormatLayout layout = ref::layout_of(format);
  const int smallest = 1 - layout.bias;
  const int exponent = value == 0 ? smallest : std::max(smallest, std::ilogb(value));
  return std::ldexp(1.0, exponent - static_cast<int>(layout.significand_bits));
}

ModeOutcome outcome_of(const Computation& computation, const Execution& execution, bool finite,
                       std::span<const double> exact) {
  ModeOutcome outcome;
  const Format format = execution.status.format;
  const TapSummary seen = ref::summarise(format, execution.output);
  outcome.nonfinite = seen.nonfinite_count;
  outcome.largest = ref::to_double(format, seen.max_mag);
  if (execution.accumulators) {
    outcome.accumulator_nonfinite = execution.accumulators->nonfinite_count;
    outcome.accumulator_largest =
        ref::to_double(execution.accumulator_format, execution.accumulators->max_mag);
  }
  outcome.overflow = finite && outcome.nonfinite + outcome.accumulator_nonfinite > 0;
  if (exact.size() != computation.output_elements())
    throw std::logic_error("binary64 results are not one per output element");
  outcome.error = error_of(format, execution.output, exact);
  return outcome;
}

/// Distances added up, elements that are non-finite on one side first.
std::pair<std::uint64_t, std::uint64_t> badness(const FrameworkDifference& difference) {
  return {difference.distances.back(), difference.different};
}

/// Whether a pass leaves something rounded to a later one (docs/numerics.md "Modes").
bool has_intermediates(Kernel kernel) {
  return kernel == Kernel::kVariance || kernel == Kernel::kSoftmax ||
         kernel == Kernel::kLayerNorm || kernel == Kernel::kRmsNorm;
}

FrameworkDifference framework_difference(const Computation& computation, const Execution& fast,
                                         std::span<const std::byte> written,
                                         const UnitSettings& settings) {
  FrameworkDifference difference = difference_of(computation.format, fast.output, written);
  if (difference.different == 0) return difference;
  const KernelTraits& traits = traits_of(computation.kernel);
  if (traits.accumulates) {
    UnitSettings wide = settings;
    wide.accumulator = AccumulatorChoice::kWide;
    const FrameworkDifference with_wide = difference_of(
        computation.format, ref::compute(computation, Mode::kFast, wide).output, written);
    difference.different_wide = with_wide.different;
    difference.cause = badness(with_wide) < badness(difference) ? kAccumulatorWidth
                       : has_intermediates(computation.kernel)
                           ? "order of summation or intermediates"
                           : "order of summation";
    return difference;
  }
  for (const Kernel kernel : {Kernel::kGelu, Kernel::kGeluTanh, Kernel::kSilu, Kernel::kExp,
                              Kernel::kReciprocal, Kernel::kRsqrt}) {
    if (kernel == computation.kernel) difference.cause = "function";
  }
  return difference;
}

/// Mode of each execution of a probe, by step: as it was issued; of one that the device never saw,
/// what its register held.
std::vector<Mode> issued_modes(const OperatorStream& operators, const PathResult& path,
                               std::size_t probe, const std::optional<Mode>& force_mode) {
  if (force_mode) return std::vector<Mode>(operators.steps(), *force_mode);
  std::vector<std::optional<Mode>> seen(operators.steps());
  std::vector<Mode> after(operators.steps(), Mode::kFast);
  for (const Completion& completion : path.completions) {
    if (completion.record.op != probe) continue;
    const std::size_t step = operators.step_index(completion.tag);
    seen[step] = completion.mode_at_issue;
    after[step] = static_cast<Mode>(completion.record.mode);
  }
  std::vector<Mode> modes(operators.steps());
  Mode held = Mode::kFast;
  for (std::size_t step = 0; step < modes.size(); ++step) {
    modes[step] = seen[step].value_or(held);
    held = seen[step] ? after[step] : held;
  }
  return modes;
}

StepAnswer answer_step(const OperatorStream& operators, std::size_t probe, std::size_t step,
                       const UnitSettings& settings) {
  const trace::Trace& trace = operators.trace();
  const Computation computation = *trace.computation(probe, step);
  StepAnswer answer{.step = static_cast<std::uint32_t>(trace.steps()[step])};
  answer.operands_finite = operands_finite(computation);
  const std::vector<double> exact = ref::compute_exact(computation);
  for (std::size_t mode = 0; mode < kModes; ++mode) {
    const Execution execution = ref::compute(computation, static_cast<Mode>(mode), settings);
    answer.modes[mode] = outcome_of(computation, execution, answer.operands_finite, exact);
    const auto written = trace.computed_output(probe, step);
    if (static_cast<Mode>(mode) == Mode::kFast && !written.empty())
      answer.framework = framework_difference(computation, execution, written, settings);
  }
  return answer;
}

void note_modes(OperatorAnswer& answer, const OperatorStream& operators,
                std::span<const Mode> issued) {
  const auto steps = operators.trace().steps();
  for (std::size_t step = 0; step < issued.size(); ++step) {
    const auto mode = static_cast<std::size_t>(issued[step]);
    ++answer.issued[mode];
    if (!answer.first_issue[mode]) answer.first_issue[mode] = steps[step];
  }
  for (const StepAnswer& step : answer.steps) {
    for (std::size_t mode = 0; mode < kModes; ++mode) {
      if (step.modes[mode].overflow && !answer.first_overflow[mode])
        answer.first_overflow[mode] = step.step;
    }
  }
  if (const auto first = answer.first_overflow[0]) {
    const auto at = static_cast<std::size_t>(std::lower_bound(steps.begin(), steps.end(), *first) -
                                             steps.begin());
    std::size_t since = at;
    while (since > 0 && issued[since] != Mode::kFast && issued[since - 1] != Mode::kFast) --since;
    answer.lead_steps = issued[at] == Mode::kFast ? 0 : steps[at] - steps[since];
  }
}

/// The operator in the list that the replay's first incident is of, else the one that overflows in
/// FAST first.
std::optional<std::uint16_t> find_culprit(const OperatorStream& operators,
                                          std::span<const OperatorAnswer> answers,
                                          std::optional<std::uint16_t> incident) {
  std::optional<std::uint16_t> found;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const OperatorAnswer& answer = answers[i];
    if (incident && operators.probe_of(*incident) == answer.op.probe)
      return static_cast<std::uint16_t>(i);
    const auto first = answer.first_overflow[0];
    if (first && (!found || *first < *answers[*found].first_overflow[0]))
      found = static_cast<std::uint16_t>(i);
  }
  return found;
}

}  // namespace

std::uint32_t element_at(Format format, std::span<const std::byte> elements, std::size_t index) {
  const unsigned bytes = ref::layout_of(format).bytes();
  std::uint32_t bits = 0;
  for (unsigned i = 0; i < bytes; ++i)
    bits |= std::to_integer<std::uint32_t>(elements[index * bytes + i]) << 8 * i;
  return bits;
}

std::optional<Divergence> compare_execution(const OperatorStream& operators, std::size_t tag,
                                            const std::string& left_name, const Execution& left,
                                            const std::string& right_name, const Execution& right) {
  if (left == right) return std::nullopt;
  const OpDescriptor descriptor = operators.descriptor(tag);
  Divergence d{.left = left_name,
               .right = right_name,
               .record = OpRecord{.step = descriptor.step, .op = descriptor.op}};
  const std::string in_mode = fmt::format(" in {}", mode_name(left.status.mode));
  const auto differ = [&](const std::string& field, const auto& l, const auto& r,
                          const auto& text) {
    if (l == r || !d.field.empty()) return;
    d.field = field + (field == "mode" ? "" : in_mode);
    d.quantity = field;
    d.left_value = text(l);
    d.right_value = text(r);
  };
  const auto number = [](auto v) { return fmt::format("{}", +v); };
  const auto accumulator = [](AccumulatorFormat v) {
    return std::string(kAccumulatorFormatNames[static_cast<std::size_t>(v)]);
  };
  const auto format_text = [](Format v) { return std::string(format_name(v)); };
  differ("mode", left.status.mode, right.status.mode,
         [](Mode v) { return std::string(mode_name(v)); });
  differ("output format", left.status.format, right.status.format, format_text);
  differ("accumulator", left.status.accumulator, right.status.accumulator, accumulator);
  differ("accumulates", left.status.accumulates, right.status.accumulates, number);
  differ("compensated", left.status.compensated, right.status.compensated, number);
  differ("compressed", left.status.compressed, right.status.compressed, number);
  differ("saturating", left.status.saturating, right.status.saturating, number);
  differ("output bytes", left.output.size(), right.output.size(), number);
  if (d.field.empty()) {
    const Format format = left.status.format;
    const auto text = [&](std::uint32_t bits) { return element_text(format, bits); };
    for (std::size_t i = 0; i < element_count(format, left.output) && d.field.empty(); ++i) {
      differ(fmt::format("output element {}", i), element_at(format, left.output, i),
             element_at(format, right.output, i), text);
    }
    if (!d.field.empty()) d.quantity = "output element";
  }
  differ("accumulators", left.accumulators.has_value(), right.accumulators.has_value(), number);
  differ("accumulator statistic's format", left.accumulator_format, right.accumulator_format,
         format_text);
  const TapSummary l = left.accumulators.value_or(TapSummary{});
  const TapSummary r = right.accumulators.value_or(TapSummary{});
  differ("accumulators' max_mag", l.max_mag, r.max_mag,
         [&](std::uint32_t bits) { return element_text(left.accumulator_format, bits); });
  differ("accumulators' element_count", l.element_count, r.element_count, number);
  differ("accumulators' nonfinite_count", l.nonfinite_count, r.nonfinite_count, number);
  differ("accumulators' first_nonfinite", l.first_nonfinite, r.first_nonfinite, number);
  differ("accumulators' saturated_count", l.saturated_count, r.saturated_count, number);
  differ("accumulators' subnormal_count", l.subnormal_count, r.subnormal_count, number);
  differ("accumulators' zero_count", l.zero_count, r.zero_count, number);
  differ("passes", left.cost.passes, right.cost.passes, number);
  differ("beats", left.cost.beats, right.cost.beats, number);
  differ("cycles", left.cost.cycles, right.cost.cycles, number);
  differ("bytes read", left.cost.bytes_read, right.cost.bytes_read, number);
  differ("bytes written", left.cost.bytes_written, right.cost.bytes_written, number);
  return d;
}

ExecutionComparison compare_executions(const OperatorStream& operators, const PathResult& left,
                                       const PathResult& right, bool may_lack) {
  ExecutionComparison result;
  const auto note = [&](Divergence d, std::size_t tag) {
    ++result.mismatches;
    for (const PathResult* path : {&left, &right}) {
      const auto completion = std::find_if(path->completions.begin(), path->completions.end(),
                                           [tag](const Completion& c) { return c.tag == tag; });
      if (completion == path->completions.end()) continue;
      d.record = completion->record;
      if (completion->record_cycle == 0) continue;
      d.cycle = completion->record_cycle;
      d.last_beat_cycle = completion->last_beat_cycle;
      break;
    }
    if (!result.first) result.first = d;
    tb::note(result.kinds, std::move(d));
  };
  const auto lacking = [&](std::size_t tag, bool in_left) {
    if (may_lack) return;
    const OpDescriptor descriptor = operators.descriptor(tag);
    note(Divergence{.left = left.path,
                    .right = right.path,
                    .field = "execution",
                    .left_value = in_left ? "missing" : "present",
                    .right_value = in_left ? "present" : "missing",
                    .record = OpRecord{.step = descriptor.step, .op = descriptor.op}},
         tag);
  };
  std::unordered_map<std::size_t, const Execution*> others;
  for (const ComputedExecution& e : right.executions) others.emplace(e.tag, &e.execution);
  for (const ComputedExecution& e : left.executions) {
    const auto other = others.find(e.tag);
    if (other == others.end()) {
      lacking(e.tag, false);
      continue;
    }
    ++result.compared;
    result.elements += element_count(e.execution.status.format, e.execution.output);
    if (auto d = compare_execution(operators, e.tag, left.path, e.execution, right.path,
                                   *other->second)) {
      note(std::move(*d), e.tag);
    }
    others.erase(other);
  }
  for (const ComputedExecution& e : right.executions) {
    if (others.contains(e.tag)) lacking(e.tag, true);
  }
  return result;
}

OperandFault operand_fault(const OperatorStream& operators, const UnitSettings& settings) {
  for (std::size_t tag = 0; tag < operators.size(); ++tag) {
    const std::optional<Computation> computation = operators.at(tag).computation;
    if (!computation) continue;
    ByMode<Execution> right;
    for (std::size_t mode = 0; mode < kModes; ++mode)
      right[mode] = ref::compute(*computation, static_cast<Mode>(mode), settings);
    for (std::size_t i = 0; i < kMaxOperands; ++i) {
      if (!computation->has(i) || operand_is_mask(computation->kernel, i)) continue;
      const Operand& operand = computation->operand(i);
      const unsigned bytes = ref::layout_of(operand.format).bytes();
      OperandFault fault{tag, i, {operand.elements.begin(), operand.elements.end()}};
      // The second bit from the top of an element: of its exponent. One element per row is enough.
      const std::size_t row = std::size_t{operand.columns} * bytes;
      for (std::size_t start = 0; start + bytes <= fault.elements.size(); start += row) {
        std::byte& top = fault.elements[start + bytes - 1];
        top ^= std::byte{0x40};
        bool shows = true;
        for (std::size_t mode = 0; mode < kModes && shows; ++mode) {
          shows = ref::compute(with_fault(*computation, &fault, tag), static_cast<Mode>(mode),
                               settings) != right[mode];
        }
        if (shows) return fault;
        top ^= std::byte{0x40};
      }
    }
  }
  throw std::runtime_error(
      "--plant-fault: no bit of an operand changes a result in every mode; use another trace");
}

ComputeError error_of(Format format, std::span<const std::byte> output,
                      std::span<const double> exact) {
  ComputeError error;
  double relative_sum = 0, ulps_sum = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const std::uint32_t bits = element_at(format, output, i);
    if (!std::isfinite(exact[i]) || !is_finite(format, bits)) continue;
    const double distance = std::abs(ref::to_double(format, bits) - exact[i]);
    const double ulps = distance / ulp_of(format, exact[i]);
    ++error.elements;
    ulps_sum += ulps;
    error.largest_ulps = std::max(error.largest_ulps.value_or(0), ulps);
    if (exact[i] == 0) continue;
    const double relative = distance / std::abs(exact[i]);
    ++error.relative_elements;
    relative_sum += relative;
    error.largest_relative = std::max(error.largest_relative.value_or(0), relative);
  }
  if (error.elements > 0) error.mean_ulps = ulps_sum / static_cast<double>(error.elements);
  if (error.relative_elements > 0)
    error.mean_relative = relative_sum / static_cast<double>(error.relative_elements);
  return error;
}

FrameworkDifference difference_of(Format format, std::span<const std::byte> computed,
                                  std::span<const std::byte> written) {
  FrameworkDifference difference{.elements = element_count(format, written)};
  if (computed.size() != written.size())
    throw std::logic_error("outputs of different size are not compared");
  for (std::size_t i = 0; i < difference.elements; ++i) {
    const std::uint32_t left = element_at(format, computed, i);
    const std::uint32_t right = element_at(format, written, i);
    const bool same = left == right || (is_nan(format, left) && is_nan(format, right));
    difference.different += !same;
    std::size_t place = 0;
    if (!same && (!is_finite(format, left) || !is_finite(format, right))) {
      place = kDistanceNames.size() - 1;
    } else if (!same) {
      const std::int64_t distance = std::abs(rank_of(format, left) - rank_of(format, right));
      place = distance <= 2   ? static_cast<std::size_t>(distance)
              : distance <= 4 ? 3
              : distance <= 8 ? 4
                              : 5;
    }
    ++difference.distances[place];
  }
  return difference;
}

ComputeResult answer_compute(const OperatorStream& operators, const PathResult& path,
                             const PathResult& computing, std::optional<std::uint16_t> culprit,
                             const UnitSettings& settings, const std::optional<Mode>& force_mode,
                             const std::function<void(std::size_t, std::size_t)>& progress) {
  const trace::Trace& trace = operators.trace();
  ComputeResult result{.executions = operators.computed_operators()};
  std::unordered_map<std::size_t, const Execution*> executions;
  for (const ComputedExecution& e : computing.executions) executions.emplace(e.tag, &e.execution);

  for (const trace::TracedOperator& op : trace.operators()) {
    if (op.has_elements) progress(result.operators.size(), trace.operators().size());
    const Computation shape = trace.computation_shape(op.probe).value();
    OperatorAnswer answer{
        .op = op, .format = shape.format, .number = static_cast<std::uint16_t>(op.probe)};
    for (std::size_t mode = 0; mode < kModes; ++mode)
      answer.cost[mode] = ref::cost(shape, static_cast<Mode>(mode), settings);
    for (std::size_t step = 0; op.has_elements && step < operators.steps(); ++step) {
      const std::size_t tag = step * operators.probes() + op.probe;
      const Operator whole = operators.at(tag);
      if (!whole.computation) continue;
      answer.accumulator_op = whole.accumulator_op;
      StepAnswer& told =
          answer.steps.emplace_back(answer_step(operators, op.probe, step, settings));
      if (const auto ran = executions.find(tag); ran != executions.end()) {
        told.ran = ran->second->status;
        told.overflow = told.modes[static_cast<std::size_t>(told.ran.mode)].overflow;
      }
    }
    const std::vector<Mode> issued = issued_modes(operators, path, op.probe, force_mode);
    note_modes(answer, operators, issued);
    if (force_mode) answer.lead_steps.reset();
    for (std::size_t mode = 0; mode < kModes; ++mode) {
      result.cost.as_issued += answer.issued[mode] * answer.cost[mode].cycles;
      result.cost.executions += answer.issued[mode];
    }
    result.cost.all_fast += operators.steps() * answer.cost[0].cycles;
    result.cost.all_safe += operators.steps() * answer.cost[2].cycles;
    result.operators.push_back(std::move(answer));
  }
  result.cost.culprit = find_culprit(operators, result.operators, culprit);
  if (result.cost.culprit) {
    const OperatorAnswer& answer = result.operators[*result.cost.culprit];
    result.cost.culprit_safe =
        result.cost.all_fast + operators.steps() * (answer.cost[2].cycles - answer.cost[0].cycles);
  }
  return result;
}

}  // namespace opd::tb
