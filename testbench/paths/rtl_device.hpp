#pragma once
// The Verilated device at pin level. One instance per run; the default and the small configuration
// and the mutated copy are the same class on different Verilated models.
#include <verilated.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "paths/coverage.hpp"
#include "paths/pin_device.hpp"

namespace opd::tb {

namespace detail {

/// Verilator gives a port of up to 8, 16, 32, 64 bits an integer, a wider one an array of 32-bit
/// words.
template <class Port>
void assign_bytes(Port& port, const std::uint8_t* bytes) {
  std::memcpy(&port, bytes, sizeof(Port));  // Verilated words are little endian, like data[]
}

}  // namespace detail

template <class Model>
class RtlDevice : public PinDevice {
 public:
  /// `seed` sets what uninitialised state holds. Holds reset for two cycles, then releases it: the
  /// configuration is that of reset until it is written at the pins. `traced`: a dump may be made.
  explicit RtlDevice(bool traced = false, int seed = 1) {
    context_.randReset(2);
    context_.randSeed(seed);
    if (traced) context_.traceEverOn(true);
    model_ = std::make_unique<Model>(&context_);
    reset();
  }
  ~RtlDevice() override {
    // Verilator 5.006 lets a model go in the thread's latest context, which may be gone by now.
    Verilated::threadContextp(&context_);
    model_->final();
    write_coverage(context_);
  }
  RtlDevice(const RtlDevice&) = delete;
  RtlDevice& operator=(const RtlDevice&) = delete;

  void reset() override {
    model_->beat_valid_i = 0;
    model_->stat_valid_i = 0;
    model_->mode_op_i = 0;
    model_->apb_psel_i = 0;
    model_->apb_penable_i = 0;
    model_->clk_i = 0;
    model_->rst_ni = 1;
    model_->eval();
    model_->rst_ni = 0;
    for (int half = 0; half < 4; ++half) {
      model_->clk_i = half % 2 == 0;
      model_->eval();
      context_.timeInc(1);
    }
    model_->rst_ni = 1;
    model_->eval();
    cycle_ = 0;
  }

  CycleOutput peek(const CycleInput& input) override {
    drive(input);
    settle();
    CycleOutput output;
    output.record_valid = model_->record_valid_o != 0;
    output.stat_ready = model_->stat_ready_o != 0;
    output.mode = static_cast<Mode>(model_->mode_o);
    output.queue_level = model_->queue_level_o;
    output.queue_high_water = model_->queue_high_water_o;
    output.unseen_count = model_->unseen_count_o;
    output.irq = model_->irq_o != 0;
    output.apb = {.ready = model_->apb_pready_o != 0,
                  .error = model_->apb_pslverr_o != 0,
                  .data = model_->apb_prdata_o};
    if (output.record_valid) {
      output.record = {.seq = model_->record_seq_o,
                       .step = model_->record_step_o,
                       .op = model_->record_op_o,
                       .format = model_->record_format_o,
                       .mode = model_->record_mode_o,
                       .max_mag = model_->record_max_mag_o,
                       .nonfinite_count = model_->record_nonfinite_count_o,
                       .first_nonfinite = model_->record_first_nonfinite_o,
                       .saturated_count = model_->record_saturated_count_o,
                       .flags = model_->record_flags_o,
                       .risk = model_->record_risk_o,
                       .cause = model_->record_cause_o};
      output.counts = {.element_count = model_->record_element_count_o,
                       .subnormal_count = model_->record_subnormal_count_o,
                       .zero_count = model_->record_zero_count_o};
    }
    return output;
  }

  void edge() override {
    model_->clk_i = 1;
    model_->eval();
    check();
    context_.timeInc(1);
    ++cycle_;
    model_->clk_i = 0;
  }

  /// From here on an assertion that fails throws std::runtime_error, from the clock in which it
  /// does. Without this it ends the process.
  void throw_on_failure() {
    context_.fatalOnError(false);
    throws_ = true;
  }

  /// Edges since reset release.
  [[nodiscard]] std::uint64_t cycle() const { return cycle_; }

  /// For tests that change stored state behind the device's back.
  [[nodiscard]] Model& model() { return *model_; }
  [[nodiscard]] const Model& model() const { return *model_; }

  /// drive() + edge() without reading outputs: what a bare simulation of the device costs.
  void run_cycle(const CycleInput& input) {
    drive(input);
    settle();
    edge();
  }

 private:
  /// Verilator tells a failure to the thread's context, which is the latest one that was made.
  void check() {
    if (throws_ && context_.gotError())
      throw std::runtime_error("an assertion of the RTL has failed (cycle " +
                               std::to_string(cycle_) + "); its name is on standard output");
  }

  /// The format on a port of three bits; a code that does not fit is driven as 7, which is as illegal.
  static std::uint8_t format_code(Format format) {
    return std::min(static_cast<std::uint8_t>(format), std::uint8_t{7});
  }

  void drive(const CycleInput& input) {
    if (throws_) Verilated::threadContextp(&context_);
    model_->beat_valid_i = input.beat_valid;
    if (input.beat_valid) {
      const OpDescriptor& d = input.beat.descriptor;
      model_->beat_stream_i = input.beat.stream;
      model_->beat_op_i = d.op;
      model_->beat_format_i = format_code(d.format);
      model_->beat_step_i = d.step;
      model_->beat_scale_log2_i = static_cast<std::uint8_t>(d.scale_log2);
      model_->beat_last_i = input.beat.last;
      // One lane bit per byte of the beat; a port's unused upper bits must be 0.
      constexpr unsigned kLanes = sizeof(model_->beat_data_i);
      const std::uint64_t lanes = input.beat.lane_enable & (~std::uint64_t{0} >> (64 - kLanes));
      detail::assign_bytes(model_->beat_lane_en_i, reinterpret_cast<const std::uint8_t*>(&lanes));
      detail::assign_bytes(model_->beat_data_i, input.beat.data.data());
    }
    model_->stat_valid_i = input.stat_valid;
    if (input.stat_valid) {
      const OpDescriptor& d = input.statistic.descriptor;
      const TapSummary& s = input.statistic.summary;
      model_->stat_op_i = d.op;
      model_->stat_format_i = format_code(d.format);
      model_->stat_step_i = d.step;
      model_->stat_scale_log2_i = static_cast<std::uint8_t>(d.scale_log2);
      model_->stat_max_mag_i = s.max_mag;
      model_->stat_element_count_i = s.element_count;
      model_->stat_nonfinite_count_i = s.nonfinite_count;
      model_->stat_first_nonfinite_i = s.first_nonfinite;
      model_->stat_saturated_count_i = s.saturated_count;
      model_->stat_subnormal_count_i = s.subnormal_count;
      model_->stat_zero_count_i = s.zero_count;
    }
    model_->mode_op_i = input.mode_op;
    model_->apb_psel_i = input.apb.select;
    model_->apb_penable_i = input.apb.enable;
    if (input.apb.select) {
      model_->apb_pwrite_i = input.apb.write;
      model_->apb_paddr_i = input.apb.address & 0xFFFu;
      model_->apb_pwdata_i = input.apb.data;
      model_->apb_pstrb_i = input.apb.strobe & 0xFu;
    }
  }

  void settle() {
    model_->eval();
    check();
    context_.timeInc(1);
  }

  VerilatedContext context_;
  std::unique_ptr<Model> model_;
  bool throws_ = false;  ///< on failure
  std::uint64_t cycle_ = 0;
};

}  // namespace opd::tb
