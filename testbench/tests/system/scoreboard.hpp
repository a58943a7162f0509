#pragma once
// What the pins of a device must show, clock by clock: the reference for every sample and command,
// and around it the queues, counters and registers that software sees, written from "Registers in
// time" of docs/architecture.md. Cycle c is the clock that edge c ends.
//
// The only thing that is not predicted is the clock in which a command on an operator runs: from its
// write until it must be over, registers that it may change are not compared.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "crosscheck.hpp"
#include "opd/driver/fields.hpp"
#include "opd/reference/cpu.hpp"
#include "opd/types/device.hpp"

namespace opd::tb {

class Scoreboard {
 public:
  struct Counts {
    std::uint64_t records = 0;
    std::uint64_t vectorised = 0;   ///< operators summarised by the vectorised pass as well
    std::uint64_t reads = 0;        ///< answers compared
    std::uint64_t refused = 0;      ///< accesses refused, as they must be
    std::uint64_t events = 0;       ///< made
    std::uint64_t events_read = 0;  ///< of these, compared as software read them
    std::uint64_t events_lost = 0;
    std::uint64_t commands = 0;
    std::uint64_t configurations = 0;  ///< configuration registers that changed
    std::uint64_t learning_rate_changes = 0;
    std::uint64_t upsets = 0;
    std::uint64_t modes = 0;  ///< reads of the mode port compared
    std::uint64_t irq_high = 0;
    std::uint64_t baselines_held =
        0;                            ///< samples after which BASELINE.MAX_LAG decided the baseline
    std::uint64_t forecasts_fp8 = 0;  ///< FORECAST of E4M3 and E5M2
  };

  explicit Scoreboard(const DeviceParameters& parameters)
      : parameters_(parameters), cpu_(parameters, {}), open_(parameters.num_streams) {
    for (const Register& r : kRegisters) stored_[r.address] = r.reset;
  }

  /// One cycle: what is on the pins before its edge.
  void see(const CycleInput& input, const CycleOutput& output) {
    ++cycle_;
    finish_command();
    const std::uint32_t set = edge_before(output);
    irq_status_ = (irq_status_ & ~std::exchange(clear_status_, 0)) | set;
    ASSERT_NO_FATAL_FAILURE(check_pins(input, output));
    ASSERT_NO_FATAL_FAILURE(serve_bus(input.apb, output));
    ASSERT_NO_FATAL_FAILURE(gather(input, output.stat_ready));
  }

  /// No completion is in flight and none will follow by itself: true a pipeline after the last one.
  [[nodiscard]] bool drained() const { return cycle_ > last_activity_ + 200; }
  /// No command can be running.
  [[nodiscard]] bool settled() const { return !command_; }

  /// Its stored state is intact, and none of its samples or commands is on the way, of which only
  /// the device knows whether it has read that state already.
  [[nodiscard]] bool can_corrupt(std::uint16_t op) const {
    if (corrupt_.contains(op) || (command_ && command_->op == op)) return false;
    return drained() ||
           std::none_of(pushed_.begin() + static_cast<std::ptrdiff_t>(next_), pushed_.end(),
                        [&](const Statistic& s) { return s.descriptor.op == op; });
  }
  /// Something flips a stored bit after the edge of the cycle seen last.
  void corrupt(std::uint16_t op, ref::Upset upset) {
    cpu_.inject_upset(op, upset);
    corrupt_.insert(op);
    ++counts.upsets;
    // docs/controller.md, "Upsets": the mode counts may be off by one from then on.
    if (upset == ref::Upset::kBoth) counts_open_ = true;
  }

  [[nodiscard]] std::uint64_t unseen() const { return unseen_ + (pushed_.size() - next_); }
  /// Rises of unseen_count so far.
  [[nodiscard]] std::uint64_t unseen_counted() const { return unseen_counted_; }

