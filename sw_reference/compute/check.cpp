#include "check.hpp"

#include <stdexcept>
#include <string>

#include "opd/reference/compute/operators.hpp"

namespace opd::ref {
namespace {

template <class Op>
struct ProgramOf {
  static constexpr Program kValue = Op::kProgram;
};

void check_range(const char* name, unsigned value, unsigned minimum, unsigned maximum) {
  if (value < minimum || value > maximum) {
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(value) + " is not in " +
                                std::to_string(minimum) + ".." + std::to_string(maximum));
  }
}

bool is_mask(const KernelTraits& traits, std::size_t i) { return traits.operands[i] == "mask"; }

}  // namespace

const Program& program_of(Kernel kernel) {
  static constexpr auto kPrograms = lanes::table_of<ProgramOf, Program>(lanes::kOperatorIndices);
  return kPrograms[static_cast<std::size_t>(kernel)];
}

unsigned lanes_of(const Computation& computation, const UnitSettings& settings) {
  return settings.datapath_width / layout_of(computation.operands[0].format).width();
}

std::uint64_t operand_bytes(const Computation& computation, std::size_t i) {
  const Operand& operand = computation.operands[i];
  const bool mask = is_mask(traits_of(computation.kernel), i);
  return std::uint64_t{operand.rows} * operand.columns *
         (mask ? 1 : layout_of(operand.format).bytes());
}

void check(const Computation& c, const UnitSettings& settings, Bytes bytes) {
  check_range("datapath_width", settings.datapath_width, 32, 512);
  if (settings.datapath_width % 32 != 0) {
    throw std::invalid_argument("datapath_width: " + std::to_string(settings.datapath_width) +
                                " is no multiple of 32");
  }
  check_range("fp64_lanes", settings.fp64_lanes, 1, 64);
  check_range("matrix_rows", settings.matrix_rows, 1, 1024);
  check_range("accumulator", static_cast<unsigned>(settings.accumulator), 0, 2);
  check_range("kernel", static_cast<unsigned>(c.kernel), 0,
              static_cast<unsigned>(kKernels.size() - 1));
  const KernelTraits& traits = traits_of(c.kernel);
  const auto fail = [&traits](const std::string& text) {
    throw std::invalid_argument(std::string(traits.name) + ": " + text);
  };
  if (!is_known(c.format)) {
    fail("format code " + std::to_string(static_cast<unsigned>(c.format)) + " is none of 0..4");
  }
  const bool matrix = traits.shape == KernelShape::kMatrix;
  if (c.rows == 0 || c.columns == 0 || c.batch == 0 || (matrix && c.depth == 0)) {
    fail("batch, rows, columns and the depth of a matrix kernel must be at least 1; they are " +
         std::to_string(c.batch) + ", " + std::to_string(c.rows) + ", " +
         std::to_string(c.columns) + ", " + std::to_string(c.depth));
  }
  if (c.batch != 1 && c.kernel != Kernel::kMatmul) {
    fail("batch is " + std::to_string(c.batch) + "; only matmul has one other than 1");
  }
  for (std::size_t i = 0; i < kMaxOperands; ++i) {
    const Operand& operand = c.operands[i];
    const std::string name(traits.operands[i]);
    const bool absent = bytes == Bytes::kPresent ? operand.elements.empty() : operand.rows == 0;
    if (name.empty()) {
      if (!absent) fail("has no operand number " + std::to_string(i));
      continue;
    }
    if (absent) {
      if (i < traits.required) fail("operand " + name + " is missing");
      continue;
    }
    if (!is_mask(traits, i) && !is_known(operand.format)) {
      fail("operand " + name + " has format code " +
           std::to_string(static_cast<unsigned>(operand.format)) + ", none of 0..4");
    }
    // Rows that it may have and columns that it must have.
    std::uint64_t most_rows = c.rows, least_rows = 1, columns = c.columns;
    if (matrix) {
      most_rows = least_rows = i == 2 ? 1 : std::uint64_t{c.batch} * (i == 0 ? c.rows : c.columns);
      columns = i == 2 ? c.columns : c.depth;
    }
    if (operand.columns != columns || operand.rows < least_rows || operand.rows > most_rows) {
      fail("operand " + name + " is [" + std::to_string(operand.rows) + ", " +
           std::to_string(operand.columns) + "], not [" +
           (least_rows == most_rows
                ? std::to_string(most_rows)
                : std::to_string(least_rows) + ".." + std::to_string(most_rows)) +
           ", " + std::to_string(columns) + "]");
    }
    if (bytes == Bytes::kPresent && operand.elements.size() != operand_bytes(c, i)) {
      fail("operand " + name + " has " + std::to_string(operand.elements.size()) +
           " bytes; its shape and format ask for " + std::to_string(operand_bytes(c, i)));
    }
  }
}

}  // namespace opd::ref
