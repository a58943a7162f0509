#pragma once
// The register map once more, kept by hand: what a driver was written against. Nothing is generated from
// it and it is generated from nothing, so a reset value, range or access that slips in rtl/regs/opd.rdl,
// or that the generator gets wrong, differs from it.
#include <array>
#include <cstdint>
#include <string_view>

namespace opd::tb {

enum class Access : std::uint8_t { kRo, kRw, kWo, kW1c };

struct TableField {
  std::uint16_t address;
  std::string_view path;  ///< REGISTER.FIELD
  unsigned low_bit;
  unsigned width;
  Access access;
  std::int64_t reset;  ///< of status that the device drives: 0
  std::int64_t minimum;
  std::int64_t maximum;
};

inline constexpr std::array kRegisterTable = [] {
  using enum Access;
  return std::to_array<TableField>({
      {0x000, "ID.VALUE", 0, 32, kRo, 0x6F706400, 0, 0xFFFFFFFF},
      {0x004, "VERSION.MINOR", 0, 16, kRo, 0, 0, 65535},
      {0x004, "VERSION.MAJOR", 16, 16, kRo, 1, 0, 65535},
      {0x008, "CAPABILITY_OPS.NUM_OPS", 0, 17, kRo, 0, 0, 131071},
      {0x00C, "CAPABILITY_ENGINES.FORECAST", 0, 1, kRo, 0, 0, 1},
      {0x00C, "CAPABILITY_ENGINES.PUBLISHED", 1, 1, kRo, 0, 0, 1},
      {0x010, "CAPABILITY_TAP.WIDTH", 0, 10, kRo, 0, 0, 1023},
      {0x010, "CAPABILITY_TAP.STREAMS", 16, 9, kRo, 0, 0, 511},
      {0x014, "CAPABILITY_QUEUES.QUEUE_DEPTH", 0, 8, kRo, 0, 0, 255},
      {0x014, "CAPABILITY_QUEUES.EVENT_DEPTH", 8, 8, kRo, 0, 0, 255},
      {0x014, "CAPABILITY_QUEUES.COUNTER_WIDTH", 16, 6, kRo, 0, 0, 63},
      {0x024, "COMMAND.CLEAR_COUNTERS", 0, 1, kWo, 0, 0, 1},
      {0x028, "LEARNING_RATE_CHANGE.STEP", 0, 32, kRw, 0, 0, 0xFFFFFFFF},
      {0x040, "IRQ_STATUS.EVENT", 0, 1, kW1c, 0, 0, 1},
      {0x040, "IRQ_STATUS.EVENT_LOST", 1, 1, kW1c, 0, 0, 1},
      {0x040, "IRQ_STATUS.UNSEEN", 2, 1, kW1c, 0, 0, 1},
      {0x040, "IRQ_STATUS.HINT", 3, 1, kW1c, 0, 0, 1},
      {0x040, "IRQ_STATUS.ESCALATE", 4, 1, kW1c, 0, 0, 1},
      {0x040, "IRQ_STATUS.UPSET", 5, 1, kW1c, 0, 0, 1},
      {0x044, "IRQ_ENABLE.EVENT", 0, 1, kRw, 0, 0, 1},
      {0x044, "IRQ_ENABLE.EVENT_LOST", 1, 1, kRw, 0, 0, 1},
      {0x044, "IRQ_ENABLE.UNSEEN", 2, 1, kRw, 0, 0, 1},
      {0x044, "IRQ_ENABLE.HINT", 3, 1, kRw, 0, 0, 1},
      {0x044, "IRQ_ENABLE.ESCALATE", 4, 1, kRw, 0, 0, 1},
      {0x044, "IRQ_ENABLE.UPSET", 5, 1, kRw, 0, 0, 1},
      {0x048, "QUEUE.LEVEL", 0, 8, kRo, 0, 0, 255},
      {0x048, "QUEUE.HIGH_WATER", 8, 8, kRo, 0, 0, 255},
      {0x04C, "UNSEEN.COUNT", 0, 32, kRo, 0, 0, 0xFFFFFFFF},
      {0x050, "EVENTS.LEVEL", 0, 8, kRo, 0, 0, 255},
      {0x050, "EVENTS.HIGH_WATER", 8, 8, kRo, 0, 0, 255},
      {0x054, "EVENTS_LOST.COUNT", 0, 32, kRo, 0, 0, 0xFFFFFFFF},
      {0x058, "UPSETS.COUNT", 0, 32, kRo, 0, 0, 0xFFFFFFFF},
      {0x060, "EVENT_STEP.STEP", 0, 32, kRo, 0, 0, 0xFFFFFFFF},
      {0x064, "EVENT_OP.OP", 0, 16, kRo, 0, 0, 65535},
      {0x064, "EVENT_OP.OLD_MODE", 16, 2, kRo, 0, 0, 3},
      {0x064, "EVENT_OP.NEW_MODE", 18, 2, kRo, 0, 0, 3},
      {0x064, "EVENT_OP.CAUSE", 20, 3, kRo, 0, 0, 7},
      {0x068, "EVENT_SCORE.FLAGS", 0, 16, kRo, 0, 0, 65535},
      {0x068, "EVENT_SCORE.RISK", 16, 8, kRo, 0, 0, 255},
      {0x06C, "EVENT_POP.POP", 0, 1, kWo, 0, 0, 1},
      {0x070, "STABLE_OPS.COUNT", 0, 17, kRo, 0, 0, 131071},
      {0x074, "SAFE_OPS.COUNT", 0, 17, kRo, 0, 0, 131071},
      {0x078, "HINT.LOSS_SCALE_SHIFT", 0, 8, kRo, 0, -128, 127},
      {0x078, "HINT.CLIP_SHIFT", 8, 8, kRo, 0, -128, 127},
      {0x07C, "HINT_LEARNING_RATE.FACTOR", 0, 17, kRo, 0, 0, 131071},
      {0x080, "LAST_CLEAN_STEP.STEP", 0, 32, kRo, 0, 0, 0xFFFFFFFF},
      {0x084, "LAST_CLEAN.VALID", 0, 1, kRo, 0, 0, 1},
      {0x090, "OP_COMMAND.OP", 0, 16, kRw, 0, 0, 65535},
      {0x090, "OP_COMMAND.COMMAND", 16, 2, kRw, 0, 0, 3},
      {0x094, "OP_STATUS.BUSY", 0, 1, kRo, 0, 0, 1},
      {0x098, "OP_SETTING.MODE", 0, 2, kRw, 0, 0, 2},
      {0x098, "OP_SETTING.LOCKED", 8, 1, kRw, 0, 0, 1},
      {0x098, "OP_SETTING.DISABLED", 16, 1, kRw, 0, 0, 1},
      {0x0A0, "OP_CONTROL.MODE", 0, 2, kRo, 0, 0, 3},
      {0x0A0, "OP_CONTROL.LOCKED", 2, 1, kRo, 0, 0, 1},
      {0x0A0, "OP_CONTROL.DISABLED", 3, 1, kRo, 0, 0, 1},
      {0x0A0, "OP_CONTROL.TIMER", 8, 8, kRo, 0, 0, 255},
      {0x0A0, "OP_CONTROL.LAST_STEP", 16, 8, kRo, 0, 0, 255},
      {0x0A4, "OP_HISTORY.AGE", 0, 8, kRo, 0, 0, 255},
      {0x0A4, "OP_HISTORY.NONFINITE_RUN", 8, 8, kRo, 0, 0, 255},
      {0x0A8, "OP_BASELINE.VALUE", 0, 17, kRo, 0, -65536, 65535},
      {0x0AC, "OP_ANCHOR.VALUE", 0, 10, kRo, 0, -512, 511},
      {0x0B0, "OP_MEAN.VALUE", 0, 32, kRo, 0, 0, 0xFFFFFFFF},
      {0x0B4, "OP_VARIANCE.VALUE", 0, 32, kRo, 0, 0, 0xFFFFFFFF},
      {0x0B8, "OP_LAST.VALUE", 0, 32, kRo, 0, 0, 0xFFFFFFFF},
      {0x0BC, "OP_SLOPE.VALUE", 0, 32, kRo, 0, 0, 0xFFFFFFFF},
      {0x100, "LIMIT_FP16.VALUE", 0, 14, kRw, 512, -8192, 8191},
      {0x104, "LIMIT_BF16.VALUE", 0, 14, kRw, 4096, -8192, 8191},
      {0x108, "LIMIT_E4M3.VALUE", 0, 14, kRw, 282, -8192, 8191},
      {0x10C, "LIMIT_E5M2.VALUE", 0, 14, kRw, 506, -8192, 8191},
      {0x110, "LIMIT_FP32.VALUE", 0, 14, kRw, 4096, -8192, 8191},
      {0x120, "BASELINE.SHIFT", 0, 4, kRw, 4, 1, 8},
      {0x120, "BASELINE.MAX_LAG", 4, 4, kRw, 3, 0, 15},
      {0x120, "BASELINE.RESEED_RUN", 8, 8, kRw, 16, 0, 255},
      {0x120, "BASELINE.WARMUP_SAMPLES", 16, 8, kRw, 16, 0, 255},
      {0x124, "FORECAST.HEADROOM", 0, 10, kRw, 96, 0, 1023},
      {0x124, "FORECAST.SHIFT", 16, 2, kRw, 2, 0, 3},
      {0x124, "FORECAST.SHIFT_FP8", 18, 2, kRw, 1, 0, 3},
      {0x124, "FORECAST.HEADROOM_SCALED", 20, 10, kRw, 20, 0, 1023},
      {0x128, "CRITICAL.HEADROOM", 0, 10, kRw, 32, 0, 1023},
      {0x12C, "JUMP.THRESHOLD", 0, 10, kRw, 96, 0, 1023},
      {0x12C, "JUMP.MIN_SAMPLES", 16, 8, kRw, 16, 0, 255},
      {0x130, "JUMP_HEADROOM.HEADROOM", 0, 14, kRw, 256, 0, 16383},
      {0x130, "JUMP_HEADROOM.HEADROOM_SCALED", 16, 14, kRw, 0, 0, 16383},
      {0x140, "WEIGHT_LOW.Z", 0, 8, kRw, 0, 0, 255},
      {0x140, "WEIGHT_LOW.D2", 8, 8, kRw, 0, 0, 255},
      {0x140, "WEIGHT_LOW.FORECAST", 16, 8, kRw, 128, 0, 255},
      {0x140, "WEIGHT_LOW.CRITICAL", 24, 8, kRw, 64, 0, 255},
      {0x144, "WEIGHT_HIGH.JUMP", 0, 8, kRw, 128, 0, 255},
      {0x144, "WEIGHT_HIGH.NONFINITE", 8, 8, kRw, 255, 0, 255},
      {0x144, "WEIGHT_HIGH.SATURATED", 16, 8, kRw, 128, 0, 255},
      {0x144, "WEIGHT_HIGH.WARMUP", 24, 8, kRw, 0, 0, 255},
      {0x150, "RISK.STABLE", 0, 8, kRw, 128, 1, 255},
      {0x150, "RISK.SAFE", 8, 8, kRw, 255, 1, 255},
      {0x154, "TIMERS.QUIET_STEPS", 0, 8, kRw, 64, 1, 255},
      {0x154, "TIMERS.SAFE_STEPS", 8, 8, kRw, 8, 1, 255},
      {0x158, "DESENSITISE.STEPS", 0, 8, kRw, 40, 0, 255},
      {0x158, "DESENSITISE.JUMP", 8, 10, kRw, 32, 0, 1023},
      {0x158, "DESENSITISE.HORIZON", 20, 2, kRw, 1, 0, 3},
      {0x160, "PUBLISHED.ORDER", 0, 1, kRw, 0, 0, 1},
      {0x160, "PUBLISHED.D2_FLOOR_SHIFT", 4, 3, kRw, 1, 0, 7},
      {0x160, "PUBLISHED.MIN_SAMPLES", 8, 8, kRw, 32, 0, 255},
      {0x164, "PUBLISHED_ALPHA.VALUE", 0, 32, kRw, 0x3C7E03F8, 0x00800000, 0x3F800000},
      {0x168, "Z_THRESHOLD.VALUE", 0, 32, kRw, 0x40A00000, 0x00000000, 0x47000000},
      {0x16C, "Z_THRESHOLD_DESENSITISED.VALUE", 0, 32, kRw, 0x40C00000, 0x00000000, 0x47000000},
      {0x170, "D2_THRESHOLD.VALUE", 0, 32, kRw, 0x40400000, 0x00000000, 0x7F7FFFFF},
      {0x174, "D2_THRESHOLD_DESENSITISED.VALUE", 0, 32, kRw, 0x40666666, 0x00000000, 0x7F7FFFFF},
      {0x178, "VARIANCE_FLOOR.VALUE", 0, 32, kRw, 0x179ABE15, 0x00000000, 0x7F7FFFFF},
      {0x180, "HINT_SETTING.LOSS_SCALE_SHIFT", 0, 8, kRw, -8, -128, 127},
      {0x180, "HINT_SETTING.CLIP_SHIFT", 8, 8, kRw, -1, -128, 127},
      {0x184, "HINT_LEARNING_RATE_SETTING.FACTOR", 0, 17, kRw, 6554, 0, 65536},
      {0x190, "CONTROL.ENABLE", 0, 1, kRw, 1, 0, 1},
  });
}();

}  // namespace opd::tb
