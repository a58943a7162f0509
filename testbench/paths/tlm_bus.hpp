#pragma once
// The driver's bus as TLM-2.0 transactions of 4 bytes: an initiator beside the vector unit at the
// socket of the loosely timed device. Accesses take no time.
#include <tlm_utils/simple_initiator_socket.h>

#include <cstdint>
#include <optional>
#include <systemc>
#include <tlm>

#include "opd/driver/register_bus.hpp"

namespace opd::tb {

class TlmBus final : public sc_core::sc_module, public driver::RegisterBus {
 public:
  tlm_utils::simple_initiator_socket<TlmBus> socket{"socket"};

  explicit TlmBus(sc_core::sc_module_name name) : sc_core::sc_module(name) {}

  std::uint32_t read(std::uint16_t address) override {
    std::uint32_t value = 0;
    transport_(tlm::TLM_READ_COMMAND, address, value);
    return value;
  }
  void write(std::uint16_t address, std::uint32_t value) override {
    transport_(tlm::TLM_WRITE_COMMAND, address, value);
  }

 private:
  void transport_(tlm::tlm_command command, std::uint16_t address, std::uint32_t& value) {
    tlm::tlm_generic_payload transaction;
    transaction.set_command(command);
    transaction.set_address(address);
    transaction.set_data_ptr(reinterpret_cast<unsigned char*>(&value));
    transaction.set_data_length(sizeof value);
    transaction.set_streaming_width(sizeof value);
    sc_core::sc_time delay = sc_core::SC_ZERO_TIME;
    socket->b_transport(transaction, delay);
    if (transaction.get_response_status() == tlm::TLM_OK_RESPONSE) return;
    throw driver::BusError(address,
                           command == tlm::TLM_WRITE_COMMAND ? std::optional(value) : std::nullopt,
                           "refused by the device (" + transaction.get_response_string() + ")");
  }
};

}  // namespace opd::tb
