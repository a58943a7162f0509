#include <verilated_fst_c.h>

#include "paths/default_rtl_device.hpp"
#include "paths/waveform.hpp"

namespace opd::tb {
namespace {

/// Two dumps per cycle: after the edge before it, when the new inputs have settled, and at the
/// falling edge of the clock.
class TracedDevice final : public DefaultRtlDevice {
 public:
  explicit TracedDevice(Waveform& waveform) : DefaultRtlDevice(true), waveform_(waveform) {
    model().trace(&dump_, 99);
    waveform_.join(dump_);
  }

  CycleOutput peek(const CycleInput& input) override {
    const std::uint64_t coming = cycle() + 1;
    if (!waveform_.wants(coming)) {
      if (dump_.isOpen()) dump_.close();
      return DefaultRtlDevice::peek(input);
    }
    if (!dump_.isOpen()) dump_.open(waveform_.window().file.c_str());
    if (cycle() > 0) model().clk_i = 1;  // as the last edge left it: no second one
    const CycleOutput output = DefaultRtlDevice::peek(input);
    waveform_.note_rtl(output, *stored_state(waveform_.window().op));
    dump_.dump(kPeriod * (coming - 1));
    model().clk_i = 0;
    model().eval();
    dump_.dump(kPeriod * coming - kPeriod / 2);
    return output;
  }

 private:
  static constexpr std::uint64_t kPeriod = 1000;  // ps
  Waveform& waveform_;
  VerilatedFstC dump_;
};

}  // namespace

std::unique_ptr<PinDevice> make_traced_rtl_device(Waveform& waveform) {
  return std::make_unique<TracedDevice>(waveform);
}

}  // namespace opd::tb
