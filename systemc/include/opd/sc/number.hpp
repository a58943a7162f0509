#pragma once
// Binary32 arithmetic in integers: a number is significand * 2^exponent, every operation is carried out
// exactly and then rounded once.
//
//   form   : significand of 24 bits, or shorter with the exponent of the subnormal numbers; 0 is one of those
//
//   range  : finite numbers. Nothing overflows within the published engine (docs/numerics.md,
//            "Published engine"); what `times_power_of_two` makes larger than binary32 stays a number
//            here, larger than every other: that is what +Inf is compared for.
//   zero   : has no sign; the engine neither stores nor tests one
//   source : docs/numerics.md, "Binary32 arithmetic"
#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <utility>

#include "opd/sc/format.hpp"

namespace opd::sc {

class Number {
 public:
  constexpr Number() = default;

  /// Of the bits of a finite binary32 number.
  static constexpr Number of(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t field = bits >> 23 & 255, fraction = bits & (kHidden - 1);
    const std::int64_t significand = field > 0 ? fraction | kHidden : fraction;
    return {bits >> 31 ? -significand : significand,
            kLeastExponent + static_cast<int>(field > 0 ? field - 1 : 0)};
  }

  /// Of a magnitude of a format. An exponent field of ones is read like any other.
  /// Precondition: is_format(format); bits above the magnitude are ignored.
  static constexpr Number of_magnitude(Format format, std::uint32_t magnitude) {
    const FormatProperties& layout = properties(format);
    const std::uint32_t bits = magnitude & layout.magnitude_mask();
    const auto field = static_cast<int>(bits >> layout.significand_bits);
    const std::uint32_t hidden = field > 0 ? layout.smallest_normal() : 0;
    return rounded(
        (bits & (layout.smallest_normal() - 1)) | hidden,
        (field > 0 ? field : 1) - layout.bias - static_cast<int>(layout.significand_bits));
  }

  /// The binary32 number. Precondition: it is one.
  constexpr float to_float() const {
    return std::bit_cast<float>((significand_ < 0 ? 0x80000000u : 0) |
                                static_cast<std::uint32_t>(exponent_field()) << 23 |
                                (static_cast<std::uint32_t>(magnitude_()) & (kHidden - 1)));
  }

  /// As in binary32: 0 for zero and subnormal numbers, at most 254 for the other numbers of binary32;
  /// larger for numbers that are larger.
  constexpr int exponent_field() const {
    return magnitude_() < kHidden ? 0 : exponent_ - kLeastExponent + 1;
  }

  /// scaled(c, -n) of docs/numerics.md: 0 when c or the result is below the normal range, never
  /// rounded. Precondition: not negative.
  constexpr Number times_power_of_two(int n) const {
    const int field = exponent_field();
    return field == 0 || field + n < 1 ? Number() : Number(significand_, exponent_ + n);
  }

  friend constexpr Number operator*(Number a, Number b) {
    return rounded(a.significand_ * b.significand_, a.exponent_ + b.exponent_);
  }
  friend constexpr Number operator+(Number a, Number b) {
    const auto [sum, exponent] = exact_sum(a, b);
    return rounded(sum, exponent);
  }
  friend constexpr Number operator-(Number a, Number b) { return a + -b; }
  constexpr Number operator-() const { return {-significand_, exponent_}; }

  friend constexpr std::strong_ordering operator<=>(Number a, Number b) {
    return exact_sum(a, -b).first <=> 0;
  }
  friend constexpr bool operator==(Number a, Number b) = default;

 private:
  static constexpr int kBits = 24;             ///< of a significand
  static constexpr int kLeastExponent = -149;  ///< of the subnormal numbers
  static constexpr std::uint32_t kHidden = std::uint32_t{1} << (kBits - 1);
  static constexpr int kRoom = 62 - kBits;  ///< by which a significand may be moved up

  constexpr Number(std::int64_t significand, int exponent)
      : significand_(significand), exponent_(exponent) {}

  constexpr std::uint64_t magnitude_() const {
    return static_cast<std::uint64_t>(significand_ < 0 ? -significand_ : significand_);
  }

  /// value * 2^exponent to the nearest number, ties to the even one.
  static constexpr Number rounded(std::int64_t value, int exponent) {
    const auto magnitude = static_cast<std::uint64_t>(value < 0 ? -value : value);
    const int surplus =
        std::max(static_cast<int>(std::bit_width(magnitude)) - kBits, kLeastExponent - exponent);
    const int up = std::max(-surplus, 0);
    const int down = std::clamp(surplus, 0, 63);  // 63: far below half of the least number
    std::uint64_t kept = magnitude << up;
    const std::uint64_t odd = kept >> down & 1;
    const std::uint64_t bias = down > 0 ? (std::uint64_t{1} << (down - 1)) - 1 + odd : 0;
    kept = (kept + bias) >> down;
    const std::uint64_t carried = kept >> kBits;
    const auto significand = static_cast<std::int64_t>(kept >> carried);
    return {value < 0 ? -significand : significand,
            kept == 0 ? kLeastExponent : exponent + surplus + static_cast<int>(carried)};
  }

  /// a + b = first * 2^second. Of numbers further apart than there is room for, the smaller counts as
  /// one unit of the last place: it decides ties and comparisons, and no more could be seen of it.
  static constexpr std::pair<std::int64_t, int> exact_sum(Number a, Number b) {
    const bool ordered = a.exponent_ >= b.exponent_;
    const Number high = ordered ? a : b, low = ordered ? b : a;
    const int apart = high.exponent_ - low.exponent_;
    const int moved = std::min(apart, kRoom);
    const std::int64_t unit = (low.significand_ > 0) - (low.significand_ < 0);
    return {(high.significand_ << moved) + (apart > kRoom ? unit : low.significand_),
            high.exponent_ - moved};
  }

  std::int64_t significand_ = 0;
  int exponent_ = kLeastExponent;
};

}  // namespace opd::sc
