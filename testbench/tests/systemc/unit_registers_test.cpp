// The registers of the vector unit: every field over TLM-2.0 and directly, in both models.
#include <gtest/gtest.h>
#include <tlm_utils/simple_initiator_socket.h>

#include <string>

#include "opd/sc/loosely_timed_device.hpp"
#include "opd/sc/loosely_timed_unit.hpp"
#include "unit_bench.hpp"

namespace opd::tb {
namespace {

using namespace unit_reg;

class Host : public sc_core::sc_module {
 public:
  tlm_utils::simple_initiator_socket<Host> socket{"socket"};

  explicit Host(sc_core::sc_module_name name) : sc_core::sc_module(name) {}

  tlm::tlm_response_status access(tlm::tlm_command command, sc_dt::uint64 address, void* data,
                                  unsigned length, unsigned char* byte_enable = nullptr) {
    tlm::tlm_generic_payload transaction;
    fill(transaction, command, address, data, length);
    transaction.set_byte_enable_ptr(byte_enable);
    transaction.set_byte_enable_length(byte_enable == nullptr ? 0 : length);
    sc_core::sc_time delay;
    socket->b_transport(transaction, delay);
    EXPECT_EQ(delay, sc_core::SC_ZERO_TIME);
    return transaction.get_response_status();
  }
  tlm::tlm_response_status write(sc_dt::uint64 address, std::uint32_t value) {
    return access(tlm::TLM_WRITE_COMMAND, address, &value, sizeof(value));
  }
  std::uint32_t read(sc_dt::uint64 address) {
    std::uint32_t value = 0xDEADBEEF;
    EXPECT_EQ(access(tlm::TLM_READ_COMMAND, address, &value, sizeof(value)), tlm::TLM_OK_RESPONSE);
    return value;
  }
  unsigned debug(tlm::tlm_command command, sc_dt::uint64 address, std::uint32_t& value) {
    tlm::tlm_generic_payload transaction;
    fill(transaction, command, address, &value, sizeof(value));
    return socket->transport_dbg(transaction);
  }

