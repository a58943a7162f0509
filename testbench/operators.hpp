#pragma once
// A trace as the stream of operators that the vector unit executes: step by step, probes in order.
// An operator of which the trace has the operands at a step can be computed there instead of
// replayed; the statistic of its accumulators is then an operator of its own, beyond the probes.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "opd/trace/trace.hpp"
#include "opd/types/computation.hpp"
#include "opd/types/record.hpp"

namespace opd::tb {

/// One operator of the stream: what is computed where that is asked for and the trace has the
/// operands, else real elements when the trace has them at that step, else its statistic.
struct Operator {
  OpDescriptor descriptor;  ///< of one that is computed: with its own format, whatever the mode
  std::span<const std::byte> elements;
  std::optional<TapSummary> statistic;
  std::optional<Computation> computation;
  std::optional<std::uint16_t> accumulator_op;  ///< of a computation with accumulators
};

class OperatorStream {
 public:
  /// Keeps a reference to the trace. `compute`: operators with operands are computed. Throws
  /// trace::TraceError when the trace has more operators than the device, accumulators included,
  /// when raw elements disagree with the statistics beside them, or when nothing can be computed.
  OperatorStream(const trace::Trace& trace, unsigned num_ops, bool compute = false);

  /// Operators that the vector unit is given. Accumulators come along with theirs.
  [[nodiscard]] std::size_t size() const { return steps_ * probes_; }
  /// Operator `tag` in program order: step tag / probes, probe tag % probes.
  [[nodiscard]] Operator at(std::size_t tag) const;
  /// Tag of the completion of an operator's accumulators.
  [[nodiscard]] std::size_t accumulator_tag(std::size_t tag) const { return size() + tag; }
  [[nodiscard]] bool is_accumulator(std::size_t tag) const { return tag >= size(); }
  /// The operator whose accumulators `tag` is of, or the operator itself.
  [[nodiscard]] std::size_t operator_tag(std::size_t tag) const {
    return is_accumulator(tag) ? tag - size() : tag;
  }
  [[nodiscard]] std::size_t step_index(std::size_t tag) const {
    return operator_tag(tag) / probes_;
  }
  /// Descriptor of the completion `tag`; a record has its own format.
  [[nodiscard]] OpDescriptor descriptor(std::size_t tag) const;
  /// Tags in program order, accumulators after their operators.
  [[nodiscard]] std::vector<std::size_t> program_order() const;
  [[nodiscard]] const trace::Trace& trace() const { return trace_; }
  [[nodiscard]] std::size_t steps() const { return steps_; }
  [[nodiscard]] std::size_t probes() const { return probes_; }
  /// Operators of the device: probes, then accumulators.
  [[nodiscard]] std::size_t ops() const { return probes_ + accumulators_.size(); }
  /// The probe that an operator number is of.
  [[nodiscard]] std::size_t probe_of(std::size_t op) const {
    return op < probes_ ? op : accumulators_[op - probes_];
  }
  /// Probe of each accumulator, in the order of their operator numbers.
  [[nodiscard]] std::span<const std::size_t> accumulators() const { return accumulators_; }
  /// By operator number: the probe's, or "<probe>/accumulator".
  [[nodiscard]] std::string name_of(std::size_t op) const;
  [[nodiscard]] bool computes() const { return computed_operators_ > 0; }
  /// The learning rate of the step with this index is another than that of the step before: the
  /// device is told (docs/metrics.md "Learning-rate changes").
  [[nodiscard]] bool learning_rate_changes(std::size_t step_index) const;
  /// Operators that are computed: of the whole trace, as the next three.
  [[nodiscard]] std::size_t computed_operators() const { return computed_operators_; }
  /// Operators whose elements are replayed.
  [[nodiscard]] std::size_t raw_operators() const { return raw_operators_; }
  [[nodiscard]] std::uint64_t raw_bytes() const { return raw_bytes_; }
  [[nodiscard]] std::uint64_t raw_elements() const { return raw_elements_; }

 private:
  void number_accumulators();

  const trace::Trace& trace_;
  std::size_t steps_;
  std::size_t probes_;
  bool compute_;
  std::vector<std::size_t> accumulators_;
  std::vector<std::optional<std::uint16_t>> accumulator_ops_;  ///< by probe
  std::size_t computed_operators_ = 0;
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
    const std::size_t now = operators_->step_index(tag);
    for (; next_ <= now; ++next_) {
      if (operators_->learning_rate_changes(next_)) announce(operators_->trace().steps()[next_]);
    }
  }

 private:
  const OperatorStream* operators_;
  std::size_t next_ = 1;  ///< step index whose change has not been announced
};

}  // namespace opd::tb
