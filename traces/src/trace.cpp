#include "opd/trace/trace.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>

#include "json.hpp"
#include "names.hpp"
#include "traced_operators.hpp"

namespace opd::trace {
namespace {

constexpr std::size_t kNoRow = std::numeric_limits<std::size_t>::max();
constexpr std::string_view kRawPrefix = "raw/";
constexpr std::string_view kOperandPrefix = "operand/";
constexpr std::string_view kOutputPrefix = "output/";

constexpr std::array<std::string_view, 15> kTensorNames = {
    "step", "max_abs", "nonfinite", "saturated", "subnormal",  "zero",     "min_abs",     "mean",
    "var",  "loss",    "grad_norm", "lr",        "loss_scale", "raw_step", "operand_step"};

bool is_short_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
}

/// Decimal digits only, 0..2^32-1.
std::optional<std::uint32_t> as_step(std::string_view text) {
  std::uint32_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return step;
}

std::uint32_t clamp_u32(std::uint64_t count) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(count, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace

Trace Trace::read(const std::filesystem::path& path) { return Trace(SafetensorsFile::open(path)); }

Trace Trace::parse(std::vector<std::byte> bytes, std::string file) {
  return Trace(SafetensorsFile::parse(std::move(bytes), std::move(file)));
}

Trace::Trace(SafetensorsFile container) : container_(std::move(container)) {
  read_metadata();
  read_probes();
  read_operators();
  read_steps();
  read_statistics();
  read_series();
  read_raw();
  read_operands();
  read_first_bad();
}

void Trace::fail(std::string_view field, std::string_view wrong, std::string_view remedy) const {
  throw TraceError(file(), field, wrong, remedy);
}

void Trace::read_metadata() {
  const auto& metadata = container_.metadata();
  const auto format = metadata.find("format");
  if (format == metadata.end() || format->second != "opd-trace") {
    fail("format", "is not \"opd-trace\"", "give a trace file; other tensors are not read");
  }
  for (const char* key :
       {"version", "name", "label", "model", "framework", "seed", "manifest", "probes"}) {
    if (!metadata.contains(key)) fail(key, "is missing from __metadata__", kCapture);
  }
  if (metadata.at("version") != "1") {
    fail("version", in_quotes(metadata.at("version")) + " is not known",
         "use a reader of that version, or version 1");
  }
  if (!is_short_name(name())) {
    fail("name", in_quotes(name()) + " is not a short name",
         "use letters, digits, '_', '.' and '-' only");
  }
  const auto label = position(kLabelNames, metadata.at("label"));
  if (!label) {
    fail("label", in_quotes(metadata.at("label")) + " is not a label",
         "use " + choice(kLabelNames));
  }
  label_ = static_cast<Label>(*label);
  try {
    if (!parse_json(manifest()).is_object()) throw JsonFault{"not a JSON object"};
  } catch (const JsonFault& fault) {
    fail("manifest", fault.wrong, kCapture);
  }
}

void Trace::read_probes() {
  nlohmann::json list;
  try {
    list = parse_json(metadata("probes"));
  } catch (const JsonFault& fault) {
    fail("probes", fault.wrong, kCapture);
  }
  if (!list.is_array() || list.empty())
    fail("probes", "is not a list of probes", "probe at least one operator");
  if (list.size() > kMaxProbes) {
    fail("probes", std::to_string(list.size()) + " probes, more than the 65536 op ids",
         "probe fewer operators");
  }
  std::set<std::string> names;
  for (const nlohmann::json& item : list) {
    const std::string field = "probes[" + std::to_string(probes_.size()) + "]";
    if (!item.is_object()) fail(field, "is not an object", kCapture);
    const auto text = [&](const char* key) -> const std::string& {
      const auto member = item.find(key);
      if (member == item.end() || !member->is_string()) {
        fail(field + "." + key, "is missing or not a string", kCapture);
      }
      return member->get_ref<const std::string&>();
    };
    Probe probe;
    probe.name = text("name");
    if (probe.name.empty()) fail(field + ".name", "is empty", "name the probe");
    if (!names.insert(probe.name).second) {
      fail(field + ".name", in_quotes(probe.name) + " names two probes",
           "give every probe a name of its own");
    }
    const auto kind = position(kProbeKindNames, text("kind"));
    if (!kind)
      fail(field + ".kind", in_quotes(text("kind")) + " is not a kind",
           "use " + choice(kProbeKindNames));
    probe.kind = static_cast<ProbeKind>(*kind);
    const auto format = position(kFormatNames, text("format"));
    if (!format) {
      fail(field + ".format", in_quotes(text("format")) + " is not a format",
           "use " + choice(kFormatNames));
    }
    probe.format = static_cast<Format>(*format);
    const auto shape = item.find("shape");
    if (shape == item.end() || !shape->is_array())
      fail(field + ".shape", "is missing or not a list", kCapture);
    for (const nlohmann::json& extent : *shape) {
      const auto count = as_unsigned(extent);
      if (!count) fail(field + ".shape", "holds a value that is not a size", kCapture);
      if (*count == 0)
        fail(field + ".shape", "makes a probe without elements", "leave the probe out");
      if (__builtin_mul_overflow(probe.elements, *count, &probe.elements) ||
          probe.elements > kMaxElements) {
        fail(field + ".shape", "makes more than 2^63-1 elements", "correct the shape");
      }
      probe.shape.push_back(*count);
    }
    probes_.push_back(std::move(probe));
  }
  probes_by_name_.resize(probes_.size());
  std::iota(probes_by_name_.begin(), probes_by_name_.end(), std::size_t{0});
  std::sort(probes_by_name_.begin(), probes_by_name_.end(),
            [&](std::size_t a, std::size_t b) { return probes_[a].name < probes_[b].name; });
}

const Tensor* Trace::find(const std::string& name) const {
  const auto found = container_.tensors().find(name);
  return found == container_.tensors().end() ? nullptr : &found->second;
}

const Tensor& Trace::require(const std::string& name, std::string_view dtype,
                             std::vector<std::uint64_t> shape) const {
  const bool is_of_a_probe = name.find('/') != std::string::npos;
  const std::string field = is_of_a_probe ? "tensor " + in_quotes(name) : name;
  const Tensor* tensor = find(name);
  if (tensor == nullptr) fail(field, "is missing", kCapture);
  if (tensor->dtype != dtype) {
    fail(field, "has dtype " + tensor->dtype + " instead of " + std::string(dtype), kCapture);
  }
  if (tensor->shape != shape) {
    fail(field, "has shape " + shape_text(tensor->shape) + " instead of " + shape_text(shape),
         kCapture);
  }
  return *tensor;
}

/// A non-empty I64 list of strictly increasing training steps.
std::vector<std::int64_t> Trace::read_step_list(const std::string& name) const {
  const Tensor* tensor = find(name);
  const std::uint64_t count = tensor != nullptr && tensor->shape.size() == 1 ? tensor->shape[0] : 0;
  require(name, "I64", {count});
  if (count == 0) fail(name, "holds no steps", "record at least one step");
  std::vector<std::int64_t> steps(count);
  for (std::size_t i = 0; i < count; ++i) {
    steps[i] = load<std::int64_t>(tensor->data, i);
    const std::string field = name + "[" + std::to_string(i) + "]";
    if (steps[i] < 0 || steps[i] > std::numeric_limits<std::uint32_t>::max()) {
      fail(field, std::to_string(steps[i]) + " is not in 0..2^32-1", "count steps from 0");
    }
    if (i > 0 && steps[i] <= steps[i - 1]) {
      fail(field, std::to_string(steps[i]) + " does not come after " + std::to_string(steps[i - 1]),
           "record every step once, in order");
    }
  }
  return steps;
}

void Trace::check_tensor_name(const std::string& name) const {
  const std::string_view text = name;
  if (text.starts_with(kRawPrefix)) {
    if (!find_probe(text.substr(kRawPrefix.size()))) {
      fail("tensor " + in_quotes(name), "is of no probe in the list",
           "add the probe or remove the tensor");
    }
  } else if (text.starts_with(kOperandPrefix) || text.starts_with(kOutputPrefix)) {
    const bool is_operand = text.starts_with(kOperandPrefix);
    const std::size_t end = is_operand ? text.rfind('/') : text.size();
    const std::size_t begin = is_operand ? kOperandPrefix.size() : kOutputPrefix.size();
    const auto probe = end < begin ? std::nullopt : find_probe(text.substr(begin, end - begin));
    const bool known = probe && operator_of_[*probe] != kNoRow;
    if (!known) {
      fail("tensor " + in_quotes(name), "is of no operator in operators",
           "add the operator or remove the tensor");
    }
    const std::vector<TracedOperand>& operands = operators_[operator_of_[*probe]].operands;
    if (is_operand &&
        std::none_of(operands.begin(), operands.end(), [&](const TracedOperand& operand) {
          return operand.name == text.substr(end + 1);
        })) {
      fail("tensor " + in_quotes(name), "is of no operand of that operator",
           "add the operand to operators or remove the tensor");
    }
  } else if (!position(kTensorNames, name)) {
    fail("tensor " + in_quotes(name), "is not part of a trace", "correct its name or remove it");
  }
}

void Trace::read_steps() {
  for (const auto& [name, tensor] : container_.tensors()) check_tensor_name(name);
  for (const std::int64_t step : read_step_list("step"))
    steps_.push_back(static_cast<std::uint32_t>(step));
}

std::string Trace::place(std::size_t cell_index) const {
  return "step " + std::to_string(steps_[cell_index / probes_.size()]) + ", probe " +
         in_quotes(probes_[cell_index % probes_.size()].name) + ": ";
}

/// I64 [S, P], each 0..elements of its probe.
std::span<const std::byte> Trace::read_counts(const std::string& name) const {
  const auto data = require(name, "I64", {steps_.size(), probes_.size()}).data;
  for (std::size_t i = 0; i < steps_.size() * probes_.size(); ++i) {
    const auto count = load<std::int64_t>(data, i);
    const std::uint64_t elements = probes_[i % probes_.size()].elements;
    if (count < 0 || static_cast<std::uint64_t>(count) > elements) {
      fail(name,
           place(i) + std::to_string(count) + " is not in 0.." + std::to_string(elements) +
               ", the number of elements",
           kCapture);
    }
  }
  return data;
}

/// F32 [S, P] without NaN; kNotNegative: >= 0; kMagnitude: also at most the format's largest finite
/// value.
std::span<const std::byte> Trace::read_values(const std::string& name, Value kind) const {
  const auto data = require(name, "F32", {steps_.size(), probes_.size()}).data;
  for (std::size_t i = 0; i < steps_.size() * probes_.size(); ++i) {
    const auto value = load<float>(data, i);
    const Format format = probes_[i % probes_.size()].format;
    if (std::isnan(value)) {
      fail(name, place(i) + "is NaN", "take statistics over the finite elements only");
    }
    if (kind != Value::kAny && value < 0) fail(name, place(i) + "is negative", kCapture);
    if (kind == Value::kMagnitude && value > layout_of(format).max_value) {
      fail(name,
           place(i) + "is above the largest finite " +
               std::string(kFormatNames[static_cast<std::size_t>(format)]),
           "take the largest finite magnitude, or correct the probe's format");
    }
  }
  return data;
}

void Trace::read_statistics() {
  max_abs_ = read_values("max_abs", Value::kMagnitude);
  nonfinite_ = read_counts("nonfinite");
  if (find("saturated") != nullptr) saturated_ = read_counts("saturated");
  if (find("subnormal") != nullptr) subnormal_ = read_counts("subnormal");
  if (find("zero") != nullptr) zero_ = read_counts("zero");
  if (find("min_abs") != nullptr) min_abs_ = read_values("min_abs", Value::kMagnitude);
  // Mean and variance may overflow F32 to Inf: that is a number, NaN is not.
  if (find("mean") != nullptr) mean_ = read_values("mean", Value::kAny);
  if (find("var") != nullptr) var_ = read_values("var", Value::kNotNegative);
}

std::vector<float> Trace::read_step_series(const std::string& name) const {
  if (find(name) == nullptr) return {};
  const auto data = require(name, "F32", {steps_.size()}).data;
  std::vector<float> series(steps_.size());
  std::memcpy(series.data(), data.data(), data.size());
  return series;
}

void Trace::read_series() {
  loss_ = read_step_series("loss");
  grad_norm_ = read_step_series("grad_norm");
  lr_ = read_step_series("lr");
  for (std::size_t i = 0; i < lr_.size(); ++i) {
    if (!std::isfinite(lr_[i])) {
      fail("lr", "step " + std::to_string(steps_[i]) + ": is Inf or NaN",
           "leave lr out, or record a finite one");
    }
  }
  loss_scale_ = read_step_series("loss_scale");
  for (std::size_t i = 0; i < loss_scale_.size(); ++i) {
    if (!std::isfinite(loss_scale_[i]) || loss_scale_[i] <= 0) {
      fail("loss_scale", "step " + std::to_string(steps_[i]) + ": is not positive and finite",
           "leave loss_scale out, or record 1 where there is none");
    }
  }
}

/// Row of each step's elements; kNoRow where there is none.
std::vector<std::size_t> Trace::rows_of_steps(const std::string& name,
                                              const std::vector<std::int64_t>& rows) const {
  std::vector<std::size_t> row_of_step(steps_.size(), kNoRow);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto step = static_cast<std::uint32_t>(rows[row]);
    const auto found = std::lower_bound(steps_.begin(), steps_.end(), step);
    if (found == steps_.end() || *found != step) {
      fail(name + "[" + std::to_string(row) + "]", std::to_string(step) + " is not in step",
           "record the statistics of every step with " +
               std::string(name == "raw_step" ? "raw rows" : "operands"));
    }
    row_of_step[static_cast<std::size_t>(found - steps_.begin())] = row;
  }
  return row_of_step;
}

void Trace::read_raw() {
  raw_row_.assign(steps_.size(), kNoRow);
  raw_.resize(probes_.size());
  has_raw_ = std::any_of(container_.tensors().begin(), container_.tensors().end(),
                         [](const auto& entry) { return entry.first.starts_with(kRawPrefix); });
  if (!has_raw_) {
    if (find("raw_step") != nullptr)
      fail("raw_step", "is there, but no raw/ tensor is", "remove it");
    return;
  }
  const std::vector<std::int64_t> rows = read_step_list("raw_step");
  raw_row_ = rows_of_steps("raw_step", rows);
  for (std::size_t p = 0; p < probes_.size(); ++p) {
    const std::string name = std::string(kRawPrefix) + probes_[p].name;
    if (find(name) == nullptr) continue;
    raw_[p] =
        require(name, layout_of(probes_[p].format).dtype, {rows.size(), probes_[p].elements}).data;
  }
}

void Trace::read_operators() {
  operator_of_.assign(probes_.size(), kNoRow);
  const auto text = container_.metadata().find("operators");
  if (text == container_.metadata().end()) return;
  operators_ = parse_operators(text->second, *this);
  for (std::size_t i = 0; i < operators_.size(); ++i) operator_of_[operators_[i].probe] = i;
}

/// Each byte of a mask is 0 or 1.
void Trace::check_mask(const std::string& name, std::span<const std::byte> data,
                       std::size_t row_bytes) const {
  const auto bad =
      std::find_if(data.begin(), data.end(), [](std::byte value) { return value > std::byte{1}; });
  if (bad == data.end()) return;
  const std::size_t row = static_cast<std::size_t>(bad - data.begin()) / row_bytes;
  fail("tensor " + in_quotes(name),
       "step " + std::to_string(operand_steps_[row]) + ": " +
           std::to_string(std::to_integer<unsigned>(*bad)) + " is neither 0 nor 1",
       "write 0 for a hidden element, 1 for one that counts");
}

void Trace::read_operands() {
  operand_row_.assign(steps_.size(), kNoRow);
  operands_.resize(operators_.size());
  outputs_.resize(operators_.size());
  bool any = false;
  for (TracedOperator& op : operators_) {
    const std::string prefix = std::string(kOperandPrefix) + probes_[op.probe].name + "/";
    const auto present = [&](const TracedOperand& operand) {
      return find(prefix + operand.name) != nullptr;
    };
    op.has_elements = std::any_of(op.operands.begin(), op.operands.end(), present);
    any = any || op.has_elements;
    const auto missing = std::find_if_not(op.operands.begin(), op.operands.end(), present);
    if (op.has_elements && missing != op.operands.end()) {
      fail("tensor " + in_quotes(prefix + missing->name),
           "is missing while other operands of that operator are there",
           "record all operands of an operator or none");
    }
    const std::string output = std::string(kOutputPrefix) + probes_[op.probe].name;
    if (!op.has_elements && find(output) != nullptr) {
      fail("tensor " + in_quotes(output), "is there, but no operand of that operator is",
           "record its operands or remove it");
    }
  }
  if (!any) {
    if (find("operand_step") != nullptr)
      fail("operand_step", "is there, but no operand/ tensor is", "remove it");
    return;
  }
  operand_steps_ = read_step_list("operand_step");
  operand_row_ = rows_of_steps("operand_step", operand_steps_);
  const std::uint64_t rows = operand_steps_.size();
  for (std::size_t i = 0; i < operators_.size(); ++i) {
    const TracedOperator& op = operators_[i];
    if (!op.has_elements) continue;
    const Probe& probe = probes_[op.probe];
    for (const TracedOperand& operand : op.operands) {
      const std::string name = std::string(kOperandPrefix) + probe.name + "/" + operand.name;
      const bool is_mask = operand.name == kMaskName;
      const auto data = require(name, is_mask ? kMaskDtype : layout_of(operand.format).dtype,
                                {rows, operand.rows, operand.columns})
                            .data;
      if (is_mask) check_mask(name, data, data.size() / rows);
      operands_[i][*position(traits_of(op.kernel).operands, operand.name)] = data;
    }
    const std::string output = std::string(kOutputPrefix) + probe.name;
    if (find(output) != nullptr)
      outputs_[i] = require(output, layout_of(probe.format).dtype, {rows, probe.elements}).data;
  }
}

void Trace::read_first_bad() {
  const auto& metadata = container_.metadata();
  const auto step_text = metadata.find("first_bad_step");
  const auto op_text = metadata.find("first_bad_op");
  if ((step_text == metadata.end()) != (op_text == metadata.end())) {
    fail(step_text == metadata.end() ? "first_bad_step" : "first_bad_op",
         "is missing while the other of the two is there", "record both or none");
  }
  // The first cell that may be bad: everything before it must be good. One past the end when none
  // is named.
  std::size_t first = steps_.size() * probes_.size();
  if (step_text != metadata.end()) {
    const auto step = as_step(step_text->second);
    const auto found = std::lower_bound(steps_.begin(), steps_.end(), step.value_or(0));
    if (!step || found == steps_.end() || *found != *step) {
      fail("first_bad_step", in_quotes(step_text->second) + " is not in step", kCapture);
    }
    const auto probe = find_probe(op_text->second);
    if (!probe) fail("first_bad_op", in_quotes(op_text->second) + " is not in probes", kCapture);
    first = static_cast<std::size_t>(found - steps_.begin()) * probes_.size() + *probe;
    if (load<std::int64_t>(nonfinite_, first) == 0) {
      fail("first_bad_op", place(first) + "nonfinite is 0", kCapture);
    }
    first_bad_ = FirstBad{*step, op_text->second};
  }
  for (std::size_t i = 0; i < first; ++i) {
    if (probes_[i % probes_.size()].kind == ProbeKind::kActivation &&
        load<std::int64_t>(nonfinite_, i) > 0) {
      fail("first_bad_step",
           place(i) + "nonfinite is not 0, and that is not the step and op recorded as first",
           "record the first non-finite activation");
    }
  }
}

std::optional<std::size_t> Trace::find_probe(std::string_view name) const {
  const auto found =
      std::lower_bound(probes_by_name_.begin(), probes_by_name_.end(), name,
                       [&](std::size_t p, std::string_view n) { return probes_[p].name < n; });
  if (found == probes_by_name_.end() || probes_[*found].name != name) return std::nullopt;
  return *found;
}

std::size_t Trace::cell(std::size_t step_index, std::size_t probe) const {
  if (step_index >= steps_.size() || probe >= probes_.size()) {
    throw std::out_of_range("opd::trace::Trace: step index or probe out of range");
  }
  return step_index * probes_.size() + probe;
}

template <typename T>
std::optional<T> Trace::optional_cell(std::span<const std::byte> data, std::size_t step_index,
                                      std::size_t probe) const {
  const std::size_t index = cell(step_index, probe);
  if (data.empty()) return std::nullopt;
  return load<T>(data, index);
}

float Trace::max_abs(std::size_t step_index, std::size_t probe) const {
  return load<float>(max_abs_, cell(step_index, probe));
}
std::uint64_t Trace::nonfinite(std::size_t step_index, std::size_t probe) const {
  return load<std::uint64_t>(nonfinite_, cell(step_index, probe));
}
std::optional<std::uint64_t> Trace::saturated(std::size_t step_index, std::size_t probe) const {
  return optional_cell<std::uint64_t>(saturated_, step_index, probe);
}
std::optional<std::uint64_t> Trace::subnormal(std::size_t step_index, std::size_t probe) const {
  return optional_cell<std::uint64_t>(subnormal_, step_index, probe);
}
std::optional<std::uint64_t> Trace::zero(std::size_t step_index, std::size_t probe) const {
  return optional_cell<std::uint64_t>(zero_, step_index, probe);
}
std::optional<float> Trace::min_abs(std::size_t step_index, std::size_t probe) const {
  return optional_cell<float>(min_abs_, step_index, probe);
}
std::optional<float> Trace::mean(std::size_t step_index, std::size_t probe) const {
  return optional_cell<float>(mean_, step_index, probe);
}
std::optional<float> Trace::var(std::size_t step_index, std::size_t probe) const {
  return optional_cell<float>(var_, step_index, probe);
}

std::span<const std::byte> Trace::raw(std::size_t probe, std::size_t step_index) const {
  cell(step_index, probe);
  const std::size_t row = raw_row_[step_index];
  if (row == kNoRow || raw_[probe].empty()) return {};
  const std::size_t row_bytes = probes_[probe].elements * layout_of(probes_[probe].format).bytes;
  return raw_[probe].subspan(row * row_bytes, row_bytes);
}

std::optional<Computation> Trace::computation_shape(std::size_t probe) const {
  cell(0, probe);
  if (operator_of_[probe] == kNoRow) return std::nullopt;
  const TracedOperator& op = operators_[operator_of_[probe]];
  Computation result{.kernel = op.kernel,
                     .format = probes_[probe].format,
                     .batch = op.batch,
                     .rows = op.rows,
                     .columns = op.columns,
                     .depth = op.depth,
                     .attribute = op.attribute};
  for (const TracedOperand& operand : op.operands) {
    result.operands[*position(traits_of(op.kernel).operands, operand.name)] = {
        .elements = {}, .format = operand.format, .rows = operand.rows, .columns = operand.columns};
  }
  return result;
}

std::optional<Computation> Trace::computation(std::size_t probe, std::size_t step_index) const {
  cell(step_index, probe);
  const std::size_t row = operand_row_[step_index];
  const std::size_t op = operator_of_[probe];
  if (row == kNoRow || op == kNoRow || !operators_[op].has_elements) return std::nullopt;
  std::optional<Computation> result = computation_shape(probe);
  for (std::size_t i = 0; i < kMaxOperands; ++i) {
    const std::size_t row_bytes = operands_[op][i].size() / operand_steps_.size();
    result->operands[i].elements = operands_[op][i].subspan(row * row_bytes, row_bytes);
  }
  return result;
}

std::span<const std::byte> Trace::computed_output(std::size_t probe, std::size_t step_index) const {
  cell(step_index, probe);
  const std::size_t row = operand_row_[step_index];
  if (row == kNoRow || operator_of_[probe] == kNoRow) return {};
  const std::span<const std::byte> output = outputs_[operator_of_[probe]];
  const std::size_t row_bytes = output.size() / operand_steps_.size();
  return output.subspan(row * row_bytes, row_bytes);
}

TapSummary Trace::statistic(std::size_t step_index, std::size_t probe) const {
  const std::uint64_t bad = nonfinite(step_index, probe);
  return {
      .max_mag = magnitude_bits(probes_[probe].format, max_abs(step_index, probe)),
      .element_count = clamp_u32(probes_[probe].elements),
      .nonfinite_count = clamp_u32(bad),
      .first_nonfinite = bad > 0 ? 0 : kNoElement,
      .saturated_count = clamp_u32(saturated(step_index, probe).value_or(0)),
      .subnormal_count = clamp_u32(subnormal(step_index, probe).value_or(0)),
      .zero_count = clamp_u32(zero(step_index, probe).value_or(0)),
  };
}

std::int8_t Trace::scale_log2(std::size_t step_index, std::size_t probe) const {
  cell(step_index, probe);
  if (loss_scale_.empty() || probes_[probe].kind != ProbeKind::kGradient) return 0;
  // At most 127; below -128 only for subnormal scales, which no run uses.
  return static_cast<std::int8_t>(std::max(std::ilogb(loss_scale_[step_index]), -128));
}

}  // namespace opd::trace
