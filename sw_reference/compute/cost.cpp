// Cost of an execution. Source: docs/vector_unit.md "Cost".
#include <algorithm>
#include <bit>

#include "check.hpp"
#include "opd/reference/compute.hpp"
#include "opd/reference/element.hpp"

namespace opd::ref {
namespace {

constexpr std::uint64_t kScalarClocks = 8;
constexpr std::uint64_t kKahanAdditions = 4;

std::uint64_t quotient_up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

bool reads_any(const Computation& c, unsigned operands) {
  for (std::size_t i = 0; i < kMaxOperands; ++i) {
    if ((operands >> i & 1u) != 0 && c.operands[i].rows > 0) return true;
  }
  return false;
}

}  // namespace

ExecutionCost cost(const Computation& c, Mode mode, const UnitSettings& settings) {
  const ExecutionStatus status = status_of(c, mode, settings);
  const KernelTraits& traits = traits_of(c.kernel);
  const Program& program = program_of(c.kernel);
  const std::uint64_t lanes = lanes_of(c, settings);
  const std::uint64_t levels = static_cast<std::uint64_t>(std::bit_width(lanes - 1));
  const bool safe = mode == Mode::kSafe;
  const std::uint64_t kahan = kKahanAdditions * quotient_up(lanes, settings.fp64_lanes);
  const std::uint64_t rows = std::uint64_t{c.batch} * c.rows;
  const bool elementwise = traits.shape == KernelShape::kElementwise;
  const bool matrix = traits.shape == KernelShape::kMatrix;

  ExecutionCost cost{.bytes_written = c.output_elements() * layout_of(status.format).bytes()};
  if (status.compressed) {
    for (std::size_t i = 0; i < kMaxOperands; ++i) {
      if ((program.compressed >> i & 1u) == 0) continue;
      const std::uint64_t beats =
          quotient_up(std::uint64_t{c.operands[i].rows} * c.operands[i].columns, lanes);
      cost.passes += 1;
      cost.beats += beats;
      cost.cycles += beats + levels;
      cost.bytes_read += operand_bytes(c, i);
    }
  }
  for (std::size_t p = 0; p < program.passes; ++p) {
    const Pass& pass = program.pass[p];
    std::uint64_t beats = 0, clocks = 0;
    if (pass.product) {
      const std::uint64_t tiles =
          c.batch * quotient_up(c.rows, settings.matrix_rows) * quotient_up(c.columns, lanes);
      beats = tiles * c.depth;
      clocks = beats * (safe ? kahan + 1 : 1);
    } else {
      beats =
          elementwise ? quotient_up(rows * c.columns, lanes) : rows * quotient_up(c.columns, lanes);
      std::uint64_t operations = pass.operations + (reads_any(c, pass.extra) ? 1 : 0);
      if (status.compressed && !matrix && (pass.reads & program.compressed) != 0) operations += 1;
      if (pass.accumulates) operations += safe ? kahan : 1;
      clocks = beats * operations;
      if (pass.accumulates || pass.maximum) {
        clocks += pass.accumulates && safe ? 2 * kKahanAdditions * levels : levels;
      }
      if (pass.scalar) clocks += kScalarClocks;
    }
    if (p + 1 == program.passes) {
      clocks = std::max(clocks, quotient_up(cost.bytes_written, settings.datapath_width / 8));
    }
    cost.passes += 1;
    cost.beats += beats;
    cost.cycles += clocks;
    for (std::size_t i = 0; i < kMaxOperands; ++i) {
      if ((pass.reads >> i & 1u) != 0) cost.bytes_read += operand_bytes(c, i);
    }
  }
  return cost;
}

}  // namespace opd::ref
