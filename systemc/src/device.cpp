#include "opd/sc/device.hpp"

#include <algorithm>

#include "opd/sc/parameters.hpp"

namespace opd::sc {

Device::Device(sc_core::sc_module_name name, const DeviceParameters& parameters)
    : sc_core::sc_module(name),
      parameters_(checked_device(parameters)),
      tap_(parameters),
      counter_limit_(parameters.counter_width),
      queue_(parameters.queue_depth),
      detection_(parameters),
      registers_(parameters),
      statistic_levels_(std::max(1u, parameters.queue_depth / 2)) {
  SC_METHOD(on_clock_);
  sensitive << clk.pos() << rst_n.neg();
  dont_initialize();

  SC_METHOD(on_mode_read_);
  sensitive << mode_op << mode_written_;

  stat_ready.initialize(statistic_fits_());
}

void Device::inject_upset(std::uint16_t op, UpsetTarget target, unsigned bit) {
  if (const auto error = upset_error(parameters_, op, target, bit)) {
    SC_REPORT_FATAL("/opd/device/upset", error->c_str());
  }
  detection_.inject_upset(op, target, bit);
  mode_written_.notify(sc_core::SC_ZERO_TIME);
}

void Device::on_clock_() {
  if (!rst_n.read()) {
    reset_();
    return;
  }
  if (idle_()) return;
  // From the last block to the first: each finds the registers of the block before it as they were
  // before the edge.
  const bool statistic_taken = stat_valid.read() && statistic_fits_();
  registers_.begin_clock();

  recording_ = detect_();
  record_valid.write(recording_);

  // At most one of the two completes at an edge: the sideband waits for the tap.
  if (const auto completion = tap_.fold()) {
    complete_(*completion);
  } else if (statistic_taken) {
    const Statistic& in = statistic.read();
    complete_({in.descriptor, counter_limit_.clamp(in.descriptor.format, in.summary)});
  }
  registers_.set_queue_level(queue_.level());

  tap_.sample(beat_valid.read() ? &beat.read() : nullptr);
  serve_bus_();
  drive_registers_();
}

/// Nothing comes in and nothing is on its way: the coming edge changes no register and no output.
bool Device::idle_() const {
  return !beat_valid.read() && !stat_valid.read() && !recording_ && tap_.empty() &&
         queue_.empty() && detection_.state() == DetectionUnit::State::kRead && !access_ &&
         !apb_request.read().select && registers_.idle();
}

void Device::on_mode_read_() { mode.write(detection_.modes().read(mode_op.read())); }

void Device::reset_() {
  tap_.reset();
  queue_.reset();
  detection_.reset();
  registers_.reset();
  next_seq_ = 0;
  access_.reset();
  recording_ = false;
  record_valid.write(false);
  record.write({});
  counts.write({});
  apb_response.write({});
  mode_written_.notify(sc_core::SC_ZERO_TIME);
  drive_registers_();
}

/// One edge of the detection unit; true when a completion is recorded.
bool Device::detect_() {
  using State = DetectionUnit::State;
  switch (detection_.state()) {
    case State::kRead:
      if (const auto& command = registers_.pending_command()) {
        detection_.read(*command);
      } else if (!queue_.empty()) {
        detection_.read(queue_.pop());
      }
      return false;
    case State::kCompute:
      detection_.compute();
      return false;
    case State::kCommand:
      registers_.commanded(detection_.execute(registers_.setting()));
      mode_written_.notify(sc_core::SC_ZERO_TIME);
      return false;
    case State::kWrite: {
      const Detection detection =
          detection_.write(registers_.config(), registers_.learning_rate_change());
      registers_.sampled(detection);
      mode_written_.notify(sc_core::SC_ZERO_TIME);
      record.write(detection.record);
      counts.write(detection.counts);
      return true;
    }
  }
  return false;
}

/// Numbers a completion and pushes it. One that is illegal or finds the queue full is lost, but
/// never silently.
void Device::complete_(const Statistic& completed) {
  const Completion completion{next_seq_++, completed};
  const bool seen = is_legal(completed.descriptor, parameters_.num_ops) && queue_.push(completion);
  if (!seen) registers_.count_unseen();
}

/// APB4 without wait states. Comes after everything else that this edge changes: the response shows
/// the registers of the access clock, and a write takes effect at the edge that ends it.
void Device::serve_bus_() {
  if (access_) {
    const ApbRequest& request = access_->request;
    if (request.write && !access_->refused) registers_.write(request.address, request.data);
    access_.reset();
    apb_response.write({});
    return;
  }
  const ApbRequest& request = apb_request.read();
  if (!request.select || request.enable) return;  // no setup phase
  const bool refused =
      registers_.refusal(request.write, request.address, request.data, request.strobe).has_value();
  access_ = {request, refused};
  apb_response.write({.ready = true,
                      .error = refused,
                      .data = refused || request.write ? 0 : registers_.read(request.address)});
}

void Device::drive_registers_() {
  stat_ready.write(statistic_fits_());
  queue_level.write(queue_.level());
  queue_high_water.write(registers_.queue_high_water());
  unseen_count.write(registers_.unseen_count());
  irq.write(registers_.irq());
}

}  // namespace opd::sc
