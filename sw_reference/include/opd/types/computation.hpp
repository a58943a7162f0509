#pragma once
// One computed execution of an operator as plain data: which kernel, on which operands, in which
// settings of the vector unit, and what came out. No arithmetic; docs/numerics.md "Vector unit" says
// what a kernel computes, docs/vector_unit.md what it costs.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "opd/types/record.hpp"

namespace opd {

/// What the vector unit can compute, in the order of the table in docs/vector_unit.md.
enum class Kernel : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kMultiplyAdd,
  kScale,
  kCast,
  kRelu,
  kGelu,
  kGeluTanh,
  kSilu,
  kExp,
  kReciprocal,
  kRsqrt,
  kSquare,
  kSum,
  kSumOfSquares,
  kMaximum,
  kMean,
  kVariance,
  kSoftmax,
  kLayerNorm,
  kRmsNorm,
  kMatmul,
  kLinear,
};

/// How the operands of a kernel lie, and with that the shape of its output.
enum class KernelShape : std::uint8_t {
  kElementwise,   ///< [rows, columns] to [rows, columns]
  kRowReduction,  ///< [rows, columns] to [rows, 1]
  kRow,           ///< [rows, columns] to [rows, columns], each row for itself
  kMatrix,        ///< [batch, rows, depth] and [batch, columns, depth] to [batch, rows, columns]
};

inline constexpr std::size_t kMaxOperands = 3;

/// What a kernel is called, what it reads and which attributes it has: names are those of trace
/// files, options and reports.
struct KernelTraits {
  Kernel kernel;
  std::string_view name;
  KernelShape shape;
  /// Names of the operands; the first `required` of them must be there. Empty: no such operand.
  std::array<std::string_view, kMaxOperands> operands;
  std::size_t required;
  /// Name of the one attribute that it has (Computation::attribute); empty: none.
  std::string_view attribute;
  double attribute_default;
  bool accumulates;  ///< sums over a row or the depth: has accumulators that are watched
};

inline constexpr std::array<KernelTraits, 24> kKernels = {{
    {Kernel::kAdd, "add", KernelShape::kElementwise, {"a", "b"}, 2, "", 0, false},
    {Kernel::kSubtract, "subtract", KernelShape::kElementwise, {"a", "b"}, 2, "", 0, false},
    {Kernel::kMultiply, "multiply", KernelShape::kElementwise, {"a", "b"}, 2, "", 0, false},
    {Kernel::kMultiplyAdd,
     "multiply_add",
     KernelShape::kElementwise,
     {"a", "b", "c"},
     3,
     "",
     0,
     false},
    {Kernel::kScale, "scale", KernelShape::kElementwise, {"x"}, 1, "factor", 1, false},
    {Kernel::kCast, "cast", KernelShape::kElementwise, {"x"}, 1, "", 0, false},
    {Kernel::kRelu, "relu", KernelShape::kElementwise, {"x"}, 1, "", 0, false},
    {Kernel::kGelu, "gelu", KernelShape::kElementwise, {"x"}, 1, "", 0, false},
    {Kernel::kGeluTanh, "gelu_tanh", KernelShape::kElementwise, {"x"}, 1, "", 0, false},
    {Kernel::kSilu, "silu", KernelShape::kElementwise, {"x"}, 1, "", 0, false},
    {Kernel::kExp, "exp", KernelShape::kElementwise, {"x"}, 1, "", 0, false},
    {Kernel::kReciprocal, "reciprocal", KernelShape::kElementwise, {"x"}, 1, "", 0, false},
    {Kernel::kRsqrt, "rsqrt", KernelShape::kElementwise, {"x"}, 1, "", 0, false},
    {Kernel::kSquare, "square", KernelShape::kElementwise, {"x"}, 1, "", 0, false},
    {Kernel::kSum, "sum", KernelShape::kRowReduction, {"x"}, 1, "", 0, true},
    {Kernel::kSumOfSquares, "sum_of_squares", KernelShape::kRowReduction, {"x"}, 1, "", 0, true},
    {Kernel::kMaximum, "maximum", KernelShape::kRowReduction, {"x"}, 1, "", 0, false},
    {Kernel::kMean, "mean", KernelShape::kRowReduction, {"x"}, 1, "", 0, true},
    {Kernel::kVariance, "variance", KernelShape::kRowReduction, {"x"}, 1, "correction", 0, true},
    {Kernel::kSoftmax, "softmax", KernelShape::kRow, {"x", "mask"}, 1, "factor", 1, true},
    {Kernel::kLayerNorm,
     "layer_norm",
     KernelShape::kRow,
     {"x", "gain", "bias"},
     1,
     "epsilon",
     1e-5,
     true},
    {Kernel::kRmsNorm, "rms_norm", KernelShape::kRow, {"x", "gain"}, 1, "epsilon", 1e-6, true},
    {Kernel::kMatmul, "matmul", KernelShape::kMatrix, {"a", "b"}, 2, "factor", 1, true},
    {Kernel::kLinear, "linear", KernelShape::kMatrix, {"x", "weight", "bias"}, 2, "", 0, true},
}};

