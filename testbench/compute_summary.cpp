#include "compute_summary.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace opd::tb {
namespace {

using nlohmann::ordered_json;

template <class T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

std::string_view mode_name(std::size_t mode) { return kModeNames[mode]; }

template <class Value>
ordered_json by_mode(const Value& value) {
  ordered_json json;
  for (std::size_t mode = 0; mode < kModes; ++mode)
    json[std::string(mode_name(mode))] = value(mode);
  return json;
}

void add_error(ordered_json& json, const ComputeError& error) {
  json["elements"] = error.elements;
  json["largest_relative"] = or_null(error.largest_relative);
  json["mean_relative"] = or_null(error.mean_relative);
  json["largest_ulps"] = or_null(error.largest_ulps);
  json["mean_ulps"] = or_null(error.mean_ulps);
}

/// Errors of several executions as of one.
ComputeError sum_of(std::span<const StepAnswer> steps, std::size_t mode) {
  ComputeError sum;
  double relative = 0, ulps = 0;
  const auto raise = [](std::optional<double>& largest, const std::optional<double>& value) {
    if (value) largest = std::max(largest.value_or(0), *value);
  };
  for (const StepAnswer& step : steps) {
    const ComputeError& error = step.modes[mode].error;
    sum.elements += error.elements;
    sum.relative_elements += error.relative_elements;
    relative += error.mean_relative.value_or(0) * static_cast<double>(error.relative_elements);
    ulps += error.mean_ulps.value_or(0) * static_cast<double>(error.elements);
    raise(sum.largest_relative, error.largest_relative);
    raise(sum.largest_ulps, error.largest_ulps);
  }
  if (sum.relative_elements > 0)
    sum.mean_relative = relative / static_cast<double>(sum.relative_elements);
  if (sum.elements > 0) sum.mean_ulps = ulps / static_cast<double>(sum.elements);
  return sum;
}

/// Differences of all steps from what the framework wrote; the cause is that of most of them.
std::optional<FrameworkDifference> framework_of(std::span<const StepAnswer> steps) {
  std::optional<FrameworkDifference> sum;
  std::map<std::string_view, std::uint64_t> causes;
  for (const StepAnswer& step : steps) {
    if (!step.framework) continue;
    if (!sum) sum.emplace();
    const FrameworkDifference& one = *step.framework;
    sum->elements += one.elements;
    sum->different += one.different;
    for (std::size_t i = 0; i < one.distances.size(); ++i) sum->distances[i] += one.distances[i];
    if (one.different_wide)
      sum->different_wide = sum->different_wide.value_or(0) + *one.different_wide;
    if (one.different > 0) causes[one.cause] += one.different;
  }
  const auto most =
      std::max_element(causes.begin(), causes.end(),
                       [](const auto& l, const auto& r) { return l.second < r.second; });
  if (most != causes.end()) sum->cause = most->first;
  return sum;
}

ordered_json framework_json(const std::optional<FrameworkDifference>& difference) {
  if (!difference) return nullptr;
  ordered_json ulps;
  for (std::size_t i = 0; i < kDistanceNames.size(); ++i)
    ulps[std::string(kDistanceNames[i])] = difference->distances[i];
  return {{"elements", difference->elements},
          {"different", difference->different},
          {"ulps", ulps},
          {"different_wide", or_null(difference->different_wide)},
          {"cause", difference->cause.empty() ? ordered_json() : ordered_json(difference->cause)}};
}

ordered_json step_json(const StepAnswer& step) {
  ordered_json json{
      {"step", step.step},
      {"mode", mode_name(static_cast<std::size_t>(step.ran.mode))},
      {"format", kFormatNames[static_cast<std::size_t>(step.ran.format)]},
      {"accumulator", kAccumulatorFormatNames[static_cast<std::size_t>(step.ran.accumulator)]},
      {"compensated", step.ran.compensated},
      {"compressed", step.ran.compressed},
      {"saturating", step.ran.saturating},
      {"operands_finite", step.operands_finite},
      {"overflow", step.overflow}};
  json["modes"] = by_mode([&](std::size_t mode) {
    const ModeOutcome& outcome = step.modes[mode];
    ordered_json one{{"overflow", outcome.overflow},
                     {"nonfinite", outcome.nonfinite},
                     {"accumulator_nonfinite", outcome.accumulator_nonfinite},
                     {"largest", outcome.largest},
                     {"accumulator_largest", or_null(outcome.accumulator_largest)}};
    add_error(one, outcome.error);
    return one;
  });
  json["framework"] = framework_json(step.framework);
  return json;
}

std::uint64_t overflows(const OperatorAnswer& answer, std::size_t mode) {
  return static_cast<std::uint64_t>(
      std::count_if(answer.steps.begin(), answer.steps.end(),
                    [mode](const StepAnswer& step) { return step.modes[mode].overflow; }));
}

std::uint64_t overflows_as_run(const OperatorAnswer& answer) {
  return static_cast<std::uint64_t>(
      std::count_if(answer.steps.begin(), answer.steps.end(),
                    [](const StepAnswer& step) { return step.overflow; }));
}

ordered_json operator_json(const TraceResult& result, const OperatorAnswer& answer) {
  const KernelTraits& traits = traits_of(answer.op.kernel);
  ordered_json json{
      {"op", answer.number},
      {"probe", result.probe_names.at(answer.number)},
      {"accumulator_op", or_null(answer.accumulator_op)},
      {"kernel", traits.name},
      {"format", kFormatNames[static_cast<std::size_t>(answer.format)]},
      {"batch", answer.op.batch},
      {"rows", answer.op.rows},
      {"columns", answer.op.columns},
      {"depth", answer.op.depth},
      {"attribute", traits.attribute.empty() ? ordered_json() : ordered_json(answer.op.attribute)}};
  json["operands"] = ordered_json::array();
  for (const trace::TracedOperand& operand : answer.op.operands) {
    const bool mask = operand.name == "mask";
    json["operands"].push_back(
        {{"name", operand.name},
         {"format", mask ? ordered_json()
                         : ordered_json(kFormatNames[static_cast<std::size_t>(operand.format)])},
         {"rows", operand.rows},
         {"columns", operand.columns}});
  }
  json["overflows"] = overflows_as_run(answer);
  json["lead_steps"] = or_null(answer.lead_steps);
  json["modes"] = by_mode([&](std::size_t mode) {
    const ExecutionCost& cost = answer.cost[mode];
    ordered_json one{{"issued", answer.issued[mode]},
                     {"first_issue_step", or_null(answer.first_issue[mode])},
                     {"overflows", overflows(answer, mode)},
                     {"first_overflow_step", or_null(answer.first_overflow[mode])}};
    add_error(one, sum_of(answer.steps, mode));
    one["cost"] = {{"passes", cost.passes},
                   {"beats", cost.beats},
                   {"cycles", cost.cycles},
                   {"bytes_read", cost.bytes_read},
                   {"bytes_written", cost.bytes_written}};
    return one;
  });
  json["framework"] = framework_json(framework_of(answer.steps));
  json["steps"] = ordered_json::array();
  for (const StepAnswer& step : answer.steps) json["steps"].push_back(step_json(step));
  return json;
}

/// Clocks of the operators under one way to choose modes.
struct Policy {
  std::string_view name;
  std::uint64_t cycles;
  std::string_view claimed;  ///< throughput that the published design loses so, in percent
};

std::vector<Policy> policies_of(const ComputeCost& cost) {
  std::vector<Policy> policies = {{"as issued", cost.as_issued, ""},
                                  {"all FAST", cost.all_fast, ""}};
  if (cost.culprit) policies.push_back({"SAFE for the culprit", cost.culprit_safe, "5 to 8"});
  policies.push_back({"all SAFE", cost.all_safe, "over 40"});
  return policies;
}

double added_percent(const Policy& policy, std::uint64_t all_fast) {
  return 100 * (static_cast<double>(policy.cycles) / static_cast<double>(all_fast) - 1);
}
double lost_percent(const Policy& policy, std::uint64_t all_fast) {
  return 100 * (1 - static_cast<double>(all_fast) / static_cast<double>(policy.cycles));
}

std::string culprit_of(const TraceResult& result) {
  const ComputeResult& compute = *result.compute;
  return result.probe_names.at(compute.operators[*compute.cost.culprit].number);
}

ordered_json cost_json(const TraceResult& result) {
  const ComputeCost& cost = result.compute->cost;
  ordered_json json{{"operators", result.compute->operators.size()},
                    {"executions", cost.executions},
                    {"culprit", cost.culprit ? ordered_json(culprit_of(result)) : ordered_json()}};
  json["policies"] = ordered_json::array();
  for (const Policy& policy : policies_of(cost)) {
    json["policies"].push_back(
        {{"policy", policy.name},
         {"cycles", policy.cycles},
         {"added_percent", added_percent(policy, cost.all_fast)},
         {"throughput_lost_percent", lost_percent(policy, cost.all_fast)},
         {"claimed_lost_percent",
          policy.claimed.empty() ? ordered_json() : ordered_json(policy.claimed)}});
  }
  return json;
}

std::string step_text(const std::optional<std::uint32_t>& step) {
  return step ? std::to_string(*step) : "-";
}

std::string framework_text(const OperatorAnswer& answer) {
  const auto difference = framework_of(answer.steps);
  if (!difference) return "-";
  if (difference->different == 0) return "equal bits";
  const std::string wide =
      difference->cause == kAccumulatorWidth && difference->different_wide
          ? fmt::format(", {} with FP32 accumulators", *difference->different_wide)
          : "";
  return fmt::format("{} of {} differ{}{}{}", difference->different, difference->elements, wide,
                     difference->cause.empty() ? "" : ": ", difference->cause);
}

}  // namespace

