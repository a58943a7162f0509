#pragma once
// What the operators of one instruction set are handed: a checked computation and room to work in.
#include <array>
#include <cstddef>

#include "opd/types/computation.hpp"

namespace opd::ref {

/// Every value written into an accumulator, as lanes::Writes.
struct JobWrites {
  double largest = 0;
  std::uint64_t count = 0;
  std::uint64_t nonfinite = 0;
};

struct Job {
  const Computation& computation;
  ExecutionStatus status;
  unsigned lanes;                       ///< L
  std::array<int, kMaxOperands> shift;  ///< s of each operand; 0: not divided
  float* scratch;                       ///< scratch_floats()
  std::byte* output;
  JobWrites writes{};
};

/// Room that run_portable and run_avx2 need, in binary32 numbers.
std::size_t scratch_floats(const Computation& computation);

void run_portable(Job& job);
/// Only where the machine has AVX2, FMA and F16C.
void run_avx2(Job& job);

}  // namespace opd::ref
