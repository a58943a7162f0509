#include "opd/sc/loosely_timed_device.hpp"

#include <cstring>
#include <optional>

#include "opd/sc/operation.hpp"
#include "opd/sc/parameters.hpp"

namespace opd::sc {
namespace {

const DeviceParameters& checked(const DeviceParameters& parameters, const Config& config) {
  check_device(parameters, config);
  return parameters;
}

/// The register at `address`, put together from its fields; empty when there is none.
std::optional<std::uint32_t> configuration_register(const Config& config, sc_dt::uint64 address) {
  std::optional<std::uint32_t> value;
  for (const ConfigField& field : kConfigFields) {
    if (field.address != address) continue;
    const std::uint32_t mask = (std::uint32_t{1} << field.width) - 1;
    const std::uint32_t bits = static_cast<std::uint32_t>(field.get(config)) & mask;
    value = value.value_or(0) | bits << field.low_bit;
  }
  return value;
}

}  // namespace

LooselyTimedDevice::LooselyTimedDevice(sc_core::sc_module_name name,
                                       const DeviceParameters& parameters, const Config& config,
                                       sc_core::sc_time clock_period)
    : sc_core::sc_module(name),
      parameters_(checked(parameters, config)),
      config_(config),
      clock_period_(clock_period),
      counter_limit_(parameters.counter_width),
      detection_(parameters.num_ops, config),
      modes_(parameters.num_ops) {
  socket.register_b_transport(this, &LooselyTimedDevice::b_transport_);
}

void LooselyTimedDevice::reset() {
  detection_.reset();
  modes_.reset();
  records_.clear();
  next_seq_ = 0;
  unseen_ = 0;
}

void LooselyTimedDevice::b_transport_(tlm::tlm_generic_payload& transaction,
                                      sc_core::sc_time& delay) {
  transaction.set_dmi_allowed(false);
  transaction.set_response_status(access_(transaction, delay));
}

tlm::tlm_response_status LooselyTimedDevice::access_(tlm::tlm_generic_payload& transaction,
                                                     sc_core::sc_time& delay) {
  const sc_dt::uint64 address = transaction.get_address();
  const bool is_operation = address == kOperationAddress;
  const bool is_record = address == kRecordAddress;
  const bool is_mode = address >= kModeAddress && address - kModeAddress < parameters_.num_ops;
  const auto word = is_operation || is_record || is_mode ? std::nullopt : word_at_(address);
  if (!is_operation && !is_record && !is_mode && !word) return tlm::TLM_ADDRESS_ERROR_RESPONSE;
  if (is_operation ? transaction.is_read() : !transaction.is_read()) {
    return tlm::TLM_COMMAND_ERROR_RESPONSE;
  }
  if (transaction.get_byte_enable_ptr() != nullptr) return tlm::TLM_BYTE_ENABLE_ERROR_RESPONSE;
  if (transaction.get_command() != tlm::TLM_IGNORE_COMMAND) {
    const unsigned length = transaction.get_data_length();
    if (length == 0 || transaction.get_streaming_width() < length) {
      return tlm::TLM_BURST_ERROR_RESPONSE;
    }
    if (transaction.get_data_ptr() == nullptr) return tlm::TLM_GENERIC_ERROR_RESPONSE;
  }

  if (is_operation) return operate_(transaction, delay);
  if (is_record) return read_records_(transaction);
  if (is_mode) return read_modes_(transaction);
  if (transaction.get_data_length() != sizeof(*word)) return tlm::TLM_BURST_ERROR_RESPONSE;
  std::memcpy(transaction.get_data_ptr(), &*word, sizeof(*word));
  return tlm::TLM_OK_RESPONSE;
}

tlm::tlm_response_status LooselyTimedDevice::operate_(const tlm::tlm_generic_payload& transaction,
                                                      sc_core::sc_time& delay) {
  const auto* extension = transaction.get_extension<OperationExtension>();
  if (extension == nullptr) return tlm::TLM_GENERIC_ERROR_RESPONSE;
  const OpDescriptor& descriptor = extension->descriptor;

  if (extension->statistic) {
    if (transaction.is_write()) return tlm::TLM_COMMAND_ERROR_RESPONSE;
    complete_({descriptor, counter_limit_.clamp(*extension->statistic)});
    delay += clock_period_;
    return tlm::TLM_OK_RESPONSE;
  }
  const std::size_t byte_count = transaction.is_write() ? transaction.get_data_length() : 0;
  const std::size_t bytes_each = element_bytes(descriptor.format);
  if (byte_count % bytes_each != 0) return tlm::TLM_BURST_ERROR_RESPONSE;
  const auto* elements = reinterpret_cast<const std::byte*>(transaction.get_data_ptr());
  complete_({descriptor, counter_limit_.clamp(element_statistics(descriptor.format, elements,
                                                                 byte_count / bytes_each))});
  delay +=
      static_cast<double>(beat_count(byte_count, parameters_.datapath_width / 8)) * clock_period_;
  return tlm::TLM_OK_RESPONSE;
}

/// The whole way of a completion through the device at once.
void LooselyTimedDevice::complete_(const Statistic& statistic) {
  const Completion completion{next_seq_++, statistic};
  if (!is_legal(statistic.descriptor, parameters_.num_ops)) {
    if (unseen_ != UINT32_MAX) ++unseen_;
    return;
  }
  bool mode_changed = false;
  detection_.read(completion);
  const Detection detection = detection_.write(modes_, mode_changed);
  records_.push_back({detection.record, detection.counts});
}

tlm::tlm_response_status LooselyTimedDevice::read_records_(tlm::tlm_generic_payload& transaction) {
  const std::size_t length = transaction.get_data_length();
  const std::size_t entries = length / sizeof(RecordEntry);
  if (length % sizeof(RecordEntry) != 0) return tlm::TLM_BURST_ERROR_RESPONSE;
  if (entries > records_.size()) return tlm::TLM_GENERIC_ERROR_RESPONSE;
  for (std::size_t i = 0; i < entries; ++i) {
    std::memcpy(transaction.get_data_ptr() + i * sizeof(RecordEntry), &records_.front(),
                sizeof(RecordEntry));
    records_.pop_front();
  }
  return tlm::TLM_OK_RESPONSE;
}

tlm::tlm_response_status LooselyTimedDevice::read_modes_(
    tlm::tlm_generic_payload& transaction) const {
  const sc_dt::uint64 first = transaction.get_address() - kModeAddress;
  const unsigned length = transaction.get_data_length();
  if (length > parameters_.num_ops - first) return tlm::TLM_ADDRESS_ERROR_RESPONSE;
  for (unsigned i = 0; i < length; ++i) {
    transaction.get_data_ptr()[i] =
        static_cast<unsigned char>(modes_.read(static_cast<std::uint16_t>(first + i)));
  }
  return tlm::TLM_OK_RESPONSE;
}

std::optional<std::uint32_t> LooselyTimedDevice::word_at_(sc_dt::uint64 address) const {
  if (address == kRecordLevelAddress) return static_cast<std::uint32_t>(records_.size());
  if (address == kUnseenCountAddress) return unseen_;
  return configuration_register(config_, address);
}

}  // namespace opd::sc
