#pragma once
// The vector unit as a SystemC module, cycle-accurate: issue, lanes, write-back and the sideband.
//
// Operators are dealt to `streams` contexts in order: operator i runs in context i mod streams. A
// context holds one operator; dealing waits for the context whose turn it is. At a rising edge:
//
//   deal       : one operator enters its context
//   select     : one context with a beat ready is chosen, in turns (round robin); with a first beat
//                its op is put on mode_op
//   issue      : the beat selected one edge before enters the lanes; with a first beat `mode` is
//                read: the operator is issued
//   write-back : the beat issued lane_latency edges before is put on beat_*; the device samples it
//                at the next edge
//
//   edge      0     1       2      2 + lane_latency  3 + lane_latency
//             deal  select  issue  write-back        sampled by the device
//
// Every stage takes one beat per clock, so the write-back bus does too. After the select of a last
// beat the context stays idle for `bubbles` clocks. Nothing in the device can hold a beat up.
//
// A statistic takes deal, select and issue like an operator of one beat. At its write-back it waits
// in its context for the sideband, contexts in turns, and is held on stat_* until stat_ready. The
// edge that accepts it frees the context, so completions of one stream keep their order.
//
//   hazard  : an operator shorter than the pipeline is still in it when the next one of its stream
//             is issued, and the reaction of the device comes on top: an operator runs with the
//             mode that stands at its issue, and its completion reports that mode
//   waiting : a source that answers kWait is asked again at every clock; operators dealt go on
//   empty   : an operator without elements is one beat without enabled lanes
//   tail    : lanes past the last element are disabled and carry zeros
//   reset   : rst_n, asynchronous, active low; operators in flight are lost and the source is
//             asked again
//   invalid : bytes that are not whole elements: SC_FATAL "/opd/vector_unit/operation"
#include <cstdint>
#include <optional>
#include <systemc>
#include <vector>

#include "opd/sc/operation.hpp"
#include "opd/sc/pins.hpp"
#include "opd/types/device.hpp"

namespace opd::sc {

struct VectorUnitParameters {
  unsigned lane_latency = 4;  ///< clocks from issue to write-back, 1..1024
  unsigned bubbles = 0;       ///< idle clocks between operators of one stream, 0..65535
  unsigned streams = 1;       ///< contexts in use, 1..num_streams of the device
};

/// Counted from the last reset.
struct VectorUnitCounts {
  std::uint64_t cycles = 0;       ///< rising edges
  std::uint64_t busy_cycles = 0;  ///< of these, edges before which an operator was in the unit
  std::uint64_t operations = 0;   ///< written back
  std::uint64_t beats = 0;        ///< sampled by the device
  /// Clocks from issue to write-back beyond lane_latency, over all beats: 0 by construction.
  std::uint64_t tap_stall_cycles = 0;
  std::uint64_t sideband_wait_cycles = 0;  ///< edges at which stat_valid met stat_ready = 0
};

class VectorUnit : public sc_core::sc_module {
 public:
  sc_core::sc_in<bool> clk{"clk"};
  sc_core::sc_in<bool> rst_n{"rst_n"};

  sc_core::sc_out<bool> beat_valid{"beat_valid"};
  sc_core::sc_out<Beat> beat{"beat"};

  sc_core::sc_out<bool> stat_valid{"stat_valid"};
  sc_core::sc_out<Statistic> statistic{"statistic"};
  sc_core::sc_in<bool> stat_ready{"stat_ready"};

  sc_core::sc_out<std::uint16_t> mode_op{"mode_op"};
  sc_core::sc_in<Mode> mode{"mode"};

  sc_core::sc_out<bool> done{"done"};  // the source has ended and every operator is written back

  SC_HAS_PROCESS(VectorUnit);

  /// `on_completion` may be empty. It is called in the order in which the device numbers
  /// completions. Reports SC_FATAL "/opd/vector_unit/parameters", naming the field and its legal
  /// range.
  VectorUnit(sc_core::sc_module_name name, const DeviceParameters& device,
             const VectorUnitParameters& parameters, OperationSource source,
             CompletionCallback on_completion);

  /// Asks the source again after it has ended; `done` falls at the next edge if there is work.
  void restart() { exhausted_ = false; }

  const VectorUnitCounts& counts() const { return counts_; }

 private:
  /// What a beat or statistic carries through the pipeline.
  struct Slot {
    unsigned stream = 0;
    bool first = false;
    bool last = false;
    bool is_statistic = false;
    OpDescriptor descriptor;
    std::span<const std::byte> elements;
    std::uint64_t tag = 0;
    std::uint64_t operator_issue = 0;  ///< edge at which the operator was issued
    std::uint64_t issue = 0;           ///< edge at which this beat entered the lanes
    Mode mode = Mode::kFast;           ///< of the operator, read at its issue
  };

  struct Context {
    std::optional<Operation> operation;
    std::size_t next_byte = 0;           ///< of operation->elements
    std::uint64_t not_before = 0;        ///< first edge that may select the context again
    std::uint64_t operator_issue = 0;    ///< of the operator issued last
    Mode mode = Mode::kFast;             ///< as operator_issue
    std::optional<Slot> sideband_entry;  ///< a statistic out of the lanes, waiting for the sideband
    bool statistic_issued = false;       ///< the operator is a statistic and has been selected
  };

  void on_clock_();
  void reset_();
  void retire_(std::uint64_t now);
  void write_back_(std::uint64_t now);
  void drive_sideband_();
  void issue_(std::uint64_t now);
  void select_(std::uint64_t now);
  void deal_();
  void put_on_bus_(const Slot& slot);
  void complete_(const Slot& slot, std::uint64_t now);
  bool idle_() const { return held_operators_ == 0 && slots_in_flight_ == 0; }

  const std::size_t beat_bytes_;
  const VectorUnitParameters parameters_;
  const OperationSource source_;
  const CompletionCallback on_completion_;

  std::vector<Context> contexts_;
  unsigned deal_turn_ = 0;      ///< context that the next operator goes to
  unsigned select_turn_ = 0;    ///< context that is asked first
  unsigned sideband_turn_ = 0;  ///< as select_turn_
  bool exhausted_ = false;      ///< the source has answered kEnd

  std::optional<Slot> selected_;            ///< register between select and issue
  std::vector<std::optional<Slot>> lanes_;  ///< ring of lane_latency stages
  std::size_t lane_ = 0;                    ///< stage that leaves at the coming edge
  std::optional<Slot> bus_;                 ///< on beat_*
  std::optional<Slot> sideband_;            ///< on stat_*

  unsigned held_operators_ = 0;   ///< operators in contexts
  unsigned slots_in_flight_ = 0;  ///< in selected_, lanes_ and bus_
  Beat beat_;                     ///< built here, then written to the port
  VectorUnitCounts counts_;
};

}  // namespace opd::sc
