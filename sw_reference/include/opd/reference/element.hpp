#pragma once
// What one element is: magnitude and class, from its bits alone.
//
//   cost   : a mask and three comparisons; magnitudes of finite numbers sort like the numbers
//   source : docs/numerics.md "Formats" and the classes of "Tap"
#include <cstdint>

#include "opd/reference/host_device.hpp"
#include "opd/types/registers.hpp"

namespace opd::ref {

/// Bit layout of a format: sign, exponent, significand, from the top.
struct FormatLayout {
  unsigned exponent_bits;
  unsigned significand_bits;
  int bias;
  /// Bits of the largest finite magnitude; every larger magnitude is Inf or NaN.
  std::uint32_t max_finite;

  OPD_HOST_DEVICE constexpr unsigned width() const { return 1 + exponent_bits + significand_bits; }
  OPD_HOST_DEVICE constexpr unsigned bytes() const { return width() / 8; }
  OPD_HOST_DEVICE constexpr std::uint32_t magnitude_mask() const {
    return (std::uint32_t{1} << (width() - 1)) - 1;
  }
  /// Smallest magnitude with a non-zero exponent field; the subnormals lie below it.
  OPD_HOST_DEVICE constexpr std::uint32_t min_normal() const {
    return std::uint32_t{1} << significand_bits;
  }
};

/// True for the five codes of docs/numerics.md. A descriptor may carry any byte.
OPD_HOST_DEVICE constexpr bool is_known(Format format) {
  return static_cast<unsigned>(format) <= 4;
}

/// Layout of a known format.
OPD_HOST_DEVICE constexpr FormatLayout layout_of(Format format) {
  switch (format) {
    case Format::kFp16:
      return {5, 10, 15, 0x7BFF};
    case Format::kBf16:
      return {8, 7, 127, 0x7F7F};
    case Format::kE4m3:
      return {4, 3, 7, 0x7E};  // 0x7F is the only non-finite magnitude
    case Format::kE5m2:
      return {5, 2, 15, 0x7B};
    case Format::kFp32:
      break;
  }
  return {8, 23, 127, 0x7F7FFFFF};
}

/// Class of one element. At most one of the four flags is set.
struct Element {
  std::uint32_t magnitude;  ///< bits without the sign
  bool nonfinite;           ///< Inf or NaN
  bool saturated;           ///< magnitude equal to the largest finite one
  bool subnormal;           ///< exponent field 0, significand not 0
  bool zero;                ///< either zero
};

/// Bits above the format's width are ignored.
OPD_HOST_DEVICE constexpr Element classify(Format format, std::uint32_t bits) {
  const FormatLayout layout = layout_of(format);
  const std::uint32_t magnitude = bits & layout.magnitude_mask();
  return {.magnitude = magnitude,
          .nonfinite = magnitude > layout.max_finite,
          .saturated = magnitude == layout.max_finite,
          .subnormal = magnitude != 0 && magnitude < layout.min_normal(),
          .zero = magnitude == 0};
}

}  // namespace opd::ref
