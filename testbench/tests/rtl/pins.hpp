#pragma once
// Drives the Verilated device cycle by cycle and collects its records, for directed tests.
#include <unistd.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "opd/types/device.hpp"
#include "paths/rtl_device.hpp"

namespace opd::tb {

/// Bits of the format, from the table in docs/numerics.md.
struct FormatRow {
  Format format;
  unsigned width;                 ///< bits of an element
  std::uint32_t largest;          ///< largest finite magnitude
  std::uint32_t first_nonfinite;  ///< smallest non-finite magnitude
  std::uint32_t smallest_normal;
};
inline constexpr FormatRow kFormatRows[] = {
    {Format::kFp16, 16, 0x7BFF, 0x7C00, 0x0400},
    {Format::kBf16, 16, 0x7F7F, 0x7F80, 0x0080},
    {Format::kE4m3, 8, 0x7E, 0x7F, 0x08},
    {Format::kE5m2, 8, 0x7B, 0x7C, 0x04},
    {Format::kFp32, 32, 0x7F7FFFFF, 0x7F800000, 0x00800000},
};

/// One completion as it came out, with the edge that sampled it.
struct Seen {
  std::uint64_t edge;
  OpRecord record;
  TapCounts counts;
};

template <class Model>
class Pins {
 public:
  explicit Pins(const Config& config = {}) : device_(config) {}

  /// Drives the inputs and gives one rising edge. Returns the outputs that this edge samples.
  CycleOutput edge(const CycleInput& input = {}) {
    const CycleOutput output = device_.peek(input);
    device_.edge();
    if (output.record_valid) seen_.push_back({device_.cycle(), output.record, output.counts});
    return output;
  }

  /// Empties the device: enough edges for everything in flight.
  void drain() {
    for (int i = 0; i < 600; ++i) edge();
  }

  /// Sends one statistic and returns its record.
  OpRecord sample(const Statistic& statistic) {
    CycleInput input;
    input.stat_valid = true;
    input.statistic = statistic;
    const std::size_t before = seen_.size();
    edge(input);
    for (int i = 0; i < 3; ++i) edge();
    if (seen_.size() != before + 1) throw std::logic_error("no record for an accepted statistic");
    return seen_.back().record;
  }

  void reset() { device_.reset(); }
  [[nodiscard]] std::uint64_t edges() const { return device_.cycle(); }  ///< given since reset
  [[nodiscard]] const std::vector<Seen>& seen() const { return seen_; }

 private:
  RtlDevice<Model> device_;
  std::vector<Seen> seen_;
};

/// For death tests, which read standard error: Verilator reports a failed assertion on standard
/// output.
inline void report_on_stderr() { dup2(STDERR_FILENO, STDOUT_FILENO); }

/// Writes `bits` into element `lane` of a beat.
inline void set_element(Beat& beat, unsigned width, unsigned lane, std::uint32_t bits) {
  for (unsigned byte = 0; byte < width / 8; ++byte) {
    beat.data[lane * width / 8 + byte] = static_cast<std::uint8_t>(bits >> 8 * byte);
  }
}

/// A statistic without alarms: one finite element of magnitude `max_mag`.
inline Statistic finite(std::uint16_t op, std::uint32_t step, std::uint32_t max_mag,
                        Format format = Format::kFp16) {
  Statistic s;
  s.descriptor = {.op = op, .format = format, .step = step, .scale_log2 = 0};
  s.summary.max_mag = max_mag;
  s.summary.element_count = 1;
  return s;
}

/// The same with a non-finite element as well.
inline Statistic nonfinite(std::uint16_t op, std::uint32_t step) {
  Statistic s = finite(op, step, 0);
  s.summary.nonfinite_count = 1;
  s.summary.first_nonfinite = 0;
  return s;
}

}  // namespace opd::tb
