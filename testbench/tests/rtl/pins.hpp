#pragma once
// Drives the Verilated device cycle by cycle and collects its records, for directed tests. Settings and
// status go through APB, as software's do.
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

/// One operator's state as the OP_ registers show it.
struct OpState {
  Mode mode = Mode::kFast;
  bool locked = false, disabled = false;
  std::uint32_t timer = 0, last_step = 0, age = 0, nonfinite_run = 0;
  std::int32_t baseline = 0, anchor = 0;
  std::uint32_t mean = 0, variance = 0, last = 0, slope = 0;  ///< FP32 bits
  bool operator==(const OpState&) const = default;
};

/// Two's complement of the lower `width` bits.
inline std::int32_t sign_extend(std::uint32_t bits, unsigned width) {
  return static_cast<std::int32_t>(bits << (32 - width)) >> (32 - width);
}

template <class Model>
class Pins {
 public:
  explicit Pins(const Config& config = {}) { configure(config); }

  /// Writes the registers in which `config` differs from what reset sets.
  void configure(const Config& config) {
    const Config reset;
    for (std::size_t i = 0; i < kConfigFields.size();) {
      const std::uint16_t address = kConfigFields[i].address;
      std::uint32_t data = 0;
      bool differs = false;
      for (; i < kConfigFields.size() && kConfigFields[i].address == address; ++i) {
        const ConfigField& field = kConfigFields[i];
        const auto value = static_cast<std::uint32_t>(field.get(config));
        data |= (value & (0xFFFFFFFFu >> (32 - field.width))) << field.low_bit;
        differs = differs || field.get(config) != field.get(reset);
      }
      if (differs) write(address, data);
    }
  }

  /// One APB transfer of two edges. Returns the response.
  ApbResponse transfer(ApbRequest request) {
    CycleInput input;
    request.select = true;
    request.enable = false;
    input.apb = request;
    if (edge(input).apb.ready) throw std::logic_error("pready in the setup clock");
    input.apb.enable = true;
    const ApbResponse response = edge(input).apb;
    if (!response.ready) throw std::logic_error("wait state");
    return response;
  }
  void write(std::uint16_t address, std::uint32_t data) {
    if (transfer({.write = true, .address = address, .data = data}).error) {
      throw std::logic_error("write refused");
    }
  }
  std::uint32_t read(std::uint16_t address) {
    const ApbResponse response = transfer({.address = address});
    if (response.error) throw std::logic_error("read refused");
    return response.data;
  }

  /// Runs a command on one operator and returns its state after it.
  OpState command(std::uint16_t op, Command command) {
    write(reg::kOpCommand, op | static_cast<std::uint32_t>(command) << 16);
    for (int i = 0; i < 50 && read(reg::kOpStatus) != 0; ++i) {
    }
    if (read(reg::kOpStatus) != 0) throw std::logic_error("a command does not end");
    const std::uint32_t control = read(reg::kOpControl);
    const std::uint32_t history = read(reg::kOpHistory);
    return {.mode = static_cast<Mode>(control & 3u),
            .locked = (control >> 2 & 1u) != 0,
            .disabled = (control >> 3 & 1u) != 0,
            .timer = control >> 8 & 0xFFu,
            .last_step = control >> 16 & 0xFFu,
            .age = history & 0xFFu,
            .nonfinite_run = history >> 8 & 0xFFu,
            .baseline = sign_extend(read(reg::kOpBaseline), 17),
            .anchor = sign_extend(read(reg::kOpAnchor), 10),
            .mean = read(reg::kOpMean),
            .variance = read(reg::kOpVariance),
            .last = read(reg::kOpLast),
            .slope = read(reg::kOpSlope)};
  }
  OpState state(std::uint16_t op) { return command(op, Command::kRead); }
  OpState set(std::uint16_t op, Mode mode, bool locked, bool disabled) {
    write(reg::kOpSetting, static_cast<std::uint32_t>(mode) |
                               static_cast<std::uint32_t>(locked) << 8 |
                               static_cast<std::uint32_t>(disabled) << 16);
    return command(op, Command::kSet);
  }

  /// Drives the inputs and gives one rising edge. Returns the outputs that this edge samples.
  CycleOutput edge(const CycleInput& input = {}) {
    const CycleOutput output = device_.peek(input);
    device_.edge();
    if (output.record_valid) seen_.push_back({device_.cycle(), output.record, output.counts});
    return output;
  }

  /// Mode that the vector unit reads.
  Mode mode(std::uint16_t op) {
    CycleInput input;
    input.mode_op = op;
    return edge(input).mode;
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
    if (!edge(input).stat_ready) throw std::logic_error("a statistic was not taken");
    for (int i = 0; i < 11 && seen_.size() == before; ++i) edge();
    if (seen_.size() != before + 1) throw std::logic_error("no record for an accepted statistic");
    return seen_.back().record;
  }

  void reset() { device_.reset(); }
  [[nodiscard]] std::uint64_t edges() const { return device_.cycle(); }  ///< given since reset
  [[nodiscard]] const std::vector<Seen>& seen() const { return seen_; }
  [[nodiscard]] Model& model() { return device_.model(); }

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
