#pragma once
// The SystemC device with every pin bound, driven one rising edge at a time.
#include <cstring>
#include <span>
#include <systemc>
#include <vector>

#include "elements.hpp"
#include "fixed_config.hpp"
#include "opd/sc/device.hpp"

namespace opd::tb {

/// One edge: inputs are what it samples, outputs what is on the pins at that moment.
class DeviceBench {
 public:
  explicit DeviceBench(const DeviceParameters& parameters = {}, const Config& config = kFixedConfig)
      : device_("device", parameters, config) {
    device_.clk(clk_);
    device_.rst_n(rst_n);
    device_.beat_valid(beat_valid_);
    device_.beat(beat_);
    device_.stat_valid(stat_valid_);
    device_.statistic(statistic_);
    device_.stat_ready(stat_ready_);
    device_.mode_op(mode_op_);
    device_.mode(mode_);
    device_.record_valid(record_valid_);
    device_.record(record_);
    device_.counts(counts_);
    device_.queue_level(queue_level_);
    device_.queue_high_water(queue_high_water_);
    device_.unseen_count(unseen_count_);
    settle();
    rst_n.write(true);
    settle();
  }

  /// Outputs that this edge samples.
  CycleOutput edge(const CycleInput& input = {}) {
    beat_valid_.write(input.beat_valid);
    beat_.write(input.beat);
    stat_valid_.write(input.stat_valid);
    statistic_.write(input.statistic);
    mode_op_.write(input.mode_op);
    settle();
    const CycleOutput output = outputs();
    if (output.record_valid) {
      records.push_back(output.record);
      counts.push_back(output.counts);
    }
    clk_.write(true);
    settle();
    clk_.write(false);
    settle();
    return output;
  }

  CycleOutput edge(const Beat& beat) { return edge(CycleInput{.beat_valid = true, .beat = beat}); }

  void idle(int edges) {
    for (int i = 0; i < edges; ++i) edge();
  }

  CycleOutput outputs() const {
    CycleOutput output;
    output.record_valid = record_valid_.read();
    output.stat_ready = stat_ready_.read();
    output.mode = mode_.read();
    output.queue_level = static_cast<std::uint8_t>(queue_level_.read());
    output.queue_high_water = static_cast<std::uint8_t>(queue_high_water_.read());
    output.unseen_count = unseen_count_.read();
    output.record = record_.read();
    output.counts = counts_.read();
    return output;
  }

  static void settle() { sc_core::sc_start(1, sc_core::SC_PS); }

  sc_core::sc_signal<bool> rst_n{"rst_n"};
  std::vector<OpRecord> records;  ///< every record so far
  std::vector<TapCounts> counts;  ///< beside records

 private:
  sc_core::sc_signal<bool> clk_{"clk"}, beat_valid_{"beat_valid"}, stat_valid_{"stat_valid"},
      stat_ready_{"stat_ready"}, record_valid_{"record_valid"};
  sc_core::sc_signal<Beat> beat_{"beat"};
  sc_core::sc_signal<Statistic> statistic_{"statistic"};
  sc_core::sc_signal<std::uint16_t> mode_op_{"mode_op"};
  sc_core::sc_signal<Mode> mode_{"mode"};
  sc_core::sc_signal<OpRecord> record_{"record"};
  sc_core::sc_signal<TapCounts> counts_{"counts"};
  sc_core::sc_signal<unsigned> queue_level_{"queue_level"}, queue_high_water_{"queue_high_water"},
      unseen_count_{"unseen_count"};
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
