#pragma once
// Casts between the formats and binary32.
//
//   encode   : RNF. A normal result is the rounded significand of the binary32 number, rebiased;
//              a subnormal one is what an addition leaves of |x| in a number whose last place is the
//              format's smallest step. Overflow is a comparison of the resulting magnitude
//   decode   : exact. The fields shifted into place mean x * 2^(bias - 127), subnormals too
//   source   : docs/numerics.md "Casts", "Formats"
#include "opd/reference/compute/value.hpp"
#if defined(OPD_LANES_AVX2)
#include "opd/reference/compute/value_avx2.hpp"
#endif
#if defined(OPD_LANES_AVX512)
#include "opd/reference/compute/value_avx512.hpp"
#endif

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

/// Bits of +Inf, of E4M3 of its NaN.
OPD_HOST_DEVICE constexpr std::uint32_t infinity_of(Format format) {
  const FormatLayout layout = layout_of(format);
  return format == Format::kE4m3 ? 0x7Fu
                                 : ((1u << layout.exponent_bits) - 1) << layout.significand_bits;
}

/// Bits of the one NaN that leaves the unit.
OPD_HOST_DEVICE constexpr std::uint32_t canonical_nan(Format format) {
  return format == Format::kE4m3
             ? 0x7Fu
             : infinity_of(format) | 1u << (layout_of(format).significand_bits - 1);
}

/// 2^n as bits, n an exponent of a normal binary32 number.
OPD_HOST_DEVICE constexpr std::uint32_t power_bits(int n) {
  return static_cast<std::uint32_t>(n + 127) << 23;
}

/// RNF(x) as bits, of kSaturate with CONTROL.SATURATE.
template <Format kFormat, bool kSaturate, class V>
OPD_HOST_DEVICE inline Bits<V> encode(V x) {
  constexpr FormatLayout kLayout = layout_of(kFormat);
  constexpr unsigned kDropped = 23 - kLayout.significand_bits;
  const auto constant = [](std::uint32_t bits) { return every_bits<V>(bits); };
  const Bits<V> bits = bits_of(x);
  const Bits<V> magnitude = bits & constant(0x7FFFFFFFu);
  Bits<V> rounded = magnitude;
  if constexpr (kDropped > 0) {
    const Bits<V> odd = (magnitude >> kDropped) & constant(1);
    rounded = ((magnitude + constant((1u << (kDropped - 1)) - 1) + odd) >> kDropped) -
              constant(static_cast<std::uint32_t>(127 - kLayout.bias) << kLayout.significand_bits);
  }
  if constexpr (kLayout.bias != 127) {
    // The last place of 2^kMagic is the smallest step of the format.
    constexpr std::uint32_t kMagic =
        power_bits(23 + 1 - kLayout.bias - static_cast<int>(kLayout.significand_bits));
    const Bits<V> steps =
        bits_of(value_of(magnitude) + value_of(constant(kMagic))) - constant(kMagic);
    rounded = select(magnitude < constant(power_bits(1 - kLayout.bias)), steps, rounded);
  }
  const Bits<V> sign = (bits >> (32 - kLayout.width())) & constant(kLayout.magnitude_mask() + 1);
  const auto overflows = rounded > constant(kLayout.max_finite);
  Bits<V> result =
      select(overflows, constant(kSaturate ? kLayout.max_finite : infinity_of(kFormat)), rounded);
  if constexpr (kFormat == Format::kE4m3 && !kSaturate) {
    result = select(overflows, result, result | sign);  // the NaN has no sign
  } else {
    result = result | sign;
  }
  return select(is_nan(x), constant(canonical_nan(kFormat)), result);
}

/// Value of an element, exact. Every NaN is the canonical one.
template <Format kFormat, class V>
OPD_HOST_DEVICE inline V decode(Bits<V> bits) {
  constexpr FormatLayout kLayout = layout_of(kFormat);
  constexpr unsigned kPadding = 23 - kLayout.significand_bits;
  const auto constant = [](std::uint32_t word) { return every_bits<V>(word); };
  if constexpr (kLayout.bias == 127) {
    return value_of(bits << kPadding);
  } else {
    const Bits<V> magnitude = bits & constant(kLayout.magnitude_mask());
    const Bits<V> sign = (bits & constant(kLayout.magnitude_mask() + 1)) << (32 - kLayout.width());
    const Bits<V> value = bits_of(value_of(magnitude << kPadding) *
                                  value_of(constant(power_bits(127 - kLayout.bias))));
    const Bits<V> nonfinite =
        kFormat == Format::kE4m3
            ? constant(0x7FC00000u)
            : (magnitude << kPadding) | constant(0x7F800000u);  // exponent all ones
    return value_of(sign | select(magnitude > constant(kLayout.max_finite), nonfinite, value));
  }
}

