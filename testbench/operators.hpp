#pragma once
// A trace as the stream of operators that the vector unit executes: step by step, probes in order.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "opd/trace/trace.hpp"
#include "opd/types/record.hpp"

namespace opd::tb {

/// One operator of the stream: real elements when the trace has them at that step, else its
/// statistic.
struct Operator {
  OpDescriptor descriptor;
  std::span<const std::byte> elements;
  std::optional<TapSummary> statistic;
};

class OperatorStream {
 public:
  /// Keeps a reference to the trace. Throws trace::TraceError when the trace has more probes than
  /// the device has operators, or when raw elements disagree with the statistics beside them.
  OperatorStream(const trace::Trace& trace, unsigned num_ops);

  [[nodiscard]] std::size_t size() const { return steps_ * probes_; }
  /// Operator `tag` in program order: step tag / probes, probe tag % probes.
  [[nodiscard]] Operator at(std::size_t tag) const;
  [[nodiscard]] const trace::Trace& trace() const { return trace_; }
  [[nodiscard]] std::size_t steps() const { return steps_; }
  [[nodiscard]] std::size_t probes() const { return probes_; }
  [[nodiscard]] std::size_t raw_operators() const { return raw_operators_; }
  [[nodiscard]] std::uint64_t raw_bytes() const { return raw_bytes_; }
  [[nodiscard]] std::uint64_t raw_elements() const { return raw_elements_; }

 private:
  const trace::Trace& trace_;
  std::size_t steps_;
  std::size_t probes_;
  std::size_t raw_operators_ = 0;
  std::uint64_t raw_bytes_ = 0;
  std::uint64_t raw_elements_ = 0;
};

}  // namespace opd::tb
