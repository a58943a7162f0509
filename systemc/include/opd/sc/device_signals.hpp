#pragma once
// One signal per pin of the device, for whoever instantiates it: a bench, a vector unit, a larger
// system.
//
//   DeviceSignals signals;
//   Device device("device", parameters);
//   signals.bind(device);
//   signals.bind(unit);  // a VectorUnit in front of it; its done pin is the caller's
#include <cstdint>
#include <systemc>

#include "opd/sc/device.hpp"
#include "opd/sc/vector_unit.hpp"
#include "opd/types/device.hpp"

namespace opd::sc {

struct DeviceSignals {
  sc_core::sc_signal<bool> clk{"clk"};
  sc_core::sc_signal<bool> rst_n{"rst_n"};
  sc_core::sc_signal<bool> beat_valid{"beat_valid"};
  sc_core::sc_signal<Beat> beat{"beat"};
  sc_core::sc_signal<bool> stat_valid{"stat_valid"};
  sc_core::sc_signal<Statistic> statistic{"statistic"};
  sc_core::sc_signal<bool> stat_ready{"stat_ready"};
  sc_core::sc_signal<std::uint16_t> mode_op{"mode_op"};
  sc_core::sc_signal<Mode> mode{"mode"};
  sc_core::sc_signal<bool> record_valid{"record_valid"};
  sc_core::sc_signal<OpRecord> record{"record"};
  sc_core::sc_signal<TapCounts> counts{"counts"};
  sc_core::sc_signal<unsigned> queue_level{"queue_level"};
  sc_core::sc_signal<unsigned> queue_high_water{"queue_high_water"};
  sc_core::sc_signal<unsigned> unseen_count{"unseen_count"};
  sc_core::sc_signal<ApbRequest> apb_request{"apb_request"};
  sc_core::sc_signal<ApbResponse> apb_response{"apb_response"};
  sc_core::sc_signal<bool> irq{"irq"};

  void bind(Device& device) {
    bind_write_back_(device);
    device.record_valid(record_valid);
    device.record(record);
    device.counts(counts);
    device.queue_level(queue_level);
    device.queue_high_water(queue_high_water);
    device.unseen_count(unseen_count);
    device.apb_request(apb_request);
    device.apb_response(apb_response);
    device.irq(irq);
  }
  void bind(VectorUnit& unit) { bind_write_back_(unit); }

  /// Drives the inputs; beat and statistic keep their value while their valid is 0.
  void drive(const CycleInput& input) {
    beat_valid.write(input.beat_valid);
    if (input.beat_valid) beat.write(input.beat);
    stat_valid.write(input.stat_valid);
    if (input.stat_valid) statistic.write(input.statistic);
    mode_op.write(input.mode_op);
    apb_request.write(input.apb);
  }

  /// Copies what is on the input pins; beat and statistic are left alone while their valid is 0.
  void read(CycleInput& input) const {
    input.beat_valid = beat_valid.read();
    if (input.beat_valid) input.beat = beat.read();
    input.stat_valid = stat_valid.read();
    if (input.stat_valid) input.statistic = statistic.read();
    input.mode_op = mode_op.read();
    input.apb = apb_request.read();
  }

  /// What is on the output pins; record and counts stay empty while record_valid is 0.
  [[nodiscard]] CycleOutput outputs() const {
    CycleOutput output{.record_valid = record_valid.read(),
                       .stat_ready = stat_ready.read(),
                       .mode = mode.read(),
                       .queue_level = static_cast<std::uint8_t>(queue_level.read()),
                       .queue_high_water = static_cast<std::uint8_t>(queue_high_water.read()),
                       .unseen_count = unseen_count.read(),
                       .irq = irq.read(),
                       .apb = apb_response.read()};
    if (output.record_valid) {
      output.record = record.read();
      output.counts = counts.read();
    }
    return output;
  }

 private:
  /// The pins that device and vector unit have in common.
  void bind_write_back_(auto& module) {
    module.clk(clk);
    module.rst_n(rst_n);
    module.beat_valid(beat_valid);
    module.beat(beat);
    module.stat_valid(stat_valid);
    module.statistic(statistic);
    module.stat_ready(stat_ready);
    module.mode_op(mode_op);
    module.mode(mode);
  }
};

}  // namespace opd::sc
