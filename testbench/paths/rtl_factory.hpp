#pragma once
// The Verilated device of the default build, behind PinDevice.
#include <memory>
#include <optional>
#include <vector>

#include "opd/types/device.hpp"
#include "paths/pin_device.hpp"
#include "paths/waveform.hpp"

namespace opd::tb {

/// The parameters that the Verilated device was built with.
[[nodiscard]] DeviceParameters rtl_parameters();
/// In reset state: its registers are written through the APB pins.
[[nodiscard]] std::unique_ptr<PinDevice> make_rtl_device(std::optional<WaveformWindow> window = {});

/// The same, but an assertion that fails throws std::runtime_error instead of ending the process.
[[nodiscard]] std::unique_ptr<PinDevice> make_throwing_rtl_device();

/// Clocks per second of the bare Verilated device on a recorded stimulus, repeated until `seconds`
/// have passed.
[[nodiscard]] double measure_rtl_speed(const std::vector<CycleInput>& stimulus, double seconds);

}  // namespace opd::tb
