#pragma once
// Fields of register values, by the names of docs/registers.md.
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "opd/types/registers.hpp"

namespace opd::driver {

/// The field REGISTER.FIELD. An unknown name does not compile.
consteval RegisterField field(std::string_view path) {
  for (const RegisterField& candidate : kRegisterFields) {
    if (candidate.path == path) return candidate;
  }
  throw std::invalid_argument("no such field");
}

/// Of a RegisterField or ConfigField, at bit 0.
constexpr std::uint32_t mask_of(const auto& f) {
  return f.width == 32 ? 0xFFFFFFFFu : (std::uint32_t{1} << f.width) - 1;
}

/// The field's bits in a register value, sign-extended when the field has a sign.
constexpr std::int64_t extract(const RegisterField& f, std::uint32_t register_value) {
  const std::uint32_t bits = register_value >> f.low_bit & mask_of(f);
  const bool negative = f.is_signed && (bits >> (f.width - 1) & 1u) != 0;
  return negative ? std::int64_t{bits} - (std::int64_t{1} << f.width) : std::int64_t{bits};
}

/// A register value with `value` in the field and 0 elsewhere.
constexpr std::uint32_t place(const RegisterField& f, std::int64_t value) {
  return (static_cast<std::uint32_t>(value) & mask_of(f)) << f.low_bit;
}

/// The configuration register at `address` as `config` wants it; 0 for an address without fields.
inline std::uint32_t configuration_value(const Config& config, std::uint16_t address) {
  std::uint32_t value = 0;
  for (const ConfigField& f : kConfigFields) {
    if (f.address == address)
      value |= (static_cast<std::uint32_t>(f.get(config)) & mask_of(f)) << f.low_bit;
  }
  return value;
}

}  // namespace opd::driver
