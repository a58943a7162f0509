// opd._reference: the detection unit and the vector unit of the software reference, for Python.
//
//   run        : a whole trace of statistics in, one OpRecord and one z per completion out
//   Unit       : the same one training step at a time, with modes, hints and commands between
//   compute    : one execution of a kernel; operands as (format, rows, columns, bytes). opd.compute
//                is the same on arrays
//   errors     : ValueError that names the argument, the configuration field or the operand
//   source     : docs/numerics.md, docs/formats.md "OpRecord", docs/vector_unit.md
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "completions.hpp"
#include "opd/reference/compute.hpp"
#include "opd/reference/cpu.hpp"
#include "opd/reference/log2_code.hpp"

namespace py = pybind11;

namespace {

using namespace opd::bindings;

/// Refuses an array whose extents are others than those of the trace.
void check_shape(const char* name, const py::array& array,
                 std::initializer_list<py::ssize_t> shape) {
  bool same = array.ndim() == static_cast<py::ssize_t>(shape.size());
  py::ssize_t axis = 0;
  for (const py::ssize_t extent : shape) same = same && array.shape(axis++) == extent;
  if (!same) fail(std::string(name) + ": has another shape than [steps, probes] of max_mag says");
}

py::tuple run(const Array<std::uint32_t>& step, const Array<std::uint8_t>& format,
              const Array<std::uint32_t>& element_count, const Array<std::uint32_t>& max_mag,
              const Array<std::uint32_t>& nonfinite, const Array<std::uint32_t>& saturated,
              const Array<std::int8_t>& scale_log2, const Array<bool>& learning_rate_changes,
              const std::map<std::string, double>& settings, bool forecast_engine,
              bool published_engine) {
  if (max_mag.ndim() != 2) fail("max_mag: is not [steps, probes]");
  const py::ssize_t steps = max_mag.shape(0), probes = max_mag.shape(1);
  if (probes < 1 || probes > 65536) fail("max_mag: has not 1..65536 probes");
  check_shape("step", step, {steps});
  check_shape("format", format, {probes});
  check_shape("element_count", element_count, {probes});
  check_shape("nonfinite", nonfinite, {steps, probes});
  check_shape("saturated", saturated, {steps, probes});
  check_shape("scale_log2", scale_log2, {steps, probes});
  check_shape("learning_rate_changes", learning_rate_changes, {steps});

  opd::DeviceParameters parameters;
  parameters.num_ops = static_cast<unsigned>(probes);
  parameters.forecast_engine = forecast_engine;
  parameters.published_engine = published_engine;
  opd::ref::CpuReference reference(parameters, config_of(settings));
  py::array records = record_array({steps, probes});
  py::array_t<double> z({steps, probes});
  auto* const record = static_cast<opd::OpRecord*>(records.mutable_data());
  double* const score = z.mutable_data();
  // Contiguous, checked above: a look-up by index would cost more than the detection.
  const std::uint32_t *const steps_of = step.data(), *const elements = element_count.data();
  const std::uint32_t *const magnitudes = max_mag.data(), *const bad = nonfinite.data();
  const std::uint32_t* const limits = saturated.data();
  const std::uint8_t* const formats = format.data();
  const std::int8_t* const scales = scale_log2.data();
  const bool* const changes = learning_rate_changes.data();
  const auto detect = [&] {
    std::uint32_t seq = 0;
    for (py::ssize_t s = 0; s < steps; ++s) {
      if (changes[s]) reference.announce_learning_rate(steps_of[s]);
      for (py::ssize_t p = 0; p < probes; ++p, ++seq) {
        const py::ssize_t at = s * probes + p;
        const auto detection =
            reference.complete(seq,
                               {.op = static_cast<std::uint16_t>(p),
                                .format = static_cast<opd::Format>(formats[p]),
                                .step = steps_of[s],
                                .scale_log2 = scales[at]},
                               {.max_mag = magnitudes[at],
                                .element_count = elements[p],
                                .nonfinite_count = bad[at],
                                // The position is not known (docs/formats.md "Trace").
                                .first_nonfinite = bad[at] > 0 ? 0 : opd::kNoElement,
                                .saturated_count = limits[at]});
        if (!detection) fail("format: " + std::to_string(formats[p]) + " is no format code");
        record[at] = detection->record;
        score[at] = detection->score.scored ? detection->score.z()
                                            : std::numeric_limits<double>::quiet_NaN();
      }
    }
  };
  {
    const py::gil_scoped_release released;
    detect();
  }
  return py::make_tuple(records, z);
}

/// The detection unit fed one training step at a time, for a training loop. opd.guard uses it.
class Unit {
 public:
  Unit(unsigned num_ops, const std::map<std::string, double>& settings)
      : parameters_{.num_ops = num_ops}, reference_(parameters_, config_of(settings)) {}

