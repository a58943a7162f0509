#include "rtl_variants.hpp"

#include "Vopd_top_mutant.h"
#include "Vopd_top_small.h"
#include "paths/rtl_device.hpp"

namespace opd::tb {

std::unique_ptr<PinDevice> make_small_rtl_device(const Config& config) {
  return std::make_unique<RtlDevice<Vopd_top_small>>(config);
}

std::unique_ptr<PinDevice> make_mutant_rtl_device(const Config& config) {
  return std::make_unique<RtlDevice<Vopd_top_mutant>>(config);
}

}  // namespace opd::tb
