#include "computing_bench.hpp"

#include <chrono>
#include <optional>
#include <systemc>

#include "opd/sc/device_signals.hpp"
#include "opd/sc/loosely_timed_device.hpp"
#include "opd/sc/loosely_timed_unit.hpp"
#include "opd/sc/vector_unit.hpp"

namespace opd::tb {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A clock that runs until `stop`, asked at its falling edges.
class BenchClock : public sc_core::sc_module {
 public:
  sc_core::sc_out<bool> clk{"clk"};
  SC_HAS_PROCESS(BenchClock);
  BenchClock(sc_core::sc_module_name name, const sc_core::sc_signal<bool>& stop)
      : sc_core::sc_module(name), stop_(stop) {
    SC_METHOD(toggle_);
    dont_initialize();
    sensitive << tick_;
  }
  void start() { tick_.notify(kHalfPeriod_); }

 private:
  void toggle_() {
    level_ = !level_;
    clk.write(level_);
    if (level_ || !stop_.read()) tick_.notify(kHalfPeriod_);
  }
  const sc_core::sc_time kHalfPeriod_{0.5, sc_core::SC_NS};
  const sc_core::sc_signal<bool>& stop_;
  sc_core::sc_event tick_;
  bool level_ = false;
};

}  // namespace

struct ComputingBench::Modules {
  explicit Modules(const DeviceParameters& parameters)
      : device("computing_device", parameters),
        unit("computing_unit", parameters, {}, source(), {}, count_beats()),
        lt_device("computing_lt_device", parameters),
        lt_unit("computing_lt_unit", {.settings = {.datapath_width = parameters.datapath_width}},
                source(), {}, {}) {
    pins.bind(device);
    pins.bind(unit);
    unit.done(done);
    clock.clk(pins.clk);
    lt_unit.socket.bind(lt_device.socket);
  }

  sc::OperationSource source() {
    return [this](sc::Operation& operation) {
      if (left == 0) return sc::SourceAnswer::kEnd;
      --left;
      operation.descriptor.format = computation.format;
      operation.computation = computation;
      return sc::SourceAnswer::kOperation;
    };
  }
  sc::ExecutionCallback count_beats() {
    return [this](std::uint64_t, std::uint64_t, const Execution& execution) {
      lane_beats += execution.cost.beats;
    };
  }
  Computation computation;
  unsigned left = 0;
  std::uint64_t lane_beats = 0;
  sc::DeviceSignals pins;
  sc_core::sc_signal<bool> done{"computing_done"};
  BenchClock clock{"computing_clock", done};
  sc::Device device;
  sc::VectorUnit unit;
  sc::LooselyTimedDevice lt_device;
  sc::LooselyTimedUnit lt_unit;
};

ComputingBench::ComputingBench(const DeviceParameters& device)
    : modules_(std::make_unique<Modules>(device)) {}

ComputingBench::~ComputingBench() = default;

ComputingBench::Speed ComputingBench::cycle_accurate(const Computation& computation,
                                                     unsigned count) {
  Modules& m = *modules_;
  m.pins.rst_n.write(false);
  sc_core::sc_start(1, sc_core::SC_NS);
  m.pins.rst_n.write(true);
  sc_core::sc_start(1, sc_core::SC_NS);
  m.computation = computation;
  m.left = count;
  m.lane_beats = 0;
  m.clock.start();
  const auto start = Clock::now();
  sc_core::sc_start();
  const double seconds = seconds_since(start);
  return {seconds, m.unit.counts().cycles, m.lane_beats, m.unit.counts().beats};
}

ComputingBench::Speed ComputingBench::loosely_timed(const Computation& computation,
                                                    unsigned count) {
  Modules& m = *modules_;
  if (!m.lt_unit.done()) sc_core::sc_start(sc_core::SC_ZERO_TIME);  // meets the empty source
  m.computation = computation;
  m.left = count;
  m.lt_unit.restart();
  const std::uint64_t before = sc_core::sc_time_stamp().value();
  const auto start = Clock::now();
  sc_core::sc_start();
  const double seconds = seconds_since(start);
  const std::uint64_t period = sc_core::sc_time(1, sc_core::SC_NS).value();
  return {seconds, (sc_core::sc_time_stamp().value() - before) / period, 0, 0};
}

}  // namespace opd::tb
