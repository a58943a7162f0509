// The loosely timed pair: equal records, annotated time, and TLM-2.0 error responses.
#include <gtest/gtest.h>
#include <tlm_utils/simple_initiator_socket.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "fixed_config.hpp"
#include "opd/sc/loosely_timed_device.hpp"
#include "opd/sc/loosely_timed_unit.hpp"
#include "unit_bench.hpp"

namespace opd::tb {
namespace {

using sc::LooselyTimedDevice;
using sc::LooselyTimedUnit;
using sc::Operation;

/// An initiator that does one transaction at a time.
class Master : public sc_core::sc_module {
 public:
  tlm_utils::simple_initiator_socket<Master> socket{"socket"};

  explicit Master(sc_core::sc_module_name name) : sc_core::sc_module(name) {}

  tlm::tlm_response_status transport(tlm::tlm_generic_payload& transaction) {
    transaction.set_response_status(tlm::TLM_INCOMPLETE_RESPONSE);
    socket->b_transport(transaction, delay);
    return transaction.get_response_status();
  }

  tlm::tlm_response_status read(sc_dt::uint64 address, void* data, unsigned length) {
    tlm::tlm_generic_payload transaction;
    fill(transaction, tlm::TLM_READ_COMMAND, address, data, length);
    return transport(transaction);
  }

  tlm::tlm_response_status write(sc_dt::uint64 address, std::uint32_t value) {
    tlm::tlm_generic_payload transaction;
    fill(transaction, tlm::TLM_WRITE_COMMAND, address, &value, sizeof(value));
    return transport(transaction);
  }

  std::uint32_t word(sc_dt::uint64 address) {
    std::uint32_t value = 0xDEADBEEF;
    EXPECT_EQ(read(address, &value, 4), tlm::TLM_OK_RESPONSE) << address;
    return value;
  }

  tlm::tlm_response_status operate(const OpDescriptor& descriptor,
                                   std::vector<std::byte> elements) {
    sc::OperationExtension extension;
    extension.descriptor = descriptor;
    tlm::tlm_generic_payload transaction;
    fill(transaction, tlm::TLM_WRITE_COMMAND, LooselyTimedDevice::kOperationAddress,
         elements.data(), static_cast<unsigned>(elements.size()));
    transaction.set_extension(&extension);
    const auto status = transport(transaction);
    transaction.clear_extension(&extension);
    return status;
  }

  static void fill(tlm::tlm_generic_payload& transaction, tlm::tlm_command command,
                   sc_dt::uint64 address, void* data, unsigned length) {
    transaction.set_command(command);
    transaction.set_address(address);
    transaction.set_data_ptr(static_cast<unsigned char*>(data));
    transaction.set_data_length(length);
    transaction.set_streaming_width(length);
  }

  sc_core::sc_time delay;
};

/// The loosely timed pair over a list of operations.
class LooselyTimedBench {
 public:
  LooselyTimedBench(std::vector<Operation> operations, const sc::LooselyTimedUnitParameters& unit,
                    const DeviceParameters& device = {})
      : operations_(std::move(operations)),
        device_("lt_device", device, unit.clock_period),
        unit_(
            "lt_unit", unit,
            [this](Operation& operation) {
              if (next_ == operations_.size()) return sc::SourceAnswer::kEnd;
              if (hold && hold()) return sc::SourceAnswer::kWait;
              operation = operations_[next_++];
              return sc::SourceAnswer::kOperation;
            },
            [this](const OpRecord& record, const TapCounts& tap_counts) {
              records.push_back(record);
              counts.push_back(tap_counts);
            },
            [this](std::uint64_t tag, std::uint64_t issue, std::uint64_t last, Mode mode) {
              completions.push_back({tag, issue, last, mode});
            }) {
    unit_.socket.bind(device_.socket);
    master.socket.bind(device_.socket);
  }

  void restart(std::vector<Operation> operations) {
    operations_ = std::move(operations);
    next_ = 0;
    unit_.restart();
  }
  bool done() const { return unit_.done(); }