 private:
  static void fill(tlm::tlm_generic_payload& transaction, tlm::tlm_command command,
                   sc_dt::uint64 address, void* data, unsigned length) {
    transaction.set_command(command);
    transaction.set_address(address);
    transaction.set_data_ptr(static_cast<unsigned char*>(data));
    transaction.set_data_length(length);
    transaction.set_streaming_width(length);
  }
};

template <typename Unit>
void check_registers(Host& host, Unit& unit) {
  // Reset values, and what may be written.
  for (const Register& entry : kUnitRegisters) {
    EXPECT_EQ(host.read(entry.address), entry.reset) << entry.name;
    EXPECT_EQ(unit.read_register(entry.address), entry.reset) << entry.name;
    if (entry.writable == 0) {
      EXPECT_EQ(host.write(entry.address, 0), tlm::TLM_COMMAND_ERROR_RESPONSE) << entry.name;
    }
  }
  // Every field of CONTROL: its ends, and one beyond where the bits hold it.
  unsigned fields = 0, refused = 0;
  for (const RegisterField& field : kUnitRegisterFields) {
    if (!field.writable) continue;
    ++fields;
    const RegisterBits bits{field.low_bit, field.width};
    for (std::int64_t value = field.minimum; value <= field.maximum; ++value) {
      const std::uint32_t word = bits.put(static_cast<std::uint32_t>(value));
      EXPECT_EQ(host.write(field.address, word), tlm::TLM_OK_RESPONSE) << field.path;
      EXPECT_EQ(host.read(field.address), word) << field.path;
    }
    const std::uint32_t before = host.read(field.address);
    if (field.maximum < (std::int64_t{1} << field.width) - 1) {
      ++refused;
      const std::uint32_t word = bits.put(static_cast<std::uint32_t>(field.maximum) + 1);
      EXPECT_EQ(host.write(field.address, word), tlm::TLM_GENERIC_ERROR_RESPONSE) << field.path;
      EXPECT_EQ(host.read(field.address), before) << field.path;
    }
  }
  EXPECT_EQ(fields, 4u);
  EXPECT_EQ(refused, 2u);

  // Bits without a field are not kept.
  EXPECT_EQ(host.write(kControl, 0xFFFFCECEu | 1u), tlm::TLM_OK_RESPONSE);
  EXPECT_EQ(host.read(kControl), 1u);

  // Addresses, lengths, byte enables, no data, no command.
  unsigned mapped = 0;
  for (unsigned address = 0; address < 64; ++address) {
    std::uint32_t value = 0;
    const auto status = host.access(tlm::TLM_READ_COMMAND, address, &value, 4);
    mapped += status == tlm::TLM_OK_RESPONSE;
    EXPECT_TRUE(status == tlm::TLM_OK_RESPONSE || status == tlm::TLM_ADDRESS_ERROR_RESPONSE);
    EXPECT_EQ(status == tlm::TLM_OK_RESPONSE, address % 4 == 0 && address < 20) << address;
  }
  EXPECT_EQ(mapped, kUnitRegisters.size());
  std::uint64_t wide = 0;
  unsigned char enables[8] = {0xFF, 0xFF, 0xFF, 0xFF};
  for (const unsigned length : {1u, 2u, 8u}) {
    EXPECT_EQ(host.access(tlm::TLM_READ_COMMAND, kStatus, &wide, length),
              tlm::TLM_BURST_ERROR_RESPONSE);
    EXPECT_EQ(host.access(tlm::TLM_WRITE_COMMAND, kControl, &wide, length),
              tlm::TLM_BURST_ERROR_RESPONSE);
  }
  EXPECT_EQ(host.access(tlm::TLM_WRITE_COMMAND, kControl, &wide, 4, enables),
            tlm::TLM_BYTE_ENABLE_ERROR_RESPONSE);
  EXPECT_EQ(host.access(tlm::TLM_READ_COMMAND, kControl, nullptr, 4),
            tlm::TLM_GENERIC_ERROR_RESPONSE);
  EXPECT_EQ(host.access(tlm::TLM_IGNORE_COMMAND, kControl, &wide, 4),
            tlm::TLM_COMMAND_ERROR_RESPONSE);
  EXPECT_EQ(host.read(kControl), 1u);

  // Debug transport does the same.
  std::uint32_t value = 0x2100;
  EXPECT_EQ(host.debug(tlm::TLM_WRITE_COMMAND, kControl, value), 4u);
  value = 0;
  EXPECT_EQ(host.debug(tlm::TLM_READ_COMMAND, kControl, value), 4u);
  EXPECT_EQ(value, 0x2100u);
  value = 0x3100;  // FORCED_MODE 3
  EXPECT_EQ(host.debug(tlm::TLM_WRITE_COMMAND, kControl, value), 0u);
  EXPECT_EQ(host.debug(tlm::TLM_READ_COMMAND, 0x14, value), 0u);
  EXPECT_EQ(unit.read_register(kControl), 0x2100u);
}

TEST(SystemcUnitRegisters, CycleAccurate) {
  sc_core::sc_signal<bool> clk("clk"), rst_n("rst_n"), valid("valid"), stat("stat"), ready("ready"),
      done("done");
  Host host("host");
  sc::VectorUnit unit("unit", {}, {}, {}, {});
  sc_core::sc_signal<Beat> beat("beat");
  sc_core::sc_signal<Statistic> statistic("statistic");
  sc_core::sc_signal<std::uint16_t> mode_op("mode_op");
  sc_core::sc_signal<Mode> mode("mode");
  unit.clk(clk);
  unit.rst_n(rst_n);
  unit.beat_valid(valid);
  unit.beat(beat);
  unit.stat_valid(stat);
  unit.statistic(statistic);
  unit.stat_ready(ready);
  unit.mode_op(mode_op);
  unit.mode(mode);
  unit.done(done);
  host.socket.bind(unit.registers);
  rst_n.write(true);
  sc_core::sc_start(1, sc_core::SC_PS);
  check_registers(host, unit);
  rst_n.write(false);
  sc_core::sc_start(1, sc_core::SC_PS);
  EXPECT_EQ(host.read(kControl), 0u);
}

TEST(SystemcUnitRegisters, LooselyTimed) {
  Host host("host");
  sc::LooselyTimedDevice device("device", {});
  sc::LooselyTimedUnit unit("unit", {}, {}, {}, {});
  unit.socket.bind(device.socket);
  host.socket.bind(unit.registers);
  sc_core::sc_start(1, sc_core::SC_PS);
  check_registers(host, unit);
  unit.reset();
  EXPECT_EQ(host.read(kControl), 0u);
}

TEST(SystemcUnitRegisters, DirectAccessNamesWhatItRefuses) {
  UnitBench bench({}, {});
  const std::string type = "/opd/vector_unit/register";
  EXPECT_EQ(fatal([&] { bench.unit().write_register(kControl, 0x3000); }, type),
            "register 0 = 12288: a field leaves its range; docs/registers.md, Vector unit, has the "
            "ranges");
  EXPECT_EQ(fatal([&] { bench.unit().write_register(kStatus, 0); }, type),
            "register 4: is read only; write CONTROL");
  EXPECT_EQ(fatal([&] { (void)bench.unit().read_register(0x14); }, type),
            "register 20: there is none; docs/registers.md, Vector unit, has the addresses");
}

}  // namespace
}  // namespace opd::tb
