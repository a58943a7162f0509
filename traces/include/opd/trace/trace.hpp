#pragma once
// A trace file (docs/formats.md "Trace"): S steps x P probes of statistics, optional raw elements,
// optional operands of operators that can be computed again.
//
//   validated : completely, in read(). Afterwards every accessor is total for step_index <
//               steps().size() and probe < probes().size(), and throws std::out_of_range otherwise
//   cost      : read() is O(S * P), accessors are O(1). Matrices and raw rows stay in the mapped
//               file; series of length S are copied once so that they can be typed spans
//   absent    : optional counts are std::nullopt, optional series and missing raw rows are empty;
//               a trace without operands has no operators() and no operand_steps()
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "opd/trace/magnitude.hpp"
#include "opd/trace/safetensors.hpp"
#include "opd/types/computation.hpp"
#include "opd/types/record.hpp"

namespace opd::trace {

enum class Label : std::uint8_t {
  kHealthy,
  kStressed,
  kNearLimit,
  kGradual,
  kSudden,
  kSaturating,
  kInjected,
  kData,
  kUnknown
};
inline constexpr std::array<std::string_view, 9> kLabelNames = {
    "healthy",    "stressed", "near-limit", "gradual", "sudden",
    "saturating", "injected", "data",       "unknown"};

enum class ProbeKind : std::uint8_t { kActivation, kWeight, kGradient, kOptimizer, kCollective };
inline constexpr std::array<std::string_view, 5> kProbeKindNames = {
    "activation", "weight", "gradient", "optimizer", "collective"};

/// More probes than op ids (u16) cannot be replayed.
inline constexpr std::size_t kMaxProbes = 65536;

/// One probed operator; its position in the list is its op id.
struct Probe {
  std::string name;
  ProbeKind kind = ProbeKind::kActivation;
  Format format = Format::kFp16;
  std::vector<std::uint64_t> shape;
  std::uint64_t elements = 1;  ///< product of shape, 1..2^63-1
  bool operator==(const Probe&) const = default;
};

/// Where the run first went wrong: the first non-finite value of a forward probe.
struct FirstBad {
  std::uint32_t step = 0;  ///< training step, not its index
  std::string op;          ///< probe name
  bool operator==(const FirstBad&) const = default;
};

/// One operand of a traced operator. Of a mask the elements are bytes of 0 and 1, and `format` means
/// nothing.
struct TracedOperand {
  std::string name;  ///< one of KernelTraits::operands
  Format format = Format::kFp16;
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
  bool operator==(const TracedOperand&) const = default;
};

/// How one probe's operator is computed. Its own format is that of the probe.
struct TracedOperator {
  std::size_t probe = 0;  ///< position in the trace's list
  Kernel kernel = Kernel::kAdd;
  std::uint32_t batch = 1;
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
  std::uint32_t depth = 0;              ///< of a matrix kernel, else 0
  float attribute = 0;                  ///< what KernelTraits::attribute names
  std::vector<TracedOperand> operands;  ///< those that there are, in the order of the kernel's
  bool has_elements = false;            ///< operands are in the trace; else only shapes are
  bool operator==(const TracedOperator&) const = default;
};

class Trace {
 public:
  /// Reads and validates a trace file. Throws TraceError.
  static Trace read(const std::filesystem::path& path);
  /// The same for bytes in memory; `file` is the name that errors carry.
  static Trace parse(std::vector<std::byte> bytes, std::string file);

  const std::string& file() const { return container_.file(); }
  const std::string& name() const { return metadata("name"); }
  Label label() const { return label_; }
  std::string_view label_name() const { return kLabelNames[static_cast<std::size_t>(label_)]; }
  const std::string& model() const { return metadata("model"); }
  const std::string& framework() const { return metadata("framework"); }
  const std::string& seed() const { return metadata("seed"); }
  const std::string& manifest() const { return metadata("manifest"); }  ///< JSON text, an object
  const std::optional<FirstBad>& first_bad() const { return first_bad_; }

  std::span<const Probe> probes() const { return probes_; }
  /// Position of the probe of that name.
  std::optional<std::size_t> find_probe(std::string_view name) const;
  std::span<const std::uint32_t> steps() const { return steps_; }

  /// Statistics of one probe at one step; counts are of elements.
  float max_abs(std::size_t step_index, std::size_t probe) const;
  std::uint64_t nonfinite(std::size_t step_index, std::size_t probe) const;
  std::optional<std::uint64_t> saturated(std::size_t step_index, std::size_t probe) const;
  std::optional<std::uint64_t> subnormal(std::size_t step_index, std::size_t probe) const;
  std::optional<std::uint64_t> zero(std::size_t step_index, std::size_t probe) const;
  std::optional<float> min_abs(std::size_t step_index, std::size_t probe) const;
  std::optional<float> mean(std::size_t step_index, std::size_t probe) const;
  std::optional<float> var(std::size_t step_index, std::size_t probe) const;

