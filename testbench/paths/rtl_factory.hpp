#pragma once
// The Verilated device of the default build, behind PinDevice.
#include <memory>
#include <vector>

#include "opd/types/device.hpp"
#include "paths/pin_device.hpp"

namespace opd::tb {

class Waveform;

/// The parameters that the Verilated device was built with.
[[nodiscard]] DeviceParameters rtl_parameters();
/// In reset state: its registers are written through the APB pins.
[[nodiscard]] std::unique_ptr<PinDevice> make_rtl_device();

/// The same, dumped into the waveform, which must outlive it. The dump is whole when it is gone.
[[nodiscard]] std::unique_ptr<PinDevice> make_traced_rtl_device(Waveform& waveform);

/// The same, but an assertion that fails throws std::runtime_error instead of ending the process.
[[nodiscard]] std::unique_ptr<PinDevice> make_throwing_rtl_device();

/// Clocks per second of the bare Verilated device on a recorded stimulus, repeated until `seconds`
/// have passed.
[[nodiscard]] double measure_rtl_speed(const std::vector<CycleInput>& stimulus, double seconds);

}  // namespace opd::tb
