#include "opd/sc/vector_unit.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "opd/sc/parameters.hpp"

namespace opd::sc {
namespace {

const VectorUnitParameters& checked(const VectorUnitParameters& parameters,
                                    const DeviceParameters& device) {
  const auto fatal = [](const std::string& error) {
    SC_REPORT_FATAL("/opd/vector_unit/parameters", error.c_str());
  };
  if (const auto error = parameter_error(device)) fatal(*error);
  if (const auto error = range_error("lane_latency", parameters.lane_latency, 1, 1024))
    fatal(*error);
  if (const auto error = range_error("bubbles", parameters.bubbles, 0, 65535)) fatal(*error);
  if (const auto error = range_error("streams", parameters.streams, 1, device.num_streams))
    fatal(*error);
  if (const auto error = settings_error(parameters.settings)) fatal("settings." + *error);
  return parameters;
}

UnitSettings with_width(UnitSettings settings, unsigned datapath_width) {
  settings.datapath_width = datapath_width;
  return settings;
}

constexpr const char* kRegisterReport = "/opd/vector_unit/register";

/// Round robin: the first of `count` positions from `turn` on for which `ready` holds; `turn` moves
/// past it.
template <typename Ready>
std::optional<unsigned> take_turn(unsigned& turn, unsigned count, const Ready& ready) {
  for (unsigned i = 0; i < count; ++i) {
    const unsigned position = turn + i < count ? turn + i : turn + i - count;
    if (!ready(position)) continue;
    turn = position + 1 < count ? position + 1 : 0;
    return position;
  }
  return std::nullopt;
}

}  // namespace

VectorUnit::VectorUnit(sc_core::sc_module_name name, const DeviceParameters& device,
                       const VectorUnitParameters& parameters, OperationSource source,
                       CompletionCallback on_completion, ExecutionCallback on_execution)
    : sc_core::sc_module(name),
      registers("registers", registers_),
      beat_bytes_(device.datapath_width / 8),
      parameters_(checked(parameters, device)),
      source_(std::move(source)),
      on_completion_(std::move(on_completion)),
      on_execution_(std::move(on_execution)),
      registers_(with_width(parameters.settings, device.datapath_width)),
      contexts_(parameters.streams),
      lanes_(parameters.lane_latency) {
  SC_METHOD(on_clock_);
  sensitive << clk.pos() << rst_n.neg();
  dont_initialize();
}

std::uint32_t VectorUnit::read_register(std::uint16_t address) const {
  return read_register_of(registers_, address, kRegisterReport);
}

void VectorUnit::write_register(std::uint16_t address, std::uint32_t value) {
  write_register_of(registers_, address, value, kRegisterReport);
}

void VectorUnit::on_clock_() {
  if (!rst_n.read()) {
    reset_();
    return;
  }
  const std::uint64_t now = counts_.cycles++;
  if (!idle_()) ++counts_.busy_cycles;
  // From the last stage to the first: each moves on what the one before it registered at an earlier
  // edge.
  retire_(now);
  write_back_();
  drive_sideband_(now);
  issue_(now);
  select_(now);
  deal_();
  done.write(exhausted_ && idle_());
}

/// What was on the pins before this edge has been sampled by it. The order of the two is the order
/// of their seq: a statistic is numbered at the edge that accepts it, a last beat one edge after
/// the one that samples it.
void VectorUnit::retire_(std::uint64_t now) {
  if (sideband_) {
    if (stat_ready.read()) {
      Context& context = contexts_[sideband_->stream];
      complete_(*sideband_, now);
      context.operation.reset();
      context.statistic_issued = false;
      context.not_before = now + 1 + parameters_.bubbles;
      --held_operators_;
      sideband_.reset();
    } else {
      ++counts_.sideband_wait_cycles;
    }
  }
  if (bus_) {
    ++counts_.beats;
    if (bus_->last) {
      complete_(*bus_, now);
      if (bus_->is_computed) retire_computed_(now);
    }
    --slots_in_flight_;
    bus_.reset();
  }
}

/// The last beat of the oldest output has been sampled. Its accumulators follow.
void VectorUnit::retire_computed_(std::uint64_t now) {
  const std::optional<Statistic> accumulators = outputs_.front().accumulators;
  execution_.output.swap(outputs_.front().elements);
  outputs_.pop_front();
  if (!accumulators) return;
  Context& context = contexts_[bus_->stream];
  Slot entry = *bus_;
  entry.is_statistic = true;
  entry.is_computed = false;
  entry.descriptor = accumulators->descriptor;
  entry.tag = context.operation->accumulator_tag;
  entry.sideband_from = now + 1;
  context.operation->statistic = accumulators->summary;
  context.sideband_entry = entry;
}

void VectorUnit::write_back_() {
  std::optional<Slot>& leaving = lanes_[lane_];
  if (leaving) {
    if (leaving->is_statistic) {
      contexts_[leaving->stream].sideband_entry = leaving;
      --slots_in_flight_;
    } else {
      bus_ = leaving;
      put_on_bus_(*bus_);
    }
    leaving.reset();
  }
  beat_valid.write(bus_.has_value());
}

void VectorUnit::drive_sideband_(std::uint64_t now) {
  if (!sideband_) {
    const auto stream = take_turn(sideband_turn_, parameters_.streams, [this, now](unsigned i) {
      const std::optional<Slot>& entry = contexts_[i].sideband_entry;
      return entry && now >= entry->sideband_from;
    });
    if (stream) {
      Context& context = contexts_[*stream];
      sideband_ = std::exchange(context.sideband_entry, std::nullopt);
      statistic.write({sideband_->descriptor, *context.operation->statistic});
    }
  }
  stat_valid.write(sideband_.has_value());
}

void VectorUnit::issue_(std::uint64_t now) {
  if (second_mode_of_)
    contexts_[*std::exchange(second_mode_of_, std::nullopt)].second_mode = mode.read();
  if (selected_ && selected_->is_computed) {
    compute_(now);
  } else if (selected_) {
    Context& context = contexts_[selected_->stream];
    if (selected_->first) {
      context.operator_issue = now;
      context.mode = mode.read();
    }
    selected_->operator_issue = context.operator_issue;
    selected_->mode = context.mode;
    lanes_[lane_] = std::exchange(selected_, std::nullopt);
  }
  if (running_ && now == running_->next_edge) issue_computed_beat_();
  lane_ = lane_ + 1 < lanes_.size() ? lane_ + 1 : 0;
}

/// The operator selected one edge before is issued: its mode is read, its program runs.
void VectorUnit::compute_(std::uint64_t now) {
  Slot slot = *std::exchange(selected_, std::nullopt);
  --slots_in_flight_;
  const Computation& computation = *selected_operation_.computation;
  const Mode second =
      std::exchange(contexts_[slot.stream].second_mode, std::nullopt).value_or(Mode::kFast);
  processor_.execute(computation, registers_.mode_at_issue(std::max(mode.read(), second)),
                     registers_.settings(), execution_);
  registers_.executed(computation.kernel, execution_.status);
  const std::uint64_t clocks = execution_.cost.cycles;
  ++counts_.executions;
  counts_.computing_cycles += clocks;
  lanes_free_ = now + clocks;

  contexts_[slot.stream].not_before = lanes_free_ - 1 + parameters_.bubbles;
  slot.descriptor.format = execution_.status.format;
  slot.mode = execution_.status.mode;
  slot.operator_issue = now;
  if (on_execution_) on_execution_(slot.tag, now, execution_);

  Output& output = outputs_.emplace_back();
  output.elements.swap(execution_.output);
  if (selected_operation_.accumulator_op) {
    output.accumulators = accumulator_statistic(selected_operation_, execution_);
  }
  const std::size_t beats = beat_count(output.elements.size(), beat_bytes_);
  running_ = {.beat = slot, .next_edge = lanes_free_ - beats};
}

void VectorUnit::issue_computed_beat_() {
  const std::vector<std::byte>& output = outputs_.back().elements;
  const std::size_t byte_count = std::min(beat_bytes_, output.size() - running_->next_byte);
  Slot& slot = running_->beat;
  slot.first = running_->next_byte == 0;
  slot.elements = std::span(output).subspan(running_->next_byte, byte_count);
  running_->next_byte += byte_count;
  ++running_->next_edge;
  slot.last = running_->next_byte == output.size();
  lanes_[lane_] = slot;
  ++slots_in_flight_;
  if (slot.last) running_.reset();
}

void VectorUnit::select_(std::uint64_t now) {
  if (now + 1 < lanes_free_) return;
  const auto stream = take_turn(select_turn_, parameters_.streams, [this, now](unsigned i) {
    const Context& context = contexts_[i];
    return context.operation && !context.statistic_issued && now >= context.not_before;
  });
  if (!stream) return;

  Context& context = contexts_[*stream];
  const Operation& operation = *context.operation;
  if (operation.second_mode_op && !context.second_mode) {
    mode_op.write(*operation.second_mode_op);
    second_mode_of_ = stream;
    return;
  }
  Slot slot;
  slot.stream = *stream;
  slot.descriptor = operation.descriptor;
  slot.tag = operation.tag;
  if (operation.statistic) {
    slot.first = slot.last = slot.is_statistic = true;
    context.statistic_issued = true;  // the context is freed when the statistic is accepted
  } else if (operation.computation) {
    slot.first = slot.is_computed = true;
    selected_operation_ = operation;
    if (operation.accumulator_op) {
      context.statistic_issued = true;  // likewise
    } else {
      context.operation.reset();
      --held_operators_;
    }
  } else {
    const std::size_t byte_count =
        std::min(beat_bytes_, operation.elements.size() - context.next_byte);
    slot.first = context.next_byte == 0;
    slot.elements = operation.elements.subspan(context.next_byte, byte_count);
    context.next_byte += byte_count;
    slot.last = context.next_byte == operation.elements.size();
    if (slot.last) {
      context.operation.reset();
      context.not_before = now + 1 + parameters_.bubbles;
      --held_operators_;
    }
  }
  if (slot.first) mode_op.write(slot.descriptor.op);
  selected_ = slot;
  ++slots_in_flight_;
}

void VectorUnit::deal_() {
  Context& context = contexts_[deal_turn_];
  if (exhausted_ || context.operation) return;
  Operation operation;
  const SourceAnswer answer = source_ ? source_(operation) : SourceAnswer::kEnd;
  exhausted_ = answer == SourceAnswer::kEnd;
  if (answer != SourceAnswer::kOperation) return;
  if (const auto error = operation_error(operation)) {
    SC_REPORT_FATAL("/opd/vector_unit/operation", error->c_str());
  }
  if (!operation.statistic &&
      operation.elements.size() % element_bytes(operation.descriptor.format) != 0) {
    const std::string message = "operation of op " + std::to_string(operation.descriptor.op) +
                                " has " + std::to_string(operation.elements.size()) +
                                " bytes: must be a multiple of " +
                                std::to_string(element_bytes(operation.descriptor.format));
    SC_REPORT_FATAL("/opd/vector_unit/operation", message.c_str());
  }
  context.operation = operation;
  context.next_byte = 0;
  ++held_operators_;
  deal_turn_ = deal_turn_ + 1 < parameters_.streams ? deal_turn_ + 1 : 0;
}

void VectorUnit::put_on_bus_(const Slot& slot) {
  const std::size_t element_count = slot.elements.size() / element_bytes(slot.descriptor.format);
  beat_.descriptor = slot.descriptor;
  beat_.stream = static_cast<std::uint8_t>(slot.stream);
  beat_.last = slot.last;
  beat_.lane_enable = element_count == 0 ? 0 : ~std::uint64_t{0} >> (64 - element_count);
  std::copy(slot.elements.begin(), slot.elements.end(),
            reinterpret_cast<std::byte*>(beat_.data.data()));
  std::fill(beat_.data.begin() + static_cast<std::ptrdiff_t>(slot.elements.size()),
            beat_.data.begin() + static_cast<std::ptrdiff_t>(beat_bytes_), std::uint8_t{0});
  beat.write(beat_);
}

void VectorUnit::complete_(const Slot& slot, std::uint64_t now) {
  ++counts_.operations;
  if (on_completion_) on_completion_(slot.tag, slot.operator_issue, now, slot.mode);
}

void VectorUnit::reset_() {
  std::fill(contexts_.begin(), contexts_.end(), Context{});
  std::fill(lanes_.begin(), lanes_.end(), std::nullopt);
  selected_.reset();
  bus_.reset();
  sideband_.reset();
  second_mode_of_.reset();
  running_.reset();
  outputs_.clear();
  lanes_free_ = 0;
  registers_.reset();
  deal_turn_ = select_turn_ = sideband_turn_ = 0;
  lane_ = 0;
  held_operators_ = slots_in_flight_ = 0;
  exhausted_ = false;
  counts_ = {};
  beat_valid.write(false);
  stat_valid.write(false);
  mode_op.write(0);
  done.write(false);
}

}  // namespace opd::sc
