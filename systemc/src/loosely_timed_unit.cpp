#include "opd/sc/loosely_timed_unit.hpp"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "opd/sc/loosely_timed_device.hpp"
#include "opd/sc/parameters.hpp"

namespace opd::sc {
namespace {

const LooselyTimedUnitParameters& checked(const LooselyTimedUnitParameters& parameters) {
  if (const auto error = range_error("bubbles", parameters.bubbles, 0, 65535)) {
    SC_REPORT_FATAL("/opd/loosely_timed_unit/parameters", error->c_str());
  }
  if (parameters.clock_period == sc_core::SC_ZERO_TIME) {
    SC_REPORT_FATAL("/opd/loosely_timed_unit/parameters",
                    "clock_period = 0 s: must be at least the time resolution");
  }
  return parameters;
}

}  // namespace

LooselyTimedUnit::LooselyTimedUnit(sc_core::sc_module_name name,
                                   const LooselyTimedUnitParameters& parameters,
                                   OperationSource source, RecordCallback on_record,
                                   CompletionCallback on_completion)
    : sc_core::sc_module(name),
      parameters_(checked(parameters)),
      source_(std::move(source)),
      on_record_(std::move(on_record)),
      on_completion_(std::move(on_completion)) {
  SC_THREAD(run_);
}

void LooselyTimedUnit::restart() {
  done_ = false;
  restarted_.notify(sc_core::SC_ZERO_TIME);
}

void LooselyTimedUnit::run_() {
  quantum_.reset();
  for (;;) {
    for (;;) {
      Operation operation;
      const SourceAnswer answer = source_ ? source_(operation) : SourceAnswer::kEnd;
      if (answer == SourceAnswer::kEnd) break;
      if (answer == SourceAnswer::kOperation) {
        execute_(operation);
        if (quantum_.need_sync()) quantum_.sync();
      } else {
        quantum_.inc(parameters_.clock_period);
        quantum_.sync();  // whoever the source waits for runs now
      }
    }
    quantum_.sync();
    done_ = true;
    wait(restarted_);
    quantum_.reset();
  }
}

void LooselyTimedUnit::execute_(const Operation& operation) {
  if (operation.elements.size() > std::numeric_limits<unsigned>::max()) {
    SC_REPORT_FATAL("/opd/loosely_timed_unit/operation",
                    "elements of 4 GiB or more: a TLM payload's length has 32 bits");
  }
  const std::uint64_t issue_cycle = local_cycle_();
  const Mode mode = read_mode_(operation.descriptor.op);

  extension_.descriptor = operation.descriptor;
  extension_.statistic = operation.statistic;
  const bool has_elements = !operation.statistic && !operation.elements.empty();
  transaction_.set_extension(&extension_);
  // A write does not change its data array; the payload has one pointer type for both directions.
  const tlm::tlm_response_status status =
      transport_(has_elements ? tlm::TLM_WRITE_COMMAND : tlm::TLM_IGNORE_COMMAND,
                 LooselyTimedDevice::kOperationAddress,
                 has_elements ? const_cast<std::byte*>(operation.elements.data()) : nullptr,
                 has_elements ? operation.elements.size() : 0);
  transaction_.clear_extension(&extension_);
  expect_ok_(status);
  if (on_completion_) on_completion_(operation.tag, issue_cycle, local_cycle_(), mode);

  deliver_records_();
  quantum_.inc(parameters_.bubbles * parameters_.clock_period);
}

/// As the cycle-accurate mode port: an operator without a mode register runs FAST.
Mode LooselyTimedUnit::read_mode_(std::uint16_t op) {
  Mode mode = Mode::kFast;
  const auto status =
      transport_(tlm::TLM_READ_COMMAND, LooselyTimedDevice::kModeAddress + op, &mode, sizeof(mode));
  if (status != tlm::TLM_ADDRESS_ERROR_RESPONSE) expect_ok_(status);
  return mode;
}

void LooselyTimedUnit::deliver_records_() {
  std::uint32_t level = 0;
  expect_ok_(transport_(tlm::TLM_READ_COMMAND, LooselyTimedDevice::kRecordLevelAddress, &level,
                        sizeof(level)));
  for (; level > 0; --level) {
    RecordEntry entry;
    expect_ok_(transport_(tlm::TLM_READ_COMMAND, LooselyTimedDevice::kRecordAddress, &entry,
                          sizeof(entry)));
    if (on_record_) on_record_(entry.record, entry.counts);
  }
}

/// One transaction; the local time becomes what the target annotates.
tlm::tlm_response_status LooselyTimedUnit::transport_(tlm::tlm_command command,
                                                      sc_dt::uint64 address, void* data,
                                                      std::size_t length) {
  transaction_.set_command(command);
  transaction_.set_address(address);
  transaction_.set_data_ptr(static_cast<unsigned char*>(data));
  transaction_.set_data_length(static_cast<unsigned>(length));
  transaction_.set_streaming_width(static_cast<unsigned>(length));
  transaction_.set_byte_enable_ptr(nullptr);
  transaction_.set_dmi_allowed(false);
  transaction_.set_response_status(tlm::TLM_INCOMPLETE_RESPONSE);

  sc_core::sc_time delay = quantum_.get_local_time();
  socket->b_transport(transaction_, delay);
  quantum_.set(delay);
  return transaction_.get_response_status();
}

void LooselyTimedUnit::expect_ok_(tlm::tlm_response_status status) const {
  if (status == tlm::TLM_OK_RESPONSE) return;
  const std::string message = "access to address " + std::to_string(transaction_.get_address()) +
                              ", " + std::to_string(transaction_.get_data_length()) +
                              " bytes: status " + std::to_string(static_cast<int>(status));
  SC_REPORT_FATAL("/opd/loosely_timed_unit/response", message.c_str());
}

std::uint64_t LooselyTimedUnit::local_cycle_() const {
  return quantum_.get_current_time().value() / parameters_.clock_period.value();
}

}  // namespace opd::sc
