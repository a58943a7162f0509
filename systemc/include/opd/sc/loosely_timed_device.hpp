#pragma once
// The device loosely timed: a TLM-2.0 target with the blocking transport interface.
//
// Address map (bytes, little endian):
//   0x00000              OPERATION     W  elements of one operator, with an OperationExtension;
//                                         without elements: TLM_IGNORE_COMMAND, because a TLM write
//                                         has at least 1 byte
//   0x00010              RECORD_LEVEL  R  u32, records that wait
//   0x00014              UNSEEN_COUNT  R  u32, completions that the detection unit never saw
//   0x00020              RECORD        R  n * 44 bytes: takes n RecordEntry out of the record FIFO
//   0x00100..0x00154     configuration R  u32, the registers of docs/registers.md
//   0x10000 + op         MODE          R  1 byte per operator, op < num_ops; any number in a row
//
//   timing     : an operation adds its beats times the clock period to the delay, a statistic or an
//                empty operator one period; a read adds nothing. State advances within the call.
//   unlike the cycle-accurate Device: no op queue, so nothing overflows, and the record FIFO is as
//                deep as it needs to be. Records are otherwise the same, in the order of the calls.
//   illegal    : an op >= num_ops or an unknown format uses up its seq and counts in UNSEEN_COUNT;
//                that is a completion, not a TLM error
//   TLM errors : nothing changes, delay included.
//                  TLM_ADDRESS_ERROR_RESPONSE      no such address, or a range that leaves it
//                  TLM_COMMAND_ERROR_RESPONSE      the address has no such access
//                  TLM_BURST_ERROR_RESPONSE        length or streaming width does not fit
//                  TLM_BYTE_ENABLE_ERROR_RESPONSE  byte enables
//                  TLM_GENERIC_ERROR_RESPONSE      no extension, no data array, too few records
#include <tlm_utils/simple_target_socket.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <systemc>
#include <tlm>
#include <type_traits>

#include "opd/sc/detection_unit.hpp"
#include "opd/sc/element_statistics.hpp"
#include "opd/sc/operation_extension.hpp"
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
  static constexpr sc_dt::uint64 kOperationAddress = 0x00000;
  static constexpr sc_dt::uint64 kRecordLevelAddress = 0x00010;
  static constexpr sc_dt::uint64 kUnseenCountAddress = 0x00014;
  static constexpr sc_dt::uint64 kRecordAddress = 0x00020;
  static constexpr sc_dt::uint64 kModeAddress = 0x10000;

  tlm_utils::simple_target_socket<LooselyTimedDevice> socket{"socket"};

  /// Reports SC_FATAL as Device does. num_streams and queue_depth have no effect here.
  LooselyTimedDevice(sc_core::sc_module_name name, const DeviceParameters& parameters,
                     const Config& config,
                     sc_core::sc_time clock_period = sc_core::sc_time(1, sc_core::SC_NS));

  /// As rst_n of Device.
  void reset();

 private:
  void b_transport_(tlm::tlm_generic_payload& transaction, sc_core::sc_time& delay);
  tlm::tlm_response_status access_(tlm::tlm_generic_payload& transaction, sc_core::sc_time& delay);
  tlm::tlm_response_status operate_(const tlm::tlm_generic_payload& transaction,
                                    sc_core::sc_time& delay);
  tlm::tlm_response_status read_records_(tlm::tlm_generic_payload& transaction);
  tlm::tlm_response_status read_modes_(tlm::tlm_generic_payload& transaction) const;
  std::optional<std::uint32_t> word_at_(sc_dt::uint64 address) const;
  void complete_(const Statistic& statistic);

  const DeviceParameters parameters_;
  const Config config_;
  const sc_core::sc_time clock_period_;
  const CounterLimit counter_limit_;
  DetectionUnit detection_;
  ModeRegisters modes_;
  std::deque<RecordEntry> records_;
  std::uint32_t next_seq_ = 0;  ///< wraps
  std::uint32_t unseen_ = 0;    ///< saturates
};

}  // namespace opd::sc
