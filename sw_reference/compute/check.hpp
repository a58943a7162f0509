#pragma once
// What a computation must be before anything is computed or counted of it.
#include "opd/reference/compute/program.hpp"
#include "opd/types/computation.hpp"

namespace opd::ref {

/// Whether the bytes of the operands have to be there.
enum class Bytes { kPresent, kMissing };

/// Errors: std::invalid_argument that names the kernel and the operand, or the setting.
void check(const Computation& computation, const UnitSettings& settings, Bytes bytes);

/// Passes of a kernel.
const Program& program_of(Kernel kernel);

/// L: elements of the first operand in a beat.
unsigned lanes_of(const Computation& computation, const UnitSettings& settings);

/// Bytes of an operand as it lies in memory, `i` its index; 0 when it is absent.
std::uint64_t operand_bytes(const Computation& computation, std::size_t i);

}  // namespace opd::ref
