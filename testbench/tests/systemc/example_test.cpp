// The example of systemc/README.md: a host beside the loosely timed device runs a training loop of
// one operator through it and takes its events.
#include <gtest/gtest.h>
#include <tlm_utils/simple_initiator_socket.h>

#include <cstdint>
#include <systemc>
#include <vector>

#include "opd/sc/loosely_timed_device.hpp"
#include "opd/sc/loosely_timed_unit.hpp"

namespace {

using namespace opd;

/// Reads and writes registers.
class Host : public sc_core::sc_module {
 public:
  tlm_utils::simple_initiator_socket<Host> socket{"socket"};
  explicit Host(sc_core::sc_module_name name) : sc_core::sc_module(name) {}

  std::uint32_t read(std::uint16_t address) { return transfer_(tlm::TLM_READ_COMMAND, address, 0); }
  void write(std::uint16_t address, std::uint32_t value) {
    transfer_(tlm::TLM_WRITE_COMMAND, address, value);
  }

 private:
  std::uint32_t transfer_(tlm::tlm_command command, std::uint16_t address, std::uint32_t value) {
    tlm::tlm_generic_payload transaction;
    transaction.set_command(command);
    transaction.set_address(address);
    transaction.set_data_ptr(reinterpret_cast<unsigned char*>(&value));
    transaction.set_data_length(sizeof(value));
    transaction.set_streaming_width(sizeof(value));
    sc_core::sc_time delay;
    socket->b_transport(transaction, delay);
    EXPECT_EQ(transaction.get_response_status(), tlm::TLM_OK_RESPONSE);
    return value;
  }
};

TEST(SystemcExample, AHostFollowsAnOperatorToItsOverflow) {
  sc::LooselyTimedDevice device("device", {.num_ops = 1});
  Host host("host");

  // An FP16 operator that doubles every step: 2^-7, 2^-6 .. 2^15, then infinity.
  std::uint16_t element = 0;
  std::uint32_t step = 0;
  std::vector<std::uint32_t> event_steps;
  const auto next_step = [&](sc::Operation& operation) {
    if (step == 0) host.write(reg::kIrqEnable, 1);  // IRQ_STATUS.EVENT
    if (device.irq()) {
      event_steps.push_back(host.read(reg::kEventStep));
      host.write(reg::kEventPop, 1);
      host.write(reg::kIrqStatus, 1);
    }
    if (step == 24) return sc::SourceAnswer::kEnd;
    element = static_cast<std::uint16_t>((8 + step) << 10);
    operation.descriptor = {.op = 0, .format = Format::kFp16, .step = step++};
    operation.elements = std::as_bytes(std::span(&element, 1));
    return sc::SourceAnswer::kOperation;
  };
  std::vector<OpRecord> records;
  sc::LooselyTimedUnit unit(
      "unit", {}, next_step,
      [&records](const OpRecord& record, const TapCounts&) { records.push_back(record); }, {});
  unit.socket.bind(device.socket);
  host.socket.bind(device.socket);
  sc_core::sc_start();

  ASSERT_EQ(records.size(), 24u);
  ASSERT_FALSE(event_steps.empty());
  EXPECT_EQ(records[event_steps.front()].cause, static_cast<std::uint8_t>(Cause::kRisk));
  EXPECT_LT(event_steps.front(), 23u);  // before the first infinity
  EXPECT_EQ(records[23].nonfinite_count, 1u);
  EXPECT_EQ(host.read(reg::kLastCleanStep), 22u);
}

}  // namespace
