#include "paths/cuda_path.hpp"

#include "paths/cuda_unit.hpp"

namespace opd::tb {

bool cuda_available(std::string* reason) { return cuda::device_available(reason); }

PathResult run_cuda(const OperatorStream& operators, const DeviceParameters& parameters,
                    const Config& config, std::span<const std::size_t> order) {
  return run_batches("cuda", operators, parameters, config, order,
                     [](const auto&... arguments) -> std::unique_ptr<BatchUnit> {
                       return std::make_unique<CudaUnit>(arguments...);
                     });
}

}  // namespace opd::tb
