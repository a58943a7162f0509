// Programs of the vector unit without a simulation kernel: results by hand in every mode, what they
// cost, statistics of the accumulators, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "computations.hpp"
#include "opd/sc/lane_processor.hpp"

namespace opd::tb {
namespace {

using sc::InstructionSet;
using sc::LaneProcessor;
using Values = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Execution run(const OwnedComputation& owned, Mode mode, const UnitSettings& settings = {}) {
  return LaneProcessor().execute(owned.computation, mode, settings);
}
Values values(const OwnedComputation& owned, Mode mode, const UnitSettings& settings = {}) {
  return output_of(run(owned, mode, settings));
}

TEST(SystemcPrograms, ElementWiseByHand) {
  OwnedComputation add(Kernel::kAdd, Format::kFp16, 2, 2);
  add.give(0, Format::kFp16, 2, 2, {1, 2, 60000, -60000});
  add.give(1, Format::kFp16, 1, 2, {2048, 60000});  // one row for both
  EXPECT_EQ(values(add, Mode::kFast), (Values{2048, 60000, 62048, 0}));
  EXPECT_EQ(values(add, Mode::kStable), (Values{2048, 59904, 61952, 0}));  // BF16
  add.computation.kernel = Kernel::kSubtract;
  EXPECT_EQ(values(add, Mode::kFast), (Values{-2047, -60000, 57952, -kInfinity}));
  EXPECT_EQ(values(add, Mode::kFast, {.saturate = true}), (Values{-2047, -60000, 57952, -65504}));
  add.computation.kernel = Kernel::kMultiply;
  EXPECT_EQ(values(add, Mode::kFast), (Values{2048, kInfinity, kInfinity, -kInfinity}));

  OwnedComputation fused(Kernel::kMultiplyAdd, Format::kFp32, 1, 1);
  fused.give(0, Format::kFp32, 1, 1, {1 + 0x1p-23});
  fused.give(1, Format::kFp32, 1, 1, {1 - 0x1p-23});
  fused.give(2, Format::kFp32, 1, 1, {-1});
  EXPECT_EQ(values(fused, Mode::kFast), (Values{-0x1p-46}));  // 0 when rounded in between

  OwnedComputation scale = row_of(Kernel::kScale, Format::kE4m3, {1, -2, 448, 3});
  scale.computation.attribute = 1.5f;
  EXPECT_EQ(values(scale, Mode::kStable), (Values{1.5, -3, 672, 4.5}));
  const Values fp8 = values(scale, Mode::kFast);
  EXPECT_EQ(Values(fp8.begin(), fp8.begin() + 2), (Values{1.5, -3}));
  EXPECT_TRUE(std::isnan(fp8[2]));
  EXPECT_EQ(fp8[3], 4.5);
  EXPECT_EQ(values(scale, Mode::kFast, {.saturate = true})[2], 448);
}

TEST(SystemcPrograms, ReluAndItsZeros) {
  const auto relu =
      row_of(Kernel::kRelu, Format::kFp16, {-1, -0.0, 0.0, 3, kInfinity, -kInfinity, kNan});
  const Values out = values(relu, Mode::kFast);
  EXPECT_EQ(Values(out.begin(), out.begin() + 6), (Values{0, 0, 0, 3, kInfinity, 0}));
  EXPECT_TRUE(std::isnan(out[6]));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(std::signbit(out[i])) << i;
}

TEST(SystemcPrograms, FunctionsByHand) {
  EXPECT_EQ(values(row_of(Kernel::kExp, Format::kFp16, {0, 1, -kInfinity, 12}), Mode::kFast),
            (Values{1, 2.71875, 0, kInfinity}));
  EXPECT_EQ(values(row_of(Kernel::kReciprocal, Format::kFp16, {4, -0.5, 0, -0.0}), Mode::kFast),
            (Values{0.25, -2, kInfinity, -kInfinity}));
  const Values roots =
      values(row_of(Kernel::kRsqrt, Format::kFp16, {4, 0.25, 0, -0.0, -1}), Mode::kFast);
  EXPECT_EQ(Values(roots.begin(), roots.begin() + 4), (Values{0.5, 2, kInfinity, -kInfinity}));
  EXPECT_TRUE(std::isnan(roots[4]));
  EXPECT_EQ(values(row_of(Kernel::kSquare, Format::kFp16, {-3, 300}), Mode::kFast),
            (Values{9, kInfinity}));
}

TEST(SystemcPrograms, ActivationsFollowTheirFunctionsAndLimits) {
  const Values in = {-4, -1, -0.5, 0, 0.5, 1, 3};
  const auto gelu = [](double x) { return x * std::erfc(-x / std::sqrt(2.0)) / 2; };
  const auto gelu_tanh = [](double x) {
    return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
  };
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  const auto check = [&in](Kernel kernel, const auto& function) {
    const Values out = values(row_of(kernel, Format::kFp32, in), Mode::kFast);
    for (std::size_t i = 0; i < in.size(); ++i) {
      EXPECT_NEAR(out[i], function(in[i]), 4e-7) << traits_of(kernel).name << ' ' << in[i];
    }
    const Values ends =
        values(row_of(kernel, Format::kFp32, {-kInfinity, kInfinity, kNan, -1e38}), Mode::kFast);
    EXPECT_EQ(ends[0], 0);
    EXPECT_TRUE(std::signbit(ends[0])) << traits_of(kernel).name;
    EXPECT_EQ(ends[1], kInfinity);
    EXPECT_TRUE(std::isnan(ends[2]));
    EXPECT_EQ(ends[3], 0) << traits_of(kernel).name;
  };
  check(Kernel::kGelu, gelu);
  check(Kernel::kGeluTanh, gelu_tanh);
  check(Kernel::kSilu, silu);
}

/// Lane 0 gets 2^15, 2^-10, -2^15: its small part is lost in FP16 and in FP32, not in FP64. Lane 1
/// gets 2, 2^-10, -2: lost in FP16 alone.
OwnedComputation three_sums(Kernel kernel = Kernel::kSum) {
  Values row(66, 0.0);
  row[0] = 0x1p15, row[32] = 0x1p-10, row[64] = -0x1p15;
  row[1] = 2, row[33] = 0x1p-10, row[65] = -2;
  return row_of(kernel, Format::kFp16, row);
}

TEST(SystemcPrograms, TheThreeModesSumDifferently) {
  const OwnedComputation sum = three_sums();
  EXPECT_EQ(values(sum, Mode::kFast), (Values{0}));
  EXPECT_EQ(values(sum, Mode::kStable), (Values{0x1p-10}));
  EXPECT_EQ(values(sum, Mode::kSafe), (Values{0x1p-9}));
  EXPECT_EQ(values(sum, Mode::kFast, {.accumulator = AccumulatorChoice::kWide}), (Values{0x1p-10}));

  const Execution fast = run(sum, Mode::kFast), stable = run(sum, Mode::kStable),
                  safe = run(sum, Mode::kSafe);
  EXPECT_EQ(fast.status,
            (ExecutionStatus{Mode::kFast, Format::kFp16, AccumulatorFormat::kFp16, true}));
  EXPECT_EQ(stable.status,
            (ExecutionStatus{Mode::kStable, Format::kBf16, AccumulatorFormat::kFp32, true}));
  EXPECT_EQ(safe.status, (ExecutionStatus{Mode::kSafe, Format::kBf16, AccumulatorFormat::kFp64,
                                          true, true, true}));
  // 66 elements, and the tree over 32 lanes: 31 values, of compensated sums two each.
  EXPECT_EQ(fast.accumulators->element_count, 66u + 31);
  EXPECT_EQ(safe.accumulators->element_count, 66u + 62);
  EXPECT_EQ(fast.accumulators->max_mag, 0x7800u);  // 2^15
  EXPECT_EQ(fast.accumulator_format, Format::kFp16);
  EXPECT_EQ(stable.accumulators->max_mag, std::bit_cast<std::uint32_t>(0x1p15f));
  EXPECT_EQ(safe.accumulators->max_mag, 0x3F800000u);  // of compressed operands: 2^15 / 2^15
  EXPECT_EQ(safe.accumulator_format, Format::kFp32);
}

TEST(SystemcPrograms, ASumOfSquaresOverflowsInFastAlone) {
  const OwnedComputation squares = row_of(Kernel::kSumOfSquares, Format::kFp16, {300, 4, -300});
  EXPECT_EQ(values(squares, Mode::kFast), (Values{kInfinity}));
  // Lanes 0 and 2, and what takes them in: both in three levels of the tree, then one in two.
  EXPECT_EQ(run(squares, Mode::kFast).accumulators->nonfinite_count, 2u + 6 + 2);
  EXPECT_EQ(run(squares, Mode::kFast).accumulators->first_nonfinite, 0u);
  EXPECT_EQ(run(squares, Mode::kFast).accumulators->max_mag, 0x4C00u);  // 16
  EXPECT_EQ(values(squares, Mode::kStable), (Values{180224}));          // 180016 in BF16
  EXPECT_EQ(values(squares, Mode::kSafe), (Values{180224}));
  // 2^127 + 2^127 leaves binary32; compressed it does not.
  const OwnedComputation huge = row_of(Kernel::kSumOfSquares, Format::kFp32, {0x1p70, 1});
  EXPECT_EQ(values(huge, Mode::kStable), (Values{kInfinity}));
  EXPECT_EQ(run(huge, Mode::kStable).accumulators->nonfinite_count, 1u + 4);
  EXPECT_EQ(run(huge, Mode::kSafe).accumulators->nonfinite_count, 0u);
  EXPECT_EQ(values(huge, Mode::kSafe), (Values{kInfinity}));  // 2^140 is no binary32 number
}

TEST(SystemcPrograms, MeanVarianceAndMaximum) {
  const Values row = {1, 2, 3, 6};
  EXPECT_EQ(values(row_of(Kernel::kMean, Format::kFp16, row), Mode::kFast), (Values{3}));
  EXPECT_EQ(values(row_of(Kernel::kMean, Format::kFp16, row), Mode::kSafe), (Values{3}));
  EXPECT_EQ(values(row_of(Kernel::kVariance, Format::kFp16, row), Mode::kFast), (Values{3.5}));
  OwnedComputation unbiased = row_of(Kernel::kVariance, Format::kFp16, {1, 2, 3});
  unbiased.computation.attribute = 1;
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    EXPECT_EQ(values(unbiased, mode), (Values{1}));
  }
  EXPECT_EQ(values(row_of(Kernel::kMaximum, Format::kFp16, {-5, -2, -9}), Mode::kSafe),
            (Values{-2}));
  // The mean of 1000, 1001 is 1000.5 in FP16 too; the mean of 2048, 2049 (FP32 operands) is not.
  OwnedComputation close = row_of(Kernel::kVariance, Format::kFp32, {2048, 2049});
  close.computation.format = Format::kFp16;
  EXPECT_EQ(values(close, Mode::kStable), (Values{0.25}));
  EXPECT_EQ(values(close, Mode::kFast), (Values{0.5}));  // mean 2048: deviations 0 and 1
}

TEST(SystemcPrograms, SoftmaxWithMask) {
  OwnedComputation softmax(Kernel::kSoftmax, Format::kFp16, 2, 4);
  softmax.give(0, Format::kFp16, 2, 4, {1, 1, 1, 60000, 5, 5, 5, 5});
  const std::byte shown{1}, hidden{0};
  softmax.give(1, {shown, shown, hidden, hidden, hidden, hidden, hidden, hidden}, Format::kFp16, 2,
               4);
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    const Values out = values(softmax, mode);
    EXPECT_EQ(Values(out.begin(), out.begin() + 4), (Values{0.5, 0.5, 0, 0}));
    for (std::size_t i = 4; i < 8; ++i) {
      if (mode == Mode::kSafe) {
        EXPECT_EQ(out[i], 0);
      } else {
        EXPECT_TRUE(std::isnan(out[i]));
      }
    }
    EXPECT_EQ(run(softmax, mode).accumulators->nonfinite_count > 0, mode != Mode::kSafe);
  }
  // The factor comes before the maximum: finite although 60000 * 4 is not an FP16 number.
  OwnedComputation large = row_of(Kernel::kSoftmax, Format::kFp16, {60000, 60000});
  large.computation.attribute = 4;
  EXPECT_EQ(values(large, Mode::kFast), (Values{0.5, 0.5}));
}

