#pragma once
// Valid traces to start from.
#include <random>
#include <span>

#include "opd/trace/writer.hpp"

namespace opd::tb {

/// A small trace with every member of the format: 4 steps, one probe per element format, 2 raw
/// steps.
trace::TraceContent sample_trace();

/// Operators with operands at two of three steps, made by hand: a matmul (FP16), a layer_norm with gain
/// and bias, a softmax with a mask; a variance that has only shapes, and a probe without an operator.
trace::TraceContent operand_trace();

/// Any valid trace: 1..6 steps, 1..5 probes, optional members there or not, any finite values.
trace::TraceContent random_trace(std::mt19937_64& rng);

/// Reads every member of every cell and returns the content. Throws nothing on a valid trace.
trace::TraceContent content_of(const trace::Trace& trace);

/// Text of the JSON header of a trace file, and the file with another header (its length adapted).
std::string header_of(std::span<const std::byte> bytes);
std::vector<std::byte> with_header(std::span<const std::byte> bytes, std::string_view header);

}  // namespace opd::tb
