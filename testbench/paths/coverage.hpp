#pragma once
// What a Verilated device of this process reached in its RTL, for scripts/coverage.
#include <verilated.h>

#ifdef OPD_COVERAGE
#include <unistd.h>
#include <verilated_cov.h>

#include <atomic>
#include <cstdlib>
#include <string>
#endif

namespace opd::tb {

/// Writes the counts of every model in `context` to a file of its own in the folder OPD_COVERAGE_OUT.
/// Nothing in a build without the CMake option OPD_COVERAGE, or when the variable is not set.
inline void write_coverage([[maybe_unused]] VerilatedContext& context) {
#ifdef OPD_COVERAGE
  static std::atomic<unsigned> written = 0;
  if (const char* folder = std::getenv("OPD_COVERAGE_OUT")) {
    const std::string name = std::to_string(getpid()) + '.' + std::to_string(written++) + ".dat";
    context.coveragep()->write((std::string(folder) + '/' + name).c_str());
  }
#endif
}

}  // namespace opd::tb
