#include "opd/driver/register_bus.hpp"

#include <cinttypes>
#include <cstdio>

namespace opd::driver {
namespace {

std::string hex(std::uint32_t value, int digits) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%0*" PRIX32, digits, value);
  return text;
}

std::string text_of(std::uint16_t address, std::optional<std::uint32_t> value,
                    std::string_view reason) {
  std::string text = value ? "write of " + hex(*value, 8) + " to " : std::string("read of ");
  text += std::string(register_name(address)) + " (" + hex(address, 3) + "): ";
  return text + std::string(reason);
}

}  // namespace

std::string_view register_name(std::uint16_t address) {
  for (const Register& candidate : kRegisters) {
    if (candidate.address == address) return candidate.name;
  }
  return "no register";
}

BusError::BusError(std::uint16_t address, std::optional<std::uint32_t> value,
                   std::string_view reason)
    : std::runtime_error(text_of(address, value, reason)), address_(address), value_(value) {}

}  // namespace opd::driver
