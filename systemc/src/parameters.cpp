#include "opd/sc/parameters.hpp"

#include <systemc>

namespace opd::sc {

std::optional<std::string> range_error(const char* name, long long value, long long minimum,
                                       long long maximum) {
  if (value >= minimum && value <= maximum) return std::nullopt;
  return std::string(name) + " = " + std::to_string(value) + ": must be " +
         std::to_string(minimum) + ".." + std::to_string(maximum);
}

std::optional<std::string> parameter_error(const DeviceParameters& parameters) {
  if (auto error = range_error("num_ops", parameters.num_ops, 1, 65536)) return error;
  if (auto error = range_error("datapath_width", parameters.datapath_width, 32, 512)) return error;
  if (parameters.datapath_width % 32 != 0) {
    return "datapath_width = " + std::to_string(parameters.datapath_width) +
           ": must be a multiple of 32, 32..512";
  }
  if (auto error = range_error("num_streams", parameters.num_streams, 1, 256)) return error;
  if (auto error = range_error("queue_depth", parameters.queue_depth, 1, 255)) return error;
  return range_error("counter_width", parameters.counter_width, 2, 32);
}

std::optional<std::string> config_error(const Config& config) {
  for (const ConfigField& field : kConfigFields) {
    const std::string name(field.name);
    if (auto error = range_error(name.c_str(), field.get(config), field.minimum, field.maximum))
      return error;
  }
  return std::nullopt;
}

void check_device(const DeviceParameters& parameters, const Config& config) {
  if (const auto error = parameter_error(parameters))
    SC_REPORT_FATAL("/opd/device/parameters", error->c_str());
  if (const auto error = config_error(config))
    SC_REPORT_FATAL("/opd/device/config", error->c_str());
}

}  // namespace opd::sc
