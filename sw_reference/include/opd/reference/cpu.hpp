#pragma once
// Software reference on the CPU: tap statistics of whole tensors and the detection unit of all
// operators.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "opd/reference/detector.hpp"
#include "opd/reference/tap.hpp"
#include "opd/types/device.hpp"

namespace opd::ref {

/// Instruction sets that `summarise` and `byte_sum` are compiled for; the best one of the machine
/// is used.
enum class Isa : std::uint8_t { kBaseline, kAvx2, kAvx512 };

/// The best instruction set of this machine.
Isa best_isa();

/// Tap statistics of one operator output: one pass, one thread, vectorised.
///
/// Shape : elements in output order, packed, little endian, any alignment; element k has index k.
/// Empty : the default TapSummary.
/// Exact : equal to summarise_serial.
/// Errors: std::invalid_argument for an unknown format, a size that is no multiple of the element
///         size, or a counter_width outside 2..32.
TapSummary summarise(Format format, std::span<const std::byte> elements,
                     unsigned counter_width = 32);

/// The same with the instruction set given. Errors: std::invalid_argument as well when the machine
/// lacks it.
TapSummary summarise(Format format, std::span<const std::byte> elements, unsigned counter_width,
                     Isa isa);

inline constexpr unsigned kMaxThreads = 1024;

/// The same on up to `threads` threads, 1..kMaxThreads, of 256 KiB each at least; fewer elements take
/// fewer threads. The result does not depend on their number. Errors: as summarise, and
/// std::invalid_argument for another number of threads.
TapSummary summarise_on_threads(Format format, std::span<const std::byte> elements,
                                unsigned threads, unsigned counter_width = 32);

/// The definition: element by element.
///
/// enabled : one byte per element, 0 = the lane is disabled; empty = all enabled.
/// Errors  : as summarise, and std::invalid_argument when `enabled` is neither empty nor one byte
///           per element.
TapSummary summarise_serial(Format format, std::span<const std::byte> elements,
                            std::span<const std::uint8_t> enabled = {},
                            unsigned counter_width = 32);

/// Throws std::invalid_argument that names the field and its legal range.
void validate(const DeviceParameters& parameters);
void validate(const Config& config);

/// Detection unit of all operators, without time: completions and commands in, records, events,
/// modes and hints out. The event queue and its depth belong to the device; here every event is
/// handed out.
class CpuReference {
 public:
  /// Errors: std::invalid_argument for parameters or configuration out of range.
  explicit CpuReference(const DeviceParameters& parameters = {}, const Config& config = {});

  /// Replaces the configuration for the completions to come; state stays.
  /// Errors: std::invalid_argument.
  void configure(const Config& config);

  /// The learning rate changes with this training step (register LEARNING_RATE_CHANGE).
  void announce_learning_rate(std::uint32_t step) { setup_.learning_rate_change = {true, step}; }

  /// One completion in seq order. The summary is clamped to counter_width, as the device stores it.
  /// Returns nothing for an illegal completion (op >= num_ops or an unknown format): it counts as
  /// unseen.
  std::optional<Detection> complete(std::uint32_t seq, const OpDescriptor& descriptor,
                                    const TapSummary& summary);

  /// Runs a command and returns the operator's state after it. `setting` matters to SET only.
  /// Errors: std::out_of_range when op >= num_ops, std::invalid_argument for a mode above SAFE.
  OpState command(std::uint16_t op, Command command, const OpSetting& setting = {});

  /// Corrupts stored bits of an operator; its next sample or command finds and repairs them. Upsets
  /// of one operator add up until then. Errors: std::out_of_range when op >= num_ops.
  void inject_upset(std::uint16_t op, Upset upset);

  /// Mode in force for the operator's next execution; SAFE while its mode register is corrupt.
  /// Errors: std::out_of_range when op >= num_ops.
  Mode mode(std::uint16_t op) const;

  /// Operators whose mode is STABLE, SAFE. A mode register that waits for its repair counts as
  /// what it held.
  std::uint32_t stable_ops() const { return stable_ops_; }
  std::uint32_t safe_ops() const { return safe_ops_; }

  /// What the training loop should do now.
  Hints hints() const;

  /// Latest step that has ended without a non-finite sample of any operator; none at first.
  std::optional<std::uint32_t> last_clean_step() const { return last_clean_step_; }

  /// Samples and commands that found an upset, saturating.
  std::uint32_t upset_count() const { return upset_count_; }

  /// Illegal completions so far, saturating.
  std::uint32_t unseen_count() const { return unseen_count_; }

  /// State of every operator, indexed by op id.
  std::span<const OpState> states() const { return states_; }

 private:
  Upset find_upset(std::uint16_t op);
  void count_modes(Mode before, Mode after);
  void record_step(std::uint32_t step, bool nonfinite);
  void check_op(std::uint16_t op) const;

  DeviceParameters parameters_;
  DetectorSetup setup_;
  std::vector<OpState> states_;
  std::vector<Upset> upsets_;  // not yet found
  std::uint32_t stable_ops_ = 0;
  std::uint32_t safe_ops_ = 0;
  std::uint32_t upset_count_ = 0;
  std::uint32_t unseen_count_ = 0;
  std::optional<std::uint32_t> open_step_;  // of the last sample
  bool open_step_is_clean_ = true;
  std::optional<std::uint32_t> last_clean_step_;
};

}  // namespace opd::ref
