#pragma once
// What the PTX instructions compute, one function each: bits in, bits out. Registers hold bits; a function's template
// argument says how it reads them.
//
//   source : NVIDIA, PTX ISA 9.0, sections "Integer Arithmetic" to "Data Movement and Conversion"
//   exact  : binary32 rounds once, to nearest even, subnormals stay; a result that is no number is 7FFFFFFF
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
  if constexpr (std::is_same_v<T, float>) {
    static_assert(sizeof(Register) == sizeof(float));
    return std::bit_cast<float>(bits);
  } else {
    return static_cast<T>(bits);
  }
}

template <class T>
Bits<T> bits_of(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return std::isnan(value) ? 0x7FFFFFFFu : std::bit_cast<std::uint32_t>(value);
  } else {
    return static_cast<Bits<T>>(value);
  }
}

// Integers wrap: they are computed without a sign, in 64 bits.
template <class T>
Bits<T> add(Bits<T> a, Bits<T> b) {
  if constexpr (std::is_same_v<T, float>) return bits_of(value_of<T>(a) + value_of<T>(b));
  return static_cast<Bits<T>>(std::uint64_t{a} + b);
}
template <class T>
Bits<T> sub(Bits<T> a, Bits<T> b) {
  if constexpr (std::is_same_v<T, float>) return bits_of(value_of<T>(a) - value_of<T>(b));
  return static_cast<Bits<T>>(std::uint64_t{a} - b);
}
template <class T>
Bits<T> mul(Bits<T> a, Bits<T> b) {
  if constexpr (std::is_same_v<T, float>) return bits_of(value_of<T>(a) * value_of<T>(b));
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
  if constexpr (std::is_same_v<T, float>) return a ^ 0x80000000u;
  return static_cast<Bits<T>>(0 - std::uint64_t{a});
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

enum class Compare { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu };

/// The forms that end in u hold as well when one side is no number; the others, ne included, do not.
template <class T, Compare kCompare>
bool setp(Bits<T> a, Bits<T> b) {
  const T x = value_of<T>(a), y = value_of<T>(b);
  bool unordered = false;
  if constexpr (std::is_same_v<T, float>) unordered = std::isnan(x) || std::isnan(y);
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
