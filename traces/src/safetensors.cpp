#include "opd/trace/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "dtype.hpp"
#include "file_kind.hpp"
#include "json.hpp"

static_assert(std::endian::native == std::endian::little, "trace files are little endian");

namespace opd::trace {
namespace {

constexpr std::string_view kRewrite = "write the file with opd.trace or a safetensors library";
constexpr std::string_view kCopyAgain = "the file is damaged or cut off: copy or capture it again";

std::string system_text(int error) { return std::generic_category().message(error); }

/// The file's bytes, read-only. Empty, missing, unreadable and not regular files throw.
std::pair<std::shared_ptr<const void>, std::size_t> map_file(const std::string& file) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    throw TraceError(file, "file", "cannot be opened (" + system_text(errno) + ")",
                     "check the path and its permissions");
  }
  const std::unique_ptr<const int, void (*)(const int*)> closer(&descriptor,
                                                                [](const int* d) { ::close(*d); });
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    throw TraceError(file, "file", "has no status (" + system_text(errno) + ")",
                     "check the path and its permissions");
  }
  if (!S_ISREG(status.st_mode)) {
    throw TraceError(file, "file",
                     S_ISDIR(status.st_mode) ? "is a directory" : "is not a regular file",
                     "give the path of a trace file");
  }
  if (status.st_size == 0) {
    throw TraceError(file, "file", "is empty", std::string(kCopyAgain));
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (address == MAP_FAILED) {
    throw TraceError(file, "file", "cannot be mapped (" + system_text(errno) + ")",
                     "free memory or copy the file to a local disk");
  }
  return {std::shared_ptr<const void>(
              address, [size](const void* a) { ::munmap(const_cast<void*>(a), size); }),
          size};
}

/// Throws when the bytes are of another kind of file: nothing in their "header" is worth a message.
void refuse_foreign(const std::string& file, std::span<const std::byte> bytes) {
  if (!is_foreign(bytes)) return;
  const FileKind kind = file_kind(bytes);
  throw TraceError(file, "file",
                   kind.what.empty() ? "is not a safetensors file"
                                     : "is not a safetensors file, but " + std::string(kind.what),
                   kind.remedy);
}

/// Bytes of a tensor; nothing when the product overflows.
std::optional<std::uint64_t> byte_count(const std::vector<std::uint64_t>& shape, unsigned width) {
  std::uint64_t bytes = width;
  // A later 0 does not excuse an overflow: no reader may depend on the order of the product.
  for (const std::uint64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, std::max<std::uint64_t>(extent, 1), &bytes))
      return std::nullopt;
  }
  return std::find(shape.begin(), shape.end(), 0u) == shape.end() ? bytes : 0;
}

}  // namespace

unsigned dtype_bytes(std::string_view dtype) {
  const std::size_t position = dtype_position(dtype);
  return position == kDtypes.size() ? 0 : kDtypes[position].second;
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  auto [storage, size] = map_file(path.string());
  const std::span bytes(static_cast<const std::byte*>(storage.get()), size);
  return SafetensorsFile(path.string(), std::move(storage), bytes);
}

SafetensorsFile SafetensorsFile::parse(std::vector<std::byte> bytes, std::string file) {
  auto storage = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  const std::span<const std::byte> view(*storage);
  return SafetensorsFile(std::move(file), std::move(storage), view);
}