TEST(SystemcPrograms, NormsByHand) {
  OwnedComputation norm(Kernel::kLayerNorm, Format::kFp32, 1, 4);
  norm.give(0, Format::kFp32, 1, 4, {1, 3, 1, 3});
  norm.computation.attribute = 0;
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    EXPECT_EQ(values(norm, mode), (Values{-1, 1, -1, 1}));
  }
  norm.give(1, Format::kFp16, 1, 4, {1, 2, 3, 4});
  EXPECT_EQ(values(norm, Mode::kFast), (Values{-1, 2, -3, 4}));
  norm.give(2, Format::kBf16, 1, 4, {10, 10, 10, 20});
  EXPECT_EQ(values(norm, Mode::kFast), (Values{9, 12, 7, 24}));
  norm.computation.operands[1] = {};
  EXPECT_EQ(values(norm, Mode::kFast), (Values{9, 11, 9, 21}));

  OwnedComputation constant = row_of(Kernel::kLayerNorm, Format::kFp16, {7, 7, 7});
  constant.computation.attribute = 0;
  EXPECT_TRUE(std::isnan(values(constant, Mode::kFast)[0]));    // 0 times infinity
  EXPECT_EQ(values(constant, Mode::kSafe), (Values{0, 0, 0}));  // the factor stays finite

  OwnedComputation rms = row_of(Kernel::kRmsNorm, Format::kFp16, {512, -512, 512, 512});
  rms.computation.attribute = 0;
  EXPECT_EQ(values(rms, Mode::kFast), (Values{0, 0, 0, 0}));  // 1 / sqrt(infinity)
  EXPECT_TRUE(std::signbit(values(rms, Mode::kFast)[1]));
  EXPECT_EQ(values(rms, Mode::kStable), (Values{1, -1, 1, 1}));
  rms.give(1, Format::kFp16, 1, 4, {2, 4, 8, 16});
  EXPECT_EQ(values(rms, Mode::kSafe), (Values{2, -4, 8, 16}));
}

