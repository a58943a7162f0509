#include "rtl_variants.hpp"

#include "Vopd_top_forecast.h"
#include "Vopd_top_mutant.h"
#include "Vopd_top_published.h"
#include "Vopd_top_small.h"
#include "Vopd_top_small___024root.h"
#include "paths/rtl_device.hpp"

namespace opd::tb {
namespace {

class SmallRtlDevice final : public CorruptibleDevice {
 public:
  void reset() override { device_.reset(); }
  CycleOutput peek(const CycleInput& input) override { return device_.peek(input); }
  void edge() override { device_.edge(); }
  void flip(std::uint16_t op, Stored stored, unsigned bit) override {
    // rtl/lint/upsets.vlt makes both arrays public.
    auto& root = *device_.model().rootp;
    if (stored == Stored::kModeRegister) {
      root.opd_top__DOT__u_mode_registers__DOT__register_q[op] ^=
          static_cast<std::uint8_t>(1u << bit % 3);
    } else if (auto& written =
                   root.opd_top__DOT__u_detection_unit__DOT__u_state_memory__DOT__written_q[op];
               written == 0) {
      // What the word holds is not read before it is written; its marks are.
      written ^= static_cast<std::uint8_t>(1u << bit % 2);
    } else {
      constexpr unsigned kBits = 16 + 20 + 17 + (10 + 4 * 32) + 1;  // state and parity
      bit %= kBits;
      root.opd_top__DOT__u_detection_unit__DOT__u_state_memory__DOT__word_q[op][bit / 32] ^=
          1u << bit % 32;
    }
  }

 private:
  RtlDevice<Vopd_top_small> device_;
};

}  // namespace

std::unique_ptr<CorruptibleDevice> make_small_rtl_device() {
  return std::make_unique<SmallRtlDevice>();
}

std::unique_ptr<PinDevice> make_forecast_rtl_device() {
  return std::make_unique<RtlDevice<Vopd_top_forecast>>();
}

std::unique_ptr<PinDevice> make_published_rtl_device() {
  return std::make_unique<RtlDevice<Vopd_top_published>>();
}

std::unique_ptr<PinDevice> make_mutant_rtl_device() {
  return std::make_unique<RtlDevice<Vopd_top_mutant>>();
}

}  // namespace opd::tb
