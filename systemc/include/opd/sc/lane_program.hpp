#pragma once
// One execution of a program: what it reads and writes, in which arithmetic, and how many clocks,
// beats, passes and bytes it takes. Everything is counted while it happens, beat by beat.
//
//   pass   : a program declares its passes in order, then takes rows through them. Rows do not
//            depend on each other, so a row may go through all passes while the caches hold it; a
//            pass counts its own beats
//   slice  : the elements of one beat, of one row; element-wise of the whole tensor
//   source : docs/vector_unit.md, "Programs" and "Cost"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "opd/sc/accumulator.hpp"
#include "opd/sc/lane_arithmetic.hpp"
#include "opd/types/computation.hpp"

namespace opd::sc {
inline namespace OPD_LANES {

/// What a pass does to a beat and after a row.
struct PassTraits {
  unsigned operations = 0;   ///< lane operations
  bool accumulates = false;  ///< into the accumulators, with their tree after each row
  bool reduces = false;      ///< ends in the tree of a maximum
  bool scalars = false;      ///< ends in scalars of a row
};

/// Clocks and beats of one pass.
class Pass {
 public:
  Pass(unsigned clocks_per_beat, std::uint64_t latency)
      : clocks_per_beat_(clocks_per_beat), latency_(latency) {}

  void beat() { beats(1); }
  void beats(std::uint64_t count) {
    beats_ += count;
    clocks_ += count * clocks_per_beat_;
  }
  std::uint64_t beat_count() const { return beats_; }
  /// With what comes behind the last beat.
  std::uint64_t clocks() const { return clocks_ + latency_; }

 private:
  unsigned clocks_per_beat_;
  std::uint64_t latency_;
  std::uint64_t beats_ = 0;
  std::uint64_t clocks_ = 0;
};

/// Count: std::size_t, or FullBeat.
template <class Count>
struct Slice {
  std::size_t first;  ///< column of its first element
  Count count;
};

class Execute {
 public:
  /// Precondition: the computation is valid, and `result.output` has its size.
  Execute(const Computation& computation, const UnitSettings& settings, Execution& result)
      : computation_(computation),
        settings_(settings),
        result_(result),
        lanes_(settings.datapath_width / 8 /
               properties(computation.operand(0).format).element_bytes()),
        accumulators_(result.status.accumulator, watch_) {
    passes_.reserve(8);
  }

  const Computation& computation() const { return computation_; }
  const ExecutionStatus& status() const { return result_.status; }
  bool safe() const { return result_.status.mode == Mode::kSafe; }
  std::size_t lanes() const { return lanes_; }
  std::size_t columns() const { return computation_.columns; }
  unsigned matrix_rows() const { return settings_.matrix_rows; }
  Accumulators& accumulators() { return accumulators_; }

  // ---- Passes

  /// Declares the next pass, which reads these operands; one that is absent is not read.
  Pass& pass(const PassTraits& traits, std::initializer_list<std::size_t> reads) {
    unsigned operations = traits.operations;
    for (const std::size_t i : reads) {
      if (!computation_.has(i)) continue;
      result_.cost.bytes_read += computation_.operand(i).elements.size();
      if (exponent_[i].compressed) ++operations;
    }
    std::uint64_t latency = traits.scalars ? kScalarClocks : 0;
    if (traits.accumulates) {
      operations += safe() ? kahan_clocks_() : 1;
      latency += safe() ? 8 * levels_() : levels_();
    } else if (traits.reduces) {
      latency += levels_();
    }
    return passes_.emplace_back(operations, latency);
  }

  /// The pass of a product: its tiles take p clocks per beat.
  Pass& product_pass() {
    result_.cost.bytes_read +=
        computation_.operand(0).elements.size() + computation_.operand(1).elements.size();
    return passes_.emplace_back(safe() ? kahan_clocks_() + 1 : 1, 0);
  }

  /// SAFE: finds the exponent of the operand's largest finite magnitude, in a pass of its own; from
  /// then on load() divides by it. In the other modes nothing.
  void compress(std::size_t operand) {
    if (!safe()) return;
    Pass& search = pass({.operations = 1, .reduces = true}, {operand});
    const Operand& source = computation_.operand(operand);
    const std::size_t width = properties(source.format).element_bytes();
    const std::size_t count = source.elements.size() / width;
    std::uint32_t largest[kMaxLanes] = {};
    for (std::size_t first = 0; first < count; first += lanes_) {
      const std::size_t n = std::min(lanes_, count - first);
      Lanes x;
      decode_lanes(source.format, source.elements.data() + first * width, n, x.at);
      for (std::size_t i = 0; i < n; ++i) {
        const std::uint32_t magnitude = bits_of(x.at[i]) & ~kSignBit;
        const std::uint32_t finite = choose(magnitude < kInfinityBits, magnitude, 0u);
        largest[i] = largest[i] > finite ? largest[i] : finite;
      }
      search.beat();
    }
    const std::uint32_t magnitude = *std::max_element(largest, largest + kMaxLanes);
    exponent_[operand] = {true, magnitude == 0 ? 0 : std::ilogb(float_of(magnitude))};
  }
  /// s of a compressed operand, else 0.
  int exponent(std::size_t operand) const { return exponent_[operand].value; }

  /// Takes one row through a pass: `body` is called with the slice of each beat.
  template <class Body>
  void row(Pass& pass, const Body& body) {
    std::size_t first = 0;
    if (lanes_ == FullBeat::value) {
      for (; first + FullBeat::value <= columns(); first += FullBeat::value) {
        body(Slice<FullBeat>{first, {}});
        pass.beat();
      }
    }
    for (; first < columns(); first += lanes_) {
      body(Slice<std::size_t>{first, std::min(lanes_, columns() - first)});
      pass.beat();
    }
  }

  // ---- Elements

  /// Elements of a row of the computation into the lanes, compressed if the operand is.
  template <class Count>
  void load(std::size_t operand, std::size_t row, const Slice<Count>& slice, float* lanes) const {
    const Operand& source = computation_.operand(operand);
    const std::size_t width = properties(source.format).element_bytes();
    const std::size_t at = operand_row_(source, row) * source.columns + slice.first;
    decode_lanes(source.format, source.elements.data() + at * width, slice.count, lanes);
    divide_(operand, lanes, slice.count);
  }

  /// Elements of the whole tensor, from number `first` on: rows repeat as in load().
  template <class Count>
  void load_flat(std::size_t operand, std::uint64_t first, Count count, float* lanes) const {
    const Operand& source = computation_.operand(operand);
    const std::size_t width = properties(source.format).element_bytes();
    const std::uint64_t size = std::uint64_t{source.rows} * source.columns;
    std::uint64_t at = first < size ? first : first % size;
    if (count <= size - at) {
      decode_lanes(source.format, source.elements.data() + at * width, count, lanes);
      return;
    }
    alignas(8) std::byte gathered[kMaxLanes * sizeof(float)];
    for (std::size_t i = 0; i < count; ++i, at = at + 1 == size ? 0 : at + 1) {
      std::memcpy(gathered + i * width, source.elements.data() + at * width, width);
    }
    decode_lanes(source.format, gathered, count, lanes);
  }

  /// Minus infinity where the mask hides an element.
  template <class Count>
  void apply_mask(std::size_t operand, std::size_t row, const Slice<Count>& slice,
                  float* lanes) const {
    const Operand& mask = computation_.operand(operand);
    const std::byte* bytes =
        mask.elements.data() + operand_row_(mask, row) * mask.columns + slice.first;
    for (std::size_t i = 0; i < slice.count; ++i) {
      lanes[i] = choose(bytes[i] == std::byte{0}, float_of(kInfinityBits | kSignBit), lanes[i]);
    }
  }

  /// Casts lanes to the output, from its element `first` on.
  template <class Count>
  void store(std::uint64_t first, const float* lanes, Count count) {
    const Format format = result_.status.format;
    encode_lanes(format, lanes, count, result_.status.saturating,
                 result_.output.data() + first * properties(format).element_bytes());
  }

  // ---- Accumulators and scalars

  /// Ends the sum of a row: the tree, then its total.
  double row_total() {
    accumulators_.reduce(lanes_);
    return accumulators_.value();
  }

  /// RNW: what a pass leaves for a later one.
  float intermediate(float x) const { return narrow_() ? rounded_to(status().format, x) : x; }
  template <class Count>
  void intermediates(float* lanes, Count count) const {
    if (narrow_()) round_lanes(status().format, lanes, count);
  }

  /// total / n in the arithmetic of a row's scalars.
  double quotient(double total, double n) const {
    return safe() ? total / n
                  : static_cast<double>(static_cast<float>(total) / static_cast<float>(n));
  }

  /// Takes a scalar to the output, multiplied by 2^exponent in SAFE.
  void store_scalar(std::uint64_t row, double value, int exponent) {
    const auto rounded = static_cast<float>(value);
    const float expanded = safe() ? scaled_by(rounded, exponent) : rounded;
    store(row, &expanded, std::size_t{1});
  }

  /// Adds up what the passes took.
  void finish() {
    ExecutionCost& cost = result_.cost;
    cost.bytes_written = result_.output.size();
    const std::uint64_t beat_bytes = settings_.datapath_width / 8;
    for (const Pass& pass : passes_) {
      ++cost.passes;
      cost.beats += pass.beat_count();
      std::uint64_t clocks = pass.clocks();
      if (&pass == &passes_.back()) {  // the write-back takes a beat per clock
        clocks = std::max(clocks, (result_.output.size() + beat_bytes - 1) / beat_bytes);
      }
      cost.cycles += clocks;
    }
    if (status().accumulates) {
      const AccumulatorFormat format = status().accumulator;
      result_.accumulators = watch_.summary(format);
      result_.accumulator_format =
          format == AccumulatorFormat::kFp64 ? Format::kFp32 : static_cast<Format>(format);
    }
  }

 private:
  static constexpr std::uint64_t kScalarClocks = 8;

  struct Exponent {
    bool compressed = false;
    int value = 0;
  };

  /// Rows repeat.
  static std::size_t operand_row_(const Operand& operand, std::size_t row) {
    return row < operand.rows ? row : row % operand.rows;
  }
  unsigned levels_() const {
    unsigned levels = 0;
    while ((std::size_t{1} << levels) < lanes_) ++levels;
    return levels;
  }
  /// Of one beat into the compensated sums: four additions, fp64_lanes of them at a time.
  unsigned kahan_clocks_() const {
    const auto lanes = static_cast<unsigned>(lanes_);
    return 4 * ((lanes + settings_.fp64_lanes - 1) / settings_.fp64_lanes);
  }
  /// Intermediates have the operator's own format.
  bool narrow_() const {
    return status().mode == Mode::kFast && status().accumulator != AccumulatorFormat::kFp32;
  }
  void divide_(std::size_t operand, float* lanes, std::size_t count) const {
    if (!exponent_[operand].compressed) return;
    const int exponent = -exponent_[operand].value;
    for (std::size_t i = 0; i < count; ++i) lanes[i] = scaled_by(lanes[i], exponent);
  }

  const Computation& computation_;
  const UnitSettings& settings_;
  Execution& result_;
  const std::size_t lanes_;
  Exponent exponent_[kMaxOperands];
  AccumulatorWatch watch_;
  Accumulators accumulators_;
  std::vector<Pass> passes_;  ///< never more than reserved: references to passes stay valid
};

/// A pass over all elements of a tensor: `function` of the operands' elements, cast to the output.
template <std::size_t kOperands, class Function>
inline void element_wise(Execute& unit, unsigned operations, const Function& function) {
  Pass& pass = unit.pass({.operations = operations}, {0, 1, 2});
  const std::uint64_t size = unit.computation().output_elements();
  const auto beat = [&](std::uint64_t first, auto count) {
    Lanes in[kOperands], out;
    for (std::size_t i = 0; i < kOperands; ++i) unit.load_flat(i, first, count, in[i].at);
    for (std::size_t i = 0; i < count; ++i) {
      if constexpr (kOperands == 1) out.at[i] = function(in[0].at[i]);
      if constexpr (kOperands == 2) out.at[i] = function(in[0].at[i], in[1].at[i]);
      if constexpr (kOperands == 3) out.at[i] = function(in[0].at[i], in[1].at[i], in[2].at[i]);
    }
    unit.store(first, out.at, count);
    pass.beat();
  };
  std::uint64_t first = 0;
  if (unit.lanes() == FullBeat::value) {
    for (; first + FullBeat::value <= size; first += FullBeat::value) beat(first, FullBeat{});
  }
  for (; first < size; first += unit.lanes()) {
    beat(first, static_cast<std::size_t>(std::min<std::uint64_t>(unit.lanes(), size - first)));
  }
}

}  // namespace OPD_LANES
}  // namespace opd::sc