TEST(SystemcPrograms, MatrixProductsByHand) {
  OwnedComputation scores(Kernel::kMatmul, Format::kFp16, 1, 2);
  scores.computation.batch = 2;
  scores.computation.depth = 2;
  scores.computation.attribute = 0.5f;
  scores.give(0, Format::kFp16, 2, 2, {1, 2, 3, 4});
  scores.give(1, Format::kFp16, 4, 2, {1, 0, 0, 1, 10, 10, 20, 30});
  for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
    EXPECT_EQ(values(scores, mode), (Values{0.5, 1, 35, 90}));
    EXPECT_EQ(run(scores, mode).accumulators->element_count, 8u);
  }

  // 256 * 256 overflows FP16, not FP32; * 0.5 it is an FP16 number.
  OwnedComputation large(Kernel::kMatmul, Format::kFp16, 1, 1);
  large.computation.depth = 1;
  large.computation.attribute = 0.5f;
  large.give(0, Format::kFp16, 1, 1, {256});
  large.give(1, Format::kFp16, 1, 1, {256});
  EXPECT_EQ(values(large, Mode::kFast), (Values{32768}));
  EXPECT_EQ(values(large, Mode::kFast, {.accumulator = AccumulatorChoice::kNarrow}),
            (Values{kInfinity}));
  EXPECT_EQ(run(large, Mode::kSafe).accumulators->max_mag, 0x3F800000u);  // 1 * 1, compressed

  OwnedComputation linear(Kernel::kLinear, Format::kFp16, 2, 1);
  linear.computation.depth = 3;
  linear.give(0, Format::kFp16, 2, 3, {1, 2, 3, -1, -2, -3});
  linear.give(1, Format::kFp16, 1, 3, {1, 1, 2});
  EXPECT_EQ(values(linear, Mode::kFast), (Values{9, -9}));
  linear.give(2, Format::kFp16, 1, 1, {100});
  EXPECT_EQ(values(linear, Mode::kSafe), (Values{109, 91}));
}

