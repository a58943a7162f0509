#include "flipping_device.hpp"

#include "paths/default_rtl_device.hpp"

namespace opd::tb {
namespace {

class FlippingDevice final : public DefaultRtlDevice {
 public:
  FlippingDevice(const Flip& flip, std::size_t completions) : flip_(flip), left_(completions) {}

  CycleOutput peek(const CycleInput& input) override {
    const CycleOutput output = DefaultRtlDevice::peek(input);
    // In the clock after the record the unit reads the next operator's word, not the victim's.
    if (output.record_valid && left_ > 0 && --left_ == 0) now_ = true;
    return output;
  }
  void edge() override {
    DefaultRtlDevice::edge();
    if (!now_) return;
    now_ = false;
    auto& root = *model().rootp;
    auto& word = root.opd_top__DOT__u_detection_unit__DOT__u_state_memory__DOT__word_q[kVictim];
    switch (flip_.where) {
      case Flip::kWord:
        word[flip_.bit / 32] ^= 1u << flip_.bit % 32;
        if (flip_.restore_parity) word[kParityBit / 32] ^= 1u << kParityBit % 32;
        break;
      case Flip::kMark:
        root.opd_top__DOT__u_detection_unit__DOT__u_state_memory__DOT__written_q[kVictim] ^=
            static_cast<std::uint8_t>(1u << flip_.bit);
        break;
      case Flip::kModeRegister:
        root.opd_top__DOT__u_mode_registers__DOT__register_q[kVictim] ^=
            static_cast<std::uint8_t>(1u << flip_.bit);
        break;
    }
  }

 private:
  const Flip flip_;
  std::size_t left_;
  bool now_ = false;
};

}  // namespace

std::unique_ptr<PinDevice> make_flipping_rtl_device(const Flip& flip, std::size_t completions) {
  return std::make_unique<FlippingDevice>(flip, completions);
}

}  // namespace opd::tb
