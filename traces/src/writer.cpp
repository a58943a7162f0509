#include "opd/trace/writer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "dtype.hpp"
#include "json.hpp"

namespace opd::trace {
namespace {

constexpr std::string_view kTarget = "check the folder, its permissions and the free space";

[[noreturn]] void fail_to_write(const std::string& file, std::string_view action) {
  throw TraceError(
      file, "file",
      "cannot be " + std::string(action) + " (" + std::generic_category().message(errno) + ")",
      kTarget);
}

/// A file that is closed and removed unless it was renamed to its target.
class Temporary {
 public:
  explicit Temporary(const std::string& target) : target_(target), path_(target + ".XXXXXX") {
    descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);
    if (descriptor_ < 0) fail_to_write(target_, "created");
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail_to_write(target_, "written");
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

  void publish() {
    // mkostemp gives 0600; a trace gets what open() would have given it.
    const mode_t mask = ::umask(0);
    ::umask(mask);
    if (::fchmod(descriptor_, 0666 & ~mask) != 0 || ::fsync(descriptor_) != 0) {
      fail_to_write(target_, "synchronised");
    }
    if (::rename(path_.c_str(), target_.c_str()) != 0) fail_to_write(target_, "renamed to");
    path_.clear();
  }

 private:
  std::string target_;
  std::string path_;
  int descriptor_ = -1;
};

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
  Temporary temporary(path.string());
  temporary.write(bytes);
  temporary.publish();
}

}  // namespace opd::trace