  Master master{"lt_master"};
  std::function<bool()> hold;  ///< while true the source answers "wait"
  std::vector<OpRecord> records;
  std::vector<TapCounts> counts;
  std::vector<ReportedCompletion> completions;

 private:
  std::vector<Operation> operations_;
  std::size_t next_ = 0;
  LooselyTimedDevice device_;
  LooselyTimedUnit unit_;
};

class SystemcLooselyTimedRandom : public testing::TestWithParam<unsigned> {};

// The cycle-accurate pair runs first; its operators then run loosely timed in the order of their
// completions.
TEST_P(SystemcLooselyTimedRandom, RecordsEqualTheCycleAccurateOnes) {
  const unsigned streams = GetParam();
  const std::uint64_t seed = case_seed(900 + streams);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  OperationList list = OperationList::random(rng, 4000, 16, 1400);
  // No operator may meet a full queue here: the loosely timed device has none.
  const DeviceParameters device{.num_ops = 16,
                                .datapath_width = 256,
                                .num_streams = 4,
                                .queue_depth = 255,
                                .counter_width = 7};
  unsigned illegal = 0;
  for (const Operation& operation : list.operations) illegal += operation.descriptor.op == 16;

  LooselyTimedBench loose({}, {}, device);  // both before the simulation starts
  UnitBench accurate(list.operations, {.lane_latency = 4, .bubbles = 2, .streams = streams},
                     device);
  ASSERT_TRUE(accurate.run());
  ASSERT_EQ(accurate.unseen_count(), illegal);
  ASSERT_GT(illegal, 0u);

  std::vector<Operation> in_order;
  for (const ReportedCompletion& completion : accurate.completions)
    in_order.push_back(list.operations[completion.tag]);
  loose.restart(in_order);
  sc_core::sc_start(1, sc_core::SC_MS);
  ASSERT_TRUE(loose.done());

  ASSERT_EQ(loose.records.size(), accurate.records.size());
  ASSERT_EQ(loose.records.size() + illegal, list.operations.size());
  std::size_t compared = 0;
  unsigned downshifts = 0;
  for (std::size_t i = 0; i < loose.records.size(); ++i, ++compared) {
    ASSERT_EQ(loose.records[i], accurate.records[i]) << "seq " << loose.records[i].seq;
    ASSERT_EQ(loose.counts[i], accurate.counts[i]) << "seq " << loose.records[i].seq;
    downshifts += loose.records[i].cause != 0;
  }
  EXPECT_GT(compared, 3500u);
  EXPECT_GT(downshifts, 100u);

  // The registers, and through the command READ every word of the state memory.
  int registers = 0;
  for (const Register& entry : kRegisters) {
    if (entry.readable == 0 || entry.address == reg::kQueue) continue;
    EXPECT_EQ(loose.master.word(entry.address), accurate.read(entry.address)) << entry.name;
    ++registers;
  }
  EXPECT_EQ(registers, 58);
  EXPECT_EQ(accurate.read(reg::kEvents), 16u | 16u << 8);
  EXPECT_GT(accurate.read(reg::kEventsLost), 50u);
  EXPECT_NE(accurate.read(reg::kLastCleanStep), 0u);
  int words = 0;
  for (std::uint32_t op = 0; op < 16; ++op) {
    EXPECT_EQ(loose.master.write(reg::kOpCommand, op), tlm::TLM_OK_RESPONSE);
    accurate.write(reg::kOpCommand, op);
    for (int i = 0; i < 4; ++i) accurate.edge();
    for (std::uint16_t address = reg::kOpControl; address <= reg::kOpSlope; address += 4) {
      EXPECT_EQ(loose.master.word(address), accurate.read(address)) << op << " at " << address;
      ++words;
    }
  }
  EXPECT_EQ(words, 16 * 8);
}

INSTANTIATE_TEST_SUITE_P(Streams, SystemcLooselyTimedRandom, testing::Values(1u, 4u));

std::vector<std::byte> ones(std::size_t bytes) {
  std::vector<std::byte> elements(bytes);
  for (std::size_t i = 1; i < bytes; i += 2) elements[i] = std::byte{0x3C};
  return elements;
}

TEST(SystemcLooselyTimed, TimeIsBeatsAndBubbles) {
  const auto elements = ones(640);
  const auto of = [&elements](std::size_t bytes, std::uint64_t tag) {
    return Operation{.descriptor = {.op = 1},
                     .elements = std::span(elements).first(bytes),
                     .statistic = {},
                     .tag = tag};
  };
  Operation statistic = of(0, 3);
  statistic.statistic = TapSummary{.max_mag = 1};
  // 640, 66, 0 bytes and a statistic: 10, 2, 1 and 1 clocks, 5 more after each.
  LooselyTimedBench bench({of(640, 0), of(66, 1), of(0, 2), statistic},
                          {.bubbles = 5, .clock_period = sc_core::sc_time(2, sc_core::SC_NS)});
  tlm::tlm_global_quantum::instance().set(sc_core::sc_time(1, sc_core::SC_US));
  sc_core::sc_start();
  EXPECT_TRUE(bench.done());
  EXPECT_EQ(sc_core::sc_time_stamp(),
            sc_core::sc_time(2 * (10 + 2 + 1 + 1 + 4 * 5), sc_core::SC_NS));
  EXPECT_EQ(bench.completions, (std::vector<ReportedCompletion>{{0, 0, 10, Mode::kFast},
                                                                {1, 15, 17, Mode::kFast},
                                                                {2, 22, 23, Mode::kFast},
                                                                {3, 28, 29, Mode::kFast}}));
  ASSERT_EQ(bench.records.size(), 4u);
  EXPECT_EQ(bench.counts[0].element_count, 320u);
}

TEST(SystemcLooselyTimed, EachOperatorSeesTheModeOfTheOneBefore) {
  auto bad = ones(64);
  bad[1] = std::byte{0x7C};
  const Operation operation{.descriptor = {.op = 3}, .elements = bad, .statistic = {}, .tag = 0};
  Operation illegal = operation;
  illegal.descriptor.op = 300;  // no mode register: it runs FAST
  LooselyTimedBench bench({operation, operation, illegal, operation}, {});
  sc_core::sc_start();
  ASSERT_EQ(bench.completions.size(), 4u);
  EXPECT_EQ(bench.completions[0].mode, Mode::kFast);
  EXPECT_EQ(bench.completions[1].mode, Mode::kStable);
  EXPECT_EQ(bench.completions[2].mode, Mode::kFast);
  EXPECT_EQ(bench.completions[3].mode, Mode::kSafe);
  ASSERT_EQ(bench.records.size(), 3u);
  EXPECT_EQ(bench.records[2].seq, 3u);
}

TEST(SystemcLooselyTimed, ElementsThatAreNotWholeAreFatal) {
  const auto elements = ones(64);
  LooselyTimedBench bench(
      {Operation{
          .descriptor = {.op = 3}, .elements = std::span(elements).first(5), .statistic = {}}},
      {});
  try {
    sc_core::sc_start();
    FAIL() << "accepted";
  } catch (const sc_core::sc_report& report) {
    EXPECT_STREQ(report.get_msg_type(), "/opd/loosely_timed_unit/response");
  }
}

// --- The target alone ----------------------------------------------------------------------------

struct Target {
  explicit Target(const DeviceParameters& parameters = {.num_ops = 8},
                  const Config& config = kFixedConfig)
      : device("device", parameters) {
    master.socket.bind(device.socket);
    sc_core::sc_start(sc_core::SC_ZERO_TIME);
    for (const auto& [address, value] : register_values(config)) {
      EXPECT_EQ(master.write(address, value), tlm::TLM_OK_RESPONSE) << address;
    }
  }
  LooselyTimedDevice device;
  Master master{"master"};
};

TEST(SystemcLooselyTimedDevice, ErrorResponsesAndNothingChanges) {
  Target target;
  Master& master = target.master;
  ASSERT_EQ(master.operate({.op = 1}, ones(64)), tlm::TLM_OK_RESPONSE);  // one record waits
  ASSERT_EQ(master.operate({.op = 9}, ones(64)), tlm::TLM_OK_RESPONSE);  // one is unseen
  const sc_core::sc_time delay_before = master.delay;
  ASSERT_EQ(delay_before, sc_core::sc_time(2, sc_core::SC_NS));

  constexpr auto kRead = tlm::TLM_READ_COMMAND;
  constexpr auto kWrite = tlm::TLM_WRITE_COMMAND;
  constexpr auto kIgnore = tlm::TLM_IGNORE_COMMAND;
  enum class Extra { kNone, kExtension, kStatistic, kNoData, kByteEnable, kNarrowStream };
  const struct {
    const char* what;
    tlm::tlm_command command;
    sc_dt::uint64 address;
    unsigned length;
    Extra extra;
    tlm::tlm_response_status expected;
  } bad[] = {
      {"no such register", kRead, 0x18, 4, Extra::kNone, tlm::TLM_ADDRESS_ERROR_RESPONSE},
      {"between registers", kRead, 0x102, 4, Extra::kNone, tlm::TLM_ADDRESS_ERROR_RESPONSE},
      {"after the registers", kRead, 0x194, 4, Extra::kNone, tlm::TLM_ADDRESS_ERROR_RESPONSE},
      {"outside the map", kRead, 0x1004, 4, Extra::kNone, tlm::TLM_ADDRESS_ERROR_RESPONSE},
      {"after the modes", kRead, 0x10008, 1, Extra::kNone, tlm::TLM_ADDRESS_ERROR_RESPONSE},
      {"modes past the last", kRead, 0x10007, 2, Extra::kNone, tlm::TLM_ADDRESS_ERROR_RESPONSE},
      {"far away", kRead, ~sc_dt::uint64{0}, 1, Extra::kNone, tlm::TLM_ADDRESS_ERROR_RESPONSE},
      {"read of OPERATION", kRead, 0x1000, 64, Extra::kExtension, tlm::TLM_COMMAND_ERROR_RESPONSE},
      {"write of a mode", kWrite, 0x10001, 1, Extra::kNone, tlm::TLM_COMMAND_ERROR_RESPONSE},
      {"write of a status", kWrite, 0x070, 4, Extra::kNone, tlm::TLM_COMMAND_ERROR_RESPONSE},
      {"read of a command", kRead, 0x024, 4, Extra::kNone, tlm::TLM_COMMAND_ERROR_RESPONSE},
      {"ignore at a register", kIgnore, 0x120, 4, Extra::kNone, tlm::TLM_COMMAND_ERROR_RESPONSE},
      {"value out of range", kWrite, 0x120, 4, Extra::kNone, tlm::TLM_GENERIC_ERROR_RESPONSE},
      {"no such operator", kWrite, 0x090, 4, Extra::kNone, tlm::TLM_GENERIC_ERROR_RESPONSE},
      {"write of RECORD", kWrite, 0x1020, 44, Extra::kNone, tlm::TLM_COMMAND_ERROR_RESPONSE},
      {"ignore at RECORD", kIgnore, 0x1020, 44, Extra::kNone, tlm::TLM_COMMAND_ERROR_RESPONSE},
      {"statistic with elements", kWrite, 0x1000, 64, Extra::kStatistic,
       tlm::TLM_COMMAND_ERROR_RESPONSE},
      {"no extension", kWrite, 0x1000, 64, Extra::kNone, tlm::TLM_GENERIC_ERROR_RESPONSE},
      {"empty, no extension", kIgnore, 0x1000, 0, Extra::kNone, tlm::TLM_GENERIC_ERROR_RESPONSE},
      {"no data array", kWrite, 0x1000, 64, Extra::kNoData, tlm::TLM_GENERIC_ERROR_RESPONSE},
      {"half an element", kWrite, 0x1000, 63, Extra::kExtension, tlm::TLM_BURST_ERROR_RESPONSE},
      {"write of nothing", kWrite, 0x1000, 0, Extra::kExtension, tlm::TLM_BURST_ERROR_RESPONSE},
      {"narrow stream", kWrite, 0x1000, 64, Extra::kNarrowStream, tlm::TLM_BURST_ERROR_RESPONSE},
      {"half a register", kRead, 0x120, 2, Extra::kNone, tlm::TLM_BURST_ERROR_RESPONSE},
      {"half a write", kWrite, 0x154, 2, Extra::kNone, tlm::TLM_BURST_ERROR_RESPONSE},
      {"two registers", kRead, 0x100, 8, Extra::kNone, tlm::TLM_BURST_ERROR_RESPONSE},
      {"half a record", kRead, 0x1020, 32, Extra::kNone, tlm::TLM_BURST_ERROR_RESPONSE},
      {"more records than wait", kRead, 0x1020, 88, Extra::kNone, tlm::TLM_GENERIC_ERROR_RESPONSE},
      {"byte enables", kRead, 0x120, 4, Extra::kByteEnable, tlm::TLM_BYTE_ENABLE_ERROR_RESPONSE},
  };
  int compared = 0;
  for (const auto& row : bad) {
    std::vector<std::byte> data = ones(128);
    const std::vector<std::byte> data_before = data;
    sc::OperationExtension extension;
    extension.descriptor = {.op = 2};
    if (row.extra == Extra::kStatistic) extension.statistic = TapSummary{};
    unsigned char enables = 0xFF;
    tlm::tlm_generic_payload transaction;
    Master::fill(transaction, row.command, row.address,
                 row.extra == Extra::kNoData ? nullptr : data.data(), row.length);
    if (row.extra != Extra::kNone) transaction.set_extension(&extension);
    if (row.extra == Extra::kNarrowStream) transaction.set_streaming_width(row.length / 2);
    if (row.extra == Extra::kByteEnable) {
      transaction.set_byte_enable_ptr(&enables);
      transaction.set_byte_enable_length(1);
    }
    EXPECT_EQ(master.transport(transaction), row.expected) << row.what;
    transaction.clear_extension(&extension);
    EXPECT_EQ(data, data_before) << row.what;
    EXPECT_EQ(master.delay, delay_before) << row.what;
    EXPECT_EQ(master.word(LooselyTimedDevice::kRecordLevelAddress), 1u) << row.what;
    EXPECT_EQ(master.word(reg::kUnseen), 1u) << row.what;
    ++compared;
  }
  EXPECT_EQ(compared, 29);
  for (const auto& [address, value] : register_values(kFixedConfig)) {
    EXPECT_EQ(master.word(address), value) << address;
  }

  ASSERT_EQ(master.operate({.op = 2}, ones(64)), tlm::TLM_OK_RESPONSE);
  sc::RecordEntry entries[2];
  ASSERT_EQ(master.read(LooselyTimedDevice::kRecordAddress, entries, sizeof(entries)),
            tlm::TLM_OK_RESPONSE);
  EXPECT_EQ(entries[0].record.seq, 0u);
  EXPECT_EQ(entries[1].record.seq, 2u);  // no bad transaction used up a seq
  EXPECT_EQ(entries[1].record.op, 2);
  EXPECT_EQ(entries[1].counts, (TapCounts{32, 0, 0}));
  EXPECT_EQ(master.word(LooselyTimedDevice::kRecordLevelAddress), 0u);
}

TEST(SystemcLooselyTimedDevice, EveryAddressOfTheRegisterMap) {
  Target target({.num_ops = 8, .event_depth = 3}, Config{});
  Master& master = target.master;
  int readable = 0, write_only = 0, unmapped = 0;
  for (std::uint32_t address = 0; address < LooselyTimedDevice::kRegisterBytes; ++address) {
    const Register* found = nullptr;
    for (const Register& candidate : kRegisters) {
      if (candidate.address == address) found = &candidate;
    }
    std::uint32_t value = 0;
    const auto status = master.read(address, &value, 4);
    if (found == nullptr) {
      ASSERT_EQ(status, tlm::TLM_ADDRESS_ERROR_RESPONSE) << address;
      ASSERT_EQ(master.write(address, 0), tlm::TLM_ADDRESS_ERROR_RESPONSE) << address;
      ++unmapped;
    } else if (found->readable == 0) {
      ASSERT_EQ(status, tlm::TLM_COMMAND_ERROR_RESPONSE) << found->name;
      ++write_only;
    } else {
      ASSERT_EQ(status, tlm::TLM_OK_RESPONSE) << found->name;
      if (found->volatile_bits == 0) {
        ASSERT_EQ(value, found->reset) << found->name;
      }
      ++readable;
    }
    if (found == nullptr) continue;
    // The value that was read is a legal one to write; IRQ_STATUS has nothing to clear.
    ASSERT_EQ(master.write(address, value),
              found->writable == 0 ? tlm::TLM_COMMAND_ERROR_RESPONSE : tlm::TLM_OK_RESPONSE)
        << found->name;
  }
  EXPECT_EQ(readable, 59);
  EXPECT_EQ(write_only, 2);
  EXPECT_EQ(unmapped, 4096 - 61);
  EXPECT_EQ(master.word(reg::kCapabilityQueues), 8u + 3 * 256 + 32 * 65536);
}

std::vector<std::byte> with_infinity() {
  auto bad = ones(64);
  bad[1] = std::byte{0x7C};
  return bad;
}

TEST(SystemcLooselyTimedDevice, CommandsAreDoneWhenTheCallReturns) {
  Target target;
  Master& master = target.master;
  ASSERT_EQ(master.operate({.op = 6, .step = 9}, ones(64)), tlm::TLM_OK_RESPONSE);
  ASSERT_EQ(master.write(reg::kOpSetting, 2u | 1u << 8), tlm::TLM_OK_RESPONSE);
  ASSERT_EQ(master.write(reg::kOpCommand, 6u | 3u << 16), tlm::TLM_OK_RESPONSE);
  EXPECT_EQ(master.word(reg::kOpStatus), 0u);
  EXPECT_EQ(master.word(reg::kOpControl), 2u | 1u << 2 | 9u << 16);
  EXPECT_EQ(master.word(reg::kOpHistory), 1u);
  EXPECT_EQ(master.word(reg::kSafeOps), 1u);
  EXPECT_EQ(master.word(reg::kHintLearningRate), 6554u);
  std::uint8_t mode = 0;
  ASSERT_EQ(master.read(LooselyTimedDevice::kModeAddress + 6, &mode, 1), tlm::TLM_OK_RESPONSE);
  EXPECT_EQ(mode, 2);
  ASSERT_EQ(master.write(reg::kOpCommand, 6u | 1u << 16), tlm::TLM_OK_RESPONSE);
  EXPECT_EQ(master.word(reg::kSafeOps), 0u);
}

TEST(SystemcLooselyTimedDevice, EventsAreBoundedAndCountersClear) {
  Target target({.num_ops = 8, .event_depth = 2});
  Master& master = target.master;
  for (std::uint32_t step = 1; step <= 4; ++step) {
    ASSERT_EQ(master.operate({.op = 1, .step = step}, with_infinity()), tlm::TLM_OK_RESPONSE);
  }
  EXPECT_EQ(master.word(reg::kEvents), 2u | 2u << 8);
  EXPECT_EQ(master.word(reg::kEventsLost), 2u);
  EXPECT_EQ(master.word(reg::kEventStep), 1u);
  EXPECT_EQ(master.word(reg::kIrqStatus), 1u | 2u | 8u | 16u);
  ASSERT_EQ(master.write(reg::kEventPop, 1), tlm::TLM_OK_RESPONSE);
  EXPECT_EQ(master.word(reg::kEventStep), 2u);
  ASSERT_EQ(master.write(reg::kCommand, 1), tlm::TLM_OK_RESPONSE);
  EXPECT_EQ(master.word(reg::kEvents), 1u | 1u << 8);
  EXPECT_EQ(master.word(reg::kEventsLost), 0u);
  ASSERT_EQ(master.write(reg::kIrqStatus, 0x3F), tlm::TLM_OK_RESPONSE);
  EXPECT_EQ(master.word(reg::kIrqStatus), 0u);
}

TEST(SystemcLooselyTimedDevice, UpsetsAreRepaired) {
  Target target;
  Master& master = target.master;
  ASSERT_EQ(master.operate({.op = 1}, with_infinity()), tlm::TLM_OK_RESPONSE);
  target.device.inject_upset(1, sc::UpsetTarget::kModeRegister, 1);
  std::uint8_t mode = 0;
  ASSERT_EQ(master.read(LooselyTimedDevice::kModeAddress + 1, &mode, 1), tlm::TLM_OK_RESPONSE);
  EXPECT_EQ(mode, 2);  // SAFE until it is repaired
  ASSERT_EQ(master.operate({.op = 1}, ones(64)), tlm::TLM_OK_RESPONSE);
  ASSERT_EQ(master.read(LooselyTimedDevice::kModeAddress + 1, &mode, 1), tlm::TLM_OK_RESPONSE);
  EXPECT_EQ(mode, 1);
  EXPECT_EQ(master.word(reg::kUpsets), 1u);
  target.device.inject_upset(1, sc::UpsetTarget::kMemory);
  ASSERT_EQ(master.operate({.op = 1}, ones(64)), tlm::TLM_OK_RESPONSE);
  EXPECT_EQ(master.word(reg::kUpsets), 2u);
}

/// A host that enables interrupts, waits for one and clears the operator of the oldest event.
class Host : public sc_core::sc_module {
 public:
  SC_HAS_PROCESS(Host);
  Host(sc_core::sc_module_name name, LooselyTimedDevice& device, Master& master)
      : sc_core::sc_module(name), device_(device), master_(master) {
    SC_THREAD(run_);
  }
  bool ready = false;                ///< interrupts are enabled
  std::vector<std::uint32_t> steps;  ///< of the events
  std::vector<sc_core::sc_time> noticed;

