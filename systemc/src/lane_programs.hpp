#pragma once
// The programs compiled for one instruction set each.
#include "opd/types/computation.hpp"

namespace opd::sc {

/// Runs the program of a valid computation. Status and size of the output are set; cost, output and
/// accumulators are filled in.
void run_portable(const Computation& computation, const UnitSettings& settings, Execution& result);
/// Precondition: the machine has AVX2, FMA and F16C.
void run_avx2(const Computation& computation, const UnitSettings& settings, Execution& result);

/// SAFE divides the operands of this kernel by a power of two.
bool compresses(Kernel kernel);

}  // namespace opd::sc
