#pragma once
// The other Verilated devices of the build, behind PinDevice (rtl/CMakeLists.txt).
#include <memory>

#include "opd/types/device.hpp"
#include "paths/pin_device.hpp"

namespace opd::tb {

/// Every parameter at a value that a default might hide.
inline constexpr DeviceParameters kSmallDevice{
    .num_ops = 5, .datapath_width = 96, .num_streams = 2, .queue_depth = 2, .counter_width = 5};
[[nodiscard]] std::unique_ptr<PinDevice> make_small_rtl_device(const Config& config);

/// The default device with one planted fault that none of its assertions notices.
[[nodiscard]] std::unique_ptr<PinDevice> make_mutant_rtl_device(const Config& config);

}  // namespace opd::tb
