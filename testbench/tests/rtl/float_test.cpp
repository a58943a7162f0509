// The binary32 units against the host's FPU, bit for bit: all pairs of corner values, then random
// pairs in strata that reach cancellation, ties, and products at both ends of the range.
// OPD_SOAK=full runs 120 million pairs instead of 2 million.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "Vfloat_units.h"
#include "binary32_vectors.hpp"
#include "paths/coverage.hpp"
#include "seed.hpp"

namespace opd::tb {
namespace {

constexpr std::uint32_t kQuietNan = 0x7FC00000;

float value(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// Bits of a result; the device has one NaN only.
std::uint32_t bits_of(float result) {
  return std::isnan(result) ? kQuietNan : std::bit_cast<std::uint32_t>(result);
}

class FloatUnits {
 public:
  ~FloatUnits() { write_coverage(context_); }
  void expect(std::uint32_t a, std::uint32_t b) {
    model_.a_i = a;
    model_.b_i = b;
    model_.eval();
    // Volatile: the compiler must leave the operation to the FPU.
    const volatile float x = value(a), y = value(b);
    const volatile float sum = x + y, product = x * y;
    const bool greater = x > y;
    if (model_.sum_o != bits_of(sum) || model_.product_o != bits_of(product) ||
        (model_.greater_o != 0) != greater) {
      ADD_FAILURE() << fmt::format(
          "{:08X}, {:08X}: sum {:08X} not {:08X}, product {:08X} not {:08X}, greater {} not {}", a,
          b, model_.sum_o, bits_of(sum), model_.product_o, bits_of(product), model_.greater_o,
          greater ? 1 : 0);
      ++mismatches_;
    }
    ++pairs_;
    const std::uint32_t exponent = model_.product_o >> 23 & 0xFF;
    subnormal_products_ += exponent == 0 && (model_.product_o & 0x7FFFFF) != 0;
    subnormal_sums_ += (model_.sum_o >> 23 & 0xFF) == 0 && (model_.sum_o & 0x7FFFFF) != 0;
    infinite_ += exponent == 0xFF;
  }
  /// The same against what another implementation has made of the pair.
  void expect(const Binary32Vector& v) {
    model_.a_i = v.a;
    model_.b_i = v.b;
    model_.eval();
    EXPECT_EQ(model_.sum_o, v.sum) << fmt::format("{:08X} + {:08X}", v.a, v.b);
    EXPECT_EQ(model_.product_o, v.product) << fmt::format("{:08X} * {:08X}", v.a, v.b);
    EXPECT_EQ(model_.greater_o != 0, v.greater) << fmt::format("{:08X} > {:08X}", v.a, v.b);
    ++pairs_;
  }
  [[nodiscard]] bool failed() const { return mismatches_ >= 10; }
  [[nodiscard]] std::uint64_t pairs() const { return pairs_; }
  [[nodiscard]] std::uint64_t subnormal_products() const { return subnormal_products_; }
  [[nodiscard]] std::uint64_t subnormal_sums() const { return subnormal_sums_; }
  [[nodiscard]] std::uint64_t infinite_products() const { return infinite_; }

 private:
  VerilatedContext context_;
  Vfloat_units model_{&context_};
  int mismatches_ = 0;
  std::uint64_t pairs_ = 0, subnormal_products_ = 0, subnormal_sums_ = 0, infinite_ = 0;
};

/// Both signs of: every special value, and around a spread of exponents the fractions next to a
/// carry, to a tie and to a power of two.
std::vector<std::uint32_t> corner_values() {
  constexpr std::uint32_t kFractions[] = {0,        1,        2,        3,        0x000800,
                                          0x000FFF, 0x001000, 0x3FFFFF, 0x400000, 0x400001,
                                          0x555555, 0x7FFFFD, 0x7FFFFE, 0x7FFFFF};
  constexpr std::uint32_t kExponents[] = {0,   1,   2,   3,   23,  24,  25,  62,  63,  64,
                                          100, 102, 103, 104, 125, 126, 127, 128, 129, 150,
                                          151, 152, 190, 191, 192, 230, 252, 253, 254, 255};
  std::vector<std::uint32_t> values;
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    for (const std::uint32_t exponent : kExponents) {
      for (const std::uint32_t fraction : kFractions) {
        values.push_back(sign | exponent << 23 | fraction);
      }
    }
  }
  return values;
}

TEST(Float, AllPairsOfCornerValues) {
  ASSERT_EQ(std::fegetround(), FE_TONEAREST);
  FloatUnits units;
  const std::vector<std::uint32_t> values = corner_values();
  for (const std::uint32_t a : values) {
    for (const std::uint32_t b : values) {
      units.expect(a, b);
      if (units.failed()) return;
    }
  }
  fmt::print("{} pairs of {} corner values\n", units.pairs(), values.size());
  EXPECT_EQ(units.pairs(), values.size() * values.size());
  EXPECT_EQ(values.size(), 840u);
}

TEST(Float, EqualsSoftFloat) {
  FloatUnits units;
  for (const Binary32Vector& v : binary32_vectors()) units.expect(v);
  EXPECT_EQ(units.pairs(), 4096u);
}

/// What a stratum of random pairs aims at.
enum class Stratum { kAny, kNear, kTies, kTinyProduct, kHugeProduct, kSubnormal, kFewBits };
constexpr unsigned kStrata = 7;

std::pair<std::uint32_t, std::uint32_t> random_pair(std::mt19937_64& rng, Stratum stratum) {
  const std::uint64_t word = rng();
  auto a = static_cast<std::uint32_t>(word), b = static_cast<std::uint32_t>(word >> 32);
  const auto with_exponent = [](std::uint32_t bits, std::int64_t exponent) {
    const std::int64_t field = std::min<std::int64_t>(255, std::max<std::int64_t>(0, exponent));
    return (bits & 0x807FFFFFu) | static_cast<std::uint32_t>(field) << 23;
  };
  const std::int64_t exponent = a >> 23 & 0xFF;
  switch (stratum) {
    case Stratum::kAny:
      break;
    case Stratum::kNear:  // sums: cancellation, alignment across the whole significand
      b = with_exponent(b, exponent + draw(rng, -28, 28));
      if ((word & 3u) == 0) b = a ^ 0x80000000u ^ static_cast<std::uint32_t>(rng() & 7u);
      break;
    case Stratum::kTies:  // sums: few ones, at the distance where they fall on the half bit
      a &= 0xFF80000Fu;
      b = with_exponent(b & 0xFFC00000u, exponent - draw(rng, 22, 26));
      break;
    case Stratum::kTinyProduct:  // around the smallest normal and subnormal numbers
      b = with_exponent(b, 127 - exponent + draw(rng, -26, 4));
      break;
    case Stratum::kHugeProduct:  // around overflow
      b = with_exponent(b, 127 + 254 - exponent + draw(rng, -3, 2));
      break;
    case Stratum::kSubnormal:  // one operand subnormal, of any length
      a = (a & 0x80000000u) | (a & 0x7FFFFFu) >> draw(rng, 0, 22);
      break;
    case Stratum::kFewBits:  // products: short significands, so that ties happen
      a &= 0xFFFFF800u;
      b &= 0xFFFFE000u;
      b = with_exponent(b, 127 - exponent + draw(rng, -14, 140));
      break;
  }
  if ((rng() & 1u) != 0) std::swap(a, b);
  return {a, b};
}

TEST(Float, RandomPairs) {
  const char* soak = std::getenv("OPD_SOAK");
  const bool full = soak != nullptr && std::string(soak) == "full";
  const std::uint64_t pairs = full ? 120'000'000 : 2'000'000;
  const std::uint64_t seed = case_seed(0xF10A7);
  SCOPED_TRACE(fmt::format("OPD_SEED={}", seed));
  std::mt19937_64 rng(seed);
  FloatUnits units;
  for (std::uint64_t i = 0; i < pairs; ++i) {
    const auto [a, b] = random_pair(rng, static_cast<Stratum>(i % kStrata));
    units.expect(a, b);
    if (units.failed()) return;
  }
  fmt::print("{} pairs: {} subnormal products, {} subnormal sums, {} infinite products\n",
             units.pairs(), units.subnormal_products(), units.subnormal_sums(),
             units.infinite_products());
  EXPECT_EQ(units.pairs(), pairs);
  EXPECT_GT(units.subnormal_products(), pairs / 20);
  EXPECT_GT(units.subnormal_sums(), pairs / 500);
  EXPECT_GT(units.infinite_products(), pairs / 50);
}

}  // namespace
}  // namespace opd::tb
