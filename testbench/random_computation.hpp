#pragma once
// Random computations for the vector unit: legal but unkind. The magnitudes of an operand are drawn
// from strata (near the limit, subnormals, sums that cancel, rows of one value, levels over the whole
// range, non-finite patterns, plain bits), because uniform random bits hardly ever meet a rounding
// or an overflow that is close.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "opd/types/computation.hpp"
#include "seed.hpp"

namespace opd::tb {

/// A computation and the bytes that its operands lie in.
struct OwnedComputation {
  Computation computation;
  std::deque<std::vector<std::byte>> bytes;  ///< a deque: spans stay valid
};

class RandomComputation {
 public:
  explicit RandomComputation(std::uint64_t seed) : rng_(seed) {}

  /// One of `kernel` whose operator and operands have the format `format`; about `elements` elements
  /// in its first operand, shapes that seldom fill whole beats.
  OwnedComputation next(Kernel kernel, Format format, std::uint32_t elements) {
    OwnedComputation result;
    Computation& c = result.computation;
    const KernelTraits& traits = traits_of(kernel);
    c.kernel = kernel;
    c.format = format;
    const bool matrix = traits.shape == KernelShape::kMatrix;
    const std::uint32_t width = std::array{1u, 7u, 33u, 64u, 129u, 500u, 512u}[below(7)];
    if (matrix) {
      c.depth = std::min(width, std::max(1u, elements / 4));
      c.rows = 1 + below(9);
      c.columns = 1 + below(70);
      const std::uint32_t fitting = elements / (c.depth * c.rows);
      c.batch = kernel == Kernel::kLinear ? 1 : std::max(1u, fitting);
      if (kernel == Kernel::kLinear) c.rows *= std::max(1u, fitting);
    } else {
      c.columns = std::min(width, elements);
      c.rows = std::max(1u, elements / c.columns);
    }
    c.attribute = attribute_of(traits);
    for (std::size_t i = 0; i < kMaxOperands; ++i) {
      if (traits.operands[i].empty() || (i >= traits.required && chance(0.3))) continue;
      add_operand(result, i);
    }
    return result;
  }

 private:
  enum class Stratum {
    kLevel,
    kNearLimit,
    kSubnormal,
    kCancelling,
    kConstantRows,
    kAllRange,
    kNonfinite,
    kBits
  };
  struct Layout {
    unsigned bytes, significand_bits;
    std::uint32_t max_finite;
  };
  static constexpr std::array<Layout, 5> kLayouts = {
      {{2, 10, 0x7BFF}, {2, 7, 0x7F7F}, {1, 3, 0x7E}, {1, 2, 0x7B}, {4, 23, 0x7F7FFFFF}}};

  unsigned below(unsigned bound) { return static_cast<unsigned>(rng_() % bound); }
  bool chance(double p) { return static_cast<double>(rng_() >> 11) * 0x1.0p-53 < p; }

  float attribute_of(const KernelTraits& traits) {
    if (traits.attribute == "factor") {
      return std::array{1.0f, 0.125f, 0.17677669f, -3.5f, 1e-30f, 3e38f}[below(6)];
    }
    if (traits.attribute == "epsilon") return std::array{1e-5f, 1e-12f, 0.0f, 1.0f}[below(4)];
    if (traits.attribute == "correction") return static_cast<float>(below(2));
    return 0;
  }

  void add_operand(OwnedComputation& owned, std::size_t i) {
    const Computation& c = owned.computation;
    const KernelTraits& traits = traits_of(c.kernel);
    Operand operand{.format = c.format, .rows = c.rows, .columns = c.columns};
    if (traits.shape == KernelShape::kMatrix) {
      operand.columns = c.depth;
      operand.rows = i == 0 ? c.batch * c.rows : c.batch * c.columns;
      if (i == 2) operand = {.format = c.format, .rows = 1, .columns = c.columns};
    } else if (i > 0) {
      const bool vector = traits.shape == KernelShape::kRow && traits.operands[i] != "mask";
      if (vector || chance(0.25)) operand.rows = 1;
      if (vector && chance(0.3)) operand.format = Format::kFp32;
    }
    const bool mask = traits.operands[i] == "mask";
    owned.bytes.emplace_back(mask ? new_mask(operand) : new_elements(operand));
    operand.elements = owned.bytes.back();
    owned.computation.operands[i] = operand;
  }

  std::vector<std::byte> new_mask(const Operand& operand) {
    std::vector<std::byte> bytes;
    for (std::uint32_t row = 0; row < operand.rows; ++row) {
      const unsigned kind = below(4);  // nothing, everything, a prefix or anything is hidden
      const unsigned prefix = below(operand.columns + 1);
      for (std::uint32_t column = 0; column < operand.columns; ++column) {
        const bool seen = kind == 0   ? true
                          : kind == 1 ? false
                          : kind == 2 ? column < prefix
                                      : below(2) != 0;
        bytes.push_back(std::byte{seen});
      }
    }
    return bytes;
  }

  std::vector<std::byte> new_elements(const Operand& operand) {
    const Layout& layout = kLayouts[static_cast<std::size_t>(operand.format)];
    std::vector<std::byte> bytes(std::size_t{operand.rows} * operand.columns * layout.bytes);
    const auto stratum = static_cast<Stratum>(below(8));
    const std::uint32_t level = 1 + below(layout.max_finite);
    std::uint32_t constant = 0, last = 0;
    for (std::size_t i = 0; i * layout.bytes < bytes.size(); ++i) {
      if (i % operand.columns == 0) constant = below(layout.max_finite + 1);
      const std::uint32_t element = new_element(stratum, layout, level, constant, last);
      last = element;
      std::memcpy(bytes.data() + i * layout.bytes, &element, layout.bytes);  // little endian
    }
    return bytes;
  }

  std::uint32_t new_element(Stratum stratum, const Layout& layout, std::uint32_t level,
                            std::uint32_t constant, std::uint32_t last) {
    const auto random = static_cast<std::uint32_t>(rng_());
    const std::uint32_t sign_bit = std::uint32_t{1} << (8 * layout.bytes - 1);
    const std::uint32_t sign = random >> 31 != 0 ? sign_bit : 0;
    const std::uint32_t binade = std::uint32_t{1} << layout.significand_bits;
    switch (stratum) {
      case Stratum::kLevel:  // one or two binades below a level
        return sign | (level - std::min(level, random % (2 * binade)));
      case Stratum::kNearLimit:
        return sign | (layout.max_finite - random % binade);
      case Stratum::kSubnormal:
        return sign | (random & (2 * binade - 1));
      case Stratum::kCancelling:  // pairs that differ in the last place or not at all
        if ((random & 1) != 0) return last ^ sign_bit ^ (random >> 8 & 1);
        return sign | (level - std::min(level, random % binade));
      case Stratum::kConstantRows:
        return constant;
      case Stratum::kAllRange:
        return sign | random % (layout.max_finite + 1);
      case Stratum::kNonfinite:  // a few at and above the largest finite one
        if (random % 97 != 0) return sign | (level - std::min(level, random % binade));
        return sign | std::min(layout.max_finite + (random >> 8) % 3, sign_bit - 1);
      case Stratum::kBits:
        break;
    }
    return random & ((sign_bit << 1) - 1);
  }

  std::mt19937_64 rng_;
};

}  // namespace opd::tb