 private:
  void run_() {
    EXPECT_EQ(master_.write(reg::kIrqEnable, 0x3F), tlm::TLM_OK_RESPONSE);
    ready = true;
    for (;;) {
      while (!device_.irq()) wait(device_.irq_changed());
      noticed.push_back(sc_core::sc_time_stamp());
      steps.push_back(master_.word(reg::kEventStep));
      const std::uint32_t op = master_.word(reg::kEventOp) & 0xFFFF;
      EXPECT_EQ(master_.write(reg::kEventPop, 1), tlm::TLM_OK_RESPONSE);
      EXPECT_EQ(master_.write(reg::kOpCommand, op | 1u << 16), tlm::TLM_OK_RESPONSE);
      EXPECT_EQ(master_.write(reg::kIrqStatus, 0x3F), tlm::TLM_OK_RESPONSE);
    }
  }
  LooselyTimedDevice& device_;
  Master& master_;
};

TEST(SystemcLooselyTimed, AHostReactsWhileTheSourceWaits) {
  const auto bad = with_infinity();
  std::vector<Operation> operations;
  for (std::uint32_t step = 0; step < 6; ++step) {
    operations.push_back({.descriptor = {.op = 3, .step = step}, .elements = bad, .tag = step});
  }
  LooselyTimedDevice device("device", {});
  Master master("master");
  Host host("host", device, master);
  std::size_t next = 0;
  int waits = 0;
  std::vector<ReportedCompletion> completions;
  LooselyTimedUnit unit(
      "unit", {},
      [&](Operation& operation) {
        if (!host.ready || device.irq()) {  // the next training step waits for the host
          ++waits;
          return sc::SourceAnswer::kWait;
        }
        if (next == operations.size()) return sc::SourceAnswer::kEnd;
        operation = operations[next++];
        return sc::SourceAnswer::kOperation;
      },
      {},
      [&](std::uint64_t tag, std::uint64_t issue, std::uint64_t last, Mode mode) {
        completions.push_back({tag, issue, last, mode});
      });
  unit.socket.bind(device.socket);
  master.socket.bind(device.socket);
  tlm::tlm_global_quantum::instance().set(sc_core::sc_time(1, sc_core::SC_US));
  sc_core::sc_start();
  EXPECT_TRUE(unit.done());
  // Each operation takes a clock and raises the interrupt at its end; the host reacts there.
  EXPECT_EQ(host.steps, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_GE(waits, 6);
  ASSERT_EQ(completions.size(), 6u);
  EXPECT_EQ(host.noticed.front(),
            sc_core::sc_time(static_cast<double>(completions[0].last_beat_cycle), sc_core::SC_NS));
  for (const ReportedCompletion& completion : completions)
    EXPECT_EQ(completion.mode, Mode::kFast);  // cleared in between
  EXPECT_EQ(completions[1].issue_cycle,
            completions[0].last_beat_cycle + 1);  // one clock of waiting
}

TEST(SystemcLooselyTimed, AWaitingSourceIsAskedEveryClock) {
  const auto elements = ones(64);
  int asked = 0;
  LooselyTimedBench bench({Operation{.descriptor = {.op = 1}, .elements = elements}}, {});
  bench.hold = [&asked] { return ++asked <= 10; };
  sc_core::sc_start();
  EXPECT_EQ(asked, 11);
  ASSERT_EQ(bench.completions.size(), 1u);
  EXPECT_EQ(bench.completions[0].issue_cycle, 10u);
}

TEST(SystemcLooselyTimedDevice, ModesCanBeReadInARowAndResetEmptiesEverything) {
  Target target;
  Master& master = target.master;
  auto bad = ones(64);
  bad[1] = std::byte{0x7C};
  ASSERT_EQ(master.operate({.op = 6}, bad), tlm::TLM_OK_RESPONSE);
  ASSERT_EQ(master.operate({.op = 7}, bad), tlm::TLM_OK_RESPONSE);
  ASSERT_EQ(master.operate({.op = 7}, bad), tlm::TLM_OK_RESPONSE);
  ASSERT_EQ(master.operate({.op = 8}, bad), tlm::TLM_OK_RESPONSE);
  std::vector<std::uint8_t> modes(8, 0xEE);
  ASSERT_EQ(master.read(LooselyTimedDevice::kModeAddress, modes.data(), 8), tlm::TLM_OK_RESPONSE);
  EXPECT_EQ(modes, (std::vector<std::uint8_t>{0, 0, 0, 0, 0, 0, 1, 2}));

  target.device.reset();
  ASSERT_EQ(master.read(LooselyTimedDevice::kModeAddress, modes.data(), 8), tlm::TLM_OK_RESPONSE);
  EXPECT_EQ(modes, std::vector<std::uint8_t>(8, 0));
  EXPECT_EQ(master.word(LooselyTimedDevice::kRecordLevelAddress), 0u);
  EXPECT_EQ(master.word(reg::kUnseen), 0u);
}

TEST(SystemcLooselyTimedFatal, ParametersOfTheDevice) {
  try {
    LooselyTimedDevice device("device", {.counter_width = 1});
    FAIL() << "accepted";
  } catch (const sc_core::sc_report& report) {
    EXPECT_STREQ(report.get_msg_type(), "/opd/device/parameters");
    EXPECT_STREQ(report.get_msg(), "counter_width = 1: must be 2..32");
  }
}

TEST(SystemcLooselyTimedFatal, ParametersOfTheUnit) {
  try {
    LooselyTimedUnit unit("unit", {.bubbles = 65536}, {}, {}, {});
    FAIL() << "accepted";
  } catch (const sc_core::sc_report& report) {
    EXPECT_STREQ(report.get_msg_type(), "/opd/loosely_timed_unit/parameters");
    EXPECT_STREQ(report.get_msg(), "bubbles = 65536: must be 0..65535");
  }
}

}  // namespace
}  // namespace opd::tb