  Counts counts;
  std::map<unsigned, std::uint64_t> formats, modes, causes;
  std::array<std::uint64_t, kFlagNames.size()> flags{};
  std::array<std::uint64_t, kFlagNames.size()> flags_under_scale{};  ///< of these, scale_log2 not 0

 private:
  struct Gathered {
    std::vector<std::byte> bytes;
    std::vector<std::uint8_t> enabled;
  };
  struct Running {
    std::uint16_t op;
    Command command;
    ref::OpSetting setting;
    std::uint64_t edge;  ///< at which OP_COMMAND was written
  };

  unsigned compute_clocks() const { return parameters_.published_engine ? 8 : 0; }

  static unsigned element_bytes(Format format) {
    switch (format) {
      case Format::kE4m3:
      case Format::kE5m2:
        return 1;
      case Format::kFp32:
        return 4;
      default:
        return 2;
    }
  }

  // --- completions ---

  /// Gathers each operator's elements; completions get their seq in this order.
  void gather(const CycleInput& input, bool stat_ready) {
    if (input.beat_valid || input.stat_valid) last_activity_ = cycle_;
    if (input.stat_valid && stat_ready) pushed_.push_back(input.statistic);
    if (!input.beat_valid) return;
    const Beat& beat = input.beat;
    Gathered& open = open_[beat.stream];
    const unsigned width = element_bytes(beat.descriptor.format);
    const unsigned lanes = parameters_.datapath_width / 8 / width;
    open.bytes.insert(open.bytes.end(), reinterpret_cast<const std::byte*>(beat.data.data()),
                      reinterpret_cast<const std::byte*>(beat.data.data()) + lanes * width);
    for (unsigned lane = 0; lane < lanes; ++lane)
      open.enabled.push_back(beat.lane_enable >> lane & 1u);
    if (!beat.last) return;
    Statistic completion{.descriptor = beat.descriptor};
    if (static_cast<unsigned>(beat.descriptor.format) < kFormatNames.size()) {
      completion.summary = ref::summarise_serial(beat.descriptor.format, open.bytes, open.enabled,
                                                 parameters_.counter_width);
      // The vectorised pass has no lane enables: it is held against the definition where all lanes
      // but a tail are enabled.
      const auto tail = std::find(open.enabled.begin(), open.enabled.end(), 0);
      if (std::find(tail, open.enabled.end(), 1) == open.enabled.end()) {
        const auto elements = static_cast<std::size_t>(tail - open.enabled.begin());
        ASSERT_EQ(completion.summary, ref::summarise(beat.descriptor.format,
                                                     std::span(open.bytes).first(elements * width),
                                                     parameters_.counter_width));
        ++counts.vectorised;
      }
    }
    pushed_.push_back(completion);
    open.bytes.clear();
    open.enabled.clear();
  }

  /// What the edge before this cycle has done: record, event, counters. Returns the bits of
  /// IRQ_STATUS that it set.
  std::uint32_t edge_before(const CycleOutput& output) {
    const bool pop = std::exchange(pop_acts_, std::exchange(pop_written_, false));
    const bool clear = std::exchange(clear_acts_, std::exchange(clear_written_, false));
    std::uint32_t set = 0;
    bool lost = false;
    const std::uint32_t upsets_before = cpu_.upset_count();
    const Hints hints_before = cpu_.hints();
    std::optional<Event> event;
    if (output.record_valid) {
      last_activity_ = cycle_;
      event = record(output);
      if (static_cast<Cause>(output.record.cause) == Cause::kEscalate) set |= 1u << 4;
    }
    const bool room = events_.size() < parameters_.event_depth || pop;
    if (pop && !events_.empty()) events_.pop_front();
    if (event) {
      ++counts.events;
      if (room) {
        events_.push_back(*event);
        set |= 1u << 0;
      } else {
        lost = true;
        ++counts.events_lost;
        set |= 1u << 1;
      }
    }
    const auto level = static_cast<unsigned>(events_.size());
    events_high_ = clear ? level : std::max(events_high_, level);
    events_lost_ = (clear ? 0 : events_lost_) + lost;
    const std::uint32_t found = cpu_.upset_count() - upsets_before;
    upsets_ = (clear ? 0 : upsets_) + found;
    if (found > 0) set |= 1u << 5;
    if (!(cpu_.hints() == hints_before)) set |= 1u << 3;
    const std::uint32_t more = output.unseen_count - (clear ? 0 : unseen_before_);
    unseen_before_ = output.unseen_count;
    unseen_counted_ += more;
    if (more > 0) set |= 1u << 2;
    return set;
  }

