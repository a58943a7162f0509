#pragma once
// What the driver needs of a machine: 32-bit reads and writes at the device's register addresses.
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "opd/types/registers.hpp"

namespace opd::driver {

/// Name of the register at `address`; "no register" where there is none.
[[nodiscard]] std::string_view register_name(std::uint16_t address);

/// An access that the device refused, or that the bus could not deliver. The device is as before.
/// The text names access, register, address, value and reason.
class BusError : public std::runtime_error {
 public:
  /// `value` is the data of a write; a read has none.
  BusError(std::uint16_t address, std::optional<std::uint32_t> value, std::string_view reason);
  [[nodiscard]] std::uint16_t address() const { return address_; }
  [[nodiscard]] std::optional<std::uint32_t> value() const { return value_; }

 private:
  std::uint16_t address_;
  std::optional<std::uint32_t> value_;
};

/// Registers by byte address, from 0 at the device's base. Accesses take effect in the order of the
/// calls.
class RegisterBus {
 public:
  virtual ~RegisterBus() = default;
  /// Throws BusError.
  virtual std::uint32_t read(std::uint16_t address) = 0;
  /// Throws BusError.
  virtual void write(std::uint16_t address, std::uint32_t value) = 0;
};

}  // namespace opd::driver
