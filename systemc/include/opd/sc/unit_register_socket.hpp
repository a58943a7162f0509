#pragma once
// A vector unit's registers behind TLM-2.0: the target socket `registers` of both models.
//
//   access     : 4 bytes, blocking transport without delay, or debug transport, which reads and
//                writes the same way
//   initiators : any number, none included
//   TLM errors : nothing changes.
//                  TLM_ADDRESS_ERROR_RESPONSE      no register there
//                  TLM_COMMAND_ERROR_RESPONSE      the register has no such access
//                  TLM_BURST_ERROR_RESPONSE        not 4 bytes
//                  TLM_BYTE_ENABLE_ERROR_RESPONSE  byte enables
//                  TLM_GENERIC_ERROR_RESPONSE      a value out of its range, or no data array
#include <tlm_utils/multi_passthrough_target_socket.h>

#include <systemc>
#include <tlm>

#include "opd/sc/unit_registers.hpp"

namespace opd::sc {

class UnitRegisterSocket
    : public tlm_utils::multi_passthrough_target_socket<
          UnitRegisterSocket, 32, tlm::tlm_base_protocol_types, 0, sc_core::SC_ZERO_OR_MORE_BOUND> {
 public:
  UnitRegisterSocket(const char* name, UnitRegisters& registers);

 private:
  void b_transport_(int initiator, tlm::tlm_generic_payload& transaction, sc_core::sc_time& delay);
  unsigned transport_dbg_(int initiator, tlm::tlm_generic_payload& transaction);
  tlm::tlm_response_status access_(tlm::tlm_generic_payload& transaction);

  UnitRegisters& registers_;
};

/// Reads or writes a register for a bench; a refused access is SC_FATAL of type `report`, naming
/// address, value and remedy.
std::uint32_t read_register_of(const UnitRegisters& registers, std::uint16_t address,
                               const char* report);
void write_register_of(UnitRegisters& registers, std::uint16_t address, std::uint32_t value,
                       const char* report);

}  // namespace opd::sc
