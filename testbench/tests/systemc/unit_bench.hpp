#pragma once
// The vector unit in front of the device, driven one rising edge at a time, and everything they
// report.
#include <cstdint>
#include <deque>
#include <systemc>
#include <utility>
#include <vector>

#include "elements.hpp"
#include "fixed_config.hpp"
#include "opd/sc/device.hpp"
#include "opd/sc/vector_unit.hpp"

namespace opd::tb {

struct ReportedCompletion {
  std::uint64_t tag = 0;
  std::uint64_t issue_cycle = 0;
  std::uint64_t last_beat_cycle = 0;
  Mode mode = Mode::kFast;
  bool operator==(const ReportedCompletion&) const = default;
};

/// A beat as an edge sampled it.
struct SampledBeat {
  std::uint64_t edge = 0;
  Beat beat;
};

class UnitBench {
 public:
  UnitBench(std::vector<sc::Operation> operations, const sc::VectorUnitParameters& unit,
            const DeviceParameters& device = {}, const Config& config = kFixedConfig)
      : operations_(std::move(operations)),
        device_("device", device, config),
        unit_(
            "unit", device, unit, [this](sc::Operation& operation) { return next_(operation); },
            [this](std::uint64_t tag, std::uint64_t issue, std::uint64_t last, Mode mode) {
              completions.push_back({tag, issue, last, mode});
            }) {
    device_.clk(clk_);
    device_.rst_n(rst_n);
    device_.beat_valid(beat_valid_);
    device_.beat(beat_);
    device_.stat_valid(stat_valid_);
    device_.statistic(statistic_);
    device_.stat_ready(stat_ready_);
    device_.mode_op(mode_op_);
    device_.mode(mode_);
    device_.record_valid(record_valid_);
    device_.record(record_);
    device_.counts(counts_);
    device_.queue_level(queue_level_);
    device_.queue_high_water(queue_high_water_);
    device_.unseen_count(unseen_count_);
    unit_.clk(clk_);
    unit_.rst_n(rst_n);
    unit_.beat_valid(beat_valid_);
    unit_.beat(beat_);
    unit_.stat_valid(stat_valid_);
    unit_.statistic(statistic_);
    unit_.stat_ready(stat_ready_);
    unit_.mode_op(mode_op_);
    unit_.mode(mode_);
    unit_.done(done_);
    settle();
    rst_n.write(true);
    settle();
  }

  void edge() {
    if (beat_valid_.read()) beats.push_back({edges, beat_.read()});
    if (record_valid_.read()) {
      records.push_back(record_.read());
      counts.push_back(counts_.read());
    }
    clk_.write(true);
    settle();
    clk_.write(false);
    settle();
    ++edges;
  }

  /// Runs until the unit is done and its records are out; false when that takes more than `limit`
  /// edges.
  bool run(std::uint64_t limit = 1'000'000) {
    for (std::uint64_t i = 0; i < limit; ++i) {
      if (done_.read()) {
        // The last beat is folded one edge after it was sampled; from then on a completion takes
        // two edges.
        for (int drain = 0; drain < 2 * 256 + 8; ++drain) edge();
        return true;
      }
      edge();
    }
    return false;
  }

  /// Starts the source over with other operations.
  void restart(std::vector<sc::Operation> operations) {
    operations_ = std::move(operations);
    next_operation_ = 0;
    unit_.restart();
  }

  bool done() const { return done_.read(); }
  const sc::VectorUnitCounts& unit_counts() const { return unit_.counts(); }
  std::uint32_t unseen_count() const { return unseen_count_.read(); }

  static void settle() { sc_core::sc_start(1, sc_core::SC_PS); }

  sc_core::sc_signal<bool> rst_n{"rst_n"};
  std::uint64_t edges = 0;  ///< rising edges since construction
  unsigned source_calls = 0;
  std::vector<ReportedCompletion> completions;
  std::vector<SampledBeat> beats;
  std::vector<OpRecord> records;
  std::vector<TapCounts> counts;

 private:
  bool next_(sc::Operation& operation) {
    ++source_calls;
    if (next_operation_ == operations_.size()) return false;
    operation = operations_[next_operation_++];
    return true;
  }

  std::vector<sc::Operation> operations_;
  std::size_t next_operation_ = 0;
  sc_core::sc_signal<bool> clk_{"clk"}, beat_valid_{"beat_valid"}, stat_valid_{"stat_valid"},
      stat_ready_{"stat_ready"}, record_valid_{"record_valid"}, done_{"done"};
  sc_core::sc_signal<Beat> beat_{"beat"};
  sc_core::sc_signal<Statistic> statistic_{"statistic"};
  sc_core::sc_signal<std::uint16_t> mode_op_{"mode_op"};
  sc_core::sc_signal<Mode> mode_{"mode"};
  sc_core::sc_signal<OpRecord> record_{"record"};
  sc_core::sc_signal<TapCounts> counts_{"counts"};
  sc_core::sc_signal<unsigned> queue_level_{"queue_level"}, queue_high_water_{"queue_high_water"},
      unseen_count_{"unseen_count"};
  sc::Device device_;
  sc::VectorUnit unit_;
};

/// Random operators with the memory behind their elements.
struct OperationList {
  std::deque<std::vector<std::byte>> memory;
  std::vector<sc::Operation> operations;

  /// Tags are positions in the list. Ops 0..num_ops-1, now and then an illegal one; steps grow by 0
  /// or 1.
  static OperationList random(std::mt19937_64& rng, std::size_t count, unsigned num_ops,
                              std::size_t max_bytes) {
    OperationList list;
    std::uint32_t step = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sc::Operation operation;
      operation.tag = i;
      step += static_cast<std::uint32_t>(draw(rng, 0, 1));
      const Format format = kAllFormats[static_cast<std::size_t>(draw(rng, 0, 4))];
      const bool illegal = draw(rng, 0, 40) == 0;
      operation.descriptor = {
          .op = static_cast<std::uint16_t>(
              illegal ? num_ops : static_cast<unsigned>(draw(rng, 0, num_ops - 1))),
          .format = format,
          .step = step,
          .scale_log2 = static_cast<std::int8_t>(draw(rng, 0, 9) == 0 ? draw(rng, -20, 20) : 0)};
      if (draw(rng, 0, 4) == 0) {
        operation.statistic =
            TapSummary{.max_mag = static_cast<std::uint32_t>(draw(rng, 0, 0x7B)),
                       .element_count = static_cast<std::uint32_t>(draw(rng, 1, 1000)),
                       .saturated_count = static_cast<std::uint32_t>(draw(rng, 0, 9) == 0)};
        if (draw(rng, 0, 5) == 0) {
          operation.statistic->nonfinite_count = 2;
          operation.statistic->first_nonfinite = 0;
        }
      } else {
        const auto width = static_cast<std::size_t>(layout_of(format).bytes);
        const auto elements =
            static_cast<std::size_t>(draw(rng, 0, static_cast<std::int64_t>(max_bytes / width)));
        list.memory.push_back(random_elements(rng, format, elements, draw(rng, 0, 3) != 0));
        operation.elements = list.memory.back();
      }
      list.operations.push_back(operation);
    }
    return list;
  }
};

}  // namespace opd::tb
