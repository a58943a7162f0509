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

/// The last line of a replay: "0 mismatches", "nothing was compared".
[[nodiscard]] std::string verdict_line(const ReplayOptions& options,
                                       const std::vector<TraceResult>& results);

/// Why a replay without a mismatch is no pass, and the remedy, in one sentence.
[[nodiscard]] std::string why_no_pass(const ReplayOptions& options,
                                      const std::vector<TraceResult>& results);

}  // namespace opd::tb
