// The reference of the vector unit: checks, what a mode means, and one job for the operators.
#include "opd/reference/compute.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "check.hpp"
#include "job.hpp"
#include "opd/reference/compute/operators.hpp"
#include "opd/reference/cpu.hpp"

namespace opd::ref {
namespace {

/// Exponent of the operand's largest finite magnitude, 0 when that is 0.
int compression_of(const Operand& operand) {
  const TapSummary summary = summarise(operand.format, operand.elements);
  return summary.max_mag == 0 ? 0 : std::ilogb(to_double(operand.format, summary.max_mag));
}

/// Bits of a finite magnitude that the accumulator's format holds, or of FP64 its rounding.
std::uint32_t magnitude_bits(Format format, double magnitude) {
  return cast(format, static_cast<float>(magnitude), true);
}

std::uint32_t clamped(std::uint64_t count) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(count, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace

std::size_t scratch_floats(const Computation& c) {
  switch (traits_of(c.kernel).shape) {
    case KernelShape::kElementwise:
      return 0;
    case KernelShape::kMatrix:
      return (std::size_t{c.rows} + c.columns + 8) * c.depth + c.columns +
             std::size_t{c.rows} * c.columns;
    case KernelShape::kRowReduction:
    case KernelShape::kRow:
      break;
  }
  return 4 * (std::size_t{c.columns} + lanes::kRowPadding) + c.rows;
}

std::size_t staging_bytes(const Computation& c) {
  constexpr std::size_t kElement = 4;  // of the widest format
  switch (traits_of(c.kernel).shape) {
    case KernelShape::kElementwise:
      return kElement * kChunk;
    case KernelShape::kRow:
      return kElement * c.columns;
    case KernelShape::kRowReduction:
      return kElement * c.rows;
    case KernelShape::kMatrix:
      break;
  }
  return kElement * c.rows * c.columns;
}

LanesIsa best_lanes_isa() {
  static const bool kHas = __builtin_cpu_supports("avx2") != 0 &&
                           __builtin_cpu_supports("fma") != 0 &&
                           __builtin_cpu_supports("f16c") != 0;
  return kHas ? LanesIsa::kAvx2 : LanesIsa::kPortable;
}

ExecutionStatus status_of(const Computation& computation, Mode mode, const UnitSettings& settings) {
  check(computation, settings, Bytes::kMissing);
  if (static_cast<unsigned>(mode) > static_cast<unsigned>(Mode::kSafe)) {
    throw std::invalid_argument("mode: " + std::to_string(static_cast<unsigned>(mode)) +
                                " is none of FAST (0), STABLE (1), SAFE (2)");
  }
  const KernelTraits& traits = traits_of(computation.kernel);
  const Format own = computation.format;
  const bool wide = settings.accumulator == AccumulatorChoice::kWide ||
                    (settings.accumulator == AccumulatorChoice::kPerOperator &&
                     traits.shape == KernelShape::kMatrix);
  const auto fast =
      wide ? AccumulatorFormat::kFp32 : static_cast<AccumulatorFormat>(static_cast<unsigned>(own));
  return {.mode = mode,
          .format = mode == Mode::kFast || own == Format::kFp32 ? own : Format::kBf16,
          .accumulator = !traits.accumulates || mode == Mode::kStable ? AccumulatorFormat::kFp32
                         : mode == Mode::kSafe                        ? AccumulatorFormat::kFp64
                                                                      : fast,
          .accumulates = traits.accumulates,
          .compensated = traits.accumulates && mode == Mode::kSafe,
          .compressed = mode == Mode::kSafe && program_of(computation.kernel).compressed != 0,
          .saturating = settings.saturate};
}

Execution compute(const Computation& computation, Mode mode, const UnitSettings& settings) {
  return compute(computation, mode, settings, best_lanes_isa());
}

Plan plan_of(const Computation& computation, Mode mode, const UnitSettings& settings) {
  check(computation, settings, Bytes::kPresent);
  Plan plan{.status = status_of(computation, mode, settings),
            .cost = cost(computation, mode, settings),
            .lanes = lanes_of(computation, settings),
            .shift = {}};
  if (plan.status.compressed) {
    for (std::size_t i = 0; i < kMaxOperands; ++i) {
      if ((program_of(computation.kernel).compressed >> i & 1u) != 0) {
        plan.shift[i] = compression_of(computation.operands[i]);
      }
    }
  }
  return plan;
}

void report(Execution& execution, const JobWrites& writes) {
  if (!execution.status.accumulates) return;
  execution.accumulator_format = lanes::element_of(execution.status.accumulator);
  execution.accumulators =
      TapSummary{.max_mag = magnitude_bits(execution.accumulator_format, writes.largest),
                 .element_count = clamped(writes.count),
                 .nonfinite_count = clamped(writes.nonfinite),
                 .first_nonfinite = writes.nonfinite > 0 ? 0 : kNoElement};
}

Execution compute(const Computation& computation, Mode mode, const UnitSettings& settings,
                  LanesIsa isa) {
  if (isa == LanesIsa::kAvx2 && best_lanes_isa() != LanesIsa::kAvx2) {
    throw std::invalid_argument("isa: this machine has no AVX2 with FMA and F16C");
  }
  const Plan plan = plan_of(computation, mode, settings);
  Execution execution{.status = plan.status, .cost = plan.cost};
  execution.output.reserve(computation.output_elements() * layout_of(plan.status.format).bytes());
  std::vector<std::byte> staging(staging_bytes(computation));
  std::vector<float> scratch(scratch_floats(computation));
  Job job{.computation = computation,
          .plan = plan,
          .scratch = scratch.data(),
          .staging = staging.data(),
          .append =
              [](Job& to, std::uint64_t bytes) {
                to.output->insert(to.output->end(), to.staging, to.staging + bytes);
              },
          .output = &execution.output};
  if (isa == LanesIsa::kAvx2) {
    run_avx2(job);
  } else {
    run_portable(job);
  }
  report(execution, job.writes);
  return execution;
}

double to_double(Format format, std::uint32_t bits) {
  return lanes::with_format(
      format, [bits]<Format kFormat>() -> double { return lanes::decode<kFormat, float>(bits); });
}

std::uint32_t cast(Format format, float x, bool saturate) {
  return lanes::with_format(format, [x, saturate]<Format kFormat>() -> std::uint32_t {
    return saturate ? lanes::encode<kFormat, true>(x) : lanes::encode<kFormat, false>(x);
  });
}

}  // namespace opd::ref
