#pragma once
// `opd bench`: every hot path beside its yardstick, in one run.
#include <filesystem>
#include <vector>

namespace opd::tb {

struct BenchOptions {
  std::vector<std::filesystem::path> traces;
  unsigned megabytes = 256;
  double seconds = 2.0;
  std::filesystem::path json;
};

/// Prints the table; returns the exit status.
int run_bench(const BenchOptions& options);

}  // namespace opd::tb
