#pragma once
// A policy: firmware of the host that sees each training step of a replay and commands the device
// before the next one (docs/policies.md). It is asked once; every path gets the same commands at the
// same place of the stream, so that the paths can still be compared.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "opd/driver/driver.hpp"
#include "opd/reference/cpu.hpp"
#include "operators.hpp"
#include "paths/path_result.hpp"

namespace opd::tb {

// Commands: docs/programming.md. A SET is complete, and a configuration is the whole one.
struct SetOperator {
  std::uint16_t op;
  Mode mode;
  bool locked, disabled;
};
struct ReseedOperator {
  std::uint16_t op;
};
struct ClearOperator {
  std::uint16_t op;
};
struct Configure {
  Config config;
};
struct AnnounceLearningRate {
  std::uint32_t step;
};
/// What the training loop is told in place of the device's hints; nothing: these again.
struct TellTraining {
  std::optional<Hints> hints;
};
using HostCommand = std::variant<SetOperator, ReseedOperator, ClearOperator, Configure,
                                 AnnounceLearningRate, TellTraining>;
/// By the index in HostCommand.
inline constexpr std::array<std::string_view, std::variant_size_v<HostCommand>> kHostCommandNames =
    {"set", "reseed", "clear", "configure", "learning_rate", "hints"};

/// Gives a device commands in their order; `hints` is told what the training loop is told after
/// them. `step`: the one that they come after. Errors: those of the driver.
void give(std::span<const HostCommand> commands, std::uint32_t step, driver::Driver& device,
          HintLog& hints);
void give(std::span<const HostCommand> commands, std::uint32_t step, ref::CpuReference& device,
          HintLog& hints);

/// What a host sees of a training step when all its records are out.
struct StepSeen {
  std::uint32_t step = 0;
  std::vector<OpRecord> records;  ///< in the order of their completion
  std::span<const Event> events;
  Hints hints;
  std::optional<std::uint32_t> last_clean_step;
};

class HostPolicy {
 public:
  virtual ~HostPolicy() = default;
  /// A trace begins, with this configuration. Commands before its first step. Errors:
  /// std::runtime_error that names the policy's file and line, as in `step`.
  virtual std::vector<HostCommand> start(const OperatorStream& operators, const Config& config) = 0;
  /// Commands after a step.
  virtual std::vector<HostCommand> step(const StepSeen& seen) = 0;

  [[nodiscard]] virtual std::string file() const = 0;  ///< as it was named
  [[nodiscard]] virtual std::string name() const = 0;  ///< of the class
  [[nodiscard]] virtual std::string sha256() const = 0;
};

/// A policy's answers in one trace. Whoever gets to a step first asks; the others get what it said.
class PolicyAnswers {
 public:
  PolicyAnswers(HostPolicy& policy, const OperatorStream& operators, const Config& config)
      : policy_(policy), operators_(operators), config_(config) {}

  /// Whether the commands before the step with this index, or after the last one, are known.
  [[nodiscard]] bool known(std::size_t step_index) const { return step_index < answers_.size(); }
  /// These commands; the first that is not known is asked for, with what `see` has of the step before.
  const std::vector<HostCommand>& before(std::size_t step_index,
                                         const std::function<StepSeen()>& see);
  [[nodiscard]] const OperatorStream& operators() const { return operators_; }
  /// Given so far, by kHostCommandNames.
  [[nodiscard]] std::array<std::uint64_t, kHostCommandNames.size()> counts() const;
  [[nodiscard]] double seconds() const { return seconds_; }  ///< in the policy

 private:
  HostPolicy& policy_;
  const OperatorStream& operators_;
  const Config config_;
  std::vector<std::vector<HostCommand>> answers_;  ///< by step index
  double seconds_ = 0;
};

/// How far a path has got with the answers.
class PolicyTurn {
 public:
  explicit PolicyTurn(PolicyAnswers& answers) : answers_(&answers) {}

  /// Whether commands have to be given before the step with this index; the number of steps: after
  /// the last one.
  [[nodiscard]] bool due(std::size_t step_index) const { return next_ <= step_index; }
  /// Whether `take` has to ask the policy.
  [[nodiscard]] bool asks() const { return !answers_->known(next_); }
  /// Of the step that the next commands come after; 0 before the first.
  [[nodiscard]] std::uint32_t step() const;
  /// The next commands. What the path has recorded so far, and what its host reads.
  const std::vector<HostCommand>& take(std::span<const Completion> completions,
                                       std::span<const Event> events, const Hints& hints,
                                       std::optional<std::uint32_t> last_clean_step);

 private:
  PolicyAnswers* answers_;
  std::size_t next_ = 0;  ///< step index
  std::size_t completions_seen_ = 0, events_seen_ = 0;
};

}  // namespace opd::tb
