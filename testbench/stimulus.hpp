#pragma once
// Random pin activity for a soak: legal but unkind. Magnitudes are stratified (zeros, subnormals,
// near the limit, non-finite patterns, levels that drift upward), because uniform random bits
// hardly ever meet a threshold; operators are interleaved, masked, single-beat and back to back,
// now and then illegal, and steps sometimes roll back.
#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "opd/types/device.hpp"
#include "seed.hpp"

namespace opd::tb {

class Stimulus {
 public:
  Stimulus(const DeviceParameters& parameters, std::uint64_t seed)
      : parameters_(parameters),
        rng_(seed),
        streams_(parameters.num_streams),
        levels_(parameters.num_ops, 0.3) {}

  /// Inputs of the next edge, APB excepted. `stat_taken`: the statistic of the last inputs was
  /// accepted. `hold`: no new beat and no new statistic, as when a host wants everything drained.
  const CycleInput& next(bool stat_taken, bool hold = false) {
    if (phase_left_-- == 0) new_phase();
    input_.mode_op = static_cast<std::uint16_t>(below(parameters_.num_ops + 2));
    input_.beat_valid = !hold && chance(phase_.beat);
    if (input_.beat_valid) next_beat();
    if (stat_taken) input_.stat_valid = false;
    if (!hold && !input_.stat_valid && chance(phase_.statistic)) next_statistic();
    return input_;
  }

  /// Training step of the operators that begin now.
  [[nodiscard]] std::uint32_t step() const { return step_; }

 private:
  enum class Stratum { kZero, kSubnormal, kLevel, kNearLimit, kNonfinite, kBits };

  /// Character of the next few thousand cycles.
  struct Phase {
    double beat = 0.9;  ///< share of cycles with a beat
    double statistic = 0.05;
    double illegal = 0.0;
    double rollback = 0.0;
    double masked = 0.3;   ///< share of operators with arbitrary lane enables
    unsigned longest = 8;  ///< beats of an operator
    unsigned streams = 1;
    unsigned ops = 1;  ///< operators in play: few means long histories of each
  };

  struct Open {
    bool active = false;
    OpDescriptor descriptor;
    unsigned beats_left = 0;
    bool masked = false;
    Stratum stratum = Stratum::kBits;
    std::uint32_t level = 0;  ///< magnitude bits that elements stay at or below
  };

  struct Layout {
    unsigned bytes, significand_bits;
    std::uint32_t max_finite;
  };
  static constexpr std::array<Layout, 5> kLayouts = {
      {{2, 10, 0x7BFF}, {2, 7, 0x7F7F}, {1, 3, 0x7E}, {1, 2, 0x7B}, {4, 23, 0x7F7FFFFF}}};

