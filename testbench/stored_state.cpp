#include "stored_state.hpp"

#include <fmt/format.h>

#include <bit>

#include "opd/types/registers.hpp"

namespace opd::tb {

std::uint32_t field_bits(const StateField& field, const StoredState& state) {
  return field.get(state) & (~std::uint32_t{0} >> (32 - field.bits));
}

std::string field_text(const StateField& field, const StoredState& state) {
  const std::uint32_t value = field.get(state);
  std::string number = fmt::format("{}", value);
  switch (field.kind) {
    case StateKind::kUnsigned:
      break;
    case StateKind::kSigned:
      number = fmt::format("{}", static_cast<std::int32_t>(value));
      break;
    case StateKind::kBinary32:
      number = fmt::format("{}", std::bit_cast<float>(value));
      break;
    case StateKind::kMode:
      number = value < kModeNames.size() ? std::string(kModeNames[value]) : "no mode";
      break;
  }
  return fmt::format("{} (0x{:0{}X})", number, field_bits(field, state), (field.bits + 3) / 4);
}

std::uint8_t word_parity(const StoredState& state) {
  int ones = 0;
  for (const StateField& field : kStateFields) {
    if (field.name == "parity") break;  // it, the marks and the mode register are beside the word
    ones += std::popcount(field_bits(field, state));
  }
  return static_cast<std::uint8_t>(ones % 2);
}

}  // namespace opd::tb