  /// The record of completion `seq`; completions before it that had no record were never seen by
  /// the device. Returns its event.
  std::optional<Event> record(const CycleOutput& output) {
    const std::uint32_t seq = output.record.seq;
    if (seq >= pushed_.size() || seq < next_) {
      ADD_FAILURE() << "record of seq " << seq << ", expected " << next_ << " or later of "
                    << pushed_.size();
      return std::nullopt;
    }
    unseen_ += seq - next_;
    next_ = seq + 1;
    const Statistic& completion = pushed_[seq];
    corrupt_.erase(completion.descriptor.op);
    const std::int32_t baseline = baseline_of(completion.descriptor.op);
    const auto detection = cpu_.complete(seq, completion.descriptor, completion.summary);
    if (!detection) {
      ADD_FAILURE() << "the device detected an illegal completion, seq " << seq;
      return std::nullopt;
    }
    const std::uint64_t most = (std::uint64_t{1} << parameters_.counter_width) - 1;
    const auto clamp = [&](std::uint32_t v) {
      return static_cast<std::uint32_t>(std::min<std::uint64_t>(v, most));
    };
    const TapCounts expected{clamp(completion.summary.element_count),
                             clamp(completion.summary.subnormal_count),
                             clamp(completion.summary.zero_count)};
    const auto difference =
        compare_records("cpu", detection->record, expected, "device", output.record, output.counts);
    EXPECT_FALSE(difference) << "cycle " << cycle_ << ", seq " << seq << ", op "
                             << detection->record.op << ": " << difference->field << ": cpu "
                             << difference->left_value << ", device " << difference->right_value;
    ++counts.records;
    counts.baselines_held += baseline_is_held(completion, baseline);
    counts.forecasts_fp8 += element_bytes(completion.descriptor.format) == 1 &&
                            (output.record.flags & flag_bit(Flag::kForecast)) != 0;
    ++formats[output.record.format];
    ++modes[output.record.mode];
    ++causes[output.record.cause];
    for (std::size_t f = 0; f < flags.size(); ++f) {
      const unsigned raised = output.record.flags >> f & 1u;
      flags[f] += raised;
      flags_under_scale[f] += completion.descriptor.scale_log2 != 0 ? raised : 0u;
    }
    return detection->event();
  }

  std::int32_t baseline_of(std::uint16_t op) const {
    return op < parameters_.num_ops ? cpu_.states()[op].forecast.baseline : 0;
  }

  /// The sample was more than MAX_LAG above the baseline, and the baseline is now that far below it.
  bool baseline_is_held(const Statistic& sample, std::int32_t before) const {
    const auto max_lag = 128 * static_cast<std::int32_t>(driver::extract(
                                   driver::field("BASELINE.MAX_LAG"), stored_.at(reg::kBaseline)));
    const std::int32_t target =
        4 * (ref::log2_code(sample.descriptor.format, sample.summary.max_mag) -
             32 * sample.descriptor.scale_log2);
    return max_lag != 0 && target - before > max_lag &&
           target - baseline_of(sample.descriptor.op) == max_lag;
  }

  // --- commands ---