  std::uint64_t bits() {  // splitmix64 over a drawn state: an element costs a multiplication or two
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  unsigned below(unsigned bound) { return static_cast<unsigned>(bits() % bound); }
  bool chance(double p) { return static_cast<double>(bits() >> 11) * 0x1.0p-53 < p; }

  void new_phase() {
    state_ = rng_();
    phase_left_ = 500 + below(4000);
    phase_.beat = std::array{1.0, 0.95, 0.5, 0.1}[below(4)];
    phase_.statistic = std::array{0.0, 0.02, 0.3, 1.0}[below(4)];
    phase_.illegal = chance(0.3) ? 0.02 : 0.0;
    phase_.rollback = chance(0.2) ? 0.01 : 0.0;
    phase_.masked = std::array{0.0, 0.3, 1.0}[below(3)];
    phase_.longest = std::array{1u, 2u, 4u, 16u, 64u}[below(5)];
    phase_.streams = 1 + below(parameters_.num_streams);
    phase_.ops = 1 + below(std::min(parameters_.num_ops, chance(0.5) ? 4u : parameters_.num_ops));
  }

  OpDescriptor new_descriptor() {
    if (chance(0.05)) step_ += 1 + below(3);
    if (chance(phase_.rollback)) step_ -= std::min(step_, below(40));
    OpDescriptor d{.op = static_cast<std::uint16_t>(below(phase_.ops)), .step = step_};
    // An operator keeps its format most of the time, so that its baseline means something.
    d.format = static_cast<Format>(chance(0.95) ? d.op % 5 : below(5));
    d.scale_log2 = static_cast<std::int8_t>(chance(0.8) ? 0 : static_cast<int>(below(256)) - 128);
    if (chance(phase_.illegal)) {
      if (chance(0.5)) {
        d.op = static_cast<std::uint16_t>(parameters_.num_ops + below(100));
      } else {
        d.format = static_cast<Format>(chance(0.5) ? 5 + below(3) : 5 + below(251));
      }
    }
    return d;
  }

  /// Elements of the operator stay at or below this magnitude; the level of an operator drifts and
  /// now and then restarts.
  std::uint32_t new_level(const OpDescriptor& d, const Layout& layout) {
    double& level = levels_[d.op % levels_.size()];
    level += chance(0.01) ? -level : (static_cast<double>(bits() >> 11) * 0x1.0p-53 - 0.45) * 0.02;
    level = std::clamp(level, 0.05, 1.0);
    return static_cast<std::uint32_t>(level * layout.max_finite);
  }

  Stratum new_stratum() {
    const unsigned dice = below(100);
    if (dice < 3) return Stratum::kZero;
    if (dice < 6) return Stratum::kSubnormal;
    if (dice < 80) return Stratum::kLevel;
    if (dice < 88) return Stratum::kNearLimit;
    if (dice < 94) return Stratum::kNonfinite;
    return Stratum::kBits;
  }

  const Layout& layout_of(Format format) const {
    return kLayouts[static_cast<unsigned>(format) % kLayouts.size()];
  }

  void next_beat() {
    const auto stream = static_cast<std::uint8_t>(below(phase_.streams));
    Open& open = streams_[stream];
    if (!open.active) {
      open.active = true;
      open.descriptor = new_descriptor();
      open.beats_left = 1 + below(phase_.longest);
      open.masked = chance(phase_.masked);
      open.stratum = new_stratum();
      open.level = new_level(open.descriptor, layout_of(open.descriptor.format));
    }
    Beat& beat = input_.beat;
    beat.descriptor = open.descriptor;
    beat.stream = stream;
    beat.last = --open.beats_left == 0;
    if (beat.last) open.active = false;
    const Layout& layout = layout_of(open.descriptor.format);
    const unsigned elements = parameters_.datapath_width / 8 / layout.bytes;
    beat.lane_enable = ~std::uint64_t{0};
    if (open.masked) {
      beat.lane_enable = bits() & (chance(0.5) ? bits() : ~std::uint64_t{0});
    } else if (beat.last) {
      const unsigned tail = 1 + below(elements);
      beat.lane_enable = tail == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << tail) - 1;
    }
    for (unsigned k = 0; k < elements; ++k) {
      const std::uint32_t element = new_element(open, layout);
      for (unsigned b = 0; b < layout.bytes; ++b) {
        beat.data[k * layout.bytes + b] = static_cast<std::uint8_t>(element >> (8 * b));
      }
    }
  }

  std::uint32_t new_element(const Open& open, const Layout& layout) {
    const auto random = static_cast<std::uint32_t>(bits());
    const unsigned width = 8 * layout.bytes;
    const std::uint32_t sign = (random >> 31) << (width - 1);
    const std::uint32_t magnitude_mask = (std::uint32_t{1} << (width - 1)) - 1;
    switch (open.stratum) {
      case Stratum::kZero:
        return sign;
      case Stratum::kSubnormal:
        return sign | (random & ((1u << layout.significand_bits) - 1));
      case Stratum::kLevel:
        return sign | (open.level == 0 ? 0 : random % open.level);
      case Stratum::kNearLimit:
        return sign | (layout.max_finite - random % 4);
      case Stratum::kNonfinite:  // mostly ordinary, a few at and above the largest finite one
        if (random % 61 != 0) return sign | (open.level == 0 ? 0 : random % open.level);
        return sign | ((layout.max_finite + (random >> 8) % 3) & magnitude_mask);
      case Stratum::kBits:
        break;
    }
    return random & (magnitude_mask << 1 | 1);
  }

  void next_statistic() {
    input_.stat_valid = true;
    Statistic& s = input_.statistic;
    s.descriptor = new_descriptor();
    const Layout& layout = layout_of(s.descriptor.format);
    const std::uint32_t level = new_level(s.descriptor, layout);
    s.summary = {};
    s.summary.max_mag = chance(0.05) ? 0 : chance(0.1) ? layout.max_finite : level;
    // The sideband takes any 32 bits: another format's magnitude, a sign, a NaN.
    if (chance(0.05)) s.summary.max_mag = static_cast<std::uint32_t>(bits());
    if (chance(0.05)) s.summary.max_mag |= static_cast<std::uint32_t>(bits()) << 15;
    s.summary.element_count = static_cast<std::uint32_t>(bits());
    if (chance(0.05)) {
      s.summary.nonfinite_count = static_cast<std::uint32_t>(1 + below(70));
      s.summary.first_nonfinite = static_cast<std::uint32_t>(bits());
    }
    if (chance(0.05)) s.summary.saturated_count = static_cast<std::uint32_t>(bits());
    s.summary.subnormal_count = below(100);
    s.summary.zero_count = below(100);
  }

  DeviceParameters parameters_;
  std::mt19937_64 rng_;
  std::uint64_t state_ = 0;
  Phase phase_;
  unsigned phase_left_ = 0;
  std::uint32_t step_ = 0;
  std::vector<Open> streams_;
  std::vector<double> levels_;
  CycleInput input_;
};

}  // namespace opd::tb
