#pragma once
// Parameters and pins of the device as plain data. rtl/opd_top.sv and systemc/ implement the same
// pins; docs/architecture.md gives the cycle of every output.
#include <array>
#include <cstdint>

#include "opd/types/record.hpp"

namespace opd {

/// Elaboration-time parameters, the same names as in rtl/opd_top.sv (NumOps, DatapathWidth, ...).
struct DeviceParameters {
  unsigned num_ops = 256;         ///< operators with detector state, 1..65536
  unsigned datapath_width = 512;  ///< bits per beat, 32..512, a multiple of 32
  unsigned num_streams = 4;       ///< operators that may be interleaved beat by beat, 1..256
  unsigned queue_depth = 8;       ///< completions that may wait for the detection unit, 1..255
  unsigned counter_width = 32;    ///< bits of the tap's counters, 2..32
  unsigned event_depth = 16;      ///< events that may wait for software, 1..255
  bool forecast_engine = true;    ///< present
  bool published_engine = true;   ///< present; one of the two must be
  bool operator==(const DeviceParameters&) const = default;
};

inline constexpr unsigned kMaxBeatBytes = 64;

/// One clock of vector-unit output. Element k of the beat occupies bits [k*w +: w] of data (w =
/// element width, data[0] holds bits 7..0) and counts when lane_enable bit k is set. lane_enable
/// bits past the last element of the format are ignored.
struct Beat {
  OpDescriptor descriptor;
  std::uint8_t stream = 0;
  bool last = false;
  std::uint64_t lane_enable = 0;
  std::array<std::uint8_t, kMaxBeatBytes> data{};
  bool operator==(const Beat&) const = default;
};

/// A completion whose elements never pass the tap (a fused kernel's intermediate, a statistics-only
/// trace).
struct Statistic {
  OpDescriptor descriptor;
  TapSummary summary;
  bool operator==(const Statistic&) const = default;
};

/// APB4 requester's side. A transfer is one clock of setup (select), then one of access (select and
/// enable), in which the response is valid.
struct ApbRequest {
  bool select = false;
  bool enable = false;
  bool write = false;
  std::uint16_t address = 0;  ///< 12 bits, bytes
  std::uint32_t data = 0;
  std::uint8_t strobe = 0xF;  ///< bytes written
  bool operator==(const ApbRequest&) const = default;
};

/// APB4 completer's side; all 0 outside the access clock.
struct ApbResponse {
  bool ready = false;
  bool error = false;
  std::uint32_t data = 0;
  bool operator==(const ApbResponse&) const = default;
};

/// Inputs sampled by one rising clock edge.
struct CycleInput {
  bool beat_valid = false;
  bool stat_valid = false;
  std::uint16_t mode_op = 0;  ///< operator whose mode the vector unit reads
  Beat beat;                  ///< ignored unless beat_valid
  Statistic statistic;        ///< ignored unless stat_valid; taken when stat_ready
  ApbRequest apb;
};

/// Outputs in the cycle that ends with that edge.
struct CycleOutput {
  bool record_valid = false;
  bool stat_ready = false;
  Mode mode = Mode::kFast;  ///< of mode_op
  std::uint8_t queue_level = 0;
  std::uint8_t queue_high_water = 0;
  std::uint32_t unseen_count = 0;  ///< completions that the detection unit never saw
  bool irq = false;
  ApbResponse apb;
  OpRecord record;   ///< not compared unless record_valid
  TapCounts counts;  ///< not compared unless record_valid
  bool operator==(const CycleOutput&) const = default;
};

}  // namespace opd
