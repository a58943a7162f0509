#pragma once
// Software reference of the computing vector unit: every kernel in every mode, what it costs, and
// the yardstick that it is measured against.
//
//   exact  : equal bits on every machine and instruction set; AVX-512 or AVX2 is chosen at run time
//   memory : operands as binary32 for a matrix kernel, else a few rows
//   errors : std::invalid_argument that names the kernel and the operand or setting
//   source : docs/numerics.md "Vector unit", docs/vector_unit.md
#include <cstdint>
#include <vector>

#include "opd/types/computation.hpp"

namespace opd::ref {

/// Instruction sets that the arithmetic is compiled for, each with those before it: AVX2 with FMA and
/// F16C, AVX-512 with F, BW, DQ and VL.
enum class LanesIsa : std::uint8_t { kPortable, kAvx2, kAvx512 };

/// The best one of this machine.
LanesIsa best_lanes_isa();

/// Runs the kernel in that mode.
Execution compute(const Computation& computation, Mode mode, const UnitSettings& settings = {});

/// The same with the instruction set given. Errors: std::invalid_argument as well when the machine
/// lacks it.
Execution compute(const Computation& computation, Mode mode, const UnitSettings& settings,
                  LanesIsa isa);

/// What would run: formats of output and accumulators, what the mode adds. Reads the kernel and the
/// format alone; a Computation of shapes is enough.
ExecutionStatus status_of(const Computation& computation, Mode mode,
                          const UnitSettings& settings = {});

/// Clocks and bytes by the formula of docs/vector_unit.md. Reads shapes and formats: operands'
/// bytes may be missing, and an absent optional operand has 0 rows.
ExecutionCost cost(const Computation& computation, Mode mode, const UnitSettings& settings = {});

/// The result in binary64 (sums over a row in long double), nothing rounded to a format and nothing
/// compressed: one number per element of the output. softmax hides what the mask hides; a row with
/// nothing left is NaN.
std::vector<double> compute_exact(const Computation& computation);

/// Value of an element; bits above its width are ignored.
double to_double(Format format, std::uint32_t bits);

/// RNF(x) as bits, with CONTROL.SATURATE or without.
std::uint32_t cast(Format format, float x, bool saturate = false);

}  // namespace opd::ref
