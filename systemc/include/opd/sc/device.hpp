#pragma once
// The device as a SystemC module, cycle-accurate to docs/architecture.md, "Timing contract" and
// "Registers in time".
//
//   vector unit --beats--> Tap --+
//                                +--> OpQueue --> DetectionUnit --> mode registers --> vector unit
//   fused kernels --statistics---+                     |----------> record, counts
//                                                      '--> RegisterFile <-- APB4 --> host
//
//   inputs   : sampled by the rising edge of clk; beat and statistic only when their valid is 1
//   outputs  : registered, except mode (from mode_op and the mode registers) and stat_ready (from
//              registers alone)
//   reaction : 4 + K cycles from the edge that samples a last beat to the first edge that can use
//              the new mode, 3 + K from the edge that accepts a statistic; K = 8 with the published
//              engine, else 0
//   reset    : rst_n, asynchronous, active low; empties everything and resets every register
//   invalid  : a completion with op >= num_ops or an unknown format uses up its seq and counts in
//              unseen_count; a beat of a stream that does not exist is ignored; mode_op >= num_ops
//              reads FAST
#include <cstdint>
#include <optional>
#include <systemc>

#include "opd/sc/detection_unit.hpp"
#include "opd/sc/op_queue.hpp"
#include "opd/sc/pins.hpp"
#include "opd/sc/register_file.hpp"
#include "opd/sc/tap.hpp"
#include "opd/types/device.hpp"

namespace opd::sc {

class Device : public sc_core::sc_module {
 public:
  sc_core::sc_in<bool> clk{"clk"};
  sc_core::sc_in<bool> rst_n{"rst_n"};

  sc_core::sc_in<bool> beat_valid{"beat_valid"};
  sc_core::sc_in<Beat> beat{"beat"};

  sc_core::sc_in<bool> stat_valid{"stat_valid"};
  sc_core::sc_in<Statistic> statistic{"statistic"};
  RegisteredOut<bool> stat_ready{"stat_ready"};

  sc_core::sc_in<std::uint16_t> mode_op{"mode_op"};
  sc_core::sc_out<Mode> mode{"mode"};

  RegisteredOut<bool> record_valid{"record_valid"};  // 1 for one cycle per detected completion
  sc_core::sc_out<OpRecord> record{"record"};        // holds its value until the next one
  sc_core::sc_out<TapCounts> counts{"counts"};       // as record

  RegisteredOut<unsigned> queue_level{"queue_level"};
  RegisteredOut<unsigned> queue_high_water{"queue_high_water"};
  RegisteredOut<unsigned> unseen_count{"unseen_count"};  // saturates at 2^32 - 1

  sc_core::sc_in<ApbRequest> apb_request{"apb_request"};
  sc_core::sc_out<ApbResponse> apb_response{"apb_response"};  // all 0 outside the access clock
  RegisteredOut<bool> irq{"irq"};

  SC_HAS_PROCESS(Device);

  /// Reports SC_FATAL "/opd/device/parameters", naming the field and its legal range, before
  /// anything is built from it. The configuration is what software writes through apb_*.
  Device(sc_core::sc_module_name name, const DeviceParameters& parameters);

  /// Flips a stored bit, as a particle does, between two clock edges: the state memory's word of
  /// `op`, or bit 0..2 of its mode register (two bits of mode, parity). Reports SC_FATAL
  /// "/opd/device/upset" when there is no such operator or bit.
  void inject_upset(std::uint16_t op, UpsetTarget target, unsigned bit = 0);

  /// The operator's state as it is stored, for a bench. Precondition: op < num_ops.
  StoredWord stored(std::uint16_t op) const { return detection_.stored(op); }

  /// What the detection unit does in this clock, for a bench.
  DetectionUnit::State detection_state() const { return detection_.state(); }

 private:
  void on_clock_();
  void on_mode_read_();
  void reset_();
  bool idle_() const;
  bool detect_();
  void complete_(const Statistic& statistic);
  void serve_bus_();
  void drive_registers_();
  /// Half of the queue is kept for the tap, which cannot wait.
  bool statistic_fits_() const { return queue_.level() < statistic_levels_ && !tap_.completes(); }

  /// The access clock of an APB transfer.
  struct Access {
    ApbRequest request;
    bool refused = false;
  };

  const DeviceParameters parameters_;
  Tap tap_;
  CounterLimit counter_limit_;
  OpQueue queue_;
  DetectionUnit detection_;
  RegisterFile registers_;
  const unsigned statistic_levels_;  ///< levels of the queue at which a statistic is taken
  std::uint32_t next_seq_ = 0;       ///< wraps
  std::optional<Access> access_;
  bool recording_ = false;  ///< record_valid
  sc_core::sc_event mode_written_{"mode_written"};
};

}  // namespace opd::sc
