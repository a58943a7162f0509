#pragma once
// The driver's bus as APB4 transfers at the pins of a device: one clock of setup, one of access.
#include <functional>
#include <optional>
#include <utility>

#include "opd/driver/register_bus.hpp"
#include "opd/types/device.hpp"
#include "paths/pin_device.hpp"

namespace opd::tb {

class ApbBus final : public driver::RegisterBus {
 public:
  /// Spends one clock with the request on the pins, and returns what the device answers in it.
  using Clock = std::function<ApbResponse(const ApbRequest&)>;

  explicit ApbBus(Clock clock) : clock_(std::move(clock)) {}
  /// Over a device that nothing else drives meanwhile.
  explicit ApbBus(PinDevice& device)
      : clock_([&device](const ApbRequest& request) {
          CycleInput input;
          input.apb = request;
          const ApbResponse response = device.peek(input).apb;
          device.edge();
          return response;
        }) {}

  std::uint32_t read(std::uint16_t address) override {
    return transfer_({.select = true, .address = address});
  }
  void write(std::uint16_t address, std::uint32_t value) override { write(address, value, 0xF); }
  /// With some bytes only, which the device refuses.
  void write(std::uint16_t address, std::uint32_t value, std::uint8_t strobe) {
    transfer_({.select = true, .write = true, .address = address, .data = value, .strobe = strobe});
  }

 private:
  std::uint32_t transfer_(ApbRequest request) {
    const std::optional<std::uint32_t> value =
        request.write ? std::optional(request.data) : std::nullopt;
    clock_(request);
    request.enable = true;
    const ApbResponse response = clock_(request);
    if (!response.ready) {
      throw driver::BusError(request.address, value,
                             "pready is 0 in the access clock; the device takes no wait states");
    }
    if (response.error) throw driver::BusError(request.address, value, "refused by the device");
    return response.data;
  }

  Clock clock_;
};

}  // namespace opd::tb
