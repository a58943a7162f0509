#pragma once
// What the parts of the reader of traces have in common: names in lists, and words of errors.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace opd::trace {

inline constexpr std::uint64_t kMaxElements = std::numeric_limits<std::int64_t>::max();
inline constexpr std::string_view kCapture = "capture the trace again with opd.trace";

/// The operand that has no format: bytes of 0 and 1.
inline constexpr std::string_view kMaskName = "mask";
inline constexpr std::string_view kMaskDtype = "U8";

template <std::size_t N>
std::optional<std::size_t> position(const std::array<std::string_view, N>& names,
                                    std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<std::size_t>(found - names.begin());
}

/// "a, b or c"
template <typename Names>
std::string choice(const Names& names) {
  std::string text(names[0]);
  for (std::size_t i = 1; i < names.size(); ++i)
    text.append(i + 1 < names.size() ? ", " : " or ").append(names[i]);
  return text;
}

inline std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i == 8) return text + ", ...]";
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace opd::trace
