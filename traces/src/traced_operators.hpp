#pragma once
// Metadata key `operators` of a trace (docs/formats.md "Operators and operands").
#include <string>
#include <vector>

#include "opd/trace/trace.hpp"

namespace opd::trace {

/// The operators of that JSON text, validated against the probes of the trace; has_elements is
/// false. Throws TraceError.
std::vector<TracedOperator> parse_operators(const std::string& text, const Trace& trace);

/// The same backwards: JSON text with every attribute written out, keys sorted. Content that no
/// trace can hold is written as it is, so that the reader names it.
std::string operators_text(const std::vector<TracedOperator>& operators,
                           const std::vector<Probe>& probes);

}  // namespace opd::trace
