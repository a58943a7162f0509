#pragma once
// Legal ranges of the device's parameters and configuration, checked when a module is constructed.
#include <optional>
#include <string>

#include "opd/types/device.hpp"

namespace opd::sc {

/// Names the first parameter out of its range, and that range; empty when all are legal.
/// Source: docs/architecture.md, "Parameters".
std::optional<std::string> parameter_error(const DeviceParameters& parameters);

/// As above for the configuration; ranges are those of docs/registers.md.
std::optional<std::string> config_error(const Config& config);

/// Reports SC_FATAL "/opd/device/parameters" or "/opd/device/config" when one of them is illegal.
void check_device(const DeviceParameters& parameters, const Config& config);

/// "name = value: must be minimum..maximum" when value is outside, else empty.
std::optional<std::string> range_error(const char* name, long long value, long long minimum,
                                       long long maximum);

}  // namespace opd::sc
