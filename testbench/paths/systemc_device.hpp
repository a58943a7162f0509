#pragma once
// The SystemC device behind PinDevice, for benches that make their own pin activity cycle by cycle.
// One per process: SystemC elaborates once.
#include <memory>
#include <systemc>

#include "opd/sc/device.hpp"
#include "paths/pin_device.hpp"

namespace opd::tb {

class SystemcDevice final : public PinDevice {
 public:
  SystemcDevice(const DeviceParameters& parameters, const Config& config)
      : device_("device", parameters, config) {
    device_.clk(clk_);
    device_.rst_n(rst_n_);
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
    reset();
  }

  void reset() override {
    beat_valid_.write(false);
    stat_valid_.write(false);
    rst_n_.write(false);
    settle_();
    rst_n_.write(true);
    settle_();
  }

  CycleOutput peek(const CycleInput& input) override {
    beat_valid_.write(input.beat_valid);
    stat_valid_.write(input.stat_valid);
    mode_op_.write(input.mode_op);
    if (input.beat_valid) beat_.write(input.beat);
    if (input.stat_valid) statistic_.write(input.statistic);
    settle_();
    CycleOutput output{.record_valid = record_valid_.read(),
                       .stat_ready = stat_ready_.read(),
                       .mode = mode_.read(),
                       .queue_level = static_cast<std::uint8_t>(queue_level_.read()),
                       .queue_high_water = static_cast<std::uint8_t>(queue_high_water_.read()),
                       .unseen_count = unseen_count_.read()};
    if (output.record_valid) {
      output.record = record_.read();
      output.counts = counts_.read();
    }
    return output;
  }

  void edge() override {
    clk_.write(true);
    settle_();
    clk_.write(false);
    // The falling edge settles with the next inputs.
  }

 private:
  static void settle_() { sc_core::sc_start(1, sc_core::SC_PS, sc_core::SC_RUN_TO_TIME); }

  sc_core::sc_signal<bool> clk_{"clk"}, rst_n_{"rst_n"}, beat_valid_{"beat_valid"},
      stat_valid_{"stat_valid"}, stat_ready_{"stat_ready"}, record_valid_{"record_valid"};
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

}  // namespace opd::tb
