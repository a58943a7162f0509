#include "opd/sc/device.hpp"

#include "opd/sc/parameters.hpp"

namespace opd::sc {
namespace {

/// Checks before the members are built from the parameters.
const DeviceParameters& checked(const DeviceParameters& parameters, const Config& config) {
  check_device(parameters, config);
  return parameters;
}

}  // namespace

Device::Device(sc_core::sc_module_name name, const DeviceParameters& parameters,
               const Config& config)
    : sc_core::sc_module(name),
      parameters_(checked(parameters, config)),
      tap_(parameters),
      counter_limit_(parameters.counter_width),
      queue_(parameters.queue_depth),
      detection_(parameters.num_ops, config),
      modes_(parameters.num_ops) {
  SC_METHOD(on_clock_);
  sensitive << clk.pos() << rst_n.neg();
  dont_initialize();

  SC_METHOD(on_mode_read_);
  sensitive << mode_op << mode_written_;

  stat_ready.initialize(statistic_fits_());
}

void Device::on_clock_() {
  if (!rst_n.read()) {
    reset_();
    return;
  }
  // From the last block to the first: each finds the registers of the block before it as they were
  // before the edge.
  const bool statistic_taken = stat_valid.read() && statistic_fits_();

  bool detected = false;
  if (detection_.state() == DetectionUnit::State::kWrite) {
    bool mode_changed = false;
    const Detection detection = detection_.write(modes_, mode_changed);
    if (mode_changed) mode_written_.notify(sc_core::SC_ZERO_TIME);
    record.write(detection.record);
    counts.write(detection.counts);
    detected = true;
  } else if (!queue_.empty()) {
    detection_.read(queue_.pop());
  }
  record_valid.write(detected);

  // At most one of the two completes at an edge: the sideband waits for the tap.
  if (const auto completion = tap_.fold()) {
    complete_(*completion);
  } else if (statistic_taken) {
    const Statistic& in = statistic.read();
    complete_({in.descriptor, counter_limit_.clamp(in.summary)});
  }

  tap_.sample(beat_valid.read() ? &beat.read() : nullptr);
  drive_registers_();
}

void Device::on_mode_read_() { mode.write(modes_.read(mode_op.read())); }

void Device::reset_() {
  tap_.reset();
  queue_.reset();
  detection_.reset();
  modes_.reset();
  next_seq_ = 0;
  unseen_ = 0;
  record_valid.write(false);
  record.write({});
  counts.write({});
  mode_written_.notify(sc_core::SC_ZERO_TIME);
  drive_registers_();
}

/// Numbers a completion and pushes it. One that is illegal or finds the queue full is lost, but
/// never silently.
void Device::complete_(const Statistic& completed) {
  const Completion completion{next_seq_++, completed};
  const bool seen = is_legal(completed.descriptor, parameters_.num_ops) && queue_.push(completion);
  if (!seen && unseen_ != UINT32_MAX) ++unseen_;
}

void Device::drive_registers_() {
  stat_ready.write(statistic_fits_());
  queue_level.write(queue_.level());
  queue_high_water.write(queue_.high_water());
  unseen_count.write(unseen_);
}

}  // namespace opd::sc
