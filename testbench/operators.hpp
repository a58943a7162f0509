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
  /// The learning rate of the step with this index is another than that of the step before: the
  /// device is told (docs/metrics.md "Learning-rate changes").
  [[nodiscard]] bool learning_rate_changes(std::size_t step_index) const;
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

/// Goes through the operators of a stream in the order of their completion and says which
/// learning-rate changes are due before each.
class LearningRateSchedule {
 public:
  explicit LearningRateSchedule(const OperatorStream& operators) : operators_(&operators) {}
  /// Calls announce(step) for every change of a step that `tag` is the first operator of, or that
  /// has passed without one.
  void before(std::size_t tag, const auto& announce) {
    const std::size_t now = tag / operators_->probes();
    for (; next_ <= now; ++next_) {
      if (operators_->learning_rate_changes(next_)) announce(operators_->trace().steps()[next_]);
    }
  }

 private:
  const OperatorStream* operators_;
  std::size_t next_ = 1;  ///< step index whose change has not been announced
};

}  // namespace opd::tb
