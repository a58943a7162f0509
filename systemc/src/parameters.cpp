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
  if (auto error = range_error("counter_width", parameters.counter_width, 2, 32)) return error;
  if (auto error = range_error("event_depth", parameters.event_depth, 1, 255)) return error;
  if (!parameters.forecast_engine && !parameters.published_engine) {
    return "forecast_engine = 0, published_engine = 0: one engine at least must be present";
  }
  return std::nullopt;
}

const DeviceParameters& checked_device(const DeviceParameters& parameters) {
  if (const auto error = parameter_error(parameters))
    SC_REPORT_FATAL("/opd/device/parameters", error->c_str());
  return parameters;
}

std::optional<std::string> upset_error(const DeviceParameters& parameters, unsigned op,
                                       UpsetTarget target, unsigned bit) {
  if (auto error = range_error("op", op, 0, parameters.num_ops - 1LL)) return error;
  if (target == UpsetTarget::kMemory) return std::nullopt;
  return range_error("bit", bit, 0, ModeRegisters::kBits - 1);
}

}  // namespace opd::sc
