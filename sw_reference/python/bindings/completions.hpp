#pragma once
// What the Python modules of a device have in common: settings, completions of a training step, and
// what a device answers. Errors: ValueError that names the argument or the configuration field.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "opd/reference/element.hpp"
#include "opd/types/device.hpp"

namespace opd::bindings {

namespace py = pybind11;

template <class T>
using Array = py::array_t<T, py::array::c_style>;

[[noreturn]] inline void fail(const std::string& text) { throw py::value_error(text); }

/// Reset values with the given fields replaced.
inline Config config_of(const std::map<std::string, double>& settings) {
  Config config;
  for (const auto& [name, value] : settings) {
    bool known = false;
    for (const ConfigField& field : kConfigFields) {
      if (field.name != name) continue;
      known = true;
      if (field.is_float) {
        field.set(config, std::bit_cast<std::int32_t>(static_cast<float>(value)));
        continue;
      }
      // A setter narrows to the field's own type: the range is checked before.
      const bool in_range = value >= field.minimum && value <= field.maximum;
      if (!in_range || value != static_cast<std::int32_t>(value)) {
        fail(name + ": is not a whole number in " + std::to_string(field.minimum) + ".." +
             std::to_string(field.maximum));
      }
      field.set(config, static_cast<std::int32_t>(value));
    }
    if (!known) fail(name + ": is no configuration field; see docs/registers.md");
  }
  return config;
}

/// OpRecord as a structured type. Made here, not registered: pybind11 knows a type once a process,
/// and more than one module needs it.
inline py::dtype record_type() {
  py::list names, formats, offsets;
  const auto add = [&](const char* name, const char* format, std::size_t offset) {
    names.append(name);
    formats.append(format);
    offsets.append(offset);
  };
  add("seq", "<u4", offsetof(OpRecord, seq));
  add("step", "<u4", offsetof(OpRecord, step));
  add("op", "<u2", offsetof(OpRecord, op));
  add("format", "u1", offsetof(OpRecord, format));
  add("mode", "u1", offsetof(OpRecord, mode));
  add("max_mag", "<u4", offsetof(OpRecord, max_mag));
  add("nonfinite_count", "<u4", offsetof(OpRecord, nonfinite_count));
  add("first_nonfinite", "<u4", offsetof(OpRecord, first_nonfinite));
  add("saturated_count", "<u4", offsetof(OpRecord, saturated_count));
  add("flags", "<u2", offsetof(OpRecord, flags));
  add("risk", "u1", offsetof(OpRecord, risk));
  add("cause", "u1", offsetof(OpRecord, cause));
  return py::dtype(names, formats, offsets, sizeof(OpRecord));
}

/// Completions of one step, in order: arrays [completions] of one type each.
inline std::vector<Statistic> completions_of(
    std::uint32_t step, const Array<std::uint16_t>& op, const Array<std::uint8_t>& format,
    const Array<std::uint32_t>& max_mag, const Array<std::uint32_t>& element_count,
    const Array<std::uint32_t>& nonfinite, const Array<std::uint32_t>& saturated,
    const Array<std::int8_t>& scale_log2, unsigned num_ops) {
  if (op.ndim() != 1) fail("op: is not [completions]");
  const py::ssize_t count = op.shape(0);
  const std::array<std::pair<const char*, const py::array*>, 6> others = {
      {{"format", &format},
       {"max_mag", &max_mag},
       {"element_count", &element_count},
       {"nonfinite", &nonfinite},
       {"saturated", &saturated},
       {"scale_log2", &scale_log2}}};
  for (const auto& [name, array] : others) {
    if (array->ndim() != 1 || array->shape(0) != count)
      fail(std::string(name) + ": is not [completions] as op is");
  }
  std::vector<Statistic> completions;
  completions.reserve(static_cast<std::size_t>(count));
  for (py::ssize_t i = 0; i < count; ++i) {
    const auto element = static_cast<Format>(format.at(i));
    if (op.at(i) >= num_ops)
      fail("op: " + std::to_string(op.at(i)) + " is none of the unit's " + std::to_string(num_ops));
    if (!ref::is_known(element))
      fail("format: " + std::to_string(format.at(i)) + " is no format code");
    if (max_mag.at(i) > ref::layout_of(element).max_finite)
      fail("max_mag: " + std::to_string(max_mag.at(i)) + " is no finite magnitude of its format");
    completions.push_back({.descriptor = {.op = op.at(i),
                                          .format = element,
                                          .step = step,
                                          .scale_log2 = scale_log2.at(i)},
                           .summary = {.max_mag = max_mag.at(i),
                                       .element_count = element_count.at(i),
                                       .nonfinite_count = nonfinite.at(i),
                                       // The position is not known (docs/formats.md "Trace").
                                       .first_nonfinite = nonfinite.at(i) > 0 ? 0 : kNoElement,
                                       .saturated_count = saturated.at(i)}});
  }
  return completions;
}

/// An array of records, one extent after the other. With its strides: pybind11 2.10 takes those that
/// it works out itself from a place where NumPy 2 has another number.
inline py::array record_array(const std::vector<py::ssize_t>& shape) {
  std::vector<py::ssize_t> strides(shape.size(), sizeof(OpRecord));
  for (std::size_t axis = shape.size(); axis-- > 1;)
    strides[axis - 1] = strides[axis] * shape[axis];
  return {record_type(), shape, strides};
}

/// Records [completions].
inline py::array array_of(std::span<const OpRecord> records) {
  py::array array = record_array({static_cast<py::ssize_t>(records.size())});
  if (!records.empty()) std::memcpy(array.mutable_data(), records.data(), records.size_bytes());
  return array;
}

/// Modes [operators].
inline Array<std::uint8_t> array_of(std::span<const Mode> modes) {
  Array<std::uint8_t> array(std::vector<py::ssize_t>{static_cast<py::ssize_t>(modes.size())});
  if (!modes.empty()) std::memcpy(array.mutable_data(), modes.data(), modes.size_bytes());
  return array;
}

/// (step, op, old mode, new mode, cause, flags, risk) each.
inline py::list tuples_of(std::span<const Event> events) {
  py::list tuples;
  for (const Event& event : events) {
    tuples.append(py::make_tuple(event.step, event.op, static_cast<unsigned>(event.old_mode),
                                 static_cast<unsigned>(event.new_mode),
                                 static_cast<unsigned>(event.cause), event.flags, event.risk));
  }
  return tuples;
}

/// (loss-scale shift, clip shift, learning-rate factor * 65536)
inline py::tuple tuple_of(const Hints& hints) {
  return py::make_tuple(hints.loss_scale_shift, hints.clip_shift, hints.learning_rate_factor);
}

}  // namespace opd::bindings
