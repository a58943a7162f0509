#pragma once
// The computing half of the vector unit without a simulation kernel: runs the program of one
// operator in one mode.
//
//   result : output bytes, statistic of the accumulators, what ran, and what it took, counted beat
//            by beat while it ran
//   speed  : AVX2 with FMA and F16C where the machine has them, chosen when the program starts;
//            the bits are the same without
//   errors : an invalid computation or setting: std::invalid_argument that names field, value and
//            remedy
//   source : docs/numerics.md, "Vector unit"; docs/vector_unit.md
#include <optional>
#include <string>

#include "opd/types/computation.hpp"

namespace opd::sc {

enum class InstructionSet {
  kPortable,  ///< any machine
  kAvx2,      ///< AVX2, FMA and F16C
};

/// Whether this machine has it.
bool has_instruction_set(InstructionSet set);
/// The fastest that this machine has.
InstructionSet best_instruction_set();

/// Names the first field that does not fit, its value and the remedy; empty when all do.
std::optional<std::string> computation_error(const Computation& computation);

/// Likewise of fp64_lanes and matrix_rows.
std::optional<std::string> settings_error(const UnitSettings& settings);

/// What execute() would run. Precondition: the kernel is one.
ExecutionStatus execution_status(const Computation& computation, Mode mode,
                                 const UnitSettings& settings);

class LaneProcessor {
 public:
  /// Precondition: the machine has the instruction set.
  explicit LaneProcessor(InstructionSet set = best_instruction_set());

  Execution execute(const Computation& computation, Mode mode, const UnitSettings& settings) const;

  /// As above; reuses the memory of `result`.
  void execute(const Computation& computation, Mode mode, const UnitSettings& settings,
               Execution& result) const;

 private:
  using Run = void(const Computation&, const UnitSettings&, Execution&);

  Run* run_;
};

}  // namespace opd::sc
