#include "cosimulation/hosted_device.hpp"

#include <stdexcept>
#include <string>
#include <utility>

namespace opd::tb {
namespace {

/// Far more clocks than a completion waits (12 for each one ahead of it), and far more interrupts in
/// a row than events can wait.
constexpr unsigned kPatience = 10000;

[[noreturn]] void fail(const std::string& text) {
  throw driver::DeviceError(text + "; the device has to be reset");
}

}  // namespace

HostedDevice::HostedDevice(std::unique_ptr<PinDevice> pins, unsigned num_ops, const Config& config)
    : pins_(std::move(pins)), num_ops_(num_ops), bus_([this](const ApbRequest& request) {
        CycleInput input;
        input.apb = request;
        return clock_(input).apb;
      }) {
  pins_->reset();
  const DeviceParameters found = driver_.identify();
  if (found.num_ops < num_ops) {
    throw driver::DeviceError("CAPABILITY_OPS reads " + std::to_string(found.num_ops) +
                              ": fewer operators than the " + std::to_string(num_ops) +
                              " asked for");
  }
  driver_.configure(config);
  driver_.clear_counters();
  driver_.enable_interrupts(driver::kAllInterrupts);
  hints_ = driver_.hints();
}

HostedDevice::Step HostedDevice::step(std::span<const Statistic> completions) {
  open_ = {};
  open_.records.reserve(completions.size());
  for (const Statistic& completion : completions) give_(completion);
  for (unsigned waited = 0; open_.records.size() < completions.size(); ++waited) {
    if (waited == kPatience) {
      fail(std::to_string(completions.size() - open_.records.size()) + " of " +
           std::to_string(completions.size()) + " completions have no record after " +
           std::to_string(kPatience) + " clocks");
    }
    serve_interrupts_();
    clock_({});
  }
  serve_interrupts_();
  return std::move(open_);
}

std::vector<Mode> HostedDevice::modes() {
  std::vector<Mode> all;
  all.reserve(num_ops_);
  for (unsigned op = 0; op < num_ops_; ++op) {
    CycleInput input;
    input.mode_op = static_cast<std::uint16_t>(op);
    all.push_back(clock_(input).mode);
  }
  return all;
}

driver::OperatorState HostedDevice::operator_state(std::uint16_t op) {
  check_op_(op);
  const driver::OperatorState state = driver_.op_state(op);
  serve_interrupts_();
  return state;
}

driver::OperatorState HostedDevice::set_operator(std::uint16_t op, Mode mode, bool locked,
                                                 bool disabled) {
  check_op_(op);
  driver::OperatorState state = driver_.set_mode(op, mode, locked);
  if (state.disabled != disabled) state = driver_.enable(op, !disabled);
  serve_interrupts_();
  return state;
}

CycleOutput HostedDevice::clock_(const CycleInput& input) {
  const CycleOutput output = pins_->peek(input);
  if (output.record_valid) open_.records.push_back(output.record);
  irq_ = output.irq;
  pins_->edge();
  ++cycles_;
  return output;
}

void HostedDevice::give_(const Statistic& completion) {
  CycleInput input;
  input.stat_valid = true;
  input.statistic = completion;
  for (unsigned waited = 0; waited < kPatience; ++waited) {
    serve_interrupts_();
    if (clock_(input).stat_ready) return;
  }
  fail("stat_ready is still 0 after " + std::to_string(kPatience) + " clocks");
}

void HostedDevice::serve_interrupts_() {
  for (unsigned served = 0; irq_; ++served) {
    if (served == kPatience) fail("the interrupt is still up after it was served");
    const driver::EventReport report =
        driver_.handle_events([this](const Event& event) { open_.events.push_back(event); });
    if (report.interrupts.hint) hints_ = driver_.hints();
    if (report.interrupts.event_lost)
      fail("EVENTS_LOST reads " + std::to_string(report.lost) + ": events were lost");
    if (report.interrupts.unseen)
      fail("UNSEEN reads " + std::to_string(driver_.counters().unseen) + ": completions were lost");
  }
}

void HostedDevice::check_op_(std::uint16_t op) const {
  if (op < num_ops_) return;
  throw std::out_of_range("op: " + std::to_string(op) + " must be 0.." +
                          std::to_string(num_ops_ - 1));
}

}  // namespace opd::tb
