#pragma once
// What the device stores of one operator, field by field, in one form for every path: the word of the
// state memory with its parity and marks, and the mode register. Names are those of docs/numerics.md
// and docs/controller.md.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace opd::tb {

/// All zero after reset. Of a path that stores no parity or marks they are what its word would have.
struct StoredState {
  std::uint8_t age = 0, nonfinite_run = 0;
  std::int32_t baseline = 0;  ///< forecast engine, 1/128 bit
  std::int16_t anchor = 0;    ///< published engine, as the next four
  std::uint32_t mean = 0, variance = 0, last = 0, slope = 0;  ///< bits of binary32
  std::uint8_t mode = 0;                                      ///< in the word
  std::uint8_t locked = 0, disabled = 0, timer = 0, last_step = 0;
  std::uint8_t parity = 0;         ///< of the word: even
  std::uint8_t written = 0;        ///< the two marks: 3, 0 of a word not written since reset
  std::uint8_t mode_register = 0;  ///< parity << 2 | mode
  bool operator==(const StoredState&) const = default;
};

enum class StateKind : std::uint8_t { kUnsigned, kSigned, kBinary32, kMode };

struct StateField {
  std::string_view name;
  unsigned bits;
  StateKind kind;
  std::uint32_t (*get)(const StoredState&);  ///< the field's bits, sign-extended to 32 where signed
};

/// Every field of StoredState, in the order in which differences are named.
inline constexpr std::array<StateField, 16> kStateFields = {{
    {"age", 8, StateKind::kUnsigned, [](const StoredState& s) -> std::uint32_t { return s.age; }},
    {"nonfinite_run", 8, StateKind::kUnsigned,
     [](const StoredState& s) -> std::uint32_t { return s.nonfinite_run; }},
    {"baseline", 17, StateKind::kSigned,
     [](const StoredState& s) { return static_cast<std::uint32_t>(s.baseline); }},
    {"anchor", 10, StateKind::kSigned,
     [](const StoredState& s) { return static_cast<std::uint32_t>(std::int32_t{s.anchor}); }},
    {"mean", 32, StateKind::kBinary32, [](const StoredState& s) { return s.mean; }},
    {"variance", 32, StateKind::kBinary32, [](const StoredState& s) { return s.variance; }},
    {"last", 32, StateKind::kBinary32, [](const StoredState& s) { return s.last; }},
    {"slope", 32, StateKind::kBinary32, [](const StoredState& s) { return s.slope; }},
    {"mode", 2, StateKind::kMode, [](const StoredState& s) -> std::uint32_t { return s.mode; }},
    {"locked", 1, StateKind::kUnsigned,
     [](const StoredState& s) -> std::uint32_t { return s.locked; }},
    {"disabled", 1, StateKind::kUnsigned,
     [](const StoredState& s) -> std::uint32_t { return s.disabled; }},
    {"timer", 8, StateKind::kUnsigned,
     [](const StoredState& s) -> std::uint32_t { return s.timer; }},
    {"last_step", 8, StateKind::kUnsigned,
     [](const StoredState& s) -> std::uint32_t { return s.last_step; }},
    {"parity", 1, StateKind::kUnsigned,
     [](const StoredState& s) -> std::uint32_t { return s.parity; }},
    {"written", 2, StateKind::kUnsigned,
     [](const StoredState& s) -> std::uint32_t { return s.written; }},
    {"mode_register", 3, StateKind::kUnsigned,
     [](const StoredState& s) -> std::uint32_t { return s.mode_register; }},
}};

/// The field's bits, as many as the device stores.
[[nodiscard]] std::uint32_t field_bits(const StateField& field, const StoredState& state);

/// "-12 (0x1FFF4)", "1.25 (0x3FA00000)", "STABLE (0x1)".
[[nodiscard]] std::string field_text(const StateField& field, const StoredState& state);

/// The parity bit that makes the number of ones of the word even.
[[nodiscard]] std::uint8_t word_parity(const StoredState& state);

}  // namespace opd::tb
