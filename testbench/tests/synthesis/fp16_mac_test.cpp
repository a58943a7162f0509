// The yardstick datapath of the area figures against arithmetic of another kind: exact integers for FP16 results, the
// processor's binary64 for binary32 ones.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "Vmac_fp16.h"
#include "Vmac_fp32.h"
#include "seed.hpp"

namespace opd::tb {
namespace {

constexpr int kLanes = 32;
constexpr std::uint16_t kNan16 = 0x7E00;
constexpr std::uint32_t kNan32 = 0x7FC00000;

double decode16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int significand = bits & 0x3FF;
  double value =
      exponent == 0 ? std::ldexp(significand, -24) : std::ldexp(1024 + significand, exponent - 25);
  if (exponent == 31) value = significand == 0 ? INFINITY : NAN;
  return (bits & 0x8000) != 0 ? -value : value;
}

/// An FP16 number as a multiple of 2^-24: an integer below 2^40.
__int128 fixed16(std::uint16_t bits) {
  return static_cast<__int128>(std::ldexp(decode16(bits), 24));
}

/// a * b + c rounded once to FP16. Every finite FP16 product and addend is a multiple of 2^-48 below 2^33.
std::uint16_t oracle16(std::uint16_t a, std::uint16_t b, std::uint16_t c) {
  const double special = decode16(a) * decode16(b) + decode16(c);
  if (std::isnan(special)) return kNan16;
  if (std::isinf(special)) return special < 0 ? 0xFC00 : 0x7C00;
  const __int128 sum = fixed16(a) * fixed16(b) + (fixed16(c) << 24);
  // An exact zero has the sign that binary64 gives it: the product is exact there, and so is the sum when it is zero.
  if (sum == 0) return std::signbit(special) ? 0x8000 : 0;
  const std::uint16_t sign{sum < 0 ? std::uint16_t{0x8000} : std::uint16_t{0}};
  const unsigned __int128 magnitude = static_cast<unsigned __int128>(sum < 0 ? -sum : sum);
  int exponent =
      1;  // 2^(exponent - 25) is the last place; 2^-24, that is 2^24 units, is the smallest
  while (exponent < 40 && magnitude >> (exponent + 23 + 11) != 0) ++exponent;
  const int drop = exponent + 23;
  std::uint32_t significand = static_cast<std::uint32_t>(magnitude >> drop);
  const unsigned __int128 rest = magnitude - (static_cast<unsigned __int128>(significand) << drop);
  const unsigned __int128 half = static_cast<unsigned __int128>(1) << (drop - 1);
  if (rest > half || (rest == half && (significand & 1) != 0)) ++significand;
  if (significand == 2048) {
    significand = 1024;
    ++exponent;
  }
  if (significand < 1024) return static_cast<std::uint16_t>(sign | significand);
  if (exponent >= 31) return static_cast<std::uint16_t>(sign | 0x7C00);
  return static_cast<std::uint16_t>(sign | exponent << 10 | (significand & 0x3FF));
}

/// a * b + c rounded once to binary32. The product has 22 bits and is exact; the binary64 sum of two binary32 numbers has
/// more than twice their precision, so that rounding it again changes nothing.
std::uint32_t oracle32(std::uint16_t a, std::uint16_t b, std::uint32_t c) {
  const double sum = decode16(a) * decode16(b) + static_cast<double>(std::bit_cast<float>(c));
  return std::isnan(sum) ? kNan32 : std::bit_cast<std::uint32_t>(static_cast<float>(sum));
}

/// One operand triple per lane in, results of the vector before out.
template <class Model, class Addend>
class Datapath {
 public:
  Datapath() { model_.eval(); }  // the first evaluation sees no edge

  std::array<Addend, kLanes> operator()(const std::array<std::uint16_t, kLanes>& a,
                                        const std::array<std::uint16_t, kLanes>& b,
                                        const std::array<Addend, kLanes>& c) {
    static_assert(sizeof(Model::a_i) == sizeof(a) && sizeof(Model::c_i) == sizeof(c));
    std::memcpy(&model_.a_i, a.data(), sizeof(a));
    std::memcpy(&model_.b_i, b.data(), sizeof(b));
    std::memcpy(&model_.c_i, c.data(), sizeof(c));
    for (int edge = 0; edge < 2; ++edge) {
      model_.clk_i = 1;
      model_.eval();
      model_.clk_i = 0;
      model_.eval();
    }
    std::array<Addend, kLanes> result;
    std::memcpy(result.data(), &model_.result_o, sizeof(result));
    return result;
  }

 private:
  VerilatedContext context_;
  Model model_{&context_};
};

/// Runs all triples; a vector that is not full is filled with zeros.
template <class Model, class Addend, class Oracle>
void check(const std::vector<std::array<std::uint32_t, 3>>& triples, Oracle oracle,
           const std::string& repeat) {
  Datapath<Model, Addend> datapath;
  std::size_t compared = 0;
  for (std::size_t first = 0; first < triples.size(); first += kLanes) {
    std::array<std::uint16_t, kLanes> a{}, b{};
    std::array<Addend, kLanes> c{};
    const std::size_t lanes = std::min<std::size_t>(kLanes, triples.size() - first);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      a[lane] = static_cast<std::uint16_t>(triples[first + lane][0]);
      b[lane] = static_cast<std::uint16_t>(triples[first + lane][1]);
      c[lane] = static_cast<Addend>(triples[first + lane][2]);
    }
    const auto result = datapath(a, b, c);
    for (std::size_t lane = 0; lane < lanes; ++lane, ++compared) {
      ASSERT_EQ(result[lane], oracle(a[lane], b[lane], c[lane]))
          << std::hex << "a " << a[lane] << " b " << b[lane] << " c " << c[lane] << " lane "
          << std::dec << lane << repeat;
    }
  }
  EXPECT_EQ(compared, triples.size());
}