  /// Completions of one step, in order: their records, and (step, op, old mode, new mode, cause,
  /// flags, risk) of each one that makes an event.
  py::tuple step(std::uint32_t step, const Array<std::uint16_t>& op,
                 const Array<std::uint8_t>& format, const Array<std::uint32_t>& max_mag,
                 const Array<std::uint32_t>& element_count, const Array<std::uint32_t>& nonfinite,
                 const Array<std::uint32_t>& saturated, const Array<std::int8_t>& scale_log2) {
    const std::vector<opd::Statistic> completions =
        completions_of(step, op, format, max_mag, element_count, nonfinite, saturated, scale_log2,
                       parameters_.num_ops);
    std::vector<opd::OpRecord> records;
    std::vector<opd::Event> events;
    for (const opd::Statistic& completion : completions) {
      const opd::ref::Detection detection =
          reference_.complete(seq_++, completion.descriptor, completion.summary).value();
      records.push_back(detection.record);
      if (const auto event = detection.event()) events.push_back(*event);
    }
    return py::make_tuple(array_of(records), tuples_of(events));
  }

  Array<std::uint8_t> modes() const {
    std::vector<opd::Mode> all;
    for (unsigned op = 0; op < parameters_.num_ops; ++op)
      all.push_back(reference_.mode(static_cast<std::uint16_t>(op)));
    return array_of(all);
  }

  /// Forecast baseline of every operator, log2, loss scale taken out; NaN while it is not seeded.
  Array<double> baselines() const {
    Array<double> all(std::vector<py::ssize_t>{static_cast<py::ssize_t>(parameters_.num_ops)});
    double* baseline = all.mutable_data();
    for (const opd::ref::OpState& state : reference_.states()) {
      *baseline++ = state.history.age == 0 ? std::numeric_limits<double>::quiet_NaN()
                                           : std::ldexp(state.forecast.baseline, -7);
    }
    return all;
  }

  py::tuple hints() const { return tuple_of(reference_.hints()); }

  std::optional<std::uint32_t> last_clean_step() const { return reference_.last_clean_step(); }

  void announce_learning_rate(std::uint32_t step) { reference_.announce_learning_rate(step); }

  /// (mode, locked, disabled)
  py::tuple operator_state(std::uint16_t op) {
    return setting_of(reference_.command(op, opd::Command::kRead));
  }

  py::tuple set_operator(std::uint16_t op, unsigned mode, bool locked, bool disabled) {
    return setting_of(reference_.command(
        op, opd::Command::kSet,
        {.mode = static_cast<opd::Mode>(mode), .locked = locked, .disabled = disabled}));
  }

 private:
  static py::tuple setting_of(const opd::ref::OpState& state) {
    return py::make_tuple(static_cast<unsigned>(state.controller.mode),
                          static_cast<bool>(state.controller.locked),
                          static_cast<bool>(state.controller.disabled));
  }

