#pragma once
// Computations for tests, from numbers: operands with the memory behind them, and results as
// numbers again. Formats by the value of their bits (elements.hpp), not by a cast.
#include <bit>
#include <cmath>
#include <deque>
#include <initializer_list>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "elements.hpp"
#include "opd/types/computation.hpp"
#include "seed.hpp"

namespace opd::tb {

/// The bits of a number that the format has exactly.
inline std::uint32_t bits_of_value(Format format, double value) {
  if (format == Format::kFp32) return std::bit_cast<std::uint32_t>(static_cast<float>(value));
  const std::uint32_t sign = std::signbit(value) ? 1u << (8 * layout_of(format).bytes - 1) : 0;
  const std::uint32_t end = 1u << (8 * layout_of(format).bytes - 1);
  for (std::uint32_t magnitude = 0; magnitude < end; ++magnitude) {
    const double number = value_of(format, magnitude);
    if (number == std::fabs(value) || (std::isnan(number) && std::isnan(value))) {
      return magnitude | sign;
    }
  }
  throw std::invalid_argument(std::to_string(value) + " is no number of the format");
}

inline std::vector<std::byte> pack(Format format, const std::vector<double>& values) {
  const auto width = static_cast<std::size_t>(layout_of(format).bytes);
  std::vector<std::byte> bytes(values.size() * width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bits = bits_of_value(format, values[i]);
    std::memcpy(bytes.data() + i * width, &bits, width);
  }
  return bytes;
}

inline std::vector<double> unpack(Format format, std::span<const std::byte> bytes) {
  std::vector<double> values(bytes.size() / static_cast<std::size_t>(layout_of(format).bytes));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = value_of(format, element_at(format, bytes, i));
  }
  return values;
}

inline std::vector<double> output_of(const Execution& execution) {
  return unpack(execution.status.format, execution.output);
}

/// A computation and the memory of its operands, which may be moved but not copied.
struct OwnedComputation {
  Computation computation;
  std::deque<std::vector<std::byte>> memory;

  OwnedComputation(Kernel kernel, Format format, std::uint32_t rows, std::uint32_t columns) {
    computation.kernel = kernel;
    computation.format = format;
    computation.rows = rows;
    computation.columns = columns;
    computation.attribute = static_cast<float>(traits_of(kernel).attribute_default);
  }
  OwnedComputation(OwnedComputation&&) = default;
  OwnedComputation& operator=(OwnedComputation&&) = default;

  void give(std::size_t i, std::vector<std::byte> bytes, Format format, std::uint32_t rows,
            std::uint32_t columns) {
    memory.push_back(std::move(bytes));
    computation.operands[i] = {memory.back(), format, rows, columns};
  }
  void give(std::size_t i, Format format, std::uint32_t rows, std::uint32_t columns,
            const std::vector<double>& values) {
    give(i, pack(format, values), format, rows, columns);
  }
};

/// One row of numbers through a kernel of one operand.
inline OwnedComputation row_of(Kernel kernel, Format format, const std::vector<double>& values) {
  const auto columns = static_cast<std::uint32_t>(values.size());
  OwnedComputation owned(kernel, format, 1, columns);
  owned.give(0, format, 1, columns, values);
  return owned;
}

/// A valid computation of any kernel and format with random operands; non-finite elements, zeros
/// and subnormals among them unless `tame`.
inline OwnedComputation random_computation(std::mt19937_64& rng, Kernel kernel, Format format,
                                           bool tame) {
  const auto any_format = [&] { return kAllFormats[static_cast<std::size_t>(draw(rng, 0, 4))]; };
  const auto size = [&](std::int64_t most) {
    return static_cast<std::uint32_t>(draw(rng, 1, most));
  };
  const KernelTraits& traits = traits_of(kernel);
  const bool matrix = traits.shape == KernelShape::kMatrix;
  OwnedComputation owned(kernel, format, size(5), size(draw(rng, 0, 1) == 0 ? 9 : 150));
  Computation& c = owned.computation;
  if (matrix) c.depth = size(40);
  if (kernel == Kernel::kMatmul) c.batch = size(3);
  if (traits.attribute == "factor") c.attribute = static_cast<float>(draw(rng, -30, 30)) / 16;
  if (traits.attribute == "correction") c.attribute = static_cast<float>(draw(rng, 0, 1));
  for (std::size_t i = 0; i < kMaxOperands; ++i) {
    if (traits.operands[i].empty()) continue;
    if (i >= traits.required && draw(rng, 0, 1) == 0) continue;
    std::uint32_t rows = draw(rng, 0, 1) == 0 ? c.rows : size(c.rows);
    std::uint32_t columns = c.columns;
    if (matrix && i < 2) {
      rows = c.batch * (i == 0 ? c.rows : c.columns);
      columns = c.depth;
    } else if (matrix) {
      rows = 1;
    }
    const std::size_t count = std::size_t{rows} * columns;
    if (traits.operands[i] == "mask") {
      std::vector<std::byte> mask(count);
      for (std::byte& shown : mask) shown = static_cast<std::byte>(draw(rng, 0, 3) != 0);
      owned.give(i, std::move(mask), Format::kFp16, rows, columns);
      continue;
    }
    const Format operand_format = draw(rng, 0, 3) == 0 ? any_format() : format;
    owned.give(i, random_elements(rng, operand_format, count, tame), operand_format, rows, columns);
  }
  return owned;
}

}  // namespace opd::tb
