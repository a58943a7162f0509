#pragma once
// The waveform of a lockstep run: the Verilated device's own signals, and beside them, in the scope
// `compare`, the pins of both devices and what both store of one operator, under the same names and
// with the names of modes, formats and causes.
//
//   time : edge n is at n ns. What a report says of cycle n is what edge n samples: the values left
//          of n ns. The inputs of edge n change with edge n - 1.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "opd/types/device.hpp"
#include "stored_state.hpp"

class VerilatedFstC;

namespace opd::tb {

/// Clock cycles [first, last] whose waveform is wanted; edge numbers count from reset release.
struct WaveformWindow {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::filesystem::path file;
  std::uint16_t op = 0;  ///< whose stored state is in it
};

class Waveform {
 public:
  explicit Waveform(WaveformWindow window);
  ~Waveform();
  Waveform(const Waveform&) = delete;
  Waveform& operator=(const Waveform&) = delete;

  [[nodiscard]] const WaveformWindow& window() const { return window_; }
  /// Whether edge `cycle` is to be seen.
  [[nodiscard]] bool wants(std::uint64_t cycle) const {
    return cycle >= window_.first && cycle <= window_.last;
  }

  // Per cycle, in this order: what is common, what SystemC has, what the RTL has.
  void note_inputs(const CycleInput& input);
  void note_systemc(const CycleOutput& output, const StoredState& state, unsigned detection_unit);
  void note_rtl(const CycleOutput& output, const StoredState& state);

  /// Adds the signals to a dump that is not open yet.
  void join(VerilatedFstC& dump);

 private:
  struct Signals;
  const WaveformWindow window_;
  std::unique_ptr<Signals> signals_;
};

/// Writes the GTKWave save file beside the dump: both devices' signals in groups. `marker` is the
/// cycle of a divergence and `field` what differs there (Divergence::field); 0 and empty: none.
void write_save_file(const WaveformWindow& window, std::uint64_t marker, const std::string& field);

}  // namespace opd::tb
