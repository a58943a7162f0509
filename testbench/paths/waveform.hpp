#pragma once
#include <cstdint>
#include <filesystem>

namespace opd::tb {

/// Clock cycles [first, last] whose waveform is wanted; edge numbers count from reset release.
struct WaveformWindow {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::filesystem::path file;
};

}  // namespace opd::tb
