#pragma once
// Computations for tests: operands that own their bytes, elements stratified by magnitude.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "opd/types/computation.hpp"
#include "oracle.hpp"

namespace opd::tb {

/// A computation together with the bytes of its operands.
struct Owned {
  Computation computation;
  std::array<std::vector<std::byte>, kMaxOperands> bytes;

  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Owned(Owned&&) = default;

  /// Sets operand i to these elements, given as bits.
  void set(std::size_t i, Format format, std::uint32_t rows, std::uint32_t columns,
           const std::vector<std::uint32_t>& bits) {
    bytes[i].clear();
    for (const std::uint32_t word : bits) {
      for (std::size_t b = 0; b < element_size(format); ++b) {
        bytes[i].push_back(static_cast<std::byte>(word >> (8 * b)));
      }
    }
    computation.operands[i] = {bytes[i], format, rows, columns};
  }
  /// A mask, a byte per element.
  void set_mask(std::size_t i, std::uint32_t rows, std::uint32_t columns,
                const std::vector<std::uint8_t>& mask) {
    bytes[i].clear();
    for (const std::uint8_t byte : mask) bytes[i].push_back(static_cast<std::byte>(byte));
    computation.operands[i] = {bytes[i], Format::kFp16, rows, columns};
  }
};

/// Bits of one element; `kind` of a row: 0 any pattern, 1 the neighbourhood of 1, 2 near the limit,
/// 3 subnormal or zero, 4 the neighbourhood of 1 with a few non-finite ones, 5 all equal.
inline std::uint32_t draw_bits(std::mt19937_64& rng, Format format, unsigned kind,
                               std::uint32_t same) {
  const unsigned width = 8 * static_cast<unsigned>(element_size(format));
  const std::uint32_t sign = static_cast<std::uint32_t>(rng() & 1u) << (width - 1);
  const std::uint32_t all = static_cast<std::uint32_t>(rng()) & ((1u << (width - 1)) - 1);
  const struct {
    unsigned significand, bias;
    std::uint32_t largest;
  } layouts[] = {
      {10, 15, 0x7BFF}, {7, 127, 0x7F7F}, {3, 7, 0x7E}, {2, 15, 0x7B}, {23, 127, 0x7F7FFFFF}};
  const auto& layout = layouts[static_cast<unsigned>(format)];
  const std::uint32_t one = layout.bias << layout.significand;
  const std::uint32_t step = 1u << layout.significand;
  switch (kind) {
    case 1:
      return sign | (one - 2 * step + all % (4 * step));
    case 2:
      return sign | (layout.largest - all % step);
    case 3:
      return sign | (all % 3 == 0 ? 0 : all % step);
    case 4:
      return all % 37 == 0 ? sign | (layout.largest + 1) : sign | (one - step + all % (3 * step));
    case 5:
      return same;
    default:
      return sign | all;
  }
}

inline std::vector<std::uint32_t> draw_operand(std::mt19937_64& rng, Format format,
                                               std::uint32_t rows, std::uint32_t columns) {
  std::vector<std::uint32_t> bits;
  for (std::uint32_t r = 0; r < rows; ++r) {
    const auto kind = static_cast<unsigned>(rng() % 8);
    const std::uint32_t same = draw_bits(rng, format, 1, 0);
    for (std::uint32_t k = 0; k < columns; ++k) {
      bits.push_back(draw_bits(rng, format, kind > 5 ? 1 : kind, same));
    }
  }
  return bits;
}

/// A legal computation of that kernel, small, with every optional operand there or not.
inline Owned draw_computation(std::mt19937_64& rng, Kernel kernel, Format format) {
  const KernelTraits& traits = traits_of(kernel);
  Owned owned;
  Computation& c = owned.computation;
  c.kernel = kernel;
  c.format = format;
  c.rows = 1 + static_cast<std::uint32_t>(rng() % 6);
  c.columns = 1 + static_cast<std::uint32_t>(rng() % (rng() % 2 ? 150 : 20));
  if (traits.shape == KernelShape::kMatrix) {
    c.batch = kernel == Kernel::kMatmul ? 1 + static_cast<std::uint32_t>(rng() % 3) : 1;
    c.depth = 1 + static_cast<std::uint32_t>(rng() % 70);
    c.columns = 1 + c.columns % 30;
  }
  c.attribute = static_cast<float>(traits.attribute_default);
  if (rng() % 2 == 0 && traits.attribute == "factor") c.attribute = 0.125f;
  if (rng() % 2 == 0 && traits.attribute == "correction") c.attribute = 1;
  for (std::size_t i = 0; i < kMaxOperands; ++i) {
    if (traits.operands[i].empty() || (i >= traits.required && rng() % 2 == 0)) continue;
    std::uint32_t rows = c.rows, columns = c.columns;
    if (traits.shape == KernelShape::kMatrix) {
      rows = i == 2 ? 1 : c.batch * (i == 0 ? c.rows : c.columns);
      columns = i == 2 ? c.columns : c.depth;
    } else if (i > 0) {
      rows = 1 + static_cast<std::uint32_t>(rng() % c.rows);
    }
    if (traits.operands[i] == "mask") {
      std::vector<std::uint8_t> mask(std::size_t{rows} * columns);
      const auto hidden = 1 + rng() % 4;  // of 4: now and then everything
      for (auto& byte : mask)
        byte = rng() % 4 < hidden ? 0 : static_cast<std::uint8_t>(1 + rng() % 255);
      owned.set_mask(i, rows, columns, mask);
      continue;
    }
    // Operands of another format than the operator's now and then.
    const Format own = rng() % 4 == 0 ? kFormats[rng() % 5] : format;
    owned.set(i, own, rows, columns, draw_operand(rng, own, rows, columns));
  }
  return owned;
}

}  // namespace opd::tb
