#include "opd/trace/writer.hpp"

#include <algorithm>

#include "dtype.hpp"
#include "json.hpp"
#include "opd/trace/whole_file.hpp"

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
  for (const auto& [name, elements] : content.raw) {
    const auto probe = std::find_if(content.probes.begin(), content.probes.end(),
                                    [&](const Probe& p) { return p.name == name; });
    const Format format = probe == content.probes.end() ? Format::kFp16 : probe->format;
    const FormatLayout& layout = layout_of(format);
    const std::uint64_t rows = std::max<std::uint64_t>(content.raw_step.size(), 1);
    const std::uint64_t count = elements.size() / layout.bytes;
    const bool whole = elements.size() % (rows * layout.bytes) == 0;
    tensors["raw/" + name] = {
        std::string(whole ? layout.dtype : "U8"),
        whole ? std::vector{rows, count / rows} : std::vector{elements.size()}, elements};
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
