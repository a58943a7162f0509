#include "file_kind.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace opd::trace {
namespace {

constexpr std::size_t kLooked = 512;  // bytes that are looked at
constexpr std::size_t kHeader = 8;    // where the header of a safetensors file begins

constexpr std::string_view kGive =
    "give a trace (docs/formats.md); opd import makes traces of what other tools write";
constexpr std::string_view kUnpack = "unpack it, and give the trace that is in it";
constexpr std::string_view kConvert =
    "capture a trace (docs/capture.md); opd import reads tensors of .npz and .safetensors files";

struct Signature {
  std::size_t at;
  std::string_view bytes;
  FileKind kind;
};

using namespace std::string_view_literals;  // some hold a zero byte
constexpr std::array<Signature, 16> kSignatures = {{
    {0, "\x1f\x8b"sv, {"gzip data", kUnpack}},
    {0, "\x28\xb5\x2f\xfd"sv, {"Zstandard data", kUnpack}},
    {0,
     "\xfd"
     "7zXZ\0"sv,
     {"xz data", kUnpack}},
    {0, "BZh"sv, {"bzip2 data", kUnpack}},
    {257, "ustar"sv, {"a tar archive", kUnpack}},
    {0, "opdj"sv, {"the journal of a capture", "opd capture --recover makes a trace of it"}},
    {0, "\x93NUMPY"sv, {"a NumPy array (.npy)", kConvert}},
    {0, "\x89HDF\r\n\x1a\n"sv, {"an HDF5 file", kConvert}},
    {0, "\x80\x02"sv, {"a Python pickle", kConvert}},
    {0, "\x80\x03"sv, {"a Python pickle", kConvert}},
    {0, "\x80\x04"sv, {"a Python pickle", kConvert}},
    {0, "\x80\x05"sv, {"a Python pickle", kConvert}},
    {0, "PAR1"sv, {"a Parquet file", kGive}},
    {0, "SQLite format 3\0"sv, {"an SQLite database", kGive}},
    {0, "\xff\xfe"sv, {"UTF-16 text", kGive}},
    {0, "\xfe\xff"sv, {"UTF-16 text", kGive}},
}};

/// The first bytes, as characters.
std::string_view first_of(std::span<const std::byte> bytes, std::size_t count) {
  return {reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), count)};
}

/// Without control characters but those of texts (tab, the line ends, form feed, escape for colours)
/// and without bytes that UTF-8 never has.
bool is_text(std::string_view bytes) {
  return !bytes.empty() && std::none_of(bytes.begin(), bytes.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = byte < 0x20 && !(byte >= 0x09 && byte <= 0x0D) && byte != 0x1B;
    return control || byte == 0x7F || byte == 0xC0 || byte == 0xC1 || byte >= 0xF5;
  });
}

/// An archive of the kind that its first member's name tells.
FileKind zip_kind(std::string_view bytes) {
  constexpr std::size_t kNameLength = 26, kName = 30;
  if (bytes.size() > kName) {
    const auto byte = [&](std::size_t at) {
      return static_cast<std::size_t>(static_cast<unsigned char>(bytes[at]));
    };
    const std::string_view name =
        bytes.substr(kName, byte(kNameLength) | byte(kNameLength + 1) << 8);
    if (name.ends_with(".npy")) return {"a NumPy archive (.npz)", kConvert};
    if (name.ends_with("data.pkl")) return {"a PyTorch checkpoint", kConvert};
  }
  return {"a zip archive", kUnpack};
}

FileKind text_kind(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n\f\v"), text.size()));
  std::string small(text.substr(0, 32));
  std::transform(small.begin(), small.end(), small.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (small.starts_with("<!doctype html") || small.starts_with("<html"))
    return {"an HTML page", "download the file itself"};
  if (small.starts_with("version https://git-lfs"))
    return {"a Git LFS pointer", "fetch the file itself with git lfs pull"};
  if (small.starts_with("{") || small.starts_with("[")) return {"JSON text", kGive};
  return {"text", kGive};
}

}  // namespace

FileKind file_kind(std::span<const std::byte> bytes) {
  const std::string_view head = first_of(bytes, kLooked);
  for (const Signature& signature : kSignatures) {
    if (head.size() > signature.at && head.substr(signature.at).starts_with(signature.bytes))
      return signature.kind;
  }
  if (head.starts_with("PK\x03\x04") || head.starts_with("PK\x05\x06")) return zip_kind(head);
  if (head.substr(0, 64).find("brain.Event:") != std::string_view::npos)
    return {"a TensorBoard event file", kGive};
  return is_text(head) ? text_kind(head) : FileKind{"", kGive};
}

bool is_foreign(std::span<const std::byte> bytes) {
  const bool begins = bytes.size() > kHeader && bytes[kHeader] == std::byte{'{'};
  return is_text(first_of(bytes, kHeader)) || (bytes.size() > kHeader && !begins);
}

}  // namespace opd::trace
