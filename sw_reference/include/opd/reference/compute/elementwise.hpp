#pragma once
// Element-wise operators: one function of a lane each.
//
//   apply(a, b, c, attribute) : the result before the cast to the output; operands that a kernel
//                               does not have are not read
//   exact(a, b, c, attribute) : the same in the arithmetic of R, binary64 or wider, by its formula
//   source                    : docs/numerics.md "Kernels"
#include <cmath>
#include <numbers>

#include "opd/reference/compute/functions.hpp"
#include "opd/reference/compute/program.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

inline constexpr Program kUnary1{1, {{{.operations = 1, .reads = 1}}}};
inline constexpr Program kUnary2{1, {{{.operations = 2, .reads = 1}}}};
inline constexpr Program kUnary6{1, {{{.operations = 6, .reads = 1}}}};
inline constexpr Program kBinary{1, {{{.operations = 1, .reads = 3}}}};
inline constexpr Program kTernary{1, {{{.operations = 1, .reads = 7}}}};

struct Add {
  static constexpr Kernel kKernel = Kernel::kAdd;
  static constexpr Program kProgram = kBinary;
  template <class V>
  OPD_HOST_DEVICE static V apply(V a, V b, V, V) {
    return a + b;
  }
  template <class R>
  static R exact(R a, R b, R, R) {
    return a + b;
  }
};

struct Subtract {
  static constexpr Kernel kKernel = Kernel::kSubtract;
  static constexpr Program kProgram = kBinary;
  template <class V>
  OPD_HOST_DEVICE static V apply(V a, V b, V, V) {
    return a - b;
  }
  template <class R>
  static R exact(R a, R b, R, R) {
    return a - b;
  }
};

struct Multiply {
  static constexpr Kernel kKernel = Kernel::kMultiply;
  static constexpr Program kProgram = kBinary;
  template <class V>
  OPD_HOST_DEVICE static V apply(V a, V b, V, V) {
    return a * b;
  }
  template <class R>
  static R exact(R a, R b, R, R) {
    return a * b;
  }
};

struct MultiplyAdd {
  static constexpr Kernel kKernel = Kernel::kMultiplyAdd;
  static constexpr Program kProgram = kTernary;
  template <class V>
  OPD_HOST_DEVICE static V apply(V a, V b, V c, V) {
    return fma(a, b, c);
  }
  template <class R>
  static R exact(R a, R b, R c, R) {
    return a * b + c;
  }
};

struct Scale {
  static constexpr Kernel kKernel = Kernel::kScale;
  static constexpr Program kProgram = kUnary1;
  template <class V>
  OPD_HOST_DEVICE static V apply(V x, V, V, V factor) {
    return x * factor;
  }
  template <class R>
  static R exact(R x, R, R, R factor) {
    return x * factor;
  }
};

struct Cast {
  static constexpr Kernel kKernel = Kernel::kCast;
  static constexpr Program kProgram = kUnary1;
  template <class V>
  OPD_HOST_DEVICE static V apply(V x, V, V, V) {
    return x;
  }
  template <class R>
  static R exact(R x, R, R, R) {
    return x;
  }
};

struct Relu {
  static constexpr Kernel kKernel = Kernel::kRelu;
  static constexpr Program kProgram = kUnary1;
  template <class V>
  OPD_HOST_DEVICE static V apply(V x, V, V, V) {
    return select(either(x > every<V>(0.0f), is_nan(x)), x, every<V>(0.0f));
  }
  template <class R>
  static R exact(R x, R, R, R) {
    return x > 0 || x != x ? x : R{0};
  }
};

struct Gelu {
  static constexpr Kernel kKernel = Kernel::kGelu;
  static constexpr Program kProgram = kUnary2;
  template <class V>
  OPD_HOST_DEVICE static V apply(V x, V, V, V) {
    return gated(x, gauss(x));
  }
  template <class R>
  static R exact(R x, R, R, R) {
    if (x == -std::numeric_limits<R>::infinity()) return -R{0};
    return x * R{0.5} * std::erfc(-x / std::numbers::sqrt2_v<R>);
  }
};

struct GeluTanh {
  static constexpr Kernel kKernel = Kernel::kGeluTanh;
  static constexpr Program kProgram = kUnary6;
  template <class V>
  OPD_HOST_DEVICE static V apply(V x, V, V, V) {
    V w = x * x;
    w = fma(w, constant<V>(0x3D372713u), every<V>(1.0f));
    w = (x * constant<V>(0x3FCC422Au)) * w;
    return gated(x, sigmoid(w));
  }
  template <class R>
  static R exact(R x, R, R, R) {
    if (x == -std::numeric_limits<R>::infinity()) return -R{0};
    const R w = 2 * std::sqrt(2 / std::numbers::pi_v<R>) * x * (1 + R(0.044715L) * x * x);
    return x / (1 + std::exp(-w));
  }
};

struct Silu {
  static constexpr Kernel kKernel = Kernel::kSilu;
  static constexpr Program kProgram = kUnary2;
  template <class V>
  OPD_HOST_DEVICE static V apply(V x, V, V, V) {
    return gated(x, sigmoid(x));
  }
  template <class R>
  static R exact(R x, R, R, R) {
    if (x == -std::numeric_limits<R>::infinity()) return -R{0};
    return x / (1 + std::exp(-x));
  }
};

struct Exp {
  static constexpr Kernel kKernel = Kernel::kExp;
  static constexpr Program kProgram = kUnary1;
  template <class V>
  OPD_HOST_DEVICE static V apply(V x, V, V, V) {
    return exp(x);
  }
  template <class R>
  static R exact(R x, R, R, R) {
    return std::exp(x);
  }
};

struct Reciprocal {
  static constexpr Kernel kKernel = Kernel::kReciprocal;
  static constexpr Program kProgram = kUnary1;
  template <class V>
  OPD_HOST_DEVICE static V apply(V x, V, V, V) {
    return reciprocal(x);
  }
  template <class R>
  static R exact(R x, R, R, R) {
    return 1 / x;
  }
};

struct Rsqrt {
  static constexpr Kernel kKernel = Kernel::kRsqrt;
  static constexpr Program kProgram = kUnary1;
  template <class V>
  OPD_HOST_DEVICE static V apply(V x, V, V, V) {
    return rsqrt(x);
  }
  template <class R>
  static R exact(R x, R, R, R) {
    return 1 / std::sqrt(x);
  }
};

struct Square {
  static constexpr Kernel kKernel = Kernel::kSquare;
  static constexpr Program kProgram = kUnary1;
  template <class V>
  OPD_HOST_DEVICE static V apply(V x, V, V, V) {
    return x * x;
  }
  template <class R>
  static R exact(R x, R, R, R) {
    return x * x;
  }
};

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
