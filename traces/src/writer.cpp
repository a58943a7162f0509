#include "opd/trace/writer.hpp"

#include <algorithm>

#include "dtype.hpp"
#include "json.hpp"
#include "names.hpp"
#include "opd/trace/whole_file.hpp"
#include "traced_operators.hpp"

namespace opd::trace {
namespace {

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

std::vector<std::byte> serialize_safetensors(const std::map<std::string, std::string>& metadata,
                                             const std::map<std::string, TensorView>& tensors) {
  std::vector<const std::pair<const std::string, TensorView>*> order;
  for (const auto& entry : tensors) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return dtype_position(a->second.dtype) > dtype_position(b->second.dtype);
  });

  nlohmann::json header = {{"__metadata__", metadata}};
  std::uint64_t end = 0;
  for (const auto* entry : order) {
    const std::uint64_t begin = end;
    end += entry->second.data.size();
    header[entry->first] = {{"dtype", entry->second.dtype},
                            {"shape", entry->second.shape},
                            {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');

  std::vector<std::byte> bytes(8 + text.size() + end);
  std::span<std::byte> rest(bytes);
  const auto append = [&rest](std::span<const std::byte> part) {
    std::copy(part.begin(), part.end(), rest.begin());
    rest = rest.subspan(part.size());
  };
  const std::uint64_t header_bytes = text.size();
  append(std::as_bytes(std::span(&header_bytes, 1)));
  append(std::as_bytes(std::span(text)));
  for (const auto* entry : order) append(entry->second.data);
  return bytes;
}

std::vector<std::byte> serialize(const TraceContent& content, const std::string& file) {
  nlohmann::json probes = nlohmann::json::array();
  for (const Probe& probe : content.probes) {
    probes.push_back({{"name", probe.name},
                      {"kind", kProbeKindNames.at(static_cast<std::size_t>(probe.kind))},
                      {"format", kFormatNames.at(static_cast<std::size_t>(probe.format))},
                      {"shape", probe.shape}});
  }

  std::map<std::string, TensorView> tensors;
  const std::uint64_t steps = content.step.size();
  const std::uint64_t ops = content.probes.size();
  // A vector of the wrong length is written with the shape it has and the reader's check names it.
  const auto shape_of = [&](std::uint64_t size,
                            std::uint64_t columns) -> std::vector<std::uint64_t> {
    return size == steps * columns ? std::vector{steps, columns} : std::vector{size};
  };
  const auto add_matrix = [&](const char* name, const char* dtype, const auto& values) {
    if (!values.empty()) tensors[name] = {dtype, shape_of(values.size(), ops), bytes_of(values)};
  };
  const auto add_list = [&](const std::string& name, const char* dtype, const auto& values) {
    if (!values.empty()) tensors[name] = {dtype, {values.size()}, bytes_of(values)};
  };
  add_list("step", "I64", content.step);
  add_matrix("max_abs", "F32", content.max_abs);
  add_matrix("nonfinite", "I64", content.nonfinite);
  add_matrix("saturated", "I64", content.saturated);
  add_matrix("subnormal", "I64", content.subnormal);
  add_matrix("zero", "I64", content.zero);
  add_matrix("min_abs", "F32", content.min_abs);
  add_matrix("mean", "F32", content.mean);
  add_matrix("var", "F32", content.var);
  add_list("loss", "F32", content.loss);
  add_list("grad_norm", "F32", content.grad_norm);
  add_list("lr", "F32", content.lr);
  add_list("loss_scale", "F32", content.loss_scale);
  add_list("raw_step", "I64", content.raw_step);
  // Elements that do not fill whole rows are written as bytes, and the reader's check names them.
  const auto add_rows = [&](const std::string& name, std::string_view dtype, std::uint64_t width,
                            std::uint64_t rows, std::vector<std::uint64_t> shape,
                            const std::vector<std::byte>& elements) {
    rows = std::max<std::uint64_t>(rows, 1);
    shape.insert(shape.begin(), rows);
    std::uint64_t count = width;
    for (const std::uint64_t extent : shape) count *= extent;
    if (count == elements.size()) {
      tensors[name] = {std::string(dtype), std::move(shape), elements};
    } else if (elements.size() % (rows * width) == 0) {
      tensors[name] = {std::string(dtype), {rows, elements.size() / width / rows}, elements};
    } else {
      tensors[name] = {std::string(kMaskDtype), {elements.size()}, elements};
    }
  };
  const auto find_probe = [&](const std::string& name) {
    return std::find_if(content.probes.begin(), content.probes.end(),
                        [&](const Probe& probe) { return probe.name == name; });
  };
  const auto add_output = [&](const std::string& name, const std::string& probe_name,
                              std::uint64_t rows, const std::vector<std::byte>& elements) {
    const auto probe = find_probe(probe_name);
    const bool known = probe != content.probes.end();
    const FormatLayout& layout = layout_of(known ? probe->format : Format::kFp16);
    const std::uint64_t of_a_row =
        elements.size() / layout.bytes / std::max<std::uint64_t>(rows, 1);
    add_rows(name, layout.dtype, layout.bytes, rows, {of_a_row}, elements);
  };
  for (const auto& [name, elements] : content.raw)
    add_output("raw/" + name, name, content.raw_step.size(), elements);
  add_list("operand_step", "I64", content.operand_step);
  for (const auto& [name, elements] : content.outputs)
    add_output("output/" + name, name, content.operand_step.size(), elements);
  for (const auto& [probe_name, operands] : content.operands) {
    const auto op = std::find_if(
        content.operators.begin(), content.operators.end(), [&](const TracedOperator& item) {
          return item.probe < ops && content.probes[item.probe].name == probe_name;
        });
    for (const auto& [name, elements] : operands) {
      TracedOperand operand;
      if (op != content.operators.end()) {
        for (const TracedOperand& item : op->operands) {
          if (item.name == name) operand = item;
        }
      }
      const bool is_mask = name == kMaskName;
      const FormatLayout& layout = layout_of(operand.format);
      add_rows("operand/" + probe_name + "/" + name, is_mask ? kMaskDtype : layout.dtype,
               is_mask ? 1 : layout.bytes, content.operand_step.size(),
               {operand.rows, operand.columns}, elements);
    }
  }

  std::map<std::string, std::string> metadata = {
      {"format", "opd-trace"},
      {"version", "1"},
      {"name", content.name},
      {"label", std::string(kLabelNames.at(static_cast<std::size_t>(content.label)))},
      {"model", content.model},
      {"framework", content.framework},
      {"seed", content.seed},
      {"manifest", content.manifest}};
  if (content.first_bad) {
    metadata["first_bad_step"] = std::to_string(content.first_bad->step);
    metadata["first_bad_op"] = content.first_bad->op;
  }
  try {
    metadata["probes"] = probes.dump();
    if (!content.operators.empty())
      metadata["operators"] = operators_text(content.operators, content.probes);
    std::vector<std::byte> bytes = serialize_safetensors(metadata, tensors);
    Trace::parse(bytes, file);
    return bytes;
  } catch (const nlohmann::json::exception&) {  // strings are the only thing that dump() refuses
    throw TraceError(file, "__metadata__", "holds text that is not UTF-8",
                     "use UTF-8 names and texts");
  }
}

void write(const TraceContent& content, const std::filesystem::path& path) {
  const std::vector<std::byte> bytes = serialize(content, path.string());
  write_whole(path, bytes);
}

}  // namespace opd::trace