struct CostCase {
  const char* name;
  OwnedComputation (*make)();
  Mode mode;
  UnitSettings settings;
  ExecutionCost cost;
};

OwnedComputation zeros(Kernel kernel, Format format, std::uint32_t rows, std::uint32_t columns,
                       std::initializer_list<std::uint32_t> operand_rows) {
  OwnedComputation owned(kernel, format, rows, columns);
  std::size_t i = 0;
  for (const std::uint32_t r : operand_rows) {
    if (r > 0) owned.give(i, format, r, columns, Values(std::size_t{r} * columns, 0.0));
    ++i;
  }
  return owned;
}

OwnedComputation masked_softmax() {
  OwnedComputation owned = zeros(Kernel::kSoftmax, Format::kFp16, 2, 70, {2});
  owned.give(1, std::vector<std::byte>(70, std::byte{1}), Format::kFp16, 1, 70);
  return owned;
}

OwnedComputation product(Kernel kernel) {
  OwnedComputation owned(kernel, Format::kFp16, 20, 40);
  owned.computation.depth = 10;
  owned.give(0, Format::kFp16, 20, 10, Values(200, 0.0));
  owned.give(1, Format::kFp16, 40, 10, Values(400, 0.0));
  if (kernel == Kernel::kLinear) owned.give(2, Format::kFp16, 1, 40, Values(40, 0.0));
  return owned;
}

