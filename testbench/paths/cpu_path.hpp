#pragma once
// The CPU reference as a path: real elements through `summarise`, every completion timed, and what
// the reference says that a host sees. An operator that is computed runs in the mode that the
// reference's own controller has put it in.
#include <span>

#include "operators.hpp"
#include "paths/path_result.hpp"
#include "policy.hpp"

namespace opd::tb {

/// Runs the operators in the order of `order` (tags by seq; a tag of kUnseen is a completion that
/// the device dropped and keeps its seq). An empty `order` means program order. `keep_states`: the
/// operator's state after each completion, in the result.
inline constexpr std::size_t kUnseen = ~std::size_t{0};
[[nodiscard]] PathResult run_cpu(const OperatorStream& operators,
                                 const DeviceParameters& parameters, const Config& config,
                                 std::span<const std::size_t> order = {},
                                 const ComputeOptions& compute = {},
                                 const OperandFault* fault = nullptr,
                                 PolicyAnswers* policy = nullptr, bool keep_states = false);

}  // namespace opd::tb
