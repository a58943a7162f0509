#pragma once
// The vector unit loosely timed: a TLM-2.0 initiator that executes one operator per transaction.
//
// Per operation: read its mode register, write its elements, read the records that wait. The local
// time runs ahead of the simulation by up to the global quantum (tlm::tlm_global_quantum; with the
// default of 0 it is synchronised after every operation).
//
//   time   : an operation takes its beats (as the device annotates them) and `bubbles` clocks; a
//            computed one takes the clocks of its execution, the statistic of its accumulators one
//            more behind it
//   order  : operators run one after the other, in the order of the source, each to its completion:
//            its mode is the one that every earlier operator left behind. The pipelined VectorUnit
//            issues earlier and may still read the mode before that.
//   waiting: a source that answers kWait is asked again one clock of simulation time later
//   invalid: a computation that does not fit its operands: SC_FATAL
//            "/opd/loosely_timed_unit/operation", naming field, value and remedy
//   limit  : elements of one operation are at most 2^32 - 1 bytes, the length of a TLM payload;
//            beyond it SC_FATAL "/opd/loosely_timed_unit/operation"
//   errors : a transaction that fails: SC_FATAL "/opd/loosely_timed_unit/response"
#include <tlm_utils/simple_initiator_socket.h>
#include <tlm_utils/tlm_quantumkeeper.h>

#include <cstdint>
#include <functional>
#include <systemc>
#include <tlm>

#include "opd/sc/lane_processor.hpp"
#include "opd/sc/operation.hpp"
#include "opd/sc/operation_extension.hpp"
#include "opd/sc/unit_register_socket.hpp"
#include "opd/sc/unit_registers.hpp"

namespace opd::sc {

struct LooselyTimedUnitParameters {
  unsigned bubbles = 0;                              ///< idle clocks after an operator, 0..65535
  sc_core::sc_time clock_period{1, sc_core::SC_NS};  ///< the device's as well
  /// Of the lanes, datapath_width as the device's; SATURATE and ACCUMULATOR of register CONTROL
  /// start as they are here.
  UnitSettings settings;
};

/// Called once per detected completion, in the order of seq.
using RecordCallback = std::function<void(const OpRecord&, const TapCounts&)>;

class LooselyTimedUnit : public sc_core::sc_module {
 public:
  tlm_utils::simple_initiator_socket<LooselyTimedUnit> socket{"socket"};

  /// docs/registers.md, "Vector unit". Need not be bound.
  UnitRegisterSocket registers;

  SC_HAS_PROCESS(LooselyTimedUnit);

  /// Callbacks may be empty. Cycles of `on_completion` are clocks of local time since the start:
  /// an operation that is issued at cycle c and takes b beats, or b clocks of computing, has its
  /// last beat at c + b. The accumulators' completion follows that of their operator.
  /// Reports SC_FATAL "/opd/loosely_timed_unit/parameters", naming the field and its legal range.
  LooselyTimedUnit(sc_core::sc_module_name name, const LooselyTimedUnitParameters& parameters,
                   OperationSource source, RecordCallback on_record,
                   CompletionCallback on_completion, ExecutionCallback on_execution = {});

  /// A register as software sees it, without the bus. An access that the bus refuses is SC_FATAL
  /// "/opd/loosely_timed_unit/register".
  std::uint32_t read_register(std::uint16_t address) const;
  void write_register(std::uint16_t address, std::uint32_t value);

  /// Registers to their reset values, as rst_n of VectorUnit.
  void reset() { registers_.reset(); }

  /// Asks the source again after it has ended.
  void restart();

  /// The source has ended and every operation is executed.
  bool done() const { return done_; }

 private:
  void run_();
  void execute_(const Operation& operation);
  void compute_(const Operation& operation, Mode mode);
  void operate_(const OpDescriptor& descriptor, const std::optional<TapSummary>& statistic,
                std::span<const std::byte> elements);
  Mode read_mode_(std::uint16_t op);
  void deliver_records_();
  tlm::tlm_response_status transport_(tlm::tlm_command command, sc_dt::uint64 address, void* data,
                                      std::size_t length);
  void expect_ok_(tlm::tlm_response_status status) const;
  std::uint64_t local_cycle_() const;

  const LooselyTimedUnitParameters parameters_;
  const OperationSource source_;
  const RecordCallback on_record_;
  const CompletionCallback on_completion_;
  const ExecutionCallback on_execution_;

  const LaneProcessor processor_;
  UnitRegisters registers_;
  Execution execution_;  ///< of the operator computed last; its memory is used again
  tlm_utils::tlm_quantumkeeper quantum_;
  tlm::tlm_generic_payload transaction_;  ///< reused: b_transport is over when it returns
  OperationExtension extension_;
  sc_core::sc_event restarted_{"restarted"};
  bool done_ = false;
};

}  // namespace opd::sc