  opd::DeviceParameters parameters_;
  opd::ref::CpuReference reference_;
  std::uint32_t seq_ = 0;
};

Array<std::int32_t> log2_codes(const Array<std::uint8_t>& format,
                               const Array<std::uint32_t>& max_mag) {
  if (max_mag.ndim() != 2) fail("max_mag: is not [steps, probes]");
  check_shape("format", format, {max_mag.shape(1)});
  Array<std::int32_t> codes({max_mag.shape(0), max_mag.shape(1)});
  auto code = codes.mutable_unchecked<2>();
  for (py::ssize_t p = 0; p < max_mag.shape(1); ++p) {
    const auto element = static_cast<opd::Format>(format.at(p));
    if (!opd::ref::is_known(element))
      fail("format: " + std::to_string(format.at(p)) + " is no format code");
    for (py::ssize_t s = 0; s < max_mag.shape(0); ++s)
      code(s, p) = opd::ref::log2_code(element, max_mag.at(s, p));
  }
  return codes;
}

// Format, rows, columns, bytes; no bytes where only shapes are read.
using OperandTuple = std::tuple<unsigned, std::uint32_t, std::uint32_t, py::object>;

/// A computation and the arrays that its operands' bytes lie in.
struct Held {
  opd::Computation computation;
  std::vector<Array<std::uint8_t>> bytes;
};

Held held(const std::string& kernel, unsigned format, std::uint32_t batch, std::uint32_t rows,
          std::uint32_t columns, std::uint32_t depth, float attribute,
          const std::map<std::string, OperandTuple>& operands) {
  const std::optional<opd::Kernel> known = opd::kernel_named(kernel);
  if (!known) fail("kernel: there is no " + kernel);
  Held result{.computation = {.kernel = *known,
                              .format = static_cast<opd::Format>(format),
                              .batch = batch,
                              .rows = rows,
                              .columns = columns,
                              .depth = depth,
                              .attribute = attribute}};
  const opd::KernelTraits& traits = opd::traits_of(*known);
  for (const auto& [name, tuple] : operands) {
    bool found = false;
    for (std::size_t i = 0; i < opd::kMaxOperands; ++i) {
      if (name.empty() || traits.operands[i] != name) continue;
      found = true;
      const auto& [code, operand_rows, operand_columns, object] = tuple;
      opd::Operand& operand = result.computation.operands[i];
      operand.format = static_cast<opd::Format>(code);
      operand.rows = operand_rows;
      operand.columns = operand_columns;
      if (object.is_none()) continue;
      const Array<std::uint8_t>& array = result.bytes.emplace_back(object);
      operand.elements =
          std::as_bytes(std::span(array.data(), static_cast<std::size_t>(array.size())));
    }
    if (!found) fail(kernel + ": has no operand " + name);
  }
  return result;
}

opd::UnitSettings unit_settings(const std::map<std::string, unsigned>& settings) {
  opd::UnitSettings unit;
  for (const auto& [name, value] : settings) {
    if (name == "datapath_width") {
      unit.datapath_width = value;
    } else if (name == "fp64_lanes") {
      unit.fp64_lanes = value;
    } else if (name == "matrix_rows") {
      unit.matrix_rows = value;
    } else if (name == "saturate") {
      unit.saturate = value != 0;
    } else if (name == "accumulator") {
      unit.accumulator = static_cast<opd::AccumulatorChoice>(value);
    } else {
      fail(name + ": is no setting of the vector unit; see docs/vector_unit.md");
    }
  }
  return unit;
}

py::dict dictionary(const opd::ExecutionStatus& status) {
  py::dict result;
  result["mode"] = opd::kModeNames[static_cast<std::size_t>(status.mode)];
  result["format"] = opd::kFormatNames[static_cast<std::size_t>(status.format)];
  result["accumulator"] =
      opd::kAccumulatorFormatNames[static_cast<std::size_t>(status.accumulator)];
  result["accumulates"] = status.accumulates;
  result["compensated"] = status.compensated;
  result["compressed"] = status.compressed;
  result["saturating"] = status.saturating;
  return result;
}

py::dict dictionary(const opd::ExecutionCost& cost) {
  py::dict result;
  result["passes"] = cost.passes;
  result["beats"] = cost.beats;
  result["cycles"] = cost.cycles;
  result["bytes_read"] = cost.bytes_read;
  result["bytes_written"] = cost.bytes_written;
  return result;
}

py::tuple compute(const std::string& kernel, unsigned mode, unsigned format, std::uint32_t batch,
                  std::uint32_t rows, std::uint32_t columns, std::uint32_t depth, float attribute,
                  const std::map<std::string, OperandTuple>& operands,
                  const std::map<std::string, unsigned>& settings) {
  const Held in = held(kernel, format, batch, rows, columns, depth, attribute, operands);
  const opd::UnitSettings unit = unit_settings(settings);
  const opd::Execution execution = [&] {
    const py::gil_scoped_release released;
    return opd::ref::compute(in.computation, static_cast<opd::Mode>(mode), unit);
  }();
  Array<std::uint8_t> output(
      std::vector<py::ssize_t>{static_cast<py::ssize_t>(execution.output.size())});
  std::memcpy(output.mutable_data(), execution.output.data(), execution.output.size());
  py::object accumulators = py::none();
  if (execution.accumulators) {
    py::dict statistic;
    statistic["format"] = opd::kFormatNames[static_cast<std::size_t>(execution.accumulator_format)];
    statistic["max_mag"] = execution.accumulators->max_mag;
    statistic["largest"] =
        opd::ref::to_double(execution.accumulator_format, execution.accumulators->max_mag);
    statistic["writes"] = execution.accumulators->element_count;
    statistic["nonfinite"] = execution.accumulators->nonfinite_count;
    accumulators = statistic;
  }
  return py::make_tuple(output, dictionary(execution.status), accumulators,
                        dictionary(execution.cost));
}

Array<double> compute_exact(const std::string& kernel, unsigned format, std::uint32_t batch,
                            std::uint32_t rows, std::uint32_t columns, std::uint32_t depth,
                            float attribute, const std::map<std::string, OperandTuple>& operands) {
  const Held in = held(kernel, format, batch, rows, columns, depth, attribute, operands);
  const std::vector<double> exact = opd::ref::compute_exact(in.computation);
  return Array<double>(std::vector<py::ssize_t>{static_cast<py::ssize_t>(exact.size())},
                       exact.data());
}

py::tuple cost(const std::string& kernel, unsigned mode, unsigned format, std::uint32_t batch,
               std::uint32_t rows, std::uint32_t columns, std::uint32_t depth, float attribute,
               const std::map<std::string, OperandTuple>& operands,
               const std::map<std::string, unsigned>& settings) {
  const Held in = held(kernel, format, batch, rows, columns, depth, attribute, operands);
  const opd::UnitSettings unit = unit_settings(settings);
  const auto asked = static_cast<opd::Mode>(mode);
  return py::make_tuple(dictionary(opd::ref::status_of(in.computation, asked, unit)),
                        dictionary(opd::ref::cost(in.computation, asked, unit)));
}

/// What opd.compute knows of the kernels: kKernels.
py::list kernels() {
  constexpr std::array<const char*, 4> kShapes = {"elementwise", "reduction", "row", "matrix"};
  py::list all;
  for (const opd::KernelTraits& traits : opd::kKernels) {
    py::list operands;
    for (const std::string_view name : traits.operands) {
      if (!name.empty()) operands.append(name);
    }
    py::dict entry;
    entry["name"] = traits.name;
    entry["shape"] = kShapes[static_cast<std::size_t>(traits.shape)];
    entry["operands"] = operands;
    entry["required"] = traits.required;
    entry["attribute"] = traits.attribute;
    entry["default"] = traits.attribute_default;
    entry["accumulates"] = traits.accumulates;
    all.append(entry);
  }
  return all;
}

}  // namespace