  /// A sample popped at the edge of the write, or before, comes before the command; its record is
  /// sampled 2 + K edges later. A later sample waits for the command.
  void finish_command() {
    if (!command_) return;
    if (cycle_ >= command_->edge + 3 + compute_clocks() && !command_run_) run_command();
    if (cycle_ >= command_->edge + 5 + compute_clocks()) command_.reset();
  }
  void run_command() {
    command_run_ = true;
    const Hints before = cpu_.hints();
    const std::uint32_t upsets_before = cpu_.upset_count();
    corrupt_.erase(command_->op);
    operator_ = cpu_.command(command_->op, command_->command, command_->setting);
    ++counts.commands;
    upsets_ += cpu_.upset_count() - upsets_before;
    // In which clock of the window these were set is not known; a clear in the window leaves it open.
    if (!(cpu_.hints() == before)) set_by_command(1u << 3);
    if (cpu_.upset_count() != upsets_before) set_by_command(1u << 5);
  }
  void set_by_command(std::uint32_t bit) {
    irq_status_ |= bit;
    if ((cleared_in_window_ & bit) != 0) irq_unknown_ |= bit;
  }

  // --- pins ---

  void check_pins(const CycleInput& input, const CycleOutput& output) {
    counts.irq_high += output.irq;
    const std::uint32_t unknown = irq_unknown();
    const std::uint32_t enabled = stored_[reg::kIrqEnable];
    const bool certain = (irq_status_ & enabled & ~unknown) != 0;
    if (certain || (enabled & unknown) == 0) {
      ASSERT_EQ(output.irq, certain) << "cycle " << cycle_;
    }
    if (!(command_ && command_->op == input.mode_op)) {
      const Mode mode =
          input.mode_op < parameters_.num_ops ? cpu_.mode(input.mode_op) : Mode::kFast;
      ASSERT_EQ(output.mode, mode) << "cycle " << cycle_ << ", op " << input.mode_op;
      ++counts.modes;
    }
  }

  /// Bits of IRQ_STATUS that are not predicted.
  std::uint32_t irq_unknown() const {
    return irq_unknown_ | (command_ ? 1u << 3 | 1u << 5 : 0u) | (counts_open_ ? 1u << 3 : 0u);
  }

  static const Register* find(std::uint16_t address) {
    for (const Register& r : kRegisters)
      if (r.address == address) return &r;
    return nullptr;
  }

  void serve_bus(const ApbRequest& request, const CycleOutput& output) {
    if (!request.select || !request.enable) {
      ASSERT_EQ(output.apb, ApbResponse{}) << "cycle " << cycle_;
      return;
    }
    ASSERT_TRUE(output.apb.ready) << "cycle " << cycle_;
    const Register* const r = find(request.address);
    if (request.write) {
      serve_write(r, request, output);
    } else if (r == nullptr || r->readable == 0) {
      ASSERT_TRUE(output.apb.error) << "read of " << request.address;
      ASSERT_EQ(output.apb.data, 0u);
      ++counts.refused;
    } else {
      ASSERT_FALSE(output.apb.error) << "read of " << r->name;
      serve_read(*r, output);
    }
  }

  void serve_read(const Register& r, const CycleOutput& output) {
    std::uint32_t compared = 0xFFFFFFFF;
    if (r.address == reg::kIrqStatus) compared = ~irq_unknown();
    if (command_ && r.address >= reg::kOpStatus && r.address <= reg::kOpSlope &&
        r.address != reg::kOpSetting)
      return;
    const bool is_count = r.address >= reg::kStableOps && r.address <= reg::kHintLearningRate;
    if ((command_ && (r.address == reg::kUpsets || is_count)) || (counts_open_ && is_count)) return;
    ASSERT_EQ(output.apb.data & compared, value_of(r, output) & compared)
        << "cycle " << cycle_ << ", read of " << r.name;
    ++counts.reads;
    counts.events_read += r.address == reg::kEventOp && !events_.empty();
  }

