#pragma once
// The CUDA reference as a path on the emulated device: nvcc's PTX on the CPU (testbench/ptx). It lies in a library of its own,
// which is loaded when the path is asked for: its CUDA runtime must not meet the real one.
#include <functional>
#include <span>
#include <string>

#include "operators.hpp"
#include "paths/path_result.hpp"

namespace opd::tb {

inline constexpr const char* kCudaEmulated = "cuda-emulated";

/// True where it was built and can be loaded; otherwise `reason` says why not.
[[nodiscard]] bool cuda_emulated_available(std::string* reason);
/// As run_cpu, without times of its own. on_progress: batches done, of how many. A fault of the
/// emulated device ends the process with status 66. Errors: std::runtime_error.
[[nodiscard]] PathResult run_cuda_emulated(
    const OperatorStream& operators, const DeviceParameters& parameters, const Config& config,
    std::span<const std::size_t> order,
    const std::function<void(std::size_t, std::size_t)>& on_progress);

}  // namespace opd::tb
