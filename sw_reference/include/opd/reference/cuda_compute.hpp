#pragma once
// The kernels of the vector unit on a CUDA device: the same functors as on the CPU, one thread per
// row, per output of a matrix kernel and per element. It shows that they run there and give the same
// bits; it is not laid out for speed.
#include "opd/types/computation.hpp"

namespace opd::cuda {

/// ref::compute on the current CUDA device (opd/reference/compute.hpp).
/// Errors: as there, and std::runtime_error that names the CUDA call.
Execution compute(const Computation& computation, Mode mode, const UnitSettings& settings = {});

}  // namespace opd::cuda
