#include "paths/rtl_factory.hpp"

#include <chrono>

#include "Vopd_top.h"
#include "paths/rtl_device.hpp"

namespace opd::tb {

DeviceParameters rtl_parameters() { return DeviceParameters{.num_ops = OPD_NUM_OPS}; }

std::unique_ptr<PinDevice> make_rtl_device(const Config& config, std::optional<WaveformWindow> window) {
  return std::make_unique<RtlDevice<Vopd_top>>(config, std::move(window));
}

RtlSpeed measure_rtl_speed(const Config& config, const std::vector<CycleInput>& stimulus, double seconds) {
  using Clock = std::chrono::steady_clock;
  RtlDevice<Vopd_top> device(config);
  RtlSpeed speed;
  std::uint64_t beats = 0;
  double elapsed = 0;
  const auto start = Clock::now();
  do {
    for (const CycleInput& input : stimulus) {
      device.run_cycle(input);
      beats += input.beat_valid;
      speed.records += device.record_valid();
    }
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  } while (elapsed < seconds);
  speed.beats_per_second = static_cast<double>(beats) / elapsed;
  return speed;
}

}  // namespace opd::tb
