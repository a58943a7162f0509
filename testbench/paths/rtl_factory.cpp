#include "paths/rtl_factory.hpp"

#include <chrono>

#include "paths/default_rtl_device.hpp"

namespace opd::tb {
DeviceParameters rtl_parameters() { return DeviceParameters{.num_ops = OPD_NUM_OPS}; }

std::unique_ptr<PinDevice> make_rtl_device() { return std::make_unique<DefaultRtlDevice>(); }

std::unique_ptr<PinDevice> make_throwing_rtl_device() {
  auto device = std::make_unique<RtlDevice<Vopd_top>>();
  device->throw_on_failure();
  return device;
}

double measure_rtl_speed(const std::vector<CycleInput>& stimulus, double seconds) {
  using Clock = std::chrono::steady_clock;
  RtlDevice<Vopd_top> device;
  std::uint64_t clocks = 0;
  double elapsed = 0;
  const auto start = Clock::now();
  do {
    for (const CycleInput& input : stimulus) device.run_cycle(input);
    clocks += stimulus.size();
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  } while (elapsed < seconds);
  return static_cast<double>(clocks) / elapsed;
}

}  // namespace opd::tb