// Beats, operations, tails and scalars of docs/vector_unit.md, added up by hand. 512 bits: 32 lanes
// of FP16, 5 levels.
TEST(SystemcPrograms, CostsByHand) {
  const auto narrow = [] { return zeros(Kernel::kAdd, Format::kFp16, 3, 70, {3, 1}); };
  const std::vector<CostCase> cases = {
      // 210 elements: 7 beats.
      {"add", narrow, Mode::kFast, {}, {1, 7, 7, 420 + 140, 420}},
      {"add SAFE", narrow, Mode::kSafe, {}, {1, 7, 7, 560, 420}},
      {"add, 64 bits", narrow, Mode::kFast, {.datapath_width = 64}, {1, 53, 53, 560, 420}},
      {"gelu_tanh",
       [] { return zeros(Kernel::kGeluTanh, Format::kFp32, 1, 17, {1}); },
       Mode::kFast,
       {},
       {1, 2, 12, 68, 68}},
      // 128 elements of 8 bits are 2 beats, in BF16 they are written in 4.
      {"cast E4M3",
       [] { return zeros(Kernel::kCast, Format::kE4m3, 1, 128, {1}); },
       Mode::kStable,
       {},
       {1, 2, 4, 128, 256}},
      // 2 rows of 3 beats.
      {"sum",
       [] { return zeros(Kernel::kSum, Format::kFp16, 2, 70, {2}); },
       Mode::kFast,
       {},
       {1, 6, 6 + 5, 280, 4}},
      // Search: 140 elements, 5 beats. Kahan: 4 * 32 / 8 = 16, 1 for the division.
      {"sum SAFE",
       [] { return zeros(Kernel::kSum, Format::kFp16, 2, 70, {2}); },
       Mode::kSafe,
       {},
       {2, 11, 5 + 5 + 6 * 17 + 40, 560, 4}},
      {"sum SAFE, 3 FP64 lanes",
       [] { return zeros(Kernel::kSum, Format::kFp16, 2, 70, {2}); },
       Mode::kSafe,
       {.fp64_lanes = 3},
       {2, 11, 5 + 5 + 6 * 45 + 40, 560, 4}},
      {"maximum SAFE",
       [] { return zeros(Kernel::kMaximum, Format::kFp16, 2, 70, {2}); },
       Mode::kSafe,
       {},
       {1, 6, 6 + 5, 280, 4}},
      {"variance",
       [] { return zeros(Kernel::kVariance, Format::kFp16, 2, 70, {2}); },
       Mode::kFast,
       {},
       {2, 12, (6 + 5 + 8) + (18 + 5 + 8), 560, 4}},
      {"softmax",
       [] { return zeros(Kernel::kSoftmax, Format::kFp16, 2, 70, {2}); },
       Mode::kFast,
       {},
       {3, 18, (12 + 5) + (24 + 5 + 8) + 6, 560, 280}},
      {"softmax, mask",
       masked_softmax,
       Mode::kFast,
       {},
       {3, 18, (18 + 5) + (30 + 5 + 8) + 6, 700, 280}},
      {"softmax, mask, SAFE",
       masked_softmax,
       Mode::kSafe,
       {},
       {3, 18, (18 + 5) + (6 * 20 + 40 + 8) + 6, 700, 280}},
      {"layer_norm",
       [] { return zeros(Kernel::kLayerNorm, Format::kFp16, 2, 70, {2}); },
       Mode::kFast,
       {},
       {3, 18, (6 + 5 + 8) + (18 + 5 + 8) + 12, 840, 280}},
      {"layer_norm, gain, bias, SAFE",
       [] {
         return zeros(Kernel::kLayerNorm, Format::kFp16, 2, 70, {2, 1, 1});
       },
       Mode::kSafe,
       {},
       {4, 23, (5 + 5) + (6 * 17 + 40 + 8) + (6 * 19 + 40 + 8) + 24, 4 * 280 + 280, 280}},
      {"rms_norm, gain",
       [] {
         return zeros(Kernel::kRmsNorm, Format::kFp16, 2, 70, {2, 1});
       },
       Mode::kFast,
       {},
       {2, 12, (12 + 5 + 8) + 12, 560 + 140, 280}},
      // 2 x 2 tiles of 16 rows and 32 columns, 10 deep; write-back 20 rows of 2 beats.
      {"matmul",
       [] { return product(Kernel::kMatmul); },
       Mode::kFast,
       {},
       {2, 40 + 40, 40 + 40, 1200, 1600}},
      {"matmul SAFE",
       [] { return product(Kernel::kMatmul); },
       Mode::kSafe,
       {},
       {4, 7 + 13 + 80, (7 + 5) + (13 + 5) + 40 * 17 + 40, 2400, 1600}},
      {"linear, 8 rows",
       [] { return product(Kernel::kLinear); },
       Mode::kFast,
       {.matrix_rows = 8},
       {2, 60 + 40, 60 + 40, 1280, 1600}},
  };
  for (const CostCase& test : cases) {
    const OwnedComputation owned = test.make();
    const ExecutionCost cost = run(owned, test.mode, test.settings).cost;
    EXPECT_EQ(cost.passes, test.cost.passes) << test.name;
    EXPECT_EQ(cost.beats, test.cost.beats) << test.name;
    EXPECT_EQ(cost.cycles, test.cost.cycles) << test.name;
    EXPECT_EQ(cost.bytes_read, test.cost.bytes_read) << test.name;
    EXPECT_EQ(cost.bytes_written, test.cost.bytes_written) << test.name;
  }
}

