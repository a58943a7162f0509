#pragma once
// Answers of a replay that computes, for summary.json (docs/formats.md "summary.json") and as a
// table.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay.hpp"

namespace opd::tb {

/// The object `compute` of a trace; null when nothing was to be computed.
[[nodiscard]] nlohmann::ordered_json compute_json(const ReplayOptions& options,
                                                  const TraceResult& result);

/// Empty when nothing was to be computed.
[[nodiscard]] std::string compute_table(const std::vector<TraceResult>& results);

}  // namespace opd::tb
