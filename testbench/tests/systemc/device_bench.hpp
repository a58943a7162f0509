#pragma once
// The SystemC device with every pin bound, driven one rising edge at a time.
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <systemc>
#include <vector>

#include "elements.hpp"
#include "fixed_config.hpp"
#include "opd/sc/device_signals.hpp"

namespace opd::tb {

/// Without the published engine a completion takes 2 clocks.
inline constexpr DeviceParameters kForecastOnly = {.published_engine = false};

/// One edge: inputs are what it samples, outputs what is on the pins at that moment.
class DeviceBench {
  sc::DeviceSignals pins_;

 public:
  sc_core::sc_signal<bool>& rst_n = pins_.rst_n;

  /// Resets the device and writes `config` through the bus.
  explicit DeviceBench(const DeviceParameters& parameters = kForecastOnly,
                       const Config& config = kFixedConfig)
      : device_("device", parameters) {
    pins_.bind(device_);
    settle();
    rst_n.write(true);
    settle();
    for (const auto& [address, value] : register_values(config)) write(address, value);
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

  /// One APB transfer: the response of its access clock. Two edges; other inputs idle.
  ApbResponse transfer(ApbRequest request) {
    request.select = true;
    request.enable = false;
    edge(CycleInput{.apb = request});
    request.enable = true;
    return edge(CycleInput{.apb = request}).apb;
  }
  std::uint32_t read(std::uint16_t address) {
    const ApbResponse response = transfer({.address = address});
    EXPECT_TRUE(response.ready);
    EXPECT_FALSE(response.error) << "read of " << address;
    return response.data;
  }
  void write(std::uint16_t address, std::uint32_t data) {
    const ApbResponse response = transfer({.write = true, .address = address, .data = data});
    EXPECT_TRUE(response.ready);
    EXPECT_FALSE(response.error) << "write of " << data << " to " << address;
  }
  /// Runs a command to its end.
  void command(std::uint16_t op, Command command) {
    write(reg::kOpCommand, op | static_cast<std::uint32_t>(command) << 16);
    int waited = 0;
    while (read(reg::kOpStatus) != 0) ASSERT_LT(++waited, 20);
  }

  void inject_upset(std::uint16_t op, sc::UpsetTarget target, unsigned bit = 0) {
    device_.inject_upset(op, target, bit);
    settle();
  }

  /// A statistic through the sideband to its record, all other pins idle.
  OpRecord sample(const OpDescriptor& descriptor, const TapSummary& summary) {
    const std::size_t before = records.size();
    edge(CycleInput{.stat_valid = true, .statistic = {descriptor, summary}});
    for (int i = 0; i < 16 && records.size() == before; ++i) edge();
    EXPECT_EQ(records.size(), before + 1);
    return records.back();
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
