#pragma once
// What the PTX instructions compute, one function each: bits in, bits out. Registers hold bits; a function's template
// argument says how it reads them.
//
//   source : NVIDIA, PTX ISA 9.0, sections "Integer Arithmetic" to "Data Movement and Conversion"
//   exact  : binary32 and binary64 round once, to nearest even, subnormals stay; a result that is no number is 7FFFFFFF in
//            binary32 and 7FFFFFFFFFFFFFFF in binary64
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace opd::ptx {

template <class T>
using Bits = std::conditional_t<
    std::is_same_v<T, bool>, bool,
    std::conditional_t<
        sizeof(T) == 1, std::uint8_t,
        std::conditional_t<sizeof(T) == 2, std::uint16_t,
                           std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>>;

/// The value of a register's low bits.
template <class T, class Register>
T value_of(Register bits) {
  if constexpr (std::is_floating_point_v<T>) {
    static_assert(sizeof(Register) == sizeof(T));
    return std::bit_cast<T>(bits);
  } else {
    return static_cast<T>(bits);
  }
}

template <class T>
Bits<T> bits_of(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value) ? static_cast<Bits<T>>(~Bits<T>{0} >> 1)
                             : std::bit_cast<Bits<T>>(value);
  } else {
    return static_cast<Bits<T>>(value);
  }
}

// Integers wrap: they are computed without a sign, in 64 bits.
template <class T>
Bits<T> add(Bits<T> a, Bits<T> b) {
  if constexpr (std::is_floating_point_v<T>) return bits_of(value_of<T>(a) + value_of<T>(b));
  return static_cast<Bits<T>>(std::uint64_t{a} + b);
}
template <class T>
Bits<T> sub(Bits<T> a, Bits<T> b) {
  if constexpr (std::is_floating_point_v<T>) return bits_of(value_of<T>(a) - value_of<T>(b));
  return static_cast<Bits<T>>(std::uint64_t{a} - b);
}
template <class T>
Bits<T> mul(Bits<T> a, Bits<T> b) {
  if constexpr (std::is_floating_point_v<T>) return bits_of(value_of<T>(a) * value_of<T>(b));
  return static_cast<Bits<T>>(std::uint64_t{a} * b);
}
template <class T>
auto mul_wide(Bits<T> a, Bits<T> b) {
  using Wide = std::conditional_t<sizeof(T) == 2, std::int32_t, std::int64_t>;
  using UnsignedWide = Bits<Wide>;
  using Product = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  return static_cast<UnsignedWide>(Product{value_of<T>(a)} * Product{value_of<T>(b)});
}
template <class T>
Bits<T> mad(Bits<T> a, Bits<T> b, Bits<T> c) {
  return add<T>(mul<T>(a, b), c);
}
template <class T>
Bits<T> neg(Bits<T> a) {
  if constexpr (std::is_floating_point_v<T>) return a ^ Bits<T>{1} << (8 * sizeof(T) - 1);
  return static_cast<Bits<T>>(0 - std::uint64_t{a});
}

/// Integers: b is not 0.
template <class T>
Bits<T> div(Bits<T> a, Bits<T> b) {
  return bits_of(static_cast<T>(value_of<T>(a) / value_of<T>(b)));
}
template <class T>
T rem(T a, T b) {
  return static_cast<T>(a % b);
}
template <class T>
Bits<T> fma(Bits<T> a, Bits<T> b, Bits<T> c) {
  return bits_of(std::fma(value_of<T>(a), value_of<T>(b), value_of<T>(c)));
}
template <class T>
Bits<T> rcp(Bits<T> a) {
  return bits_of(T{1} / value_of<T>(a));
}
template <class T>
Bits<T> sqrt(Bits<T> a) {
  return bits_of(std::sqrt(value_of<T>(a)));
}

/// Of a number and no number the number; -0 is less than +0.
template <class T>
Bits<T> min(Bits<T> a, Bits<T> b) {
  const T x = value_of<T>(a), y = value_of<T>(b);
  if constexpr (std::is_same_v<T, float>) {
    if (std::isnan(x)) return bits_of(y);
    if (std::isnan(y)) return a;
    if (x == y) return std::signbit(x) ? a : b;
  }
  return x < y ? a : b;
}
template <class T>
Bits<T> max(Bits<T> a, Bits<T> b) {
  const T x = value_of<T>(a), y = value_of<T>(b);
  if constexpr (std::is_same_v<T, float>) {
    if (std::isnan(x)) return bits_of(y);
    if (std::isnan(y)) return a;
    if (x == y) return std::signbit(x) ? b : a;
  }
  return x > y ? a : b;
}

