#pragma once
// The results of all paths of a replayed trace, held against each other.
#include "operators.hpp"
#include "paths/simulation.hpp"
#include "replay.hpp"

namespace opd::tb {

/// Whether a path has arithmetic of its own.
[[nodiscard]] bool computes(std::string_view path);

/// Fills in what the comparison finds: records, what was computed, what hosts saw, and with
/// `compare_state` what is stored of the operators. `lockstep` is what the run of rtl and systemc
/// found; its paths are in `result` already.
void compare_results(const OperatorStream& operators, const LockstepResult& lockstep,
                     bool compare_state, TraceResult& result);

}  // namespace opd::tb
