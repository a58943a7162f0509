#pragma once
// JSON from a file that nobody vouches for.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace opd::trace {

/// Deepest nesting and largest number of values (keys not counted) of one JSON text. A header of
/// 65536 raw tensors has about 8 values each; the bound keeps hostile text from filling memory.
inline constexpr int kMaxJsonDepth = 64;
inline constexpr std::size_t kMaxJsonValues = std::size_t{1} << 21;

/// What is wrong with a JSON text, for a TraceError.
struct JsonFault {
  std::string wrong;
};

/// Parses strict JSON: one value, UTF-8, no duplicate key in any object, within the bounds above.
/// Throws JsonFault; of several faults the first of these, as opd/strict_json.py has it: brackets
/// beyond the depth, what is not JSON, a duplicate key of the first object that ends with one, the
/// number of values.
nlohmann::json parse_json(std::string_view text);

/// The value as an unsigned integer; nothing when it is not an integer in 0..2^64-1.
std::optional<std::uint64_t> as_unsigned(const nlohmann::json& value);

/// Text from a file for an error message: in quotes, one line, printable ASCII, at most 64 bytes of
/// it.
std::string in_quotes(std::string_view text);

}  // namespace opd::trace
