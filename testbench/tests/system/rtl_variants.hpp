#pragma once
// The other Verilated devices of the build, behind PinDevice (rtl/CMakeLists.txt).
#include <memory>

#include "opd/types/device.hpp"
#include "paths/pin_device.hpp"

namespace opd::tb {

/// Stored state of an operator that a test can corrupt.
enum class Stored {
  kMemory,        ///< its word in the state memory
  kModeRegister,  ///< bit 0 or 1: mode, 2: parity
};

/// A device whose stored bits can be flipped between two edges.
class CorruptibleDevice : public PinDevice {
 public:
  /// `bit` is taken modulo the bits that are there.
  virtual void flip(std::uint16_t op, Stored stored, unsigned bit) = 0;
};

/// Every parameter at a value that a default might hide.
inline constexpr DeviceParameters kSmallDevice{.num_ops = 5,
                                               .datapath_width = 96,
                                               .num_streams = 2,
                                               .queue_depth = 2,
                                               .counter_width = 5,
                                               .event_depth = 3};
[[nodiscard]] std::unique_ptr<CorruptibleDevice> make_small_rtl_device();

/// One engine alone.
inline constexpr DeviceParameters kForecastDevice{.num_ops = OPD_NUM_OPS,
                                                  .published_engine = false};
[[nodiscard]] std::unique_ptr<PinDevice> make_forecast_rtl_device();
inline constexpr DeviceParameters kPublishedDevice{.num_ops = 16, .forecast_engine = false};
[[nodiscard]] std::unique_ptr<PinDevice> make_published_rtl_device();

/// The default device with one planted fault that none of its assertions notices.
[[nodiscard]] std::unique_ptr<PinDevice> make_mutant_rtl_device();

}  // namespace opd::tb
