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

/// Room that vectors of any width are aligned in.
struct alignas(64) Line {
  std::byte bytes[64];
};
std::size_t lines_of(std::size_t bytes) { return (bytes + sizeof(Line) - 1) / sizeof(Line); }

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
  return kMaxOperands * kMostRows * row_stride(c.columns) + c.rows;
}

std::size_t staging_bytes(const Computation& c) {
  constexpr std::size_t kElement = 4;  // of the widest format
  switch (traits_of(c.kernel).shape) {
    case KernelShape::kElementwise:
      return kElement * kChunk;
    case KernelShape::kRow:
      return kElement * kMostRows * c.columns;
    case KernelShape::kRowReduction:
      return kElement * c.rows;
    case KernelShape::kMatrix:
      break;
  }
  return kElement * c.rows * c.columns;
}

LanesIsa best_lanes_isa() {
  static const LanesIsa kBest = [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c")) {
      return LanesIsa::kPortable;
    }
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return wide ? LanesIsa::kAvx512 : LanesIsa::kAvx2;
  }();
  return kBest;
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
  if (isa > best_lanes_isa()) {
    throw std::invalid_argument(isa == LanesIsa::kAvx2
                                    ? "isa: this machine has no AVX2 with FMA and F16C"
                                    : "isa: this machine has no AVX-512 with F, BW, DQ and VL");
  }
  const Plan plan = plan_of(computation, mode, settings);
  Execution execution{.status = plan.status, .cost = plan.cost};
  execution.output.reserve(computation.output_elements() * layout_of(plan.status.format).bytes());
  std::vector<Line> staging(lines_of(staging_bytes(computation)));
  std::vector<Line> scratch(lines_of(scratch_floats(computation) * sizeof(float)));
  Job job{.computation = computation,
          .plan = plan,
          .scratch = reinterpret_cast<float*>(scratch.data()),
          .staging = reinterpret_cast<std::byte*>(staging.data()),
          .append =
              [](Job& to, const std::byte* elements, std::uint64_t bytes) {
                to.output->insert(to.output->end(), elements, elements + bytes);
              },
          .output = &execution.output};
  switch (isa) {
    case LanesIsa::kPortable:
      run_portable(job);
      break;
    case LanesIsa::kAvx2:
      run_avx2(job);
      break;
    case LanesIsa::kAvx512:
      run_avx512(job);
      break;
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