/// Kernels x formats.
class SystemcInstructionSets : public testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {
};

TEST_P(SystemcInstructionSets, GiveEqualExecutions) {
  if (!sc::has_instruction_set(InstructionSet::kAvx2)) GTEST_SKIP() << "no AVX2 on this machine";
  const auto [kernel, format] = GetParam();
  const std::uint64_t seed = case_seed(7000 + 10 * kernel + format);
  SCOPED_TRACE("OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  const LaneProcessor portable(InstructionSet::kPortable), avx2(InstructionSet::kAvx2);
  std::size_t elements = 0;
  for (int i = 0; i < 40; ++i) {
    const OwnedComputation owned =
        random_computation(rng, kKernels[kernel].kernel, kAllFormats[format], draw(rng, 0, 2) != 0);
    const UnitSettings settings = {
        .datapath_width =
            draw(rng, 0, 1) == 0 ? 512u : static_cast<unsigned>(32 * draw(rng, 1, 16)),
        .fp64_lanes = static_cast<unsigned>(draw(rng, 1, 16)),
        .matrix_rows = static_cast<unsigned>(draw(rng, 1, 4)),
        .saturate = draw(rng, 0, 1) == 1,
        .accumulator = static_cast<AccumulatorChoice>(draw(rng, 0, 2))};
    for (const Mode mode : {Mode::kFast, Mode::kStable, Mode::kSafe}) {
      const Execution a = portable.execute(owned.computation, mode, settings);
      const Execution b = avx2.execute(owned.computation, mode, settings);
      ASSERT_EQ(a.output, b.output) << i;
      ASSERT_EQ(a.accumulators, b.accumulators) << i;
      ASSERT_EQ(a, b) << i;
      elements += owned.computation.output_elements();
    }
  }
  EXPECT_GT(elements, 100u);
}

INSTANTIATE_TEST_SUITE_P(KernelsAndFormats, SystemcInstructionSets,
                         testing::Combine(testing::Range(std::size_t{0}, kKernels.size()),
                                          testing::Range(std::size_t{0}, std::size_t{5})));

std::string refusal(const OwnedComputation& owned, const UnitSettings& settings = {}) {
  try {
    (void)LaneProcessor().execute(owned.computation, Mode::kFast, settings);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SystemcProgramsRefuse, WhatDoesNotFit) {
  const auto softmax = [] { return zeros(Kernel::kSoftmax, Format::kFp16, 2, 4, {2}); };
  OwnedComputation bad = softmax();
  EXPECT_EQ(refusal(bad), "accepted");
  bad.computation.rows = 0;
  EXPECT_EQ(refusal(bad), "rows of softmax = 0: must be 1 or more");
  bad = softmax();
  bad.computation.columns = 0;
  EXPECT_EQ(refusal(bad), "columns of softmax = 0: must be 1 or more");
  bad = softmax();
  bad.computation.columns = 5;
  EXPECT_EQ(refusal(bad), "operand of softmax: x.columns = 4: must be 5");
  bad = softmax();
  bad.computation.operands[0].rows = 3;
  EXPECT_EQ(refusal(bad), "operand of softmax: x.rows = 3: must be 1..2");
  bad = softmax();
  bad.computation.operands[0].format = Format::kFp32;
  EXPECT_EQ(refusal(bad),
            "operand of softmax: x.elements = 16: must be 32 bytes, rows x columns elements");
  bad = softmax();
  bad.computation.operands[0].format = static_cast<Format>(9);
  EXPECT_EQ(refusal(bad), "operand of softmax: x.format = 9: must be 0..4");
  bad = softmax();
  bad.computation.operands[0] = {};
  EXPECT_EQ(refusal(bad), "operand of softmax: x is absent: must be given");
  bad = softmax();
  bad.give(2, Format::kFp16, 1, 4, {1, 2, 3, 4});
  EXPECT_EQ(refusal(bad), "operand of softmax: operand 2 is given: must be absent");
  bad = softmax();
  bad.give(1, std::vector<std::byte>(7), Format::kFp16, 2, 4);
  EXPECT_EQ(refusal(bad),
            "operand of softmax: mask.elements = 7: must be 8 bytes, rows x columns elements");
  bad = softmax();
  bad.computation.depth = 3;
  EXPECT_EQ(refusal(bad), "depth of softmax = 3: must be 0");
  bad = softmax();
  bad.computation.batch = 2;
  EXPECT_EQ(refusal(bad), "batch of softmax = 2: must be 1");
  bad = softmax();
  bad.computation.format = static_cast<Format>(5);
  EXPECT_EQ(refusal(bad), "format of softmax = 5: must be 0..4");
  bad = softmax();
  bad.computation.kernel = static_cast<Kernel>(99);
  EXPECT_EQ(refusal(bad), "kernel = 99: must be 0..23");
  bad = product(Kernel::kMatmul);
  bad.computation.depth = 0;
  EXPECT_EQ(refusal(bad), "depth of matmul = 0: must be 1 or more");
  bad = product(Kernel::kMatmul);
  bad.computation.batch = 2;
  EXPECT_EQ(refusal(bad), "operand of matmul: a.rows = 20: must be 40");
  bad = softmax();
  EXPECT_EQ(refusal(bad, {.fp64_lanes = 0}), "fp64_lanes = 0: must be 1..64");
  EXPECT_EQ(refusal(bad, {.matrix_rows = 1025}), "matrix_rows = 1025: must be 1..1024");
}

}  // namespace
}  // namespace opd::tb
