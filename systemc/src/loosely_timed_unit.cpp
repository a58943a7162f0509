#include "opd/sc/loosely_timed_unit.hpp"

#include <algorithm>
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
  if (const auto error = settings_error(parameters.settings)) {
    SC_REPORT_FATAL("/opd/loosely_timed_unit/parameters", ("settings." + *error).c_str());
  }
  const long long width = parameters.settings.datapath_width;
  auto error = range_error("settings.datapath_width", width, 32, 512);
  if (!error && width % 32 != 0) {
    error = "settings.datapath_width = " + std::to_string(width) + ": must be a multiple of 32";
  }
  if (error) SC_REPORT_FATAL("/opd/loosely_timed_unit/parameters", error->c_str());
  return parameters;
}

constexpr const char* kRegisterReport = "/opd/loosely_timed_unit/register";

}  // namespace

LooselyTimedUnit::LooselyTimedUnit(sc_core::sc_module_name name,
                                   const LooselyTimedUnitParameters& parameters,
                                   OperationSource source, RecordCallback on_record,
                                   CompletionCallback on_completion, ExecutionCallback on_execution)
    : sc_core::sc_module(name),
      registers("registers", registers_),
      parameters_(checked(parameters)),
      source_(std::move(source)),
      on_record_(std::move(on_record)),
      on_completion_(std::move(on_completion)),
      on_execution_(std::move(on_execution)),
      registers_(parameters.settings) {
  SC_THREAD(run_);
}

std::uint32_t LooselyTimedUnit::read_register(std::uint16_t address) const {
  return read_register_of(registers_, address, kRegisterReport);
}

void LooselyTimedUnit::write_register(std::uint16_t address, std::uint32_t value) {
  write_register_of(registers_, address, value, kRegisterReport);
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
  if (const auto error = operation_error(operation)) {
    SC_REPORT_FATAL("/opd/loosely_timed_unit/operation", error->c_str());
  }
  const std::uint64_t issue_cycle = local_cycle_();
  Mode mode = read_mode_(operation.descriptor.op);
  if (operation.second_mode_op) mode = std::max(mode, read_mode_(*operation.second_mode_op));
  if (operation.computation) {
    compute_(operation, mode);
  } else {
    operate_(operation.descriptor, operation.statistic, operation.elements);
    if (on_completion_) on_completion_(operation.tag, issue_cycle, local_cycle_(), mode);
  }
  deliver_records_();
  quantum_.inc(parameters_.bubbles * parameters_.clock_period);
}

void LooselyTimedUnit::compute_(const Operation& operation, Mode mode) {
  const std::uint64_t issue_cycle = local_cycle_();
  const sc_core::sc_time issue = quantum_.get_local_time();
  processor_.execute(*operation.computation, registers_.mode_at_issue(mode), registers_.settings(),
                     execution_);
  registers_.executed(operation.computation->kernel, execution_.status);
  if (on_execution_) on_execution_(operation.tag, issue_cycle, execution_);

  OpDescriptor descriptor = operation.descriptor;
  descriptor.format = execution_.status.format;
  operate_(descriptor, std::nullopt, execution_.output);
  quantum_.set(issue + static_cast<double>(execution_.cost.cycles) * parameters_.clock_period);
  const Mode ran = execution_.status.mode;
  if (on_completion_) on_completion_(operation.tag, issue_cycle, local_cycle_(), ran);
  if (!operation.accumulator_op) return;
  const Statistic statistic = accumulator_statistic(operation, execution_);
  operate_(statistic.descriptor, statistic.summary, {});
  if (on_completion_) {
    on_completion_(operation.accumulator_tag, issue_cycle, local_cycle_(), ran);
  }
}

/// One operator output or statistic to the device.
void LooselyTimedUnit::operate_(const OpDescriptor& descriptor,
                                const std::optional<TapSummary>& statistic,
                                std::span<const std::byte> elements) {
  if (elements.size() > std::numeric_limits<unsigned>::max()) {
    SC_REPORT_FATAL("/opd/loosely_timed_unit/operation",
                    "elements of 4 GiB or more: a TLM payload's length has 32 bits");
  }
  extension_.descriptor = descriptor;
  extension_.statistic = statistic;
  const bool has_elements = !statistic && !elements.empty();
  transaction_.set_extension(&extension_);
  // A write does not change its data array; the payload has one pointer type for both directions.
  const tlm::tlm_response_status status =
      transport_(has_elements ? tlm::TLM_WRITE_COMMAND : tlm::TLM_IGNORE_COMMAND,
                 LooselyTimedDevice::kOperationAddress,
                 has_elements ? const_cast<std::byte*>(elements.data()) : nullptr,
                 has_elements ? elements.size() : 0);
  transaction_.clear_extension(&extension_);
  expect_ok_(status);
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
