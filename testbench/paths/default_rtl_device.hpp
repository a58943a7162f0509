#pragma once
// The Verilated device of the default build, whose stored state can be read.
#include <optional>

#include "Vopd_top.h"
#include "Vopd_top___024root.h"
#include "paths/rtl_device.hpp"
#include "paths/rtl_factory.hpp"
#include "paths/rtl_state.hpp"

namespace opd::tb {

class DefaultRtlDevice : public RtlDevice<Vopd_top> {
 public:
  using RtlDevice::RtlDevice;
  [[nodiscard]] std::optional<StoredState> stored_state(std::uint16_t op) const override {
    return stored_state_of(model(), rtl_parameters(), op);
  }
};

}  // namespace opd::tb