  std::uint32_t value_of(const Register& r, const CycleOutput& output) const {
    using driver::field;
    using driver::place;
    const Event event = events_.empty() ? Event{} : events_.front();
    const Hints hints = cpu_.hints();
    const auto& control = operator_.controller;
    const auto& published = operator_.published;
    switch (r.address) {
      case reg::kCapabilityOps:
        return parameters_.num_ops;
      case reg::kCapabilityEngines:
        return parameters_.forecast_engine | (parameters_.published_engine ? 2u : 0u);
      case reg::kCapabilityTap:
        return parameters_.datapath_width | parameters_.num_streams << 16;
      case reg::kCapabilityQueues:
        return parameters_.queue_depth | parameters_.event_depth << 8 |
               parameters_.counter_width << 16;
      case reg::kIrqStatus:
        return irq_status_;
      case reg::kQueue:
        return output.queue_level | std::uint32_t{output.queue_high_water} << 8;
      case reg::kUnseen:
        return output.unseen_count;
      case reg::kEvents:
        return static_cast<std::uint32_t>(events_.size()) | events_high_ << 8;
      case reg::kEventsLost:
        return events_lost_;
      case reg::kUpsets:
        return upsets_;
      case reg::kEventStep:
        return event.step;
      case reg::kEventOp:
        return event.op | static_cast<std::uint32_t>(event.old_mode) << 16 |
               static_cast<std::uint32_t>(event.new_mode) << 18 |
               static_cast<std::uint32_t>(event.cause) << 20;
      case reg::kEventScore:
        return event.flags | std::uint32_t{event.risk} << 16;
      case reg::kStableOps:
        return cpu_.stable_ops();
      case reg::kSafeOps:
        return cpu_.safe_ops();
      case reg::kHint:
        return place(field("HINT.LOSS_SCALE_SHIFT"), hints.loss_scale_shift) |
               place(field("HINT.CLIP_SHIFT"), hints.clip_shift);
      case reg::kHintLearningRate:
        return hints.learning_rate_factor;
      case reg::kLastCleanStep:
        return cpu_.last_clean_step().value_or(0);
      case reg::kLastClean:
        return cpu_.last_clean_step().has_value();
      case reg::kOpControl:
        return place(field("OP_CONTROL.MODE"), static_cast<std::int64_t>(control.mode)) |
               place(field("OP_CONTROL.LOCKED"), control.locked) |
               place(field("OP_CONTROL.DISABLED"), control.disabled) |
               place(field("OP_CONTROL.TIMER"), control.timer) |
               place(field("OP_CONTROL.LAST_STEP"), control.last_step);
      case reg::kOpHistory:
        return place(field("OP_HISTORY.AGE"), operator_.history.age) |
               place(field("OP_HISTORY.NONFINITE_RUN"), operator_.history.nonfinite_run);
      case reg::kOpBaseline:
        return place(field("OP_BASELINE.VALUE"), operator_.forecast.baseline);
      case reg::kOpAnchor:
        return place(field("OP_ANCHOR.VALUE"), published.anchor);
      case reg::kOpMean:
        return std::bit_cast<std::uint32_t>(published.mean);
      case reg::kOpVariance:
        return std::bit_cast<std::uint32_t>(published.variance);
      case reg::kOpLast:
        return std::bit_cast<std::uint32_t>(published.last);
      case reg::kOpSlope:
        return std::bit_cast<std::uint32_t>(published.slope);
      default:
        return stored_.at(r.address);
    }
  }

  static bool in_range(const Register& r, std::uint32_t value) {
    return std::all_of(kRegisterFields.begin(), kRegisterFields.end(), [&](const RegisterField& f) {
      if (f.address != r.address || !f.writable) return true;
      const std::int64_t v = driver::extract(f, value);
      return v >= f.minimum && v <= f.maximum;
    });
  }