constexpr std::uint16_t kCorners16[] = {0x0000, 0x0001, 0x0002, 0x01FF, 0x03FF, 0x0400, 0x0401,
                                        0x07FF, 0x1400, 0x2BFF, 0x37FF, 0x3800, 0x3BFF, 0x3C00,
                                        0x3C01, 0x3FFF, 0x4000, 0x4200, 0x6400, 0x77FF, 0x7800,
                                        0x7BFE, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF};
constexpr std::uint32_t kCorners32[] = {0x00000000, 0x00000001, 0x00400000, 0x007FFFFF, 0x00800000,
                                        0x00800001, 0x27800000, 0x277FFFFF, 0x33800000, 0x337FFFFF,
                                        0x33FFFFFF, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x4F7FE000,
                                        0x5B7FFFFF, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000};

template <class Corners>
std::vector<std::array<std::uint32_t, 3>> corner_triples(const Corners& addends, int sign_bit) {
  std::vector<std::array<std::uint32_t, 3>> triples;
  for (const std::uint32_t a : kCorners16) {
    for (const std::uint32_t b : kCorners16) {
      for (const std::uint32_t c : addends) {
        for (std::uint32_t signs = 0; signs < 4; ++signs) {
          triples.push_back({a | (signs & 1u) << 15, b, c | (signs >> 1) << sign_bit});
        }
      }
    }
  }
  return triples;
}

/// Plain bits, and addends near the product or its negative, where cancellation happens.
template <class Near>
std::vector<std::array<std::uint32_t, 3>> random_triples(std::uint64_t seed, int count, Near near) {
  std::mt19937_64 rng(seed);
  std::vector<std::array<std::uint32_t, 3>> triples;
  for (int i = 0; i < count; ++i) {
    const auto a = static_cast<std::uint16_t>(rng()), b = static_cast<std::uint16_t>(rng());
    const auto plain = static_cast<std::uint32_t>(rng());
    const auto offset = static_cast<std::uint32_t>(draw(rng, -3, 3));
    triples.push_back({a, b, i % 2 == 0 ? plain : near(a, b) + offset});
  }
  return triples;
}

std::string repeat(std::uint64_t seed) { return "; repeat with OPD_SEED=" + std::to_string(seed); }

TEST(YardstickFp16, Corners) {
  check<Vmac_fp16, std::uint16_t>(corner_triples(kCorners16, 15), oracle16, "");
}

TEST(YardstickFp16, Random) {
  const std::uint64_t seed = case_seed(1601);
  const auto near = [](std::uint16_t a, std::uint16_t b) {
    return std::uint32_t{oracle16(a, b, 0x8000)} ^ 0x8000u;
  };
  check<Vmac_fp16, std::uint16_t>(random_triples(seed, 1'000'000, near), oracle16, repeat(seed));
}

TEST(YardstickFp32, Corners) {
  check<Vmac_fp32, std::uint32_t>(corner_triples(kCorners32, 31), oracle32, "");
}

TEST(YardstickFp32, Random) {
  const std::uint64_t seed = case_seed(3201);
  const auto near = [](std::uint16_t a, std::uint16_t b) {
    return oracle32(a, b, 0x80000000) ^ 0x80000000u;
  };
  check<Vmac_fp32, std::uint32_t>(random_triples(seed, 1'000'000, near), oracle32, repeat(seed));
}

/// The oracle itself, on sums whose rounding is known.
TEST(YardstickOracle, ByHand) {
  EXPECT_EQ(oracle16(0x3C00, 0x3C00, 0x1000), 0x3C00);  // 1 + 2^-11: tie, to even
  EXPECT_EQ(oracle16(0x3C01, 0x3C00, 0x1000), 0x3C02);  // 1 + 2^-10 + 2^-11: tie, to even
  EXPECT_EQ(oracle16(0x3C00, 0x3C00, 0x1001), 0x3C01);  // above the tie
  EXPECT_EQ(oracle16(0x7BFF, 0x3C00, 0x4C00), 0x7C00);  // 65504 + 16: tie, to Inf
  EXPECT_EQ(oracle16(0x7BFF, 0x3C00, 0x4BFF), 0x7BFF);
  EXPECT_EQ(oracle16(0x0001, 0x3800, 0x0000), 0x0000);  // half the smallest: tie, to zero
  EXPECT_EQ(oracle16(0x0001, 0x3801, 0x0000), 0x0001);
  EXPECT_EQ(oracle16(0x3C00, 0x3C00, 0xBC00), 0x0000);  // exact cancellation: +0
  EXPECT_EQ(oracle16(0x8000, 0x3C00, 0x8000), 0x8000);
  EXPECT_EQ(oracle16(0x3C01, 0x3C01, 0xBC02),
            0x0010);  // 2^-20: what a product rounded first would lose
}

}  // namespace
}  // namespace opd::tb
