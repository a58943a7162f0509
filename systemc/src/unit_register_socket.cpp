#include "opd/sc/unit_register_socket.hpp"

#include <cstring>
#include <string>

namespace opd::sc {

UnitRegisterSocket::UnitRegisterSocket(const char* name, UnitRegisters& registers)
    : multi_passthrough_target_socket(name), registers_(registers) {
  register_b_transport(this, &UnitRegisterSocket::b_transport_);
  register_transport_dbg(this, &UnitRegisterSocket::transport_dbg_);
}

void UnitRegisterSocket::b_transport_(int /*initiator*/, tlm::tlm_generic_payload& transaction,
                                      sc_core::sc_time& /*delay*/) {
  transaction.set_dmi_allowed(false);
  transaction.set_response_status(access_(transaction));
}

unsigned UnitRegisterSocket::transport_dbg_(int /*initiator*/,
                                            tlm::tlm_generic_payload& transaction) {
  transaction.set_response_status(access_(transaction));
  return transaction.is_response_ok() ? transaction.get_data_length() : 0;
}

tlm::tlm_response_status UnitRegisterSocket::access_(tlm::tlm_generic_payload& transaction) {
  const sc_dt::uint64 address = transaction.get_address();
  if (transaction.get_command() == tlm::TLM_IGNORE_COMMAND) return tlm::TLM_COMMAND_ERROR_RESPONSE;
  std::uint32_t data = 0;
  const bool whole = transaction.get_data_length() == sizeof(data) &&
                     transaction.get_streaming_width() >= sizeof(data);
  const bool has_data = transaction.get_data_ptr() != nullptr;
  if (whole && has_data) std::memcpy(&data, transaction.get_data_ptr(), sizeof(data));
  const auto refusal = UnitRegisters::refusal(transaction.is_write(), address, data);
  if (refusal == Refusal::kNoRegister) return tlm::TLM_ADDRESS_ERROR_RESPONSE;
  if (refusal == Refusal::kNotAccessible) return tlm::TLM_COMMAND_ERROR_RESPONSE;
  if (transaction.get_byte_enable_ptr() != nullptr) return tlm::TLM_BYTE_ENABLE_ERROR_RESPONSE;
  if (!whole) return tlm::TLM_BURST_ERROR_RESPONSE;
  if (refusal || !has_data) return tlm::TLM_GENERIC_ERROR_RESPONSE;
  if (transaction.is_write()) {
    registers_.write(address, data);
  } else {
    data = registers_.read(address);
    std::memcpy(transaction.get_data_ptr(), &data, sizeof(data));
  }
  return tlm::TLM_OK_RESPONSE;
}

namespace {

void refuse(Refusal refusal, std::uint16_t address, std::uint32_t value, const char* report) {
  std::string message = "register " + std::to_string(address);
  if (refusal == Refusal::kNoRegister) {
    message += ": there is none; docs/registers.md, Vector unit, has the addresses";
  } else if (refusal == Refusal::kNotAccessible) {
    message += ": is read only; write CONTROL";
  } else {
    message += " = " + std::to_string(value) +
               ": a field leaves its range; docs/registers.md, Vector unit, has the ranges";
  }
  SC_REPORT_FATAL(report, message.c_str());
}

}  // namespace

std::uint32_t read_register_of(const UnitRegisters& registers, std::uint16_t address,
                               const char* report) {
  if (const auto refusal = UnitRegisters::refusal(false, address, 0)) {
    refuse(*refusal, address, 0, report);
    return 0;
  }
  return registers.read(address);
}

void write_register_of(UnitRegisters& registers, std::uint16_t address, std::uint32_t value,
                       const char* report) {
  if (const auto refusal = UnitRegisters::refusal(true, address, value)) {
    refuse(*refusal, address, value, report);
    return;
  }
  registers.write(address, value);
}

}  // namespace opd::sc
