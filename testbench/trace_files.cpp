#include "trace_files.hpp"

#include <algorithm>

#include "opd/trace/error.hpp"

namespace opd::tb {

namespace fs = std::filesystem;

std::vector<fs::path> trace_files(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<fs::path> found;
    for (auto entry = fs::directory_iterator(path, error);
         !error && entry != fs::directory_iterator(); entry.increment(error)) {
      if (entry->path().extension() == ".safetensors") found.push_back(entry->path());
    }
    if (error) {
      throw trace::TraceError(path.string(), "folder", "cannot be read (" + error.message() + ")",
                              "check its permissions");
    }
    if (found.empty()) {
      throw trace::TraceError(path.string(), "folder", "holds no *.safetensors",
                              "name a folder with traces, or trace files");
    }
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  for (auto file = files.begin(); file != files.end(); ++file) {
    const auto same = [&](const fs::path& other) {
      std::error_code error;
      return other == *file || fs::equivalent(other, *file, error);
    };
    if (std::any_of(files.begin(), file, same))
      throw trace::TraceError(file->string(), "file", "is named twice", "name every trace once");
  }
  return files;
}

}  // namespace opd::tb
