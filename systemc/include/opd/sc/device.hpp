#pragma once
// The device as a SystemC module, cycle-accurate to docs/architecture.md, "Timing contract".
//
//   vector unit --beats--> Tap --+
//                                +--> OpQueue --> DetectionUnit --> ModeRegisters --> vector unit
//   fused kernels --statistics---+                     '----------> record, counts
//
//   inputs   : sampled by the rising edge of clk; beat and statistic only when their valid is 1
//   outputs  : registered, except mode (from mode_op and the mode registers) and stat_ready (from
//              registers alone)
//   reaction : 4 cycles from the edge that samples a last beat to the first edge that can use the
//              new mode; 3 from the edge that accepts a statistic
//   reset    : rst_n, asynchronous, active low; empties everything
//   invalid  : a completion with op >= num_ops or an unknown format uses up its seq and counts in
//              unseen_count; a beat of a stream that does not exist is ignored; mode_op >= num_ops
//              reads FAST
#include <cstdint>
#include <systemc>

#include "opd/sc/detection_unit.hpp"
#include "opd/sc/mode_registers.hpp"
#include "opd/sc/op_queue.hpp"
#include "opd/sc/pins.hpp"
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
  sc_core::sc_out<bool> stat_ready{"stat_ready"};

  sc_core::sc_in<std::uint16_t> mode_op{"mode_op"};
  sc_core::sc_out<Mode> mode{"mode"};

  sc_core::sc_out<bool> record_valid{"record_valid"};  // 1 for one cycle per detected completion
  sc_core::sc_out<OpRecord> record{"record"};          // holds its value until the next one
  sc_core::sc_out<TapCounts> counts{"counts"};         // as record

  sc_core::sc_out<unsigned> queue_level{"queue_level"};
  sc_core::sc_out<unsigned> queue_high_water{"queue_high_water"};
  sc_core::sc_out<unsigned> unseen_count{"unseen_count"};  // saturates at 2^32 - 1

  SC_HAS_PROCESS(Device);

  /// Reports SC_FATAL "/opd/device/parameters" or "/opd/device/config", naming the field and its
  /// legal range, before anything is built from it.
  Device(sc_core::sc_module_name name, const DeviceParameters& parameters, const Config& config);

 private:
  void on_clock_();
  void on_mode_read_();
  void reset_();
  void complete_(const Statistic& statistic);
  void drive_registers_();
  bool statistic_fits_() const { return !queue_.full() && !tap_.completes(); }

  const DeviceParameters parameters_;
  Tap tap_;
  CounterLimit counter_limit_;
  OpQueue queue_;
  DetectionUnit detection_;
  ModeRegisters modes_;
  std::uint32_t next_seq_ = 0;  ///< wraps
  std::uint32_t unseen_ = 0;
  sc_core::sc_event mode_written_{"mode_written"};
};

}  // namespace opd::sc
