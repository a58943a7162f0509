#pragma once
// What a file is that is no trace. Twin of opd/file_kind.py: the same kinds, in the same words.
#include <cstddef>
#include <span>
#include <string_view>

namespace opd::trace {

/// What a file is, and what to do with it, as error messages say it.
struct FileKind {
  std::string_view what;  ///< "gzip data"; empty when nothing is recognised
  std::string_view remedy;
};

/// The kind of a file of another format by its first bytes.
FileKind file_kind(std::span<const std::byte> bytes);

/// Whether the bytes can be no safetensors file, not even a damaged one: their header does not begin
/// with '{', or what should be its length is text.
bool is_foreign(std::span<const std::byte> bytes);

}  // namespace opd::trace
