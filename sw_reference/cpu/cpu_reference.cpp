// Argument checks and the per-operator loop around ref::complete.
#include <limits>
#include <stdexcept>
#include <string>

#include "opd/reference/cpu.hpp"

namespace opd::ref {
namespace {

void check_range(const std::string& field, long long value, long long minimum, long long maximum) {
  if (value < minimum || value > maximum) {
    throw std::invalid_argument(field + ": " + std::to_string(value) + " must be " +
                                std::to_string(minimum) + ".." + std::to_string(maximum));
  }
}

}  // namespace

void validate(const DeviceParameters& parameters) {
  check_range("num_ops", parameters.num_ops, 1, 65536);
  check_range("datapath_width", parameters.datapath_width, 32, 512);
  if (parameters.datapath_width % 32 != 0) {
    throw std::invalid_argument("datapath_width: " + std::to_string(parameters.datapath_width) +
                                " must be a multiple of 32, 32..512");
  }
  check_range("num_streams", parameters.num_streams, 1, 256);
  check_range("queue_depth", parameters.queue_depth, 1, 255);
  check_range("counter_width", parameters.counter_width, 2, 32);
}

void validate(const Config& config) {
  for (const ConfigField& field : kConfigFields) {
    check_range(std::string(field.name) + " (" + std::string(field.path) + ")", field.get(config),
                field.minimum, field.maximum);
  }
}

CpuReference::CpuReference(const DeviceParameters& parameters, const Config& config)
    : parameters_(parameters), config_(config) {
  validate(parameters_);
  validate(config_);
  states_.resize(parameters_.num_ops);
}

std::optional<OpRecord> CpuReference::complete(std::uint32_t seq, const OpDescriptor& descriptor,
                                               const TapSummary& summary) {
  if (descriptor.op >= parameters_.num_ops || !is_known(descriptor.format)) {
    if (unseen_count_ < std::numeric_limits<std::uint32_t>::max()) ++unseen_count_;
    return std::nullopt;
  }
  return ref::complete(seq, descriptor, clamp_summary(summary, parameters_.counter_width), config_,
                       states_[descriptor.op]);
}

Mode CpuReference::mode(std::uint16_t op) const {
  if (op >= parameters_.num_ops) {
    throw std::out_of_range("op: " + std::to_string(op) + " must be 0.." +
                            std::to_string(parameters_.num_ops - 1));
  }
  return states_[op].controller.mode;
}

}  // namespace opd::ref
