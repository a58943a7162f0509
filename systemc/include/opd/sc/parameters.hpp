#pragma once
// Legal ranges of the device's parameters, checked when a module is constructed.
#include <optional>
#include <string>

#include "opd/sc/detection_unit.hpp"
#include "opd/types/device.hpp"

namespace opd::sc {

/// Names the first parameter out of its range, and that range; empty when all are legal.
/// Source: docs/architecture.md, "Parameters".
std::optional<std::string> parameter_error(const DeviceParameters& parameters);

/// Returns `parameters`; reports SC_FATAL "/opd/device/parameters" when one is illegal.
const DeviceParameters& checked_device(const DeviceParameters& parameters);

/// Names what does not exist of an upset's place; empty when all does.
std::optional<std::string> upset_error(const DeviceParameters& parameters, unsigned op,
                                       UpsetTarget target, unsigned bit);

/// "name = value: must be minimum..maximum" when value is outside, else empty.
std::optional<std::string> range_error(const char* name, long long value, long long minimum,
                                       long long maximum);

}  // namespace opd::sc
