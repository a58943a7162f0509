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
  float* scratch;      ///< scratch_floats()
  std::byte* staging;  ///< staging_bytes()
  /// Appends packed elements to the output, which is never written twice.
  void (*append)(Job& job, std::uint64_t bytes);
  std::vector<std::byte>* output;
  JobWrites writes{};
};

/// Room that run_portable and run_avx2 need, in binary32 numbers.
std::size_t scratch_floats(const Computation& computation);

/// Room for the elements of the output that are appended at a time.
std::size_t staging_bytes(const Computation& computation);

void run_portable(Job& job);
/// Only where the machine has AVX2, FMA and F16C.
void run_avx2(Job& job);

}  // namespace opd::ref
