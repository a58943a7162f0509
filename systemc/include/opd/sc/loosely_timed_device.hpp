#pragma once
// The device loosely timed: a TLM-2.0 target with the blocking transport interface.
//
// Address map (bytes, little endian):
//   0x00000..0x00FFF  registers    R/W  u32 each, as docs/registers.md; commands are done when the
//                                       call returns, so OP_STATUS.BUSY is never seen
//   0x01000           OPERATION    W    elements of one operator, with an OperationExtension; none:
//                                       TLM_IGNORE_COMMAND, as a TLM write has at least 1 byte
//   0x01010           RECORD_LEVEL R    u32, records that wait
//   0x01020           RECORD       R    n * 44 bytes: takes n RecordEntry out of the record FIFO
//   0x10000 + op      MODE         R    1 byte per operator, op < num_ops; any number in a row
//
//   timing     : an operation adds its beats times the clock period to the delay, a statistic or an
//                empty operator one period; other accesses add nothing. State advances within the
//                call: everything that a completion changes, it changes at once.
//   unlike the cycle-accurate Device: no op queue, so nothing overflows (QUEUE reads 0), and the
//                record FIFO is as deep as it needs to be. Records are otherwise the same, in the
//                order of the calls. The event queue is bounded as there.
//   illegal    : an op >= num_ops or an unknown format uses up its seq and counts in UNSEEN; that
//                is a completion, not a TLM error
//   TLM errors : nothing changes, delay included.
//                  TLM_ADDRESS_ERROR_RESPONSE      no such address, or a range that leaves it
//                  TLM_COMMAND_ERROR_RESPONSE      the address has no such access
//                  TLM_BURST_ERROR_RESPONSE        length or streaming width does not fit
//                  TLM_BYTE_ENABLE_ERROR_RESPONSE  byte enables
//                  TLM_GENERIC_ERROR_RESPONSE      a register value out of its range, OP_COMMAND
//                                                  for no operator, no extension, no data array,
//                                                  too few records
#include <tlm_utils/multi_passthrough_target_socket.h>

#include <cstdint>
#include <deque>
#include <systemc>
#include <tlm>
#include <type_traits>

#include "opd/sc/detection_unit.hpp"
#include "opd/sc/element_statistics.hpp"
#include "opd/sc/operation_extension.hpp"
#include "opd/sc/register_file.hpp"
#include "opd/types/device.hpp"

namespace opd::sc {

/// One entry of the record FIFO.
struct RecordEntry {
  OpRecord record;
  TapCounts counts;
  bool operator==(const RecordEntry&) const = default;
};
static_assert(sizeof(RecordEntry) == 44 && std::is_trivially_copyable_v<RecordEntry>);

class LooselyTimedDevice : public sc_core::sc_module {
 public:
  static constexpr sc_dt::uint64 kRegisterBytes = 0x01000;
  static constexpr sc_dt::uint64 kOperationAddress = 0x01000;
  static constexpr sc_dt::uint64 kRecordLevelAddress = 0x01010;
  static constexpr sc_dt::uint64 kRecordAddress = 0x01020;
  static constexpr sc_dt::uint64 kModeAddress = 0x10000;

  /// For any number of initiators: a vector unit, a host.
  tlm_utils::multi_passthrough_target_socket<LooselyTimedDevice> socket{"socket"};

  /// Reports SC_FATAL as Device does. num_streams and queue_depth have no effect here.
  LooselyTimedDevice(sc_core::sc_module_name name, const DeviceParameters& parameters,
                     sc_core::sc_time clock_period = sc_core::sc_time(1, sc_core::SC_NS));

  /// As rst_n of Device.
  void reset();

  /// The interrupt pin now. It changes within transport calls, ahead of the simulation by the
  /// initiator's local time: a source asked between two operations sees what the last one did.
  bool irq() const { return registers_.irq(); }

  /// Notified when irq() has changed, at the local time of the call: a host thread waits for it.
  const sc_core::sc_event& irq_changed() const { return irq_changed_; }

  /// As Device::inject_upset.
  void inject_upset(std::uint16_t op, UpsetTarget target, unsigned bit = 0);

  /// The operator's state as it is stored, for a bench. Precondition: op < num_ops.
  StoredWord stored(std::uint16_t op) const { return detection_.stored(op); }

 private:
  void b_transport_(int initiator, tlm::tlm_generic_payload& transaction, sc_core::sc_time& delay);
  tlm::tlm_response_status access_(tlm::tlm_generic_payload& transaction, sc_core::sc_time& delay);
  tlm::tlm_response_status operate_(const tlm::tlm_generic_payload& transaction,
                                    sc_core::sc_time& delay);
  tlm::tlm_response_status access_register_(tlm::tlm_generic_payload& transaction);
  tlm::tlm_response_status read_records_(tlm::tlm_generic_payload& transaction);
  tlm::tlm_response_status read_modes_(tlm::tlm_generic_payload& transaction) const;
  void complete_(const Statistic& statistic);

  const DeviceParameters parameters_;
  const sc_core::sc_time clock_period_;
  const CounterLimit counter_limit_;
  DetectionUnit detection_;
  RegisterFile registers_;
  std::deque<RecordEntry> records_;
  std::uint32_t next_seq_ = 0;  ///< wraps
  bool irq_ = false;            ///< irq() after the last call
  sc_core::sc_event irq_changed_{"irq_changed"};
};

}  // namespace opd::sc
