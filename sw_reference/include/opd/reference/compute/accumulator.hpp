#pragma once
// Accumulators, what is watched of them, and the sums over a row and over a depth.
//
//   memory : kMaxLanes accumulators of a row sum, on the stack
//   exact  : a vector of lanes gives the bits of single ones. It leaves out the count of non-finite
//            writes: an accumulator that is not finite never becomes finite again, so a finite sum
//            says that all were, and any other row is done again lane by lane (rows.hpp)
//   source : docs/numerics.md "Modes", "Accumulators are watched"
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
/// Bits of binary32 magnitudes; of lanes that are not finite they are larger than any number's.
template <AccumulatorFormat kA>
struct Watch<kA, F8> {
  U8 largest;
  std::uint64_t count;
  bool nonfinite;  ///< a sum was not finite: `largest` says nothing
  // Written out: a constructor that the compiler adds is not compiled for AVX2.
  Watch() : largest{_mm256_setzero_si256()}, count(0), nonfinite(false) {}
  void see(const Accumulator<kA, F8>& accumulator) {
    largest = larger(largest, bits_of(magnitude(accumulator.a)));
  }
  void see(const Accumulator<kA, F8>& accumulator, M8 lanes) {
    const U8 bits = bits_of(magnitude(accumulator.a));
    largest = larger(largest, bits & U8{_mm256_castps_si256(lanes.v)});
  }
  Writes total() const {
    alignas(32) std::uint32_t lane[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lane), largest.v);
    std::uint32_t all = 0;
    for (const std::uint32_t bits : lane) all = bits > all ? bits : all;
    return {from_bits(all), count, 0};
  }
};
template <>
struct Watch<AccumulatorFormat::kFp64, F8> {
  D8 largest;
  std::uint64_t count;
  bool nonfinite;
  Watch() : largest{_mm256_setzero_pd(), _mm256_setzero_pd()}, count(0), nonfinite(false) {}
  void see(const Accumulator<AccumulatorFormat::kFp64, F8>& accumulator) {
    largest = larger(largest, magnitude(accumulator.s));
  }
  void see(const Accumulator<AccumulatorFormat::kFp64, F8>& accumulator, M8 lanes) {
    const D8 zero{_mm256_setzero_pd(), _mm256_setzero_pd()};
    largest = larger(largest, select(lanes, magnitude(accumulator.s), zero));
  }
  Writes total() const {
    alignas(32) double lane[8];
    _mm256_store_pd(lane, largest.low);
    _mm256_store_pd(lane + 4, largest.high);
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

/// Sum of term(0) .. term(columns - 1) with `lanes` accumulators, 1..kMaxLanes.
/// term(i) is one value: binary32, of an exact product in binary64.
template <AccumulatorFormat kA, class V, class Term>
OPD_HOST_DEVICE inline Scalar<kA> row_sum(unsigned lanes, std::uint32_t columns, Term term,
                                          Watch<kA, float>& watch) {
  Accumulator<kA, float> accumulator[kMaxLanes] = {};  // +0
  for (std::uint32_t beat = 0; beat < columns; beat += lanes) {
    for (unsigned j = 0; j < lanes && beat + j < columns; ++j) {
      accumulator[j].take(term(beat + j));
      watch.see(accumulator[j]);
    }
  }
  for (unsigned n = lanes; n > 1;) {
    const unsigned half = (n + 1) / 2;
    for (unsigned j = 0; j + half < n; ++j) take_in(accumulator[j], accumulator[j + half], watch);
    n = half;
  }
  return accumulator[0].value();
}

#if defined(OPD_LANES_AVX2)
template <AccumulatorFormat kA>
inline Accumulator<kA, F8> select(M8 lanes, const Accumulator<kA, F8>& a,
                                  const Accumulator<kA, F8>& b) {
  if constexpr (kA == AccumulatorFormat::kFp64) {
    return {select(lanes, a.s, b.s), select(lanes, a.c, b.c)};
  } else {
    return {select(lanes, a.a, b.a)};
  }
}

template <AccumulatorFormat kA>
inline void take_in(Accumulator<kA, F8>& to, const Accumulator<kA, F8>& from, M8 lanes,
                    Watch<kA, F8>& watch) {
  if constexpr (kA == AccumulatorFormat::kFp64) {
    to.take(from.s);
    watch.see(to, lanes);
    to.take(-from.c);
  } else {
    to.take(from.a);
  }
  watch.see(to, lanes);
}

template <AccumulatorFormat kA>
inline Accumulator<kA, F8> moved_down(const Accumulator<kA, F8>& x, unsigned n) {
  if constexpr (kA == AccumulatorFormat::kFp64) {
    return {moved_down(x.s, n), moved_down(x.c, n)};
  } else {
    return {moved_down(x.a, n)};
  }
}

/// row_sum with kGroups vectors of accumulators, a power of two. term(i) gives eight values.
template <AccumulatorFormat kA, unsigned kGroups, class Term>
inline Scalar<kA> vector_sum(std::uint32_t columns, Term term, Watch<kA, F8>& watch) {
  constexpr unsigned kLanes = 8 * kGroups;
  Accumulator<kA, F8> accumulator[kGroups];
  for (auto& group : accumulator) group.clear();
  std::uint32_t beat = 0;
  for (; beat + kLanes <= columns; beat += kLanes) {
#pragma GCC unroll 8
    for (unsigned g = 0; g < kGroups; ++g) {
      accumulator[g].take(term(beat + 8 * g));
      watch.see(accumulator[g]);
    }
  }
  for (unsigned g = 0; g < kGroups && beat + 8 * g < columns; ++g) {
    const std::uint32_t left = columns - beat - 8 * g;
    const M8 lanes = first_lanes(left < 8 ? left : 8);
    Accumulator<kA, F8> next = accumulator[g];
    next.take(term(beat + 8 * g));
    watch.see(next, lanes);
    accumulator[g] = select(lanes, next, accumulator[g]);
  }
  const M8 all = first_lanes(8);
#pragma GCC unroll 3
  for (unsigned groups = kGroups / 2; groups > 0; groups /= 2) {
#pragma GCC unroll 4
    for (unsigned g = 0; g < groups; ++g) {
      take_in(accumulator[g], accumulator[g + groups], all, watch);
    }
  }
#pragma GCC unroll 3
  for (unsigned half = 4; half > 0; half /= 2) {
    take_in(accumulator[0], moved_down(accumulator[0], half), first_lanes(half), watch);
  }
  watch.count += columns + (kA == AccumulatorFormat::kFp64 ? 2 : 1) * (kLanes - 1);
  const Scalar<kA> sum = first_lane(accumulator[0].value());
  watch.nonfinite = watch.nonfinite || !finite(sum);
  return sum;
}

/// True when eight lanes at a time can do the row sums of a unit of so many lanes.
inline bool has_vector_sum(unsigned lanes) {
  return lanes == 8 || lanes == 16 || lanes == 32 || lanes == 64;
}

template <AccumulatorFormat kA, class V, class Term>
inline Scalar<kA> row_sum(unsigned lanes, std::uint32_t columns, Term term, Watch<kA, F8>& watch) {
  switch (lanes) {
    case 8:
      return vector_sum<kA, 1>(columns, term, watch);
    case 16:
      return vector_sum<kA, 2>(columns, term, watch);
    case 32:
      return vector_sum<kA, 4>(columns, term, watch);
    default:
      return vector_sum<kA, 8>(columns, term, watch);
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

/// Largest number of a row; NaN when any element is NaN. term(i) gives V values; those past the
/// last column do not count.
template <class V, class Term>
OPD_HOST_DEVICE inline float row_maximum(std::uint32_t columns, Term term) {
  float result = from_bits(0xFF800000u);
  std::uint32_t i = 0;
  const auto take = [](auto m, auto x) { return select(either(x > m, is_nan(x)), x, m); };
  if constexpr (Of<V>::kLanes > 1) {
    constexpr unsigned kChains = 4;  // a comparison waits for the one before it
    V chain[kChains];
    for (V& m : chain) m = every<V>(result);
    for (; i + kChains * Of<V>::kLanes <= columns; i += kChains * Of<V>::kLanes) {
      OPD_UNROLL_LANES
      for (unsigned j = 0; j < kChains; ++j) {
        chain[j] = take(chain[j], term(i + j * Of<V>::kLanes));
      }
    }
    for (; i + Of<V>::kLanes <= columns; i += Of<V>::kLanes) chain[0] = take(chain[0], term(i));
    const V m = take(take(chain[0], chain[1]), take(chain[2], chain[3]));
    float lane[kMaxLanes];
    store(lane, m);
    for (unsigned j = 0; j < Of<V>::kLanes; ++j) result = take(result, lane[j]);
    if (i < columns) {
      store(lane, term(i));
      for (unsigned j = 0; i + j < columns; ++j) result = take(result, lane[j]);
    }
  } else {
    for (; i < columns; ++i) result = take(result, term(i));
  }
  return result;
}

}  // namespace OPD_LANES_ISA
}  // namespace opd::ref::lanes