constexpr const KernelTraits& traits_of(Kernel kernel) {
  return kKernels[static_cast<std::size_t>(kernel)];
}

/// The kernel of that name, if there is one.
constexpr std::optional<Kernel> kernel_named(std::string_view name) {
  for (const KernelTraits& traits : kKernels) {
    if (traits.name == name) return traits.kernel;
  }
  return std::nullopt;
}

/// One operand: packed elements, little endian, row after row. Row r of the computation reads row
/// r mod `rows`, so a vector of one row serves all of them. Rows of a mask are bytes, 0 = hidden.
struct Operand {
  std::span<const std::byte> elements;  ///< empty: absent
  Format format = Format::kFp16;        ///< not read of a mask
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
};

/// One execution. Valid while the bytes of its operands are.
///   row kernels, element-wise : `rows` x `columns`; operands have `columns` columns
///   matrix                    : a is [batch * rows, depth], b [batch * columns, depth]; linear has
///                               batch 1 and a bias [1, columns]
struct Computation {
  Kernel kernel = Kernel::kAdd;
  Format format = Format::kFp16;  ///< the operator's own: of its output in FAST
  std::uint32_t batch = 1;
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
  std::uint32_t depth = 0;  ///< of a matrix kernel, else 0
  float attribute = 0;      ///< what KernelTraits::attribute names
  std::array<Operand, kMaxOperands> operands{};

  [[nodiscard]] const Operand& operand(std::size_t i) const { return operands[i]; }
  [[nodiscard]] bool has(std::size_t i) const { return !operands[i].elements.empty(); }
  /// Elements of the output.
  [[nodiscard]] std::uint64_t output_elements() const {
    const std::uint64_t all = std::uint64_t{batch} * rows;
    return traits_of(kernel).shape == KernelShape::kRowReduction ? all : all * columns;
  }
};

/// Width of the accumulators in FAST. Register CONTROL.ACCUMULATOR of the vector unit.
enum class AccumulatorChoice : std::uint8_t {
  kPerOperator = 0,  ///< matrix kernels FP32, the others the operator's own format
  kNarrow = 1,       ///< the operator's own format
  kWide = 2,         ///< FP32
};

/// What an accumulator is made of. Codes 0 to 4 are those of Format.
enum class AccumulatorFormat : std::uint8_t {
  kFp16 = 0,
  kBf16 = 1,
  kE4m3 = 2,
  kE5m2 = 3,
  kFp32 = 4,
  kFp64 = 5,
};
inline constexpr std::array<std::string_view, 6> kAccumulatorFormatNames = {"FP16", "BF16", "E4M3",
                                                                            "E5M2", "FP32", "FP64"};

/// Build and register settings of the vector unit that change what it computes or costs.
struct UnitSettings {
  unsigned datapath_width = 512;  ///< bits per beat, as DeviceParameters
  unsigned fp64_lanes = 8;        ///< adders of the compensated sum, 1..64
  unsigned matrix_rows = 16;      ///< rows of a tile of the matrix unit, 1..1024
  bool saturate = false;          ///< casts clip to the largest finite value: CONTROL.SATURATE
  AccumulatorChoice accumulator = AccumulatorChoice::kPerOperator;
  bool operator==(const UnitSettings&) const = default;
};

/// What really ran.
struct ExecutionStatus {
  Mode mode = Mode::kFast;
  Format format = Format::kFp16;  ///< of the output
  AccumulatorFormat accumulator = AccumulatorFormat::kFp16;
  bool accumulates =
      false;  ///< the kernel has accumulators; else `accumulator` is its lanes' format
  bool compensated = false;  ///< Kahan sums
  bool compressed = false;   ///< operands divided by a power of two
  bool saturating = false;   ///< casts clip
  bool operator==(const ExecutionStatus&) const = default;
};

/// Clocks and bytes of one execution: docs/vector_unit.md "Cost".
struct ExecutionCost {
  std::uint64_t passes = 0;
  std::uint64_t beats = 0;   ///< that the lanes took in, over all passes
  std::uint64_t cycles = 0;  ///< in which the lanes are occupied
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  bool operator==(const ExecutionCost&) const = default;
};

/// The result of one execution.
struct Execution {
  ExecutionStatus status;
  std::vector<std::byte> output;  ///< packed, in status.format
  /// Of the accumulators' writes, in `accumulator_format`; absent when nothing accumulates.
  std::optional<TapSummary> accumulators;
  Format accumulator_format = Format::kFp16;  ///< FP32 stands for FP64 as well
  ExecutionCost cost;
  bool operator==(const Execution&) const = default;
};

}  // namespace opd