  /// Series of S values, or empty.
  std::span<const float> loss() const { return loss_; }
  std::span<const float> grad_norm() const { return grad_norm_; }
  std::span<const float> lr() const { return lr_; }
  std::span<const float> loss_scale() const { return loss_scale_; }

  /// True when any probe has raw elements at any step.
  bool has_raw() const { return has_raw_; }
  /// Elements of the probe at that step, in the probe's format, little endian, at any alignment
  /// (elements * bytes per element); empty when the trace does not hold them.
  std::span<const std::byte> raw(std::size_t probe, std::size_t step_index) const;

  /// Operators that can be computed, or have at least a cost; in the order of the file, one at most
  /// of a probe.
  const std::vector<TracedOperator>& operators() const { return operators_; }
  /// Steps of which the operands are in the trace, increasing; each is also one of steps().
  const std::vector<std::int64_t>& operand_steps() const { return operand_steps_; }
  /// What the probe's operator computed at that step; nothing where the trace has no operands of it.
  /// Elements lie in the mapped file, at any alignment.
  std::optional<Computation> computation(std::size_t probe, std::size_t step_index) const;
  /// The same without elements, for its cost: every operand that it has has rows and columns.
  /// Nothing where the probe has no operator.
  std::optional<Computation> computation_shape(std::size_t probe) const;
  /// What the framework wrote there, in the probe's format, as raw(); empty where the trace does not
  /// hold it.
  std::span<const std::byte> computed_output(std::size_t probe, std::size_t step_index) const;

  /// The statistic as the sideband carries it (docs/formats.md "Replay of a probe at a step"):
  /// counts stop at 2^32 - 1, missing counts are 0.
  TapSummary statistic(std::size_t step_index, std::size_t probe) const;
  /// floor(log2(loss_scale)) for gradients when the trace has a loss scale, else 0. Stops at -128.
  std::int8_t scale_log2(std::size_t step_index, std::size_t probe) const;

 private:
  explicit Trace(SafetensorsFile container);

  const std::string& metadata(const char* key) const { return container_.metadata().at(key); }
  std::size_t cell(std::size_t step_index, std::size_t probe) const;
  template <typename T>
  std::optional<T> optional_cell(std::span<const std::byte> data, std::size_t step_index,
                                 std::size_t probe) const;

  // Validation, in this order; each throws TraceError.
  void read_metadata();
  void read_probes();
  void read_operators();
  void read_steps();
  void read_statistics();
  void read_series();
  void read_raw();
  void read_operands();
  void read_first_bad();

  const Tensor* find(const std::string& name) const;
  const Tensor& require(const std::string& name, std::string_view dtype,
                        std::vector<std::uint64_t> shape) const;
  std::vector<std::int64_t> read_step_list(const std::string& name) const;
  std::vector<std::size_t> rows_of_steps(const std::string& name,
                                         const std::vector<std::int64_t>& rows) const;
  void check_tensor_name(const std::string& name) const;
  void check_mask(const std::string& name, std::span<const std::byte> data,
                  std::size_t row_bytes) const;
  std::span<const std::byte> read_counts(const std::string& name) const;
  enum class Value { kAny, kNotNegative, kMagnitude };
  std::span<const std::byte> read_values(const std::string& name, Value kind) const;
  std::vector<float> read_step_series(const std::string& name) const;
  std::string place(std::size_t cell_index) const;
  [[noreturn]] void fail(std::string_view field, std::string_view wrong,
                         std::string_view remedy) const;

  SafetensorsFile container_;
  Label label_ = Label::kHealthy;
  std::optional<FirstBad> first_bad_;
  std::vector<Probe> probes_;
  std::vector<std::size_t> probes_by_name_;  // op ids sorted by probe name
  std::vector<std::uint32_t> steps_;
  std::span<const std::byte> max_abs_, nonfinite_;           // [S, P]
  std::span<const std::byte> saturated_, subnormal_, zero_;  // [S, P] or empty
  std::span<const std::byte> min_abs_, mean_, var_;          // [S, P] or empty
  std::vector<float> loss_, grad_norm_, lr_, loss_scale_;    // [S] or empty
  bool has_raw_ = false;
  std::vector<std::size_t> raw_row_;             // [S], kNoRow where the step has no raw rows
  std::vector<std::span<const std::byte>> raw_;  // [P], empty where the probe has no raw rows
  std::vector<TracedOperator> operators_;
  std::vector<std::size_t> operator_of_;  // [P], kNoRow where the probe has no operator
  std::vector<std::int64_t> operand_steps_;
  std::vector<std::size_t> operand_row_;  // [S], kNoRow where the step has no operands
  /// Of each operator, by position in KernelTraits::operands; empty where there is none
  std::vector<std::array<std::span<const std::byte>, kMaxOperands>> operands_;
  std::vector<std::span<const std::byte>> outputs_;  // of each operator, or empty
};

}  // namespace opd::trace
