#pragma once
// Reader of the safetensors container (https://github.com/huggingface/safetensors): u64 header
// length, JSON header, raw tensor data. Zero copy: tensors are spans into a read-only map of the
// file.
//
//   validated : everything a container can get wrong (docs/formats.md "Trace", last paragraph),
//               before open() returns; no later access can leave the data
//   alignment : tensor data may start at any byte, so spans are of bytes; read values with
//               load<T>()
//   lifetime  : spans live as long as the file object or a copy of it. The file must not be
//               shortened while it is mapped: POSIX answers an access past the new end with SIGBUS
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "opd/trace/error.hpp"

namespace opd::trace {

/// Longest header that is read, in bytes.
inline constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{64} << 20;

/// Bytes per element of a safetensors dtype; 0 when the dtype is unknown.
unsigned dtype_bytes(std::string_view dtype);

/// One tensor of the file: row-major, data.size() = product of shape * dtype_bytes(dtype).
struct Tensor {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;
};

/// Value `index` of tensor data of type T, little endian, at any alignment. The caller keeps index
/// in range.
template <typename T>
T load(std::span<const std::byte> data, std::size_t index) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, data.data() + index * sizeof(T), sizeof(T));
  return value;
}

class SafetensorsFile {
 public:
  /// Maps and validates `path`. Throws TraceError.
  static SafetensorsFile open(const std::filesystem::path& path);
  /// The same for bytes in memory; `file` is the name that errors carry.
  static SafetensorsFile parse(std::vector<std::byte> bytes, std::string file);

  const std::string& file() const { return file_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

 private:
  SafetensorsFile(std::string file, std::shared_ptr<const void> storage,
                  std::span<const std::byte> bytes);

  std::string file_;
  std::shared_ptr<const void> storage_;  // map or buffer that the spans point into
  std::map<std::string, std::string> metadata_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace opd::trace
