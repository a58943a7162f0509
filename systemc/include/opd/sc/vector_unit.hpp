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
// A computed operator takes deal, select and issue like an operator of one beat. At its issue, edge
// n, its mode is read and its program starts; it has the lanes for its C clocks alone, and its B
// output beats enter the last stage in the last B of them:
//
//   edge      n - 1   n               n + C - B    n + C - 1   + lane_latency        + 1
//             select  issue: program  first beat   last beat   write-back of either  sampled
//
// The next operator of any stream is issued at n + C at the earliest, the next one of its own
// stream `bubbles` clocks later. What it computes with (registers, operands) is read at edge n.
// A second mode register (Operation::second_mode_op) is read one edge before the select: that operator
// is issued one edge later.
// The statistic of its accumulators waits in the context until the edge after the one that samples
// the last beat, and then for the sideband; so it is numbered after the operator itself.
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
//   invalid : bytes that are not whole elements, a computation that does not fit its operands:
//             SC_FATAL "/opd/vector_unit/operation", naming field, value and remedy
#include <cstdint>
#include <deque>
#include <optional>
#include <systemc>
#include <vector>

#include "opd/sc/lane_processor.hpp"
#include "opd/sc/operation.hpp"
#include "opd/sc/pins.hpp"
#include "opd/sc/unit_register_socket.hpp"
#include "opd/sc/unit_registers.hpp"
#include "opd/types/device.hpp"

namespace opd::sc {

struct VectorUnitParameters {
  unsigned lane_latency = 4;  ///< clocks from issue to write-back, 1..1024
  unsigned bubbles = 0;       ///< idle clocks between operators of one stream, 0..65535
  unsigned streams = 1;       ///< contexts in use, 1..num_streams of the device
  /// Of the lanes. The datapath is as wide as the device's, whatever this says; SATURATE and
  /// ACCUMULATOR of register CONTROL start as they are here.
  UnitSettings settings;
};

/// Counted from the last reset.
struct VectorUnitCounts {
  std::uint64_t cycles = 0;       ///< rising edges
  std::uint64_t busy_cycles = 0;  ///< of these, edges before which an operator was in the unit
  std::uint64_t operations = 0;   ///< written back
  std::uint64_t beats = 0;        ///< sampled by the device
  std::uint64_t sideband_wait_cycles = 0;  ///< edges at which stat_valid met stat_ready = 0
  std::uint64_t executions = 0;            ///< operators computed
  std::uint64_t computing_cycles = 0;      ///< clocks for which they have the lanes
};

class VectorUnit : public sc_core::sc_module {
 public:
  sc_core::sc_in<bool> clk{"clk"};
  sc_core::sc_in<bool> rst_n{"rst_n"};

  RegisteredOut<bool> beat_valid{"beat_valid"};
  sc_core::sc_out<Beat> beat{"beat"};

  RegisteredOut<bool> stat_valid{"stat_valid"};
  sc_core::sc_out<Statistic> statistic{"statistic"};
  sc_core::sc_in<bool> stat_ready{"stat_ready"};

  sc_core::sc_out<std::uint16_t> mode_op{"mode_op"};
  sc_core::sc_in<Mode> mode{"mode"};

  RegisteredOut<bool> done{"done"};  // the source has ended and every operator is written back

  /// docs/registers.md, "Vector unit". Need not be bound.
  UnitRegisterSocket registers;

  SC_HAS_PROCESS(VectorUnit);

  /// Callbacks may be empty. `on_completion` is called in the order in which the device numbers
  /// completions, `on_execution` at the issue of a computed operator. Reports SC_FATAL
  /// "/opd/vector_unit/parameters", naming the field and its legal range.
  VectorUnit(sc_core::sc_module_name name, const DeviceParameters& device,
             const VectorUnitParameters& parameters, OperationSource source,
             CompletionCallback on_completion, ExecutionCallback on_execution = {});

  /// A register as software sees it, without the bus. An access that the bus refuses is SC_FATAL
  /// "/opd/vector_unit/register".
  std::uint32_t read_register(std::uint16_t address) const;
  void write_register(std::uint16_t address, std::uint32_t value);

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
    bool is_computed = false;
    OpDescriptor descriptor;
    std::span<const std::byte> elements;
    std::uint64_t tag = 0;
    std::uint64_t operator_issue = 0;  ///< edge at which the operator was issued
    Mode mode = Mode::kFast;           ///< of the operator, read at its issue
    std::uint64_t sideband_from = 0;   ///< of a statistic: first edge that may put it on stat_*
  };

  /// The computed operator that has the lanes.
  struct Running {
    Slot beat;                    ///< what its next beat carries
    std::uint64_t next_edge = 0;  ///< at which that beat enters the last stage
    std::size_t next_byte = 0;    ///< of outputs_.back().elements
  };

  /// What a computed operator puts out.
  struct Output {
    std::vector<std::byte> elements;
    std::optional<Statistic> accumulators;
  };

  struct Context {
    std::optional<Operation> operation;
    std::size_t next_byte = 0;           ///< of operation->elements
    std::uint64_t not_before = 0;        ///< first edge that may select the context again
    std::uint64_t operator_issue = 0;    ///< of the operator issued last
    Mode mode = Mode::kFast;             ///< as operator_issue
    std::optional<Slot> sideband_entry;  ///< a statistic out of the lanes, waiting for the sideband
    /// The operator has been selected and waits for the sideband: a statistic, or a computed one
    /// whose accumulators follow.
    bool statistic_issued = false;
    std::optional<Mode> second_mode;  ///< of an operator that has not been issued yet
  };

  void on_clock_();
  void reset_();
  void retire_(std::uint64_t now);
  void retire_computed_(std::uint64_t now);
  void write_back_();
  void drive_sideband_(std::uint64_t now);
  void issue_(std::uint64_t now);
  void compute_(std::uint64_t now);
  void issue_computed_beat_();
  void select_(std::uint64_t now);
  void deal_();
  void put_on_bus_(const Slot& slot);
  void complete_(const Slot& slot, std::uint64_t now);
  bool idle_() const { return held_operators_ == 0 && slots_in_flight_ == 0 && !running_; }

  const std::size_t beat_bytes_;
  const VectorUnitParameters parameters_;
  const OperationSource source_;
  const CompletionCallback on_completion_;
  const ExecutionCallback on_execution_;

  const LaneProcessor processor_;
  UnitRegisters registers_;

  std::vector<Context> contexts_;
  unsigned deal_turn_ = 0;      ///< context that the next operator goes to
  unsigned select_turn_ = 0;    ///< context that is asked first
  unsigned sideband_turn_ = 0;  ///< as select_turn_
  bool exhausted_ = false;      ///< the source has answered kEnd

  std::optional<Slot> selected_;            ///< register between select and issue
  Operation selected_operation_;            ///< of selected_, when it is computed
  std::optional<unsigned> second_mode_of_;  ///< stream whose second mode register is on the port
  std::optional<Running> running_;
  std::uint64_t lanes_free_ =
      0;                        ///< first edge that may issue: a computed operator has them before
  Execution execution_;         ///< of the operator issued last; its memory is used again
  std::deque<Output> outputs_;  ///< with beats on their way, oldest first
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
