#pragma once
// Files that are there as a whole or not at all. Twin of opd/files.py.
#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "opd/trace/error.hpp"

namespace opd::trace {

/// Replaces the file by these bytes once they are on the disk: written to a temporary file beside
/// it, synchronised, renamed. A symbolic link stays, what it leads to is replaced. Throws
/// TraceError, also for a device, a pipe or a socket; then the target is as it was.
void write_whole(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_whole(const std::filesystem::path& path, std::string_view text);

}  // namespace opd::trace
