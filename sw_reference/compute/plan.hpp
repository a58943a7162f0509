#pragma once
// What is decided of an execution before its operator runs, and what is told of it afterwards: the
// same on every machine.
#include <array>

#include "check.hpp"
#include "opd/types/computation.hpp"

namespace opd::ref {

/// A checked execution.
struct Plan {
  ExecutionStatus status;
  ExecutionCost cost;
  unsigned lanes;                       ///< L
  std::array<int, kMaxOperands> shift;  ///< s of each operand; 0: not divided
};

/// Errors: std::invalid_argument, as compute.
Plan plan_of(const Computation& computation, Mode mode, const UnitSettings& settings);

/// Every value written into an accumulator, as lanes::Writes.
struct JobWrites {
  double largest = 0;
  std::uint64_t count = 0;
  std::uint64_t nonfinite = 0;
};

inline void add(JobWrites& to, double largest, std::uint64_t count, std::uint64_t nonfinite) {
  to.largest = largest > to.largest ? largest : to.largest;
  to.count += count;
  to.nonfinite += nonfinite;
}

/// Sets the accumulators' statistic of an execution that has any.
void report(Execution& execution, const JobWrites& writes);

}  // namespace opd::ref