PYBIND11_MODULE(_reference, module) {
  module.doc() =
      "The detection unit of opd's C++ reference (opd::ref::CpuReference) and its vector unit "
      "(opd/reference/compute.hpp).";
  module.def("run", &run, py::arg("step"), py::arg("format"), py::arg("element_count"),
             py::arg("max_mag"), py::arg("nonfinite"), py::arg("saturated"), py::arg("scale_log2"),
             py::arg("learning_rate_changes"), py::arg("config") = std::map<std::string, double>{},
             py::arg("forecast_engine") = true, py::arg("published_engine") = true,
             R"(Runs the reference over a trace, with the engines that are present, one at least.

step uint32 [S], format uint8 [P] (Format codes), element_count uint32 [P]; max_mag, nonfinite,
saturated uint32 [S, P]; scale_log2 int8 [S, P]; learning_rate_changes bool [S]: announced before
the step. config: fields of the configuration that are not at their reset value.
Returns (records [S, P] with the fields of OpRecord, z float64 [S, P], NaN where nothing is scored).
Raises ValueError.)");
  py::class_<Unit>(module, "Unit",
                   "The detection unit, one training step at a time. Raises ValueError, IndexError "
                   "for an operator that it has not.")
      .def(py::init<unsigned, const std::map<std::string, double>&>(), py::arg("num_ops"),
           py::arg("config") = std::map<std::string, double>{})
      .def("step", &Unit::step, py::arg("step"), py::arg("op"), py::arg("format"),
           py::arg("max_mag"), py::arg("element_count"), py::arg("nonfinite"), py::arg("saturated"),
           py::arg("scale_log2"),
           "Completions of a step, in order, arrays of one type each: (records, events).")
      .def("modes", &Unit::modes, "Mode of every operator, uint8 [num_ops].")
      .def("baselines", &Unit::baselines,
           "Forecast baseline of every operator, float64 [num_ops]: log2 of the largest magnitude, "
           "the loss scale taken out; NaN "
           "while it is not seeded.")
      .def("hints", &Unit::hints, "(loss-scale shift, clip shift, learning-rate factor * 65536).")
      .def("last_clean_step", &Unit::last_clean_step)
      .def("announce_learning_rate", &Unit::announce_learning_rate, py::arg("step"))
      .def("operator", &Unit::operator_state, py::arg("op"), "(mode, locked, disabled).")
      .def("set_operator", &Unit::set_operator, py::arg("op"), py::arg("mode"), py::arg("locked"),
           py::arg("disabled"), "The command SET; returns the state as `operator` does.");
  module.def("log2_codes", &log2_codes, py::arg("format"), py::arg("max_mag"),
             "x of docs/numerics.md in 1/32 bit: format uint8 [P], max_mag uint32 [S, P] -> int32 "
             "[S, P].");
  module.def("state_bits", &opd::ref::state_bits, py::arg("forecast_engine"),
             py::arg("published_engine"), "Bits of state per operator, controller included.");
  module.def("kernels", &kernels, "The table of the kernels: opd/types/computation.hpp.");
  module.def("compute", &compute, py::arg("kernel"), py::arg("mode"), py::arg("format"),
             py::arg("batch"), py::arg("rows"), py::arg("columns"), py::arg("depth"),
             py::arg("attribute"), py::arg("operands"), py::arg("settings"),
             R"(One execution: (output uint8 [bytes], status, accumulators or None, cost).

mode, format: codes. operands: name -> (format code, rows, columns, uint8 array of the packed
elements). settings: fields of UnitSettings. Raises ValueError. opd.compute is the same on arrays.)");
  module.def("compute_exact", &compute_exact, py::arg("kernel"), py::arg("format"),
             py::arg("batch"), py::arg("rows"), py::arg("columns"), py::arg("depth"),
             py::arg("attribute"), py::arg("operands"),
             "The result in binary64, float64 [elements of the output]; arguments of compute.");
  module.def("cost", &cost, py::arg("kernel"), py::arg("mode"), py::arg("format"), py::arg("batch"),
             py::arg("rows"), py::arg("columns"), py::arg("depth"), py::arg("attribute"),
             py::arg("operands"), py::arg("settings"),
             "(status, cost) by shapes alone; arguments of compute, the arrays may be None.");
}
