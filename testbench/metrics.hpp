#pragma once
// Detection quality, reaction and overhead of one replayed trace. Definitions: docs/metrics.md.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "operators.hpp"
#include "paths/path_result.hpp"

namespace opd::tb {

/// The first non-finite value of one operator, and what the device had said of that operator
/// before.
struct Incident {
  std::uint16_t op = 0;
  std::uint32_t step = 0;
  std::uint32_t lead_steps = 0;  ///< for how many steps an alarm had been standing; 0 = no warning
  std::optional<std::uint32_t> first_alarm;  ///< step of the first alarm in the window before
  Mode mode_before = Mode::kFast;            ///< the mode it ran in when it happened
};

/// Steps before the incident in which alarms are looked for
inline constexpr std::uint32_t kLeadWindow = 128;

struct DetectionQuality {
  std::vector<Incident> incidents;  ///< one per operator that went non-finite, in seq order
  /// Of the operator that the label names, else of the earliest forward probe
  std::optional<Incident> first;
  std::uint64_t probe_steps = 0;
  /// Records with risk >= RISK.STABLE before the first incident of their op
  std::uint64_t alarms = 0;
  std::uint64_t flagged = 0;     ///< records with any alarm flag
  std::uint64_t downshifts = 0;  ///< changes FAST to STABLE
  std::array<std::uint64_t, kFlagNames.size()> flag_counts{};
  [[nodiscard]] double alarms_per_1000() const {
    return probe_steps == 0
               ? 0.0
               : 1000.0 * static_cast<double>(alarms) / static_cast<double>(probe_steps);
  }
};

/// `commanded`: a policy changed modes between the records. What was in force is then what the vector
/// unit read at issue.
[[nodiscard]] DetectionQuality assess(const OperatorStream& operators,
                                      std::span<const Completion> completions, const Config& config,
                                      bool commanded = false);

/// Completions and incidents by the mode that their operator was issued in.
struct ModeShares {
  std::array<std::uint64_t, kModeNames.size()> issued{}, incidents{};
  /// Share of the completions; 0 without any.
  [[nodiscard]] double outside_fast() const;
};
[[nodiscard]] ModeShares mode_shares(std::span<const Completion> completions);

/// What one engine says of a trace, and what its risk profile would have decided.
struct EngineDetection {
  std::string_view name;         ///< of kProfileNames
  Order order = Order::kBefore;  ///< published only
  std::uint16_t flag_mask = 0;   ///< flags of the engine
  std::uint64_t flagged = 0;     ///< records with any of them
  std::uint64_t probe_steps = 0;
  std::uint64_t alarms = 0;  ///< as DetectionQuality
  std::uint64_t downshifts = 0;
  /// Of the given operator, which goes non-finite whatever the profile
  std::optional<Incident> incident;
  /// Largest z of any sample that is scored; nothing for the forecast engine or when none is
  struct LargestZ {
    double z = 0;
    std::uint16_t op = 0;
    std::uint32_t step = 0;
  };
  std::optional<LargestZ> largest_z;
  [[nodiscard]] double alarms_per_1000() const {
    return probe_steps == 0
               ? 0.0
               : 1000.0 * static_cast<double>(alarms) / static_cast<double>(probe_steps);
  }
};

/// `config` with the weights of a risk profile (index into kProfileNames); all else as it is.
[[nodiscard]] Config with_profile(Config config, std::size_t profile);

/// The reference on the same completions three times: profile forecast, profile published with
/// order BEFORE and AFTER. `op` is the operator whose incident is asked for. Engines that the device
/// does not have are left out.
[[nodiscard]] std::vector<EngineDetection> compare_engines(const OperatorStream& operators,
                                                           std::span<const Completion> completions,
                                                           std::optional<std::uint16_t> op,
                                                           const DeviceParameters& parameters,
                                                           const Config& config);

/// What is left when software looks only at every n-th step. The baseline moves per sample, so it
/// gets n times slower: its horizon grows, and with it the false alarms.
struct SampledDetection {
  unsigned every = 1;
  std::uint32_t lead_steps = 0;  ///< of the given incident
  /// Per 1000 samples taken, all operators, before their first non-finite value
  double alarms_per_1000 = 0;
};
[[nodiscard]] std::vector<SampledDetection> detect_sampled(const OperatorStream& operators,
                                                           const Incident& incident,
                                                           const DeviceParameters& parameters,
                                                           const Config& config);

struct Spread {
  double minimum = 0, median = 0, p99 = 0, maximum = 0;
};
/// Nothing for no values.
[[nodiscard]] std::optional<Spread> spread_of(std::vector<double> values);

/// What a GPU would need for the same decision without the hardware unit. Computed, not measured;
/// the assumptions and their sources are in docs/metrics.md and travel with every figure.
struct GpuModel {
  double launch_and_synchronise_us = 6.7;  ///< one short kernel, less its own run time
  double host_decision_us = 0.1;
  double register_write_us = 1.0;         ///< posted write over PCIe
  double bandwidth_bytes_per_us = 4.8e6;  ///< HBM3e of an H200
  [[nodiscard]] double reaction_us(double bytes) const {
    return launch_and_synchronise_us + bytes / bandwidth_bytes_per_us + host_decision_us +
           register_write_us;
  }
};

/// What the tap adds to the vector unit's work. Computed, not measured (docs/metrics.md, "Energy").
struct TapModel {
  static constexpr double kFemtojoulePerBit = 3.1;     ///< integer add or compare, 45 nm
  static constexpr double kReadPicojoulePerBit = 3.9;  ///< HBM2, for what software reads again
  /// Of the software statistic: mask, four classes, maximum, four counts
  static constexpr unsigned kOperationsPerElement = 10;
  /// A beat of W bits: every bit passes the maximum and the comparisons with the format's largest
  /// finite and smallest normal magnitudes; six 32-bit counters follow.
  [[nodiscard]] static double picojoule_per_beat(unsigned datapath_width) {
    return (3.0 * datapath_width + 6 * 32) * kFemtojoulePerBit / 1000;
  }
};

}  // namespace opd::tb
