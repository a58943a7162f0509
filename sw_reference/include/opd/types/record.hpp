#pragma once
// The data that travel between the paths: what the tap saw of one operator, and what the detection
// unit said about it. Layouts are fixed (docs/formats.md); every path produces exactly these bytes.
#include <cstdint>
#include <type_traits>

#include "opd/types/registers.hpp"

namespace opd {

/// First_nonfinite when every element is finite
inline constexpr std::uint32_t kNoElement = 0xFFFFFFFFu;

/// What the operator is, constant from its first beat to its last.
struct OpDescriptor {
  std::uint16_t op = 0;           ///< operator id, 0..num_ops-1
  Format format = Format::kFp16;  ///< element format of its output
  std::uint32_t step = 0;         ///< training step
  /// Log2 of a power of two multiplied into the output (loss scale), else 0
  std::int8_t scale_log2 = 0;
  bool operator==(const OpDescriptor&) const = default;
};

/// The tap's statistic over the enabled elements of one operator output. Counters saturate
/// (docs/numerics.md).
struct TapSummary {
  /// Bits of the largest finite magnitude, sign removed; 0 when there is none
  std::uint32_t max_mag = 0;
  std::uint32_t element_count = 0;
  std::uint32_t nonfinite_count = 0;
  std::uint32_t first_nonfinite = kNoElement;  ///< element index
  std::uint32_t saturated_count = 0;           ///< |x| equals the largest finite value
  std::uint32_t subnormal_count = 0;
  std::uint32_t zero_count = 0;
  bool operator==(const TapSummary&) const = default;
};

/// One completion as every path reports it: 32 bytes, little endian.
struct OpRecord {
  std::uint32_t seq = 0;  ///< completion number, counted from 0
  std::uint32_t step = 0;
  std::uint16_t op = 0;
  std::uint8_t format = 0;  ///< Format
  std::uint8_t mode = 0;    ///< Mode in force for the operator's next execution
  std::uint32_t max_mag = 0;
  std::uint32_t nonfinite_count = 0;
  std::uint32_t first_nonfinite = kNoElement;
  std::uint32_t saturated_count = 0;
  std::uint16_t flags = 0;  ///< bit i is Flag i
  std::uint8_t risk = 0;
  std::uint8_t cause = 0;  ///< Cause of the mode change
  bool operator==(const OpRecord&) const = default;
};
static_assert(sizeof(OpRecord) == 32 && std::is_trivially_copyable_v<OpRecord>);

/// The tap's counters that are not in OpRecord; they travel beside it and are compared as well.
struct TapCounts {
  std::uint32_t element_count = 0;
  std::uint32_t subnormal_count = 0;
  std::uint32_t zero_count = 0;
  bool operator==(const TapCounts&) const = default;
};

constexpr std::uint16_t flag_bit(Flag flag) {
  return static_cast<std::uint16_t>(1u << static_cast<unsigned>(flag));
}
/// Flags that say something about the operator's values; the others (WARMUP, Z_HALF, UPSET) are
/// status.
inline constexpr std::uint16_t kAlarmFlags = 0x7F;

/// What software learns of a mode change, an escalation or an upset. Source: docs/controller.md.
struct Event {
  std::uint32_t step = 0;
  std::uint16_t op = 0;
  Mode old_mode = Mode::kFast;
  Mode new_mode = Mode::kFast;
  Cause cause = Cause::kNone;
  std::uint16_t flags = 0;
  std::uint8_t risk = 0;
  bool operator==(const Event&) const = default;
};

/// What the training loop should do now. Source: docs/controller.md, "Events and hints".
struct Hints {
  std::int8_t loss_scale_shift = 0;            ///< multiply the loss scale by 2^this
  std::int8_t clip_shift = 0;                  ///< multiply the clip threshold by 2^this
  std::uint32_t learning_rate_factor = 65536;  ///< multiply the learning rate by this / 65536
  bool operator==(const Hints&) const = default;
};

}  // namespace opd
