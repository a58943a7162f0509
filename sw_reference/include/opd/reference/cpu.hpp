#pragma once
// Software reference on the CPU: tap statistics of whole tensors and the detection unit of all
// operators.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "opd/reference/detector.hpp"
#include "opd/types/device.hpp"

namespace opd::ref {

/// Instruction sets that `summarise` and `byte_sum` are compiled for; the best one of the machine
/// is used.
enum class Isa : std::uint8_t { kBaseline, kAvx2 };

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

/// Detection unit of all operators, without time: completions in, records out.
class CpuReference {
 public:
  /// Errors: std::invalid_argument for parameters or configuration out of range.
  explicit CpuReference(const DeviceParameters& parameters = {}, const Config& config = {});

  /// One completion in seq order. The summary is clamped to counter_width, as the device stores it.
  /// Returns nothing for an illegal completion (op >= num_ops or an unknown format): it counts as
  /// unseen.
  std::optional<OpRecord> complete(std::uint32_t seq, const OpDescriptor& descriptor,
                                   const TapSummary& summary);

  /// Mode in force for the operator's next execution. Errors: std::out_of_range when op >= num_ops.
  Mode mode(std::uint16_t op) const;

  /// Illegal completions so far, saturating.
  std::uint32_t unseen_count() const { return unseen_count_; }

  /// State of every operator, indexed by op id.
  std::span<const OpState> states() const { return states_; }

 private:
  DeviceParameters parameters_;
  Config config_;
  std::vector<OpState> states_;
  std::uint32_t unseen_count_ = 0;
};

}  // namespace opd::ref
