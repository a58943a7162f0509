#pragma once
// One completion through the detection unit: forecast, risk, controller, record.
//
//   cost   : about 30 integer operations and 12 bytes of state per operator
//   order  : completions of one operator must come in seq order; different operators are
//            independent
//   source : docs/numerics.md, docs/controller.md, docs/formats.md "OpRecord"
#include <type_traits>

#include "opd/reference/controller.hpp"
#include "opd/reference/forecast.hpp"

namespace opd::ref {

/// Everything the device remembers of an operator, all zero after reset.
struct OpState {
  ForecastState forecast;
  ControllerState controller;
  bool operator==(const OpState&) const = default;
};
static_assert(sizeof(OpState) <= 32 && std::is_trivially_copyable_v<OpState>);

/// Advances `state` by one completion. The format must be known and the summary already clamped.
OPD_HOST_DEVICE constexpr OpRecord complete(std::uint32_t seq, const OpDescriptor& descriptor,
                                            const TapSummary& summary, const Config& config,
                                            OpState& state) {
  const std::uint16_t flags = forecast_step(descriptor, summary, config, state.forecast);
  const std::uint8_t risk = risk_of(flags, config);
  const Cause cause = controller_step(descriptor.step, flags, risk, config, state.controller);
  return {.seq = seq,
          .step = descriptor.step,
          .op = descriptor.op,
          .format = static_cast<std::uint8_t>(descriptor.format),
          .mode = static_cast<std::uint8_t>(state.controller.mode),
          .max_mag = summary.max_mag,
          .nonfinite_count = summary.nonfinite_count,
          .first_nonfinite = summary.first_nonfinite,
          .saturated_count = summary.saturated_count,
          .flags = flags,
          .risk = risk,
          .cause = static_cast<std::uint8_t>(cause)};
}

}  // namespace opd::ref
