#pragma once
// The traces that a command line names.
#include <filesystem>
#include <vector>

namespace opd::tb {

/// Files as they are, and of each folder its *.safetensors, sorted by name. Throws
/// trace::TraceError for a folder without any, and for a file that is named twice.
[[nodiscard]] std::vector<std::filesystem::path> trace_files(
    const std::vector<std::filesystem::path>& paths);

}  // namespace opd::tb
