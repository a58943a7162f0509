#pragma once
// What the passes of a kernel are, for the cost formula. Plain data.
// Source: docs/vector_unit.md "Programs".
#include <array>
#include <cstddef>

namespace opd::ref {

/// One pass. Operands are bits: 1 << index.
struct Pass {
  unsigned operations = 0;   ///< lane operations of a beat
  unsigned reads = 0;        ///< operands that it reads where they are present
  unsigned extra = 0;        ///< one operation more when any of these is present
  bool accumulates = false;  ///< +A
  bool scalar = false;       ///< +S: ends in scalars of a row
  bool maximum = false;      ///< ends in a tree of maxima
  bool product = false;      ///< of the matrix unit: operations do not count
};

struct Program {
  std::size_t passes;
  std::array<Pass, 3> pass;
  unsigned compressed = 0;  ///< operands that SAFE divides by a power of two
};

}  // namespace opd::ref