/// The larger of two lanes of 16 bits, each by itself.
inline std::uint32_t max_u16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result = 0;
  for (unsigned shift = 0; shift < 32; shift += 16) {
    const std::uint32_t x = a >> shift & 0xFFFF, y = b >> shift & 0xFFFF;
    result |= (x > y ? x : y) << shift;
  }
  return result;
}

template <class T>
T bit_and(T a, T b) {
  return static_cast<T>(a & b);
}
template <class T>
T bit_or(T a, T b) {
  return static_cast<T>(a | b);
}
template <class T>
T bit_xor(T a, T b) {
  return static_cast<T>(a ^ b);
}
template <class T>
T bit_not(T a) {
  if constexpr (std::is_same_v<T, bool>) return !a;
  return static_cast<T>(~a);
}

/// Shifts by the width or more give what the last bit shifted in gives.
template <class T>
Bits<T> shl(Bits<T> a, std::uint32_t places) {
  return places >= 8 * sizeof(T) ? Bits<T>{0} : static_cast<Bits<T>>(a << places);
}
template <class T>
Bits<T> shr(Bits<T> a, std::uint32_t places) {
  constexpr std::uint32_t kWidth = 8 * sizeof(T);
  if constexpr (std::is_signed_v<T>) {
    return bits_of(static_cast<T>(value_of<T>(a) >> (places < kWidth ? places : kWidth - 1)));
  }
  return places < kWidth ? static_cast<Bits<T>>(a >> places) : Bits<T>{0};
}

template <class T>
std::uint32_t clz(T a) {
  return static_cast<std::uint32_t>(std::countl_zero(a));
}
template <class T>
T brev(T a) {
  T reversed = 0;
  for (unsigned k = 0; k < 8 * sizeof(T); ++k) {
    reversed = static_cast<T>(reversed << 1 | (a >> k & 1));
  }
  return reversed;
}
/// b with `length` low bits of a at bit `position`; both arguments count in their low byte only.
template <class T>
T bfi(T a, T b, std::uint32_t position, std::uint32_t length) {
  position &= 0xFF;
  length &= 0xFF;
  for (unsigned k = 0; k < length && position + k < 8 * sizeof(T); ++k) {
    const T bit = T{1} << (position + k);
    b = (a >> k & 1) != 0 ? b | bit : b & ~bit;
  }
  return b;
}

/// Four bytes of a and, after them, b: a digit of the selector each, its highest bit for the sign of that byte instead.
inline std::uint32_t prmt(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  std::uint32_t result = 0;
  for (unsigned k = 0; k < 4; ++k) {
    const std::uint32_t digit = selector >> (4 * k) & 0xF;
    std::uint32_t byte = static_cast<std::uint32_t>(bytes >> (8 * (digit & 7))) & 0xFF;
    if ((digit & 8) != 0) byte = byte >= 0x80 ? 0xFF : 0;
    result |= byte << (8 * k);
  }
  return result;
}

enum class Compare { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };

/// The forms that end in u hold as well when one side is no number; the others, ne included, do not. num: both are numbers.
template <class T, Compare kCompare>
bool setp(Bits<T> a, Bits<T> b) {
  const T x = value_of<T>(a), y = value_of<T>(b);
  bool unordered = false;
  if constexpr (std::is_floating_point_v<T>) unordered = std::isnan(x) || std::isnan(y);
  switch (kCompare) {
    case Compare::kEq:
      return !unordered && x == y;
    case Compare::kNe:
      return !unordered && x != y;
    case Compare::kLt:
      return !unordered && x < y;
    case Compare::kLe:
      return !unordered && x <= y;
    case Compare::kGt:
      return !unordered && x > y;
    case Compare::kGe:
      return !unordered && x >= y;
    case Compare::kEqu:
      return unordered || x == y;
    case Compare::kNeu:
      return unordered || x != y;
    case Compare::kLtu:
      return unordered || x < y;
    case Compare::kLeu:
      return unordered || x <= y;
    case Compare::kGtu:
      return unordered || x > y;
    case Compare::kNum:
      return !unordered;
    case Compare::kNan:
      return unordered;
    case Compare::kGeu:
      break;
  }
  return unordered || x >= y;
}

template <class T>
T selp(T a, T b, bool predicate) {
  return predicate ? a : b;
}

/// The low bits of a register as From, then as To. The register that takes it extends it by To's sign.
template <class To, class From, class Register>
To cvt(Register a) {
  return static_cast<To>(value_of<From>(a));
}

}  // namespace opd::ptx
