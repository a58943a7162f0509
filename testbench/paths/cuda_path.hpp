#pragma once
// The CUDA reference as a path. Where it was not built or finds no device, cuda_available() says
// why.
#include <span>
#include <string>

#include "operators.hpp"
#include "paths/path_result.hpp"

namespace opd::tb {

[[nodiscard]] bool cuda_available(std::string* reason);
/// As run_cpu. Errors: std::runtime_error naming the CUDA call.
[[nodiscard]] PathResult run_cuda(const OperatorStream& operators,
                                  const DeviceParameters& parameters, const Config& config,
                                  std::span<const std::size_t> order);

}  // namespace opd::tb
