#include "policy.hpp"

#include <chrono>
#include <type_traits>

namespace opd::tb {
namespace {

void carry_out(const HostCommand& command, driver::Driver& device) {
  std::visit(
      [&](const auto& c) {
        using Kind = std::decay_t<decltype(c)>;
        if constexpr (std::is_same_v<Kind, SetOperator>) {
          device.set(c.op, c.mode, c.locked, c.disabled);
        } else if constexpr (std::is_same_v<Kind, ReseedOperator>) {
          device.reseed(c.op);
        } else if constexpr (std::is_same_v<Kind, ClearOperator>) {
          device.clear(c.op);
        } else if constexpr (std::is_same_v<Kind, Configure>) {
          device.configure(c.config);
        } else if constexpr (std::is_same_v<Kind, AnnounceLearningRate>) {
          device.announce_learning_rate(c.step);
        }
      },
      command);
}

void carry_out(const HostCommand& command, ref::CpuReference& device) {
  std::visit(
      [&](const auto& c) {
        using Kind = std::decay_t<decltype(c)>;
        if constexpr (std::is_same_v<Kind, SetOperator>) {
          device.command(c.op, Command::kSet,
                         {.mode = c.mode, .locked = c.locked, .disabled = c.disabled});
        } else if constexpr (std::is_same_v<Kind, ReseedOperator>) {
          device.command(c.op, Command::kReseed);
        } else if constexpr (std::is_same_v<Kind, ClearOperator>) {
          device.command(c.op, Command::kClear);
        } else if constexpr (std::is_same_v<Kind, Configure>) {
          device.configure(c.config);
        } else if constexpr (std::is_same_v<Kind, AnnounceLearningRate>) {
          device.announce_learning_rate(c.step);
        }
      },
      command);
}

template <class Device>
void give_all(std::span<const HostCommand> commands, std::uint32_t step, Device& device,
              HintLog& hints) {
  if (commands.empty()) return;
  for (const HostCommand& command : commands) {
    carry_out(command, device);
    if (const auto* told = std::get_if<TellTraining>(&command)) hints.tell(told->hints);
  }
  hints.update(step, device.hints());
}

}  // namespace

void give(std::span<const HostCommand> commands, std::uint32_t step, driver::Driver& device,
          HintLog& hints) {
  give_all(commands, step, device, hints);
}

void give(std::span<const HostCommand> commands, std::uint32_t step, ref::CpuReference& device,
          HintLog& hints) {
  give_all(commands, step, device, hints);
}

const std::vector<HostCommand>& PolicyAnswers::before(std::size_t step_index,
                                                      const std::function<StepSeen()>& see) {
  if (!known(step_index)) {
    const auto start = std::chrono::steady_clock::now();
    answers_.push_back(step_index == 0 ? policy_.start(operators_, config_) : policy_.step(see()));
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  return answers_.at(step_index);
}

std::array<std::uint64_t, kHostCommandNames.size()> PolicyAnswers::counts() const {
  std::array<std::uint64_t, kHostCommandNames.size()> counts{};
  for (const std::vector<HostCommand>& commands : answers_) {
    for (const HostCommand& command : commands) ++counts[command.index()];
  }
  return counts;
}

std::uint32_t PolicyTurn::step() const {
  return next_ == 0 ? 0 : answers_->operators().trace().steps()[next_ - 1];
}

const std::vector<HostCommand>& PolicyTurn::take(std::span<const Completion> completions,
                                                 std::span<const Event> events, const Hints& hints,
                                                 std::optional<std::uint32_t> last_clean_step) {
  const auto see = [&] {
    StepSeen seen{.step = step(),
                  .events = events.subspan(events_seen_),
                  .hints = hints,
                  .last_clean_step = last_clean_step};
    for (const Completion& completion : completions.subspan(completions_seen_))
      seen.records.push_back(completion.record);
    return seen;
  };
  const std::vector<HostCommand>& commands = answers_->before(next_, see);
  ++next_;
  completions_seen_ = completions.size();
  events_seen_ = events.size();
  return commands;
}

}  // namespace opd::tb
