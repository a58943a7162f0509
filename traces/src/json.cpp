#include "json.hpp"

#include <set>
#include <vector>

namespace opd::trace {

namespace {

using Json = nlohmann::json;

/// Whether brackets outside of strings stand deeper than they may, valid or not.
bool is_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      in_string = !in_string;
    } else if (in_string) {
      if (c == '\\') ++i;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

/// nlohmann takes a NUL for the end of the text and skips a byte order mark; JSON has neither.
bool is_foreign_to_json(std::string_view text) {
  return text.find('\0') != std::string_view::npos || text.starts_with("\xEF\xBB\xBF");
}

/// An object whose end has not come: its keys, and the first that came twice.
struct OpenObject {
  std::set<std::string> keys;
  std::optional<std::string> doubled;
};

/// Throws at the first fault that ends the parser; of a text with several it need not be the one to
/// tell.
Json parse_until_fault(std::string_view text) {
  std::vector<OpenObject> open_objects;
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
        if (const auto& key = open_objects.back().doubled)
          throw JsonFault{"duplicate key " + in_quotes(*key)};
        open_objects.pop_back();
        break;
      case Json::parse_event_t::array_end:
        break;
      case Json::parse_event_t::key: {
        OpenObject& object = open_objects.back();
        auto key = parsed.get<std::string>();
        if (!object.keys.insert(key).second && !object.doubled) object.doubled = std::move(key);
        break;
      }
    }
    return true;
  };
  return Json::parse(text.begin(), text.end(), guard);
}

}  // namespace

Json parse_json(std::string_view text) {
  std::optional<JsonFault> fault;
  try {
    if (!is_foreign_to_json(text)) return parse_until_fault(text);
  } catch (const JsonFault& found) {
    fault = found;
  } catch (const Json::exception&) {  // its text quotes the input, of any length
  }
  if (is_deep(text)) throw JsonFault{"JSON nested deeper than " + std::to_string(kMaxJsonDepth)};
  if (!fault || !Json::accept(text.begin(), text.end())) throw JsonFault{"not valid JSON"};
  throw JsonFault{*fault};
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
