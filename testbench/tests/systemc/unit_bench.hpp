#pragma once
// The vector unit in front of the device, driven one rising edge at a time, and everything they
// report.
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <string>
#include <systemc>
#include <utility>
#include <vector>

#include "elements.hpp"
#include "opd/sc/device_signals.hpp"
#include "opd/sc/vector_unit.hpp"

namespace opd::tb {

struct ReportedCompletion {
  std::uint64_t tag = 0;
  std::uint64_t issue_cycle = 0;
  std::uint64_t last_beat_cycle = 0;
  Mode mode = Mode::kFast;
  bool operator==(const ReportedCompletion&) const = default;
};

/// A computed operator as its issue reported it.
struct ReportedExecution {
  std::uint64_t tag = 0;
  std::uint64_t issue_cycle = 0;
  Execution execution;
  bool operator==(const ReportedExecution&) const = default;
};

/// A beat as an edge sampled it.
struct SampledBeat {
  std::uint64_t edge = 0;
  Beat beat;
};

class UnitBench {
  sc::DeviceSignals pins_;

 public:
  sc_core::sc_signal<bool>& rst_n = pins_.rst_n;

  UnitBench(std::vector<sc::Operation> operations, const sc::VectorUnitParameters& unit,
            const DeviceParameters& device = {})
      : operations_(std::move(operations)),
        device_("device", device),
        unit_(
            "unit", device, unit, [this](sc::Operation& operation) { return next_(operation); },
            [this](std::uint64_t tag, std::uint64_t issue, std::uint64_t last, Mode mode) {
              completions.push_back({tag, issue, last, mode});
            },
            [this](std::uint64_t tag, std::uint64_t issue, const Execution& execution) {
              executions.push_back({tag, issue, execution});
            }) {
    pins_.bind(device_);
    pins_.bind(unit_);
    unit_.done(done_);
    settle();
    rst_n.write(true);
    settle();
  }

  void edge() {
    if (pins_.beat_valid.read()) beats.push_back({edges, pins_.beat.read()});
    if (pins_.record_valid.read()) {
      records.push_back(pins_.record.read());
      counts.push_back(pins_.counts.read());
    }
    pins_.clk.write(true);
    settle();
    pins_.clk.write(false);
    settle();
    ++edges;
  }

  /// Runs until the unit is done and its records are out; false when that takes more than `limit`
  /// edges.
  bool run(std::uint64_t limit = 1'000'000) {
    for (std::uint64_t i = 0; i < limit; ++i) {
      if (done_.read()) {
        // The last beat is folded one edge after it was sampled; from then on a completion takes
        // ten edges.
        for (int drain = 0; drain < 10 * 256 + 8; ++drain) edge();
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

  /// One APB transfer; two edges.
  std::uint32_t read(std::uint16_t address) { return transfer_({.address = address}).data; }
  void write(std::uint16_t address, std::uint32_t data) {
    transfer_({.write = true, .address = address, .data = data});
  }

  bool done() const { return done_.read(); }
  sc::VectorUnit& unit() { return unit_; }
  const sc::VectorUnitCounts& unit_counts() const { return unit_.counts(); }
  std::uint32_t unseen_count() const { return pins_.unseen_count.read(); }

  static void settle() { sc_core::sc_start(1, sc_core::SC_PS); }

  std::uint64_t edges = 0;       ///< rising edges since construction
  std::uint64_t hold_until = 0;  ///< the source answers "wait" at edges before
  unsigned source_calls = 0;
  std::vector<ReportedCompletion> completions;
  std::vector<ReportedExecution> executions;
  std::vector<SampledBeat> beats;
  std::vector<OpRecord> records;
  std::vector<TapCounts> counts;

 private:
  ApbResponse transfer_(ApbRequest request) {
    request.select = true;
    pins_.apb_request.write(request);
    edge();
    request.enable = true;
    pins_.apb_request.write(request);
    settle();
    const ApbResponse response = pins_.apb_response.read();
    EXPECT_TRUE(response.ready && !response.error) << request.address;
    edge();
    pins_.apb_request.write({});
    return response;
  }

  sc::SourceAnswer next_(sc::Operation& operation) {
    ++source_calls;
    if (next_operation_ == operations_.size()) return sc::SourceAnswer::kEnd;
    if (edges < hold_until) return sc::SourceAnswer::kWait;
    operation = operations_[next_operation_++];
    return sc::SourceAnswer::kOperation;
  }

  std::vector<sc::Operation> operations_;
  std::size_t next_operation_ = 0;
  sc_core::sc_signal<bool> done_{"done"};
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

/// The message of the report of that type that `body` ends with, or "accepted".
template <typename Body>
std::string fatal(const Body& body, const std::string& type) {
  try {
    body();
  } catch (const sc_core::sc_report& report) {
    EXPECT_EQ(report.get_msg_type(), type);
    return report.get_msg();
  }
  return "accepted";
}

}  // namespace opd::tb