/// RNF(x) as a binary32 number.
template <Format kFormat, class V>
OPD_HOST_DEVICE inline V rounded_to(V x) {
  if constexpr (kFormat == Format::kFp32) return x;
  if constexpr (kFormat == Format::kFp16 && Of<V>::kHalves) {
    return rounded_to_half(x);
  } else {
    return decode<kFormat, V>(encode<kFormat, false>(x));
  }
}

/// RNF(x) of FP16 at an address, by the instruction for it.
template <class V>
inline void store_canonical_halves(std::byte* address, V x) {
  store_halves(address, select(is_nan(x), every<V>(from_bits(0x7FC00000u)), x));
}

/// V numbers of packed FP16, and RNF of V numbers to there.
template <class V>
inline V load(const Half* address) {
  return load_halves<V>(reinterpret_cast<const std::byte*>(address));
}
template <class V>
inline void store(Half* address, V x) {
  store_canonical_halves(reinterpret_cast<std::byte*>(address), x);
}

/// Elements [first, count) of a row, `V` by `V`, single ones at the end.
template <Format kFormat, class V>
OPD_HOST_DEVICE inline void decode_elements(const std::byte* elements, std::uint64_t first,
                                            std::uint64_t count, float* values) {
  constexpr unsigned kBytes = layout_of(kFormat).bytes();
  std::uint64_t k = first;
  OPD_UNROLL_LANES
  for (; k + Of<V>::kLanes <= count; k += Of<V>::kLanes) {
    if constexpr (kFormat == Format::kFp16 && Of<V>::kHalves) {
      store(values + k, load_halves<V>(elements + k * kBytes));
    } else {
      store(values + k, decode<kFormat, V>(load_packed<V, kBytes>(elements + k * kBytes)));
    }
  }
  if constexpr (Of<V>::kLanes > 1) decode_elements<kFormat, float>(elements, k, count, values);
}

template <Format kFormat, bool kSaturate, class V>
OPD_HOST_DEVICE inline void encode_elements(const float* values, std::uint64_t first,
                                            std::uint64_t count, std::byte* elements) {
  constexpr unsigned kBytes = layout_of(kFormat).bytes();
  std::uint64_t k = first;
  OPD_UNROLL_LANES
  for (; k + Of<V>::kLanes <= count; k += Of<V>::kLanes) {
    if constexpr (kFormat == Format::kFp16 && !kSaturate && Of<V>::kHalves) {
      store_canonical_halves(elements + k * kBytes, load<V>(values + k));
    } else {
      store_packed<kBytes>(elements + k * kBytes, encode<kFormat, kSaturate>(load<V>(values + k)));
    }
  }
  if constexpr (Of<V>::kLanes > 1) {
    encode_elements<kFormat, kSaturate, float>(values, k, count, elements);
  }
}

/// Calls f.template operator()<format>().
template <class F>
OPD_HOST_DEVICE inline auto with_format(Format format, F f) {
  switch (format) {
    case Format::kFp16:
      return f.template operator()<Format::kFp16>();
    case Format::kBf16:
      return f.template operator()<Format::kBf16>();
    case Format::kE4m3:
      return f.template operator()<Format::kE4m3>();
    case Format::kE5m2:
      return f.template operator()<Format::kE5m2>();
    case Format::kFp32:
      break;
  }
  return f.template operator()<Format::kFp32>();
}

/// `count` packed elements as binary32 numbers.
template <class V>
OPD_HOST_DEVICE inline void decode_row(Format format, const std::byte* elements,
                                       std::uint64_t count, float* values) {
  with_format(format,
              [=]<Format kFormat>() { decode_elements<kFormat, V>(elements, 0, count, values); });
}

/// `count` binary32 numbers cast to the output.
template <class V>
OPD_HOST_DEVICE inline void encode_row(Format format, bool saturate, const float* values,
                                       std::uint64_t count, std::byte* elements) {
  with_format(format, [=]<Format kFormat>() {
    if (saturate) {
      encode_elements<kFormat, true, V>(values, 0, count, elements);
    } else {
      encode_elements<kFormat, false, V>(values, 0, count, elements);
    }
  });
}

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
