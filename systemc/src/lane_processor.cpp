#include "opd/sc/lane_processor.hpp"

#include <stdexcept>

#include "lane_programs.hpp"
#include "opd/sc/format.hpp"

namespace opd::sc {
namespace {

std::string must_be(const std::string& field, std::uint64_t value, const std::string& rule) {
  return field + " = " + std::to_string(value) + ": must be " + rule;
}

/// The rows that operand `i` may have, at least and at most.
struct RowRange {
  std::uint64_t least, most;
};

RowRange row_range(const Computation& computation, std::size_t i) {
  const std::uint64_t rows = computation.rows;
  if (traits_of(computation.kernel).shape != KernelShape::kMatrix) return {1, rows};
  if (i == 0) return {computation.batch * rows, computation.batch * rows};
  if (i == 1) {
    const std::uint64_t columns = std::uint64_t{computation.batch} * computation.columns;
    return {columns, columns};
  }
  return {1, 1};
}

std::optional<std::string> operand_error(const Computation& computation, std::size_t i) {
  const KernelTraits& traits = traits_of(computation.kernel);
  const Operand& operand = computation.operand(i);
  const std::string kernel = "operand of " + std::string(traits.name);
  if (traits.operands[i].empty()) {
    if (!computation.has(i)) return std::nullopt;
    return kernel + ": operand " + std::to_string(i) + " is given: must be absent";
  }
  const std::string name = kernel + ": " + std::string(traits.operands[i]);
  if (!computation.has(i)) {
    if (i >= traits.required) return std::nullopt;
    return name + " is absent: must be given";
  }
  const bool mask = traits.operands[i] == "mask";
  if (!mask && !is_format(operand.format)) {
    return must_be(name + ".format", static_cast<std::uint64_t>(operand.format), "0..4");
  }
  const RowRange range = row_range(computation, i);
  if (operand.rows < range.least || operand.rows > range.most) {
    std::string rule = std::to_string(range.least);
    if (range.most != range.least) rule += ".." + std::to_string(range.most);
    return must_be(name + ".rows", operand.rows, rule);
  }
  const bool of_depth = traits.shape == KernelShape::kMatrix && i < 2;
  const std::uint32_t columns = of_depth ? computation.depth : computation.columns;
  if (operand.columns != columns) {
    return must_be(name + ".columns", operand.columns, std::to_string(columns));
  }
  const std::uint64_t bytes = std::uint64_t{operand.rows} * operand.columns *
                              (mask ? 1 : properties(operand.format).element_bytes());
  if (operand.elements.size() != bytes) {
    return must_be(name + ".elements", operand.elements.size(),
                   std::to_string(bytes) + " bytes, rows x columns elements");
  }
  return std::nullopt;
}

}  // namespace

bool has_instruction_set(InstructionSet set) {
  if (set == InstructionSet::kPortable) return true;
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

InstructionSet best_instruction_set() {
  return has_instruction_set(InstructionSet::kAvx2) ? InstructionSet::kAvx2
                                                    : InstructionSet::kPortable;
}

std::optional<std::string> settings_error(const UnitSettings& settings) {
  if (settings.fp64_lanes < 1 || settings.fp64_lanes > 64) {
    return must_be("fp64_lanes", settings.fp64_lanes, "1..64");
  }
  if (settings.matrix_rows < 1 || settings.matrix_rows > 1024) {
    return must_be("matrix_rows", settings.matrix_rows, "1..1024");
  }
  return std::nullopt;
}

std::optional<std::string> computation_error(const Computation& computation) {
  const auto code = static_cast<std::uint64_t>(computation.kernel);
  if (code >= kKernels.size()) {
    return must_be("kernel", code, "0.." + std::to_string(kKernels.size() - 1));
  }
  const KernelTraits& traits = traits_of(computation.kernel);
  const std::string name(traits.name);
  if (!is_format(computation.format)) {
    return must_be("format of " + name, static_cast<std::uint64_t>(computation.format), "0..4");
  }
  const bool matrix = traits.shape == KernelShape::kMatrix;
  const bool batched = computation.kernel == Kernel::kMatmul;
  if (computation.batch < 1 || (!batched && computation.batch != 1)) {
    return must_be("batch of " + name, computation.batch, batched ? "1 or more" : "1");
  }
  if (computation.rows < 1) return must_be("rows of " + name, computation.rows, "1 or more");
  if (computation.columns < 1)
    return must_be("columns of " + name, computation.columns, "1 or more");
  if (matrix != (computation.depth > 0)) {
    return must_be("depth of " + name, computation.depth, matrix ? "1 or more" : "0");
  }
  for (std::size_t i = 0; i < kMaxOperands; ++i) {
    if (auto error = operand_error(computation, i)) return error;
  }
  return std::nullopt;
}

ExecutionStatus execution_status(const Computation& computation, Mode mode,
                                 const UnitSettings& settings) {
  const KernelTraits& traits = traits_of(computation.kernel);
  ExecutionStatus status;
  status.mode = mode;
  status.format = mode == Mode::kFast || computation.format == Format::kFp32 ? computation.format
                                                                             : Format::kBf16;
  status.accumulates = traits.accumulates;
  status.accumulator = AccumulatorFormat::kFp32;
  if (traits.accumulates && mode == Mode::kSafe) status.accumulator = AccumulatorFormat::kFp64;
  if (traits.accumulates && mode == Mode::kFast) {
    const bool narrow = settings.accumulator == AccumulatorChoice::kNarrow ||
                        (settings.accumulator == AccumulatorChoice::kPerOperator &&
                         traits.shape != KernelShape::kMatrix);
    if (narrow) status.accumulator = static_cast<AccumulatorFormat>(computation.format);
  }
  status.compensated = traits.accumulates && mode == Mode::kSafe;
  status.compressed = mode == Mode::kSafe && compresses(computation.kernel);
  status.saturating = settings.saturate;
  return status;
}

LaneProcessor::LaneProcessor(InstructionSet set)
    : run_(set == InstructionSet::kAvx2 ? run_avx2 : run_portable) {}

Execution LaneProcessor::execute(const Computation& computation, Mode mode,
                                 const UnitSettings& settings) const {
  Execution result;
  execute(computation, mode, settings, result);
  return result;
}

void LaneProcessor::execute(const Computation& computation, Mode mode, const UnitSettings& settings,
                            Execution& result) const {
  if (const auto error = settings_error(settings)) throw std::invalid_argument(*error);
  if (const auto error = computation_error(computation)) throw std::invalid_argument(*error);
  if (static_cast<std::size_t>(mode) >= kModeNames.size()) {
    throw std::invalid_argument(must_be("mode", static_cast<std::uint64_t>(mode), "0..2"));
  }
  result.status = execution_status(computation, mode, settings);
  result.output.resize(computation.output_elements() *
                       properties(result.status.format).element_bytes());
  result.accumulators.reset();
  result.accumulator_format = Format::kFp16;
  result.cost = {};
  run_(computation, settings, result);
}

}  // namespace opd::sc
