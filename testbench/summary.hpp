#pragma once
// The comparison as a person reads it (text table) and as programs do (summary.json,
// docs/formats.md "summary.json").
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay.hpp"

namespace opd::tb {

[[nodiscard]] nlohmann::ordered_json summary_json(const ReplayOptions& options,
                                                  const std::vector<TraceResult>& results);
[[nodiscard]] std::string summary_table(const std::vector<TraceResult>& results);

}  // namespace opd::tb