SafetensorsFile::SafetensorsFile(std::string file, std::shared_ptr<const void> storage,
                                 std::span<const std::byte> bytes)
    : file_(std::move(file)), storage_(std::move(storage)) {
  using nlohmann::json;

  if (bytes.size() < 8) {
    refuse_foreign(file_, bytes);
    throw TraceError(file_, "header length", "the file is shorter than the 8 bytes of the length",
                     kCopyAgain);
  }
  const auto header_bytes = load<std::uint64_t>(bytes, 0);
  if (header_bytes > kMaxHeaderBytes) {
    refuse_foreign(file_, bytes);
    throw TraceError(file_, "header length",
                     std::to_string(header_bytes) + " bytes, more than the 64 MiB allowed",
                     kRewrite);
  }
  if (header_bytes > bytes.size() - 8) {
    refuse_foreign(file_, bytes);
    throw TraceError(file_, "header length",
                     std::to_string(header_bytes) + " bytes, but only " +
                         std::to_string(bytes.size() - 8) + " follow",
                     kCopyAgain);
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, header_bytes);
  const std::span<const std::byte> data = bytes.subspan(8 + header_bytes);

  json header;
  try {
    header = parse_json(text);
  } catch (const JsonFault& fault) {
    if (!file_kind(bytes).what.empty()) refuse_foreign(file_, bytes);
    throw TraceError(file_, "header", fault.wrong, kRewrite);
  }
  if (!header.is_object() || !text.starts_with('{')) {
    throw TraceError(file_, "header", "is not a JSON object that starts at its first byte",
                     kRewrite);
  }

  struct Extent {
    std::uint64_t begin, end;
    const std::string* name;
  };
  std::vector<Extent> extents;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) throw TraceError(file_, "__metadata__", "is not an object", kRewrite);
      for (const auto& [key, entry] : value.items()) {
        if (!entry.is_string()) {
          throw TraceError(file_, "__metadata__", in_quotes(key) + " is not a string", kRewrite);
        }
        metadata_.emplace(key, entry.get_ref<const std::string&>());
      }
      continue;
    }
    const std::string field = "tensor " + in_quotes(name);
    const auto is_member = [](const auto& item) {
      return item.key() == "dtype" || item.key() == "shape" || item.key() == "data_offsets";
    };
    if (!value.is_object() || value.size() != 3 ||
        !std::all_of(value.items().begin(), value.items().end(), is_member)) {
      throw TraceError(file_, field, "is not an object of dtype, shape and data_offsets", kRewrite);
    }
    Tensor tensor;
    const json& dtype = value["dtype"];
    if (!dtype.is_string()) throw TraceError(file_, field, "dtype is not a string", kRewrite);
    tensor.dtype = dtype.get_ref<const std::string&>();
    const unsigned width = dtype_bytes(tensor.dtype);
    if (width == 0) {
      throw TraceError(file_, field, "unknown dtype " + in_quotes(tensor.dtype), kRewrite);
    }
    const json& shape = value["shape"];
    const json& offsets = value["data_offsets"];
    if (!shape.is_array()) throw TraceError(file_, field, "shape is not a list", kRewrite);
    for (const json& extent : shape) {
      const auto count = as_unsigned(extent);
      if (!count)
        throw TraceError(file_, field, "shape holds a value that is not a size", kRewrite);
      tensor.shape.push_back(*count);
    }
    const auto begin =
        offsets.is_array() && offsets.size() == 2 ? as_unsigned(offsets[0]) : std::nullopt;
    const auto end = begin ? as_unsigned(offsets[1]) : std::nullopt;
    if (!end || *begin > *end) {
      throw TraceError(file_, field, "data_offsets is not a pair [begin, end] with begin <= end",
                       kRewrite);
    }
    const auto size = byte_count(tensor.shape, width);
    if (!size) throw TraceError(file_, field, "shape overflows 64 bits", kRewrite);
    if (*size != *end - *begin) {
      throw TraceError(file_, field,
                       "data_offsets span " + std::to_string(*end - *begin) +
                           " bytes, but shape and dtype make " + std::to_string(*size),
                       kRewrite);
    }
    if (*end > data.size()) {
      throw TraceError(file_, field,
                       "ends at byte " + std::to_string(*end) + " of the data, past its " +
                           std::to_string(data.size()) + " bytes",
                       kCopyAgain);
    }
    tensor.data = data.subspan(*begin, *size);
    const auto place = tensors_.emplace(name, std::move(tensor)).first;
    extents.push_back({*begin, *end, &place->first});
  }

  // Back to back from byte 0 to the end: then no two tensors share a byte and no byte is hidden.
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.begin, a.end, *a.name) < std::tie(b.begin, b.end, *b.name);
  });
  std::uint64_t covered = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != covered) {
      throw TraceError(
          file_, "tensor " + in_quotes(*extent.name),
          extent.begin < covered ? "overlaps another tensor" : "leaves a gap before its data",
          kRewrite);
    }
    covered = extent.end;
  }
  if (covered != data.size()) {
    throw TraceError(file_, "file",
                     std::to_string(data.size() - covered) + " bytes after the last tensor",
                     kRewrite);
  }
}

}  // namespace opd::trace
