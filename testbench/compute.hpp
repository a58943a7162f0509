#pragma once
// What a replay that computes can answer beyond the cross-check: executions of the paths compared bit
// for bit, and for every operator with operands the outcome, error and cost of the three modes.
// Definitions: docs/metrics.md "Compute".
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "crosscheck.hpp"
#include "operators.hpp"
#include "paths/path_result.hpp"

namespace opd::tb {

inline constexpr std::size_t kModes = 3;
template <class T>
using ByMode = std::array<T, kModes>;  ///< indexed by Mode

// --- cross-check ---

/// Outcome of comparing what two paths computed.
struct ExecutionComparison {
  std::uint64_t compared = 0;  ///< executions
  std::uint64_t elements = 0;  ///< of their outputs
  std::uint64_t mismatches = 0;
  std::optional<Divergence> first;
  std::vector<MismatchKind> kinds;
};

/// The first difference of two executions of operator `tag`: what ran, output element, accumulators,
/// cost. `record` names operator and step. Nothing when they are equal.
[[nodiscard]] std::optional<Divergence> compare_execution(
    const OperatorStream& operators, std::size_t tag, const std::string& left_name,
    const Execution& left, const std::string& right_name, const Execution& right);

/// Executions of both paths, matched by operator. One that only one path has is a mismatch, unless
/// `may_lack`.
[[nodiscard]] ExecutionComparison compare_executions(const OperatorStream& operators,
                                                     const PathResult& left,
                                                     const PathResult& right, bool may_lack);

/// A bit of an operand whose flip changes the result in every mode, of the first operator that has
/// one. Throws std::runtime_error when there is none.
[[nodiscard]] OperandFault operand_fault(const OperatorStream& operators,
                                         const UnitSettings& settings);

// --- outcome and error of each mode ---

/// Distance of an output to binary64, over its elements that are finite in both.
struct ComputeError {
  std::uint64_t elements = 0;
  std::uint64_t relative_elements =
      0;  ///< that are not 0 in binary64: the relative ones are of them
  // Absent without an element
  std::optional<double> largest_relative, mean_relative;
  std::optional<double> largest_ulps, mean_ulps;  ///< units in the last place of the output format
};

struct ModeOutcome {
  bool overflow = false;  ///< operands are finite, the output or an accumulator is not
  std::uint64_t nonfinite = 0;
  std::uint64_t accumulator_nonfinite = 0;
  double largest = 0;                         ///< finite magnitude of the output
  std::optional<double> accumulator_largest;  ///< the same of its accumulators
  ComputeError error;
};

/// Distance between two numbers of a format, by how many numbers of it lie between them.
inline constexpr std::array<std::string_view, 7> kDistanceNames = {"0",   "1",    "2",        "3-4",
                                                                   "5-8", "more", "nonfinite"};

/// The cause of a difference that FP32 accumulators lessen.
inline constexpr std::string_view kAccumulatorWidth = "accumulator width";

/// What FAST computed against what the framework wrote.
struct FrameworkDifference {
  std::uint64_t elements = 0;
  std::uint64_t different = 0;  ///< bits; NaNs are all one
  std::array<std::uint64_t, kDistanceNames.size()> distances{};
  /// Elements that differ with FP32 accumulators; absent when all are equal or nothing accumulates
  std::optional<std::uint64_t> different_wide;
  std::string_view cause;  ///< empty when all are equal or it cannot be told
};

struct StepAnswer {
  std::uint32_t step = 0;
  ExecutionStatus ran;  ///< of the first path that computes
  bool operands_finite = true;
  bool overflow = false;  ///< as it ran
  ByMode<ModeOutcome> modes;
  std::optional<FrameworkDifference> framework;  ///< where the trace has its output
};

/// One entry of the trace's list of operators.
struct OperatorAnswer {
  trace::TracedOperator op;
  Format format = Format::kFp16;  ///< its own
  std::uint16_t number = 0;       ///< in the device
  std::optional<std::uint16_t> accumulator_op;
  ByMode<ExecutionCost> cost;      ///< of one execution
  std::vector<StepAnswer> steps;   ///< where its operands are; empty: it has a cost alone
  ByMode<std::uint64_t> issued{};  ///< executions over the trace's steps, by the mode they ran in
  ByMode<std::optional<std::uint32_t>> first_overflow;  ///< step
  ByMode<std::optional<std::uint32_t>> first_issue;     ///< step
  /// For how many steps it had not been in FAST when FAST overflowed first; 0: it was in FAST. None
  /// of a forced mode.
  std::optional<std::uint32_t> lead_steps;
};

/// Clocks of the vector unit over the steps of the trace, of the operators in its list.
struct ComputeCost {
  std::uint64_t executions = 0;
  std::uint64_t as_issued = 0, all_fast = 0, all_safe = 0;
  std::optional<std::uint16_t> culprit;  ///< index into ComputeResult::operators
  std::uint64_t culprit_safe = 0;        ///< SAFE for it alone, at every step
};

struct ComputeResult {
  std::uint64_t executions = 0;           ///< operators computed, by each path that computes
  std::uint64_t executions_compared = 0;  ///< per path: the smallest number of any comparison
  std::uint64_t elements_compared = 0;
  std::vector<OperatorAnswer> operators;
  ComputeCost cost;
};

/// `path` is the one whose modes and executions are told; `culprit` the operator number of the first
/// incident. `progress` gets operators done and their number.
[[nodiscard]] ComputeResult answer_compute(
    const OperatorStream& operators, const PathResult& path, const PathResult& computing,
    std::optional<std::uint16_t> culprit, const UnitSettings& settings,
    const std::optional<Mode>& force_mode,
    const std::function<void(std::size_t, std::size_t)>& progress);

/// Bits of an element, little endian.
[[nodiscard]] std::uint32_t element_at(Format format, std::span<const std::byte> elements,
                                       std::size_t index);

/// `output` of `format` against binary64 values.
[[nodiscard]] ComputeError error_of(Format format, std::span<const std::byte> output,
                                    std::span<const double> exact);

/// Two outputs of one format, element by element.
[[nodiscard]] FrameworkDifference difference_of(Format format, std::span<const std::byte> computed,
                                                std::span<const std::byte> written);

}  // namespace opd::tb