ordered_json compute_json(const ReplayOptions& options, const TraceResult& result) {
  if (!result.compute) return nullptr;
  const ComputeResult& compute = *result.compute;
  const ComputeOptions& chosen = *options.compute;
  const UnitSettings settings = unit_settings(options.device, chosen);
  ordered_json json{
      {"executions", compute.executions},
      {"executions_compared", compute.executions_compared},
      {"elements_compared", compute.elements_compared},
      {"force_mode", chosen.force_mode
                         ? ordered_json(mode_name(static_cast<std::size_t>(*chosen.force_mode)))
                         : ordered_json()},
      {"accumulator", kAccumulatorChoiceNames[static_cast<std::size_t>(chosen.accumulator)]},
      {"saturate", chosen.saturate},
      {"fp64_lanes", settings.fp64_lanes},
      {"matrix_rows", settings.matrix_rows}};
  json["operators"] = ordered_json::array();
  for (const OperatorAnswer& answer : compute.operators)
    json["operators"].push_back(operator_json(result, answer));
  json["cost"] = cost_json(result);
  return json;
}

std::string compute_table(const std::vector<TraceResult>& results) {
  std::string text;
  for (const TraceResult& r : results) {
    if (!r.compute) continue;
    if (text.empty()) {
      text =
          "\nCompute: steps of the trace at which an operator overflows in each mode, and as it "
          "was "
          "issued\n";
      text += fmt::format(
          "  {:<16} {:<28} {:<12} {:>5} {:>5} {:>6} {:>5} {:>7} {:>10} {:>8} {:>5} {:>5}  {}\n",
          "trace", "operator", "kernel", "steps", "FAST", "STABLE", "SAFE", "issued", "first FAST",
          "STABLE", "SAFE", "lead", "FAST against the framework");
    }
    for (const OperatorAnswer& a : r.compute->operators) {
      if (a.steps.empty()) continue;
      text += fmt::format(
          "  {:<16} {:<28} {:<12} {:>5} {:>5} {:>6} {:>5} {:>7} {:>10} {:>8} {:>5} {:>5}  {}\n",
          r.name, r.probe_names.at(a.number), traits_of(a.op.kernel).name, a.steps.size(),
          overflows(a, 0), overflows(a, 1), overflows(a, 2), overflows_as_run(a),
          step_text(a.first_overflow[0]), step_text(a.first_issue[1]), step_text(a.first_issue[2]),
          step_text(a.lead_steps), framework_text(a));
    }
  }
  if (text.empty()) return text;
  text +=
      "  first FAST: step of the first overflow in FAST; STABLE, SAFE beside it: first step issued "
      "in "
      "it; lead: steps for which it had not been FAST\n";
  text +=
      "\nCompute: largest error against binary64 in units in the last place of the output, and "
      "clocks of one execution\n";
  text += fmt::format("  {:<16} {:<28} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "trace",
                      "operator", "FAST", "STABLE", "SAFE", "FAST", "STABLE", "SAFE");
  for (const TraceResult& r : results) {
    if (!r.compute) continue;
    for (const OperatorAnswer& a : r.compute->operators) {
      if (a.steps.empty()) continue;
      text += fmt::format("  {:<16} {:<28}", r.name, r.probe_names.at(a.number));
      for (std::size_t mode = 0; mode < kModes; ++mode) {
        const auto largest = sum_of(a.steps, mode).largest_ulps;
        text += fmt::format(" {:>10}", largest ? fmt::format("{:.3g}", *largest) : "-");
      }
      for (std::size_t mode = 0; mode < kModes; ++mode)
        text += fmt::format(" {:>10}", a.cost[mode].cycles);
      text += '\n';
    }
  }
  text +=
      "\nCompute: clocks of the vector unit for the operators of the trace, over its steps; "
      "throughput "
      "lost beside what the published design claims\n";
  text += fmt::format("  {:<16} {:<28} {:>14} {:>11} {:>11} {:>10}\n", "trace", "modes", "clocks",
                      "added", "lost", "claimed");
  for (const TraceResult& r : results) {
    if (!r.compute) continue;
    const ComputeCost& c = r.compute->cost;
    for (const Policy& policy : policies_of(c)) {
      text += fmt::format(
          "  {:<16} {:<28} {:>14} {:>9.2f} % {:>9.2f} % {:>10}\n", r.name,
          policy.name == "SAFE for the culprit" ? fmt::format("SAFE for {}", culprit_of(r))
                                                : std::string(policy.name),
          policy.cycles, added_percent(policy, c.all_fast), lost_percent(policy, c.all_fast),
          policy.claimed.empty() ? "-" : fmt::format("{} %", policy.claimed));
    }
  }
  for (const TraceResult& r : results) {
    if (!r.compute) continue;
    text += fmt::format(
        "  {}: {} executions of {} elements compared bit for bit between the paths that compute\n",
        r.name, r.compute->executions_compared, r.compute->elements_compared);
  }
  return text;
}

}  // namespace opd::tb
