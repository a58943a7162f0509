#pragma once
// The SystemC device with every pin bound, driven one rising edge at a time.
#include <cstring>
#include <span>
#include <systemc>
#include <vector>

#include "elements.hpp"
#include "fixed_config.hpp"
#include "opd/sc/device_signals.hpp"

namespace opd::tb {

/// One edge: inputs are what it samples, outputs what is on the pins at that moment.
class DeviceBench {
  sc::DeviceSignals pins_;

 public:
  sc_core::sc_signal<bool>& rst_n = pins_.rst_n;

  explicit DeviceBench(const DeviceParameters& parameters = {}, const Config& config = kFixedConfig)
      : device_("device", parameters, config) {
    pins_.bind(device_);
    settle();
    rst_n.write(true);
    settle();
  }

  /// Outputs that this edge samples.
  CycleOutput edge(const CycleInput& input = {}) {
    pins_.drive(input);
    settle();
    const CycleOutput output = outputs();
    if (output.record_valid) {
      records.push_back(output.record);
      counts.push_back(output.counts);
    }
    pins_.clk.write(true);
    settle();
    pins_.clk.write(false);
    settle();
    return output;
  }

  CycleOutput edge(const Beat& beat) { return edge(CycleInput{.beat_valid = true, .beat = beat}); }

  void idle(int edges) {
    for (int i = 0; i < edges; ++i) edge();
  }

  CycleOutput outputs() const { return pins_.outputs(); }

  static void settle() { sc_core::sc_start(1, sc_core::SC_PS); }

  std::vector<OpRecord> records;  ///< every record so far
  std::vector<TapCounts> counts;  ///< beside records

 private:
  sc::Device device_;
};

/// A beat of the elements given as bits; lanes past them are disabled.
inline Beat make_beat(const OpDescriptor& descriptor, const std::vector<std::uint32_t>& elements,
                      bool last, std::uint8_t stream = 0) {
  Beat beat;
  beat.descriptor = descriptor;
  beat.stream = stream;
  beat.last = last;
  const auto width = static_cast<std::size_t>(layout_of(descriptor.format).bytes);
  for (std::size_t k = 0; k < elements.size(); ++k) {
    std::memcpy(beat.data.data() + k * width, &elements[k], width);
    beat.lane_enable |= std::uint64_t{1} << k;
  }
  return beat;
}

}  // namespace opd::tb
