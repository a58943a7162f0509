// Stands in for cuda_path.cpp where nvcc was not found.
#include <stdexcept>

#include "paths/cuda_path.hpp"

namespace opd::tb {

bool cuda_available(std::string* reason) {
  *reason = "built without nvcc";
  return false;
}

PathResult run_cuda(const OperatorStream&, const DeviceParameters&, const Config&,
                    std::span<const std::size_t>) {
  throw std::logic_error("run_cuda: built without nvcc");
}

}  // namespace opd::tb
