// The CUDA reference on the emulated device as a library of one function (unit_library.map hides the rest).
#include "paths/cuda_unit.hpp"

extern "C" opd::tb::BatchUnit* opd_make_emulated_unit(const opd::DeviceParameters& parameters,
                                                      const opd::Config& config,
                                                      const opd::cuda::Limits& limits) {
  return new opd::tb::CudaUnit(parameters, config, limits);
}
