#include "opd/sc/operation.hpp"

#include "opd/sc/lane_processor.hpp"

namespace opd::sc {

std::optional<std::string> operation_error(const Operation& operation) {
  if (!operation.computation && !operation.accumulator_op && !operation.second_mode_op)
    return std::nullopt;
  const std::string what = "operation of op " + std::to_string(operation.descriptor.op) + ": ";
  if (!operation.computation) {
    return what + (operation.accumulator_op ? "accumulator_op" : "second_mode_op") +
           " is set without a computation: must be unset";
  }
  const Computation& computation = *operation.computation;
  if (operation.statistic || !operation.elements.empty()) {
    return what + "elements or statistic beside a computation: must be unset";
  }
  if (auto error = computation_error(computation)) return what + *error;
  if (operation.descriptor.format != computation.format) {
    return what + "descriptor.format = " +
           std::to_string(static_cast<unsigned>(operation.descriptor.format)) +
           ": must be that of the computation, " +
           std::to_string(static_cast<unsigned>(computation.format));
  }
  const KernelTraits& traits = traits_of(computation.kernel);
  if (operation.accumulator_op && !traits.accumulates) {
    return what + "accumulator_op is set: must be unset, " + std::string(traits.name) +
           " has no accumulators";
  }
  return std::nullopt;
}

Statistic accumulator_statistic(const Operation& operation, const Execution& execution) {
  return {.descriptor = {.op = *operation.accumulator_op,
                         .format = execution.accumulator_format,
                         .step = operation.descriptor.step},
          .summary = *execution.accumulators};
}

}  // namespace opd::sc
