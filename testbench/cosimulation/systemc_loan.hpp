#pragma once
// The SystemC device of this process, lent to one host after the other. SystemC elaborates once per
// process: the device is made for as many operators as there can be, and every loan starts from a
// reset of its pin.
//
//   errors : std::runtime_error when it is lent already, or when a SystemC process has failed, after
//            which the kernel runs no more
#include <memory>
#include <stdexcept>
#include <string>
#include <systemc>

#include "paths/systemc_device.hpp"

namespace opd::tb {

class SystemcLoan final : public PinDevice {
 public:
  SystemcLoan() {
    if (!failure_().empty())
      throw std::runtime_error("SystemC has failed in this process (" + failure_() +
                               "); start a new one");
    if (lent_()) {
      throw std::runtime_error(
          "the process has one SystemC device and it is in use; close the other one first, or use "
          "\"rtl\" or \"cpu\"");
    }
    if (device_() == nullptr) {
      sc_core::sc_report_handler::set_actions(sc_core::SC_FATAL, sc_core::SC_THROW);
      // Never freed: the kernel outlives it.
      guarded_([] { device_() = new SystemcDevice({.num_ops = kNumOps}); });
    }
    lent_() = true;
  }
  ~SystemcLoan() override { lent_() = false; }
  SystemcLoan(const SystemcLoan&) = delete;
  SystemcLoan& operator=(const SystemcLoan&) = delete;

  void reset() override {
    guarded_([] { device_()->reset(); });
  }
  CycleOutput peek(const CycleInput& input) override {
    CycleOutput output;
    guarded_([&] { output = device_()->peek(input); });
    return output;
  }
  void edge() override {
    guarded_([] { device_()->edge(); });
  }

 private:
  static constexpr unsigned kNumOps = 65536;

  static SystemcDevice*& device_() {
    static SystemcDevice* device = nullptr;
    return device;
  }
  static bool& lent_() {
    static bool lent = false;
    return lent;
  }
  static std::string& failure_() {
    static std::string failure;
    return failure;
  }
  static void guarded_(const auto& function) {
    try {
      function();
    } catch (const sc_core::sc_report& report) {
      failure_() = report.what();
      throw std::runtime_error("SystemC has failed: " + failure_());
    }
  }
};

}  // namespace opd::tb
