#pragma once
// The SystemC device behind PinDevice, for benches that make their own pin activity cycle by cycle.
// One per process: SystemC elaborates once.
#include <systemc>

#include "opd/sc/device_signals.hpp"
#include "paths/pin_device.hpp"

namespace opd::tb {

class SystemcDevice final : public PinDevice {
 public:
  explicit SystemcDevice(const DeviceParameters& parameters) : device_("device", parameters) {
    pins_.bind(device_);
    reset();
  }

  void reset() override {
    pins_.drive({});
    pins_.rst_n.write(false);
    settle_();
    pins_.rst_n.write(true);
    settle_();
  }

  CycleOutput peek(const CycleInput& input) override {
    pins_.drive(input);
    settle_();
    return pins_.outputs();
  }

  void edge() override {
    pins_.clk.write(true);
    settle_();
    pins_.clk.write(false);  // settles with the next inputs
  }

  /// As sc::Device::inject_upset; call it between edge() and peek().
  void inject_upset(std::uint16_t op, sc::UpsetTarget target, unsigned bit = 0) {
    device_.inject_upset(op, target, bit);
  }

 private:
  static void settle_() { sc_core::sc_start(1, sc_core::SC_PS, sc_core::SC_RUN_TO_TIME); }

  sc::DeviceSignals pins_;
  sc::Device device_;
};

}  // namespace opd::tb
