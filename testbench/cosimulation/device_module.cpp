// opd._device: the Verilated and the SystemC device for Python, in the loop of a training run.
// opd.device is its Python side.
//
//   Simulated : one device behind a HostedDevice, with the methods of opd._reference.Unit
//   errors    : ValueError that names the argument or the configuration field, IndexError for an
//               operator that there is not, RuntimeError for a device that fails
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <systemc>

#include "bindings/completions.hpp"
#include "cosimulation/hosted_device.hpp"
#include "cosimulation/systemc_loan.hpp"
#include "paths/rtl_factory.hpp"

// The SystemC library has a main() that calls it; here Python has begun already.
__attribute__((visibility("default"))) int sc_main(int, char**) { return 0; }

namespace py = pybind11;

namespace {

using namespace opd::bindings;
using opd::tb::HostedDevice;

std::unique_ptr<opd::tb::PinDevice> pins_of(const std::string& kind) {
  if (kind == "systemc") return std::make_unique<opd::tb::SystemcLoan>();
  if (kind != "rtl") fail("kind: there is no " + kind);
  return opd::tb::make_throwing_rtl_device();
}

class Simulated {
  static py::tuple setting_of(const opd::driver::OperatorState& state) {
    return py::make_tuple(static_cast<unsigned>(state.mode), state.locked, state.disabled);
  }

  /// Other threads of Python go on meanwhile; a second one that calls waits.
  auto alone_(const auto& function) {
    const py::gil_scoped_release released;
    const std::scoped_lock lock(mutex_);
    return function(device_);
  }

 public:
  Simulated(const std::string& kind, unsigned num_ops,
            const std::map<std::string, double>& settings)
      : device_(pins_of(kind), num_ops, config_of(settings)) {}

  py::tuple step(std::uint32_t step, const Array<std::uint16_t>& op,
                 const Array<std::uint8_t>& format, const Array<std::uint32_t>& max_mag,
                 const Array<std::uint32_t>& element_count, const Array<std::uint32_t>& nonfinite,
                 const Array<std::uint32_t>& saturated, const Array<std::int8_t>& scale_log2) {
    const std::vector<opd::Statistic> completions =
        completions_of(step, op, format, max_mag, element_count, nonfinite, saturated, scale_log2,
                       device_.num_ops());
    const HostedDevice::Step done =
        alone_([&](HostedDevice& device) { return device.step(completions); });
    return py::make_tuple(array_of(done.records), tuples_of(done.events));
  }

  Array<std::uint8_t> modes() {
    return array_of(alone_([](HostedDevice& device) { return device.modes(); }));
  }

  py::tuple hints() const { return tuple_of(device_.hints()); }

  std::optional<std::uint32_t> last_clean_step() {
    return alone_([](HostedDevice& device) { return device.last_clean_step(); });
  }

  void announce_learning_rate(std::uint32_t step) {
    alone_([step](HostedDevice& device) {
      device.announce_learning_rate(step);
      return 0;
    });
  }

  py::tuple operator_state(std::uint16_t op) {
    return setting_of(alone_([op](HostedDevice& device) { return device.operator_state(op); }));
  }

  py::tuple set_operator(std::uint16_t op, unsigned mode, bool locked, bool disabled) {
    if (mode >= opd::kModeNames.size()) fail("mode: " + std::to_string(mode) + " must be 0..2");
    return setting_of(alone_([=](HostedDevice& device) {
      return device.set_operator(op, static_cast<opd::Mode>(mode), locked, disabled);
    }));
  }

  std::uint64_t cycles() const { return device_.cycles(); }

 private:
  std::mutex mutex_;
  HostedDevice device_;
};

}  // namespace

PYBIND11_MODULE(_device, module) {
  module.doc() = "The Verilated and the SystemC device of opd, clocked by Python: opd.device.";
  module.attr("RTL_NUM_OPS") = opd::tb::rtl_parameters().num_ops;
  py::class_<Simulated>(module, "Simulated",
                        "A simulated device, one training step at a time, with the methods of "
                        "opd._reference.Unit. kind: \"rtl\" or \"systemc\".")
      .def(py::init<const std::string&, unsigned, const std::map<std::string, double>&>(),
           py::arg("kind"), py::arg("num_ops"), py::arg("config") = std::map<std::string, double>{})
      .def("step", &Simulated::step, py::arg("step"), py::arg("op"), py::arg("format"),
           py::arg("max_mag"), py::arg("element_count"), py::arg("nonfinite"), py::arg("saturated"),
           py::arg("scale_log2"),
           "Completions of a step, in order, arrays of one type each: (records, events).")
      .def("modes", &Simulated::modes, "Mode of every operator, uint8 [num_ops].")
      .def("hints", &Simulated::hints,
           "(loss-scale shift, clip shift, learning-rate factor * 65536).")
      .def("last_clean_step", &Simulated::last_clean_step)
      .def("announce_learning_rate", &Simulated::announce_learning_rate, py::arg("step"))
      .def("operator", &Simulated::operator_state, py::arg("op"), "(mode, locked, disabled).")
      .def("set_operator", &Simulated::set_operator, py::arg("op"), py::arg("mode"),
           py::arg("locked"), py::arg("disabled"),
           "The command SET; returns the state as `operator` does.")
      .def_property_readonly("cycles", &Simulated::cycles, "Clocks since the device's reset.");
}
