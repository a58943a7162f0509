#pragma once
// What the operators of one instruction set are handed: a checked computation and room to work in.
#include <cstddef>
#include <vector>

#include "plan.hpp"

namespace opd::ref {

inline constexpr std::uint64_t kChunk =
    1024;  ///< elements of an element-wise pass, in the L1 cache

struct Job {
  const Computation& computation;
  const Plan& plan;
  float* scratch;      ///< scratch_floats(), a whole cache line's alignment
  std::byte* staging;  ///< staging_bytes(), likewise
  /// Appends packed elements to the output, which is never written twice.
  void (*append)(Job& job, const std::byte* elements, std::uint64_t bytes);
  std::vector<std::byte>* output;
  JobWrites writes{};
};

/// Rows that an instruction set may compute at a time.
inline constexpr unsigned kMostRows = 2;

/// From a row in the scratch memory to the next: room for a vector more, whole cache lines.
constexpr std::size_t row_stride(std::uint32_t columns) {
  return (std::size_t{columns} + 31) / 16 * 16;
}

/// Room that every run_ needs, in binary32 numbers.
std::size_t scratch_floats(const Computation& computation);

/// Room for the elements of the output that are appended at a time.
std::size_t staging_bytes(const Computation& computation);

void run_portable(Job& job);
/// Only where the machine has AVX2, FMA and F16C.
void run_avx2(Job& job);
/// Only where the machine has AVX-512 F, BW, DQ and VL besides.
void run_avx512(Job& job);

}  // namespace opd::ref
