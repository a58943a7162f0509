#include "opd/sc/loosely_timed_device.hpp"

#include <cstring>

#include "opd/sc/operation.hpp"
#include "opd/sc/parameters.hpp"

namespace opd::sc {

LooselyTimedDevice::LooselyTimedDevice(sc_core::sc_module_name name,
                                       const DeviceParameters& parameters,
                                       sc_core::sc_time clock_period)
    : sc_core::sc_module(name),
      parameters_(checked_device(parameters)),
      clock_period_(clock_period),
      counter_limit_(parameters.counter_width),
      detection_(parameters),
      registers_(parameters) {
  socket.register_b_transport(this, &LooselyTimedDevice::b_transport_);
}

void LooselyTimedDevice::reset() {
  detection_.reset();
  registers_.reset();
  records_.clear();
  next_seq_ = 0;
  irq_ = false;
  irq_changed_.notify(sc_core::SC_ZERO_TIME);
}

void LooselyTimedDevice::inject_upset(std::uint16_t op, UpsetTarget target, unsigned bit) {
  if (const auto error = upset_error(parameters_, op, target, bit)) {
    SC_REPORT_FATAL("/opd/device/upset", error->c_str());
  }
  detection_.inject_upset(op, target, bit);
}

void LooselyTimedDevice::b_transport_(int /*initiator*/, tlm::tlm_generic_payload& transaction,
                                      sc_core::sc_time& delay) {
  transaction.set_dmi_allowed(false);
  transaction.set_response_status(access_(transaction, delay));
  if (registers_.irq() != irq_) {
    irq_ = !irq_;
    irq_changed_.notify(delay);
  }
}

tlm::tlm_response_status LooselyTimedDevice::access_(tlm::tlm_generic_payload& transaction,
                                                     sc_core::sc_time& delay) {
  const sc_dt::uint64 address = transaction.get_address();
  const bool is_register = address < kRegisterBytes;
  const bool is_operation = address == kOperationAddress;
  const bool is_level = address == kRecordLevelAddress;
  const bool is_record = address == kRecordAddress;
  const bool is_mode = address >= kModeAddress && address - kModeAddress < parameters_.num_ops;
  if (!is_register && !is_operation && !is_level && !is_record && !is_mode) {
    return tlm::TLM_ADDRESS_ERROR_RESPONSE;
  }
  const bool ignore = transaction.get_command() == tlm::TLM_IGNORE_COMMAND;
  if (is_operation ? transaction.is_read() : (is_register ? ignore : !transaction.is_read())) {
    return tlm::TLM_COMMAND_ERROR_RESPONSE;
  }
  if (transaction.get_byte_enable_ptr() != nullptr) return tlm::TLM_BYTE_ENABLE_ERROR_RESPONSE;
  if (!ignore) {
    const unsigned length = transaction.get_data_length();
    if (length == 0 || transaction.get_streaming_width() < length) {
      return tlm::TLM_BURST_ERROR_RESPONSE;
    }
    if (transaction.get_data_ptr() == nullptr) return tlm::TLM_GENERIC_ERROR_RESPONSE;
  }

  if (is_operation) return operate_(transaction, delay);
  if (is_register) return access_register_(transaction);
  if (is_record) return read_records_(transaction);
  if (is_mode) return read_modes_(transaction);
  const auto level = static_cast<std::uint32_t>(records_.size());
  if (transaction.get_data_length() != sizeof(level)) return tlm::TLM_BURST_ERROR_RESPONSE;
  std::memcpy(transaction.get_data_ptr(), &level, sizeof(level));
  return tlm::TLM_OK_RESPONSE;
}

/// Two clocks of the register file at once: the write, and the command it starts.
tlm::tlm_response_status LooselyTimedDevice::access_register_(
    tlm::tlm_generic_payload& transaction) {
  const sc_dt::uint64 address = transaction.get_address();
  std::uint32_t data = 0;
  const bool whole = transaction.get_data_length() == sizeof(data);
  if (whole) std::memcpy(&data, transaction.get_data_ptr(), sizeof(data));
  const auto refusal = registers_.refusal(transaction.is_write(), address, data);
  if (refusal == Refusal::kNoRegister) return tlm::TLM_ADDRESS_ERROR_RESPONSE;
  if (refusal == Refusal::kNotAccessible) return tlm::TLM_COMMAND_ERROR_RESPONSE;
  if (!whole) return tlm::TLM_BURST_ERROR_RESPONSE;
  if (refusal) return tlm::TLM_GENERIC_ERROR_RESPONSE;

  if (transaction.is_read()) {
    data = registers_.read(address);
    std::memcpy(transaction.get_data_ptr(), &data, sizeof(data));
    return tlm::TLM_OK_RESPONSE;
  }
  registers_.begin_clock();
  registers_.write(address, data);
  registers_.begin_clock();
  if (const auto& command = registers_.pending_command()) {
    detection_.read(*command);
    registers_.commanded(detection_.execute(registers_.setting()));
  }
  return tlm::TLM_OK_RESPONSE;
}

tlm::tlm_response_status LooselyTimedDevice::operate_(const tlm::tlm_generic_payload& transaction,
                                                      sc_core::sc_time& delay) {
  const auto* extension = transaction.get_extension<OperationExtension>();
  if (extension == nullptr) return tlm::TLM_GENERIC_ERROR_RESPONSE;
  const OpDescriptor& descriptor = extension->descriptor;

  if (extension->statistic) {
    if (transaction.is_write()) return tlm::TLM_COMMAND_ERROR_RESPONSE;
    complete_({descriptor, counter_limit_.clamp(descriptor.format, *extension->statistic)});
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
  registers_.begin_clock();
  if (!is_legal(statistic.descriptor, parameters_.num_ops)) {
    registers_.count_unseen();
    return;
  }
  detection_.read(completion);
  const Detection detection =
      detection_.write(registers_.config(), registers_.learning_rate_change());
  registers_.sampled(detection);
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
        static_cast<unsigned char>(detection_.modes().read(static_cast<std::uint16_t>(first + i)));
  }
  return tlm::TLM_OK_RESPONSE;
}

}  // namespace opd::sc
