// Testplan: COS-03 (an assertion of the RTL that fails in the loop throws, in the device that it is of,
// and the process and other devices go on).
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "Vopd_top_small.h"
#include "Vopd_top_small___024root.h"
#include "cosimulation/hosted_device.hpp"
#include "paths/rtl_device.hpp"

namespace {

using namespace opd;
using namespace opd::tb;

constexpr unsigned kNumOps = 5;
constexpr std::uint16_t kOp = 3;
constexpr unsigned kStateBits = 16 + 20 + 17 + (10 + 4 * 32);  // of a word of the state memory

/// A host, and the device that it clocks.
class Machine {
 public:
  Machine() : Machine(std::make_unique<RtlDevice<Vopd_top_small>>()) {}

  void sample() {
    host_.step(
        std::vector<Statistic>{{.descriptor = {.op = kOp, .step = step_},
                                .summary = {.max_mag = 0x3C00 + step_ % 64, .element_count = 16}}});
    ++step_;
  }
  /// Two bits of the operator's word, so that the parity holds and nothing is found.
  void flip_two(unsigned first, unsigned second) {
    auto& word =
        pins_->model().rootp->opd_top__DOT__u_detection_unit__DOT__u_state_memory__DOT__word_q[kOp];
    for (const unsigned bit : {first, second}) word[bit / 32] ^= 1u << bit % 32;
  }

 private:
  explicit Machine(std::unique_ptr<RtlDevice<Vopd_top_small>> pins)
      : pins_(pins.get()), host_(std::move(pins), kNumOps, {}) {
    pins_->throw_on_failure();
  }

  RtlDevice<Vopd_top_small>* pins_;
  HostedDevice host_;
  std::uint32_t step_ = 0;
};

TEST(HostedDevice, AnAssertionThatFailsThrowsAndTheProcessGoesOn) {
  unsigned failures = 0;
  Machine sound;
  for (unsigned bit = 0; bit + 1 < kStateBits; ++bit) {
    Machine broken;
    for (int i = 0; i < 40; ++i) broken.sample();
    broken.flip_two(bit, bit + 1);
    try {
      broken.sample();
    } catch (const std::runtime_error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("an assertion of the RTL has failed (cycle "), std::string::npos) << text;
      ++failures;
      EXPECT_THROW(broken.sample(), std::runtime_error) << "it is not used again";
    }
    EXPECT_NO_THROW(sound.sample());
  }
  EXPECT_GT(failures, 0u) << "no state was illegal";
  EXPECT_LT(failures, kStateBits - 1);
}

}  // namespace