  void serve_write(const Register* r, const ApbRequest& request, const CycleOutput& output) {
    ASSERT_EQ(output.apb.data, 0u);
    bool refused =
        r == nullptr || r->writable == 0 || request.strobe != 0xF || !in_range(*r, request.data);
    if (!refused && r->address == reg::kOpCommand) {
      refused = (request.data & 0xFFFFu) >= parameters_.num_ops;
      // While the window is open only the device knows whether the command has ended.
      if (!refused && command_) refused = output.apb.error;
    }
    ASSERT_EQ(output.apb.error, refused)
        << "cycle " << cycle_ << ", write of " << request.data << " to " << request.address;
    if (refused) {
      ++counts.refused;
      return;
    }
    const std::uint32_t data = request.data & r->writable;
    switch (r->address) {
      case reg::kCommand:
        clear_written_ = data != 0;
        return;
      case reg::kEventPop:
        pop_written_ = data != 0;
        return;
      case reg::kIrqStatus:
        clear_status_ = data;
        irq_unknown_ &= ~data;
        if (command_) cleared_in_window_ |= data;
        return;
      case reg::kOpCommand:
        begin_command(data);
        break;
      case reg::kLearningRateChange:
        cpu_.announce_learning_rate(data);
        ++counts.learning_rate_changes;
        break;
      default:
        break;
    }
    const bool changed = stored_[r->address] != data;
    stored_[r->address] = data;
    if (changed && r->address >= reg::kLimitFp16) {
      ++counts.configurations;
      cpu_.configure(configuration());
    }
  }

  void begin_command(std::uint32_t data) {
    if (command_ && !command_run_) run_command();  // it has ended, or this one were refused
    const std::uint32_t setting = stored_[reg::kOpSetting];
    command_ = {.op = static_cast<std::uint16_t>(data & 0xFFFFu),
                .command = static_cast<Command>(data >> 16),
                .setting = {.mode = static_cast<Mode>(setting & 3u),
                            .locked = (setting >> 8 & 1u) != 0,
                            .disabled = (setting >> 16 & 1u) != 0},
                .edge = cycle_};
    command_run_ = false;
    cleared_in_window_ = 0;
  }

  Config configuration() const {
    Config config;
    for (const ConfigField& f : kConfigFields) {
      const std::uint32_t bits = stored_.at(f.address) >> f.low_bit & driver::mask_of(f);
      const bool negative = f.is_signed && (bits >> (f.width - 1) & 1u) != 0;
      f.set(config, static_cast<std::int32_t>(negative ? bits | ~driver::mask_of(f) : bits));
    }
    return config;
  }

  const DeviceParameters parameters_;
  ref::CpuReference cpu_;
  std::vector<Gathered> open_;
  std::vector<Statistic> pushed_;  ///< by seq
  std::size_t next_ = 0;           ///< seq of the next record, at the earliest
  std::uint64_t unseen_ = 0;
  std::uint64_t cycle_ = 0;
  std::uint64_t last_activity_ = 0;  ///< cycle of the last beat, statistic or record
  std::set<std::uint16_t> corrupt_;  ///< operators with an upset that nobody has found

  std::map<std::uint16_t, std::uint32_t> stored_;  ///< what was written, by address
  std::uint32_t irq_status_ = 0;
  bool counts_open_ = false;        ///< mode counts, and the hints that follow, are not known
  std::uint32_t irq_unknown_ = 0;   ///< bits that a command set or not
  std::uint32_t clear_status_ = 0;  ///< written in the last cycle
  std::deque<Event> events_;
  unsigned events_high_ = 0;
  std::uint32_t events_lost_ = 0, upsets_ = 0;
  std::uint32_t unseen_before_ = 0;
  std::uint64_t unseen_counted_ = 0;
  bool pop_written_ = false, pop_acts_ = false;      ///< in the last cycle, the one before
  bool clear_written_ = false, clear_acts_ = false;  ///< as pop

  std::optional<Running> command_;  ///< may be running
  bool command_run_ = false;        ///< the reference has done it
  std::uint32_t cleared_in_window_ = 0;
  ref::OpState operator_;  ///< after the last command
};

}  // namespace opd::tb
