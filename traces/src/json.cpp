#include "json.hpp"

#include <set>
#include <vector>

namespace opd::trace {

nlohmann::json parse_json(std::string_view text) {
  using Json = nlohmann::json;
  // nlohmann takes a NUL for the end of the text and skips a byte order mark; JSON has neither.
  if (text.find('\0') != std::string_view::npos || text.starts_with("\xEF\xBB\xBF")) {
    throw JsonFault{"not valid JSON"};
  }
  std::vector<std::set<std::string>> open_objects;
  std::size_t values = 0;
  const auto guard = [&](int depth, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
        open_objects.emplace_back();
        [[fallthrough]];
      case Json::parse_event_t::array_start:
        if (depth >= kMaxJsonDepth) {
          throw JsonFault{"JSON nested deeper than " + std::to_string(kMaxJsonDepth)};
        }
        [[fallthrough]];
      case Json::parse_event_t::value:
        if (++values > kMaxJsonValues) {
          throw JsonFault{"JSON of more than " + std::to_string(kMaxJsonValues) + " values"};
        }
        break;
      case Json::parse_event_t::object_end:
        open_objects.pop_back();
        break;
      case Json::parse_event_t::array_end:
        break;
      case Json::parse_event_t::key:
        if (!open_objects.back().insert(parsed.get<std::string>()).second) {
          throw JsonFault{"duplicate key " + in_quotes(parsed.get_ref<const std::string&>())};
        }
        break;
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), guard);
  } catch (const Json::exception&) {  // its text quotes the input, of any length
    throw JsonFault{"not valid JSON"};
  }
}

std::optional<std::uint64_t> as_unsigned(const nlohmann::json& value) {
  if (value.is_number_unsigned()) return value.get<std::uint64_t>();
  if (value.is_number_integer() && value.get<std::int64_t>() >= 0) {  // "-0"
    return static_cast<std::uint64_t>(value.get<std::int64_t>());
  }
  return std::nullopt;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 64;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F && c != '"' && c != '\\') {
      result += c;
    } else {
      result += "\\x";
      result += kHex[byte >> 4];
      result += kHex[byte & 15];
    }
  }
  return result + (text.size() > kLongest ? "...\"" : "\"");
}

}  // namespace opd::trace
