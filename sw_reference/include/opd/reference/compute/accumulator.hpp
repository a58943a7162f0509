#pragma once
// Accumulators, what is watched of them, and the sums over a row and over a depth.
//
//   memory : kMaxLanes accumulators of a row sum, on the stack
//   exact  : a vector of lanes gives the bits of single ones. It leaves out the count of non-finite
//            writes: an accumulator that is not finite never becomes finite again, so a finite sum
//            says that all were, and any other row is done again lane by lane (run.hpp)
//   source : docs/numerics.md "Modes", "Accumulators are watched"
#include <type_traits>

#include "opd/reference/compute/casts.hpp"

namespace opd::ref::lanes {
inline namespace OPD_LANES_ISA {

inline constexpr unsigned kMaxLanes = 64;  ///< of the widest beat, 8-bit elements

/// Format that an accumulator is reported in, and that its intermediates are rounded to.
OPD_HOST_DEVICE constexpr Format element_of(AccumulatorFormat accumulator) {
  return accumulator == AccumulatorFormat::kFp64
             ? Format::kFp32
             : static_cast<Format>(static_cast<unsigned>(accumulator));
}

/// RNA(RN32(a + v)), or for a product RNA(fma(x, w, a)).
template <AccumulatorFormat kA, class V>
struct Accumulator {
  V a;
  OPD_HOST_DEVICE void clear() { a = every<V>(0.0f); }
  OPD_HOST_DEVICE void take(V v) { a = rounded_to<element_of(kA)>(a + v); }
  OPD_HOST_DEVICE void take_product(V x, V w) { a = rounded_to<element_of(kA)>(fma(x, w, a)); }
  OPD_HOST_DEVICE V value() const { return a; }
};

OPD_HOST_DEVICE inline double zero_unless_finite(double x, double test) {
  return finite(test) ? x : 0.0;
}

/// Kahan's sum in binary64.
template <class V>
struct Accumulator<AccumulatorFormat::kFp64, V> {
  using W = Wide<V>;
  W s, c;
  OPD_HOST_DEVICE void clear() { s = c = widen(every<V>(0.0f)); }
  OPD_HOST_DEVICE void take(W v) {
    const W y = v - c;
    const W t = s + y;
    c = zero_unless_finite((t - s) - y, t);
    s = t;
  }
  OPD_HOST_DEVICE void take_product(V x, V w) { take(widen(x) * widen(w)); }
  OPD_HOST_DEVICE W value() const { return s; }
};

/// What a scalar of a row is computed in.
template <AccumulatorFormat kA>
struct ScalarOf {
  using Type = float;
};
template <>
struct ScalarOf<AccumulatorFormat::kFp64> {
  using Type = double;
};
template <AccumulatorFormat kA>
using Scalar = typename ScalarOf<kA>::Type;

/// RNW of lanes: what a pass leaves for a later one.
template <AccumulatorFormat kA, class V>
OPD_HOST_DEVICE inline V intermediate(V x) {
  return rounded_to<element_of(kA)>(x);
}
/// RNW of a row's scalar.
template <AccumulatorFormat kA>
OPD_HOST_DEVICE inline float row_result(Scalar<kA> x) {
  return rounded_to<element_of(kA)>(static_cast<float>(x));
}

/// Every value written into an accumulator. Shared by all formats: numbers as binary64, exact.
struct Writes {
  double largest = 0;  ///< finite magnitude
  std::uint64_t count = 0;
  std::uint64_t nonfinite = 0;

  OPD_HOST_DEVICE void add(const Writes& other) {
    if (other.largest > largest) largest = other.largest;
    count += other.count;
    nonfinite += other.nonfinite;
  }
};

/// Largest value among the writes of V lanes, and of one lane their exact statistic.
template <AccumulatorFormat kA, class V>
struct Watch;

template <AccumulatorFormat kA>
struct Watch<kA, float> {
  Writes writes;
  OPD_HOST_DEVICE void see(const Accumulator<kA, float>& accumulator) {
    const Scalar<kA> value = accumulator.value();
    ++writes.count;
    if (!finite(value)) {
      ++writes.nonfinite;
    } else if (magnitude(value) > writes.largest) {
      writes.largest = magnitude(value);
    }
  }
};

#if defined(OPD_LANES_AVX2)
/// Of several lanes: bits of binary32 magnitudes, of binary64 sums the magnitudes. Where a value was
/// not finite they say nothing, and `nonfinite` is set.
template <AccumulatorFormat kA, class V>
struct Watch {
  using Largest = std::conditional_t<kA == AccumulatorFormat::kFp64, Wide<V>, Bits<V>>;
  Largest largest;
  std::uint64_t count;
  bool nonfinite;
  // Written out: a constructor that the compiler adds is not compiled for the instruction set.
  Watch() : largest(none()), count(0), nonfinite(false) {}
  static Largest none() { return magnitude_of(every<V>(0.0f)); }
  static Largest magnitude_of(V x) {
    if constexpr (kA == AccumulatorFormat::kFp64) {
      return magnitude(widen(x));
    } else {
      return bits_of(magnitude(x));
    }
  }
  static Largest magnitude_of(const Accumulator<kA, V>& accumulator) {
    if constexpr (kA == AccumulatorFormat::kFp64) {
      return magnitude(accumulator.s);
    } else {
      return magnitude_of(accumulator.a);
    }
  }
  void see(const Accumulator<kA, V>& accumulator) {
    largest = larger(largest, magnitude_of(accumulator));
  }
  template <class M>
  void see(const Accumulator<kA, V>& accumulator, M lanes) {
    largest = larger(largest, select(lanes, magnitude_of(accumulator), none()));
  }
  /// Of lane j.
  void largest_of_lanes(double* lane) const {
    if constexpr (kA == AccumulatorFormat::kFp64) {
      store(lane, largest);
    } else {
      store(lane, widen(value_of(largest)));
    }
  }
  Writes total() const {
    double lane[Of<V>::kLanes];
    largest_of_lanes(lane);
    double all = 0;
    for (const double value : lane) all = value > all ? value : all;
    return {all, count, 0};
  }
};
#endif

template <AccumulatorFormat kA, class V>
OPD_HOST_DEVICE inline Writes writes_of(const Watch<kA, V>& watch) {
  if constexpr (Of<V>::kLanes == 1) {
    return watch.writes;
  } else {
    return watch.total();
  }
}

/// Takes in another accumulator, as the tree does.
template <AccumulatorFormat kA>
OPD_HOST_DEVICE inline void take_in(Accumulator<kA, float>& to, const Accumulator<kA, float>& from,
                                    Watch<kA, float>& watch) {
  if constexpr (kA == AccumulatorFormat::kFp64) {
    to.take(from.s);
    watch.see(to);
    to.take(-from.c);
  } else {
    to.take(from.a);
  }
  watch.see(to);
}

/// One T of each row that is computed at a time.
template <class T, unsigned kRows>
struct PerRow {
  T of[kRows];
  OPD_HOST_DEVICE T& operator[](unsigned r) { return of[r]; }
  OPD_HOST_DEVICE const T& operator[](unsigned r) const { return of[r]; }
};

/// What is known of the terms of a sum.
enum class Terms : std::uint8_t { kAny, kNeverNegative };

/// Sums of term(r, 0) .. term(r, columns - 1) with `lanes` accumulators, 1..kMaxLanes.
/// term(r, i) is one value of row r: binary32, of an exact product in binary64.
template <AccumulatorFormat kA, class V, unsigned kRows, Terms, class Term>
OPD_HOST_DEVICE inline PerRow<Scalar<kA>, kRows> row_sums(unsigned lanes, std::uint32_t columns,
                                                          Term term, Watch<kA, float>& watch) {
  PerRow<Scalar<kA>, kRows> sums;
  for (unsigned r = 0; r < kRows; ++r) {
    Accumulator<kA, float> accumulator[kMaxLanes] = {};  // +0
    for (std::uint32_t beat = 0; beat < columns; beat += lanes) {
      for (unsigned j = 0; j < lanes && beat + j < columns; ++j) {
        accumulator[j].take(term(r, beat + j));
        watch.see(accumulator[j]);
      }
    }
    for (unsigned n = lanes; n > 1;) {
      const unsigned half = (n + 1) / 2;
      for (unsigned j = 0; j + half < n; ++j) take_in(accumulator[j], accumulator[j + half], watch);
      n = half;
    }
    sums[r] = accumulator[0].value();
  }
  return sums;
}

#if defined(OPD_LANES_AVX2)
template <AccumulatorFormat kA, class V, class M>
inline Accumulator<kA, V> select(M lanes, const Accumulator<kA, V>& a,
                                 const Accumulator<kA, V>& b) {
  if constexpr (kA == AccumulatorFormat::kFp64) {
    return {select(lanes, a.s, b.s), select(lanes, a.c, b.c)};
  } else {
    return {select(lanes, a.a, b.a)};
  }
}

/// Takes in another accumulator; kSeen: what is written in the first `lanes` is watched.
template <bool kSeen, AccumulatorFormat kA, class V>
inline void take_in(Accumulator<kA, V>& to, const Accumulator<kA, V>& from, unsigned lanes,
                    Watch<kA, V>& watch) {
  if constexpr (kA == AccumulatorFormat::kFp64) {
    to.take(from.s);
    if constexpr (kSeen) watch.see(to, first_lanes<V>(lanes));
    to.take(-from.c);
  } else {
    to.take(from.a);
  }
  if constexpr (kSeen) watch.see(to, first_lanes<V>(lanes));
}

template <AccumulatorFormat kA, class V>
inline Accumulator<kA, V> moved_down(const Accumulator<kA, V>& x, unsigned n) {
  if constexpr (kA == AccumulatorFormat::kFp64) {
    return {moved_down(x.s, n), moved_down(x.c, n)};
  } else {
    return {moved_down(x.a, n)};
  }
}

/// row_sums with kGroups vectors of accumulators of a row, a power of two. term(r, i) gives V values.
/// The roundings of one accumulator wait for each other; those of other groups and rows do not.
template <AccumulatorFormat kA, class V, unsigned kRows, Terms kTerms, unsigned kGroups, class Term>
inline PerRow<Scalar<kA>, kRows> vector_sums(std::uint32_t columns, Term term,
                                             Watch<kA, V>& watched) {
  constexpr unsigned kVector = Of<V>::kLanes;
  constexpr unsigned kLanes = kVector * kGroups;
  // A rounded sum of numbers that are not negative never falls: the row's sum is the largest of all
  // that was written. Kahan's sum may fall.
  constexpr bool kSeen = kA == AccumulatorFormat::kFp64 || kTerms == Terms::kAny;
  Watch<kA, V> watch = watched;
  Accumulator<kA, V> accumulator[kRows][kGroups];
  for (auto& row : accumulator) {
    for (auto& group : row) group.clear();
  }
  std::uint32_t beat = 0;
  for (; beat + kLanes <= columns; beat += kLanes) {
#pragma GCC unroll 8
    for (unsigned g = 0; g < kGroups; ++g) {
#pragma GCC unroll 4
      for (unsigned r = 0; r < kRows; ++r) {
        accumulator[r][g].take(term(r, beat + kVector * g));
        if constexpr (kSeen) watch.see(accumulator[r][g]);
      }
    }
  }
#pragma GCC unroll 8
  for (unsigned g = 0; g < kGroups; ++g) {
    if (beat + kVector * g >= columns) break;
    const std::uint32_t left = columns - beat - kVector * g;
    const auto lanes = first_lanes<V>(left < kVector ? left : kVector);
#pragma GCC unroll 4
    for (unsigned r = 0; r < kRows; ++r) {
      Accumulator<kA, V> next = accumulator[r][g];
      next.take(term(r, beat + kVector * g));
      if constexpr (kSeen) watch.see(next, lanes);
      accumulator[r][g] = select(lanes, next, accumulator[r][g]);
    }
  }
#pragma GCC unroll 3
  for (unsigned groups = kGroups / 2; groups > 0; groups /= 2) {
#pragma GCC unroll 4
    for (unsigned g = 0; g < groups; ++g) {
#pragma GCC unroll 4
      for (unsigned r = 0; r < kRows; ++r) {
        take_in<kSeen>(accumulator[r][g], accumulator[r][g + groups], kVector, watch);
      }
    }
  }
#pragma GCC unroll 4
  for (unsigned half = kVector / 2; half > 0; half /= 2) {
#pragma GCC unroll 4
    for (unsigned r = 0; r < kRows; ++r) {
      take_in<kSeen>(accumulator[r][0], moved_down(accumulator[r][0], half), half, watch);
    }
  }
  watch.count +=
      kRows * (std::uint64_t{columns} + (kA == AccumulatorFormat::kFp64 ? 2 : 1) * (kLanes - 1));
  PerRow<Scalar<kA>, kRows> sums;
#pragma GCC unroll 4
  for (unsigned r = 0; r < kRows; ++r) {
    sums[r] = first_lane(accumulator[r][0].value());
    watch.nonfinite = watch.nonfinite || !finite(sums[r]);
    if constexpr (!kSeen) watch.see(accumulator[r][0], first_lanes<V>(1));
  }
  watched = watch;
  return sums;
}

/// True when V lanes at a time can do the row sums of a unit of so many lanes.
template <class V>
constexpr bool has_vector_sums(unsigned lanes) {
  for (unsigned n = Of<V>::kLanes; n <= kMaxLanes; n *= 2) {
    if (lanes == n) return true;
  }
  return false;
}

template <AccumulatorFormat kA, class V, unsigned kRows, Terms kTerms, class Term>
inline PerRow<Scalar<kA>, kRows> row_sums(unsigned lanes, std::uint32_t columns, Term term,
                                          Watch<kA, V>& watch) {
  switch (lanes / Of<V>::kLanes) {
    case 1:
      return vector_sums<kA, V, kRows, kTerms, 1>(columns, term, watch);
    case 2:
      return vector_sums<kA, V, kRows, kTerms, 2>(columns, term, watch);
    case 4:
      return vector_sums<kA, V, kRows, kTerms, 4>(columns, term, watch);
    default:
      return vector_sums<kA, V, kRows, kTerms, kMaxLanes / Of<V>::kLanes>(columns, term, watch);
  }
}
#endif

/// v as what an accumulator takes in: x, or x * x, exact where the sum is in binary64.
template <AccumulatorFormat kA, class V>
OPD_HOST_DEVICE inline auto term_of(V x) {
  if constexpr (kA == AccumulatorFormat::kFp64) {
    return widen(x);
  } else {
    return x;
  }
}
template <AccumulatorFormat kA, class V>
OPD_HOST_DEVICE inline auto square_term(V x) {
  const auto v = term_of<kA>(x);
  return v * v;
}

/// How a maximum treats a NaN.
enum class Nans : std::uint8_t { kKept, kMayBeLost };

/// Largest number of each row; NaN when any element is NaN, which of kMayBeLost is true only lane by
/// lane. term(r, i) gives V values of row r; those past the last column do not count.
template <class V, unsigned kRows, Nans kNans, class Term>
OPD_HOST_DEVICE inline PerRow<float, kRows> row_maxima(std::uint32_t columns, Term term) {
  PerRow<float, kRows> result;
  const float none = from_bits(0xFF800000u);
  std::uint32_t i = 0;
  const auto take = [](auto m, auto x) { return select(either(x > m, is_nan(x)), x, m); };
  if constexpr (Of<V>::kLanes > 1) {
    const auto take_vector = [take](V m, V x) {
      if constexpr (kNans == Nans::kMayBeLost) {
        return larger(x, m);
      } else {
        return take(m, x);
      }
    };
    constexpr unsigned kChains = 4 / kRows;  // a comparison waits for the one before it
    V chain[kRows][kChains];
    for (auto& row : chain) {
      for (V& m : row) m = every<V>(none);
    }
    for (; i + kChains * Of<V>::kLanes <= columns; i += kChains * Of<V>::kLanes) {
      OPD_UNROLL_LANES
      for (unsigned j = 0; j < kChains; ++j) {
        OPD_UNROLL_LANES
        for (unsigned r = 0; r < kRows; ++r) {
          chain[r][j] = take_vector(chain[r][j], term(r, i + j * Of<V>::kLanes));
        }
      }
    }
    OPD_UNROLL_LANES
    for (unsigned r = 0; r < kRows; ++r) {
      V m = chain[r][0];
      OPD_UNROLL_LANES
      for (unsigned j = 1; j < kChains; ++j) m = take(m, chain[r][j]);
      std::uint32_t k = i;
      for (; k + Of<V>::kLanes <= columns; k += Of<V>::kLanes) m = take(m, term(r, k));
      if (k < columns) {
        m = take(m, select(first_lanes<V>(columns - k), term(r, k), every<V>(none)));
      }
      OPD_UNROLL_LANES
      for (unsigned half = Of<V>::kLanes / 2; half > 0; half /= 2) m = take(m, moved_down(m, half));
      result[r] = first_lane(m);
    }
  } else {
    for (unsigned r = 0; r < kRows; ++r) {
      float m = none;
      for (i = 0; i < columns; ++i) m = take(m, term(r, i));
      result[r] = m;
    }
  }
  return result;
}

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
