#include "config_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

#include "json.hpp"
#include "metrics.hpp"
#include "opd/trace/suggestion.hpp"

namespace opd::tb {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uintmax_t kLargestFile = std::uintmax_t{1} << 20;
constexpr std::array<std::string_view, 5> kKeys = {"format", "version", "profile", "config",
                                                   "calibration"};
constexpr std::string_view kWriteAgain = "write it again as docs/formats.md says";

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  ConfigFile read(std::string_view text) const {
    const json content = parse(text);
    if (!content.is_object()) fail("file", "is no JSON object", kWriteAgain);
    for (const auto& [key, value] : content.items()) {
      if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
        fail(trace::in_quotes(key), "is not known",
             trace::suggestion(key, {kKeys.begin(), kKeys.end()},
                               fmt::format("the keys are {}", fmt::join(kKeys, ", "))));
      }
    }
    if (!content.contains("format") || content["format"] != "opd-config")
      fail("format", "is not \"opd-config\"", "give a device configuration file");
    if (!content.contains("version") || !content["version"].is_number_integer() ||
        content["version"] != 1)
      fail("version", "is not 1", "this program reads version 1");
    if (content.contains("calibration") && !content["calibration"].is_object())
      fail("calibration", "is no JSON object", "give an object, or leave it out");
    const std::size_t profile = profile_of(content);
    ConfigFile result{.profile = std::string(kProfileNames[profile]),
                      .config = with_profile({}, profile)};
    if (!content.contains("config") || !content["config"].is_object())
      fail("config", "is missing or no JSON object", "give {\"FIELD\": NUMBER, ...}, or {}");
    for (const auto& [name, value] : content["config"].items()) set(result.config, name, value);
    return result;
  }

  [[noreturn]] void fail(std::string_view field, std::string_view wrong,
                         std::string_view remedy) const {
    throw ConfigFileError(fmt::format("{}: {}: {}; {}", file_, field, wrong, remedy));
  }

 private:
  json parse(std::string_view text) const {
    try {
      return trace::parse_json(text);
    } catch (const trace::JsonFault& fault) {
      fail("file", "is " + fault.wrong, kWriteAgain);
    }
  }

  std::size_t profile_of(const json& content) const {
    if (!content.contains("profile")) return 0;
    const json& name = content["profile"];
    for (std::size_t i = 0; i < kProfileNames.size(); ++i) {
      if (name == kProfileNames[i]) return i;
    }
    fail("profile", "is no risk profile", fmt::format("use {}", fmt::join(kProfileNames, " or ")));
  }

  void set(Config& config, const std::string& name, const json& value) const {
    const auto field = std::find_if(kConfigFields.begin(), kConfigFields.end(),
                                    [&](const ConfigField& f) { return f.name == name; });
    if (field == kConfigFields.end()) {
      std::vector<std::string_view> known;
      for (const ConfigField& f : kConfigFields) known.push_back(f.name);
      fail("config." + trace::in_quotes(name), "is no configuration field",
           trace::suggestion(name, known, "opd registers lists the fields"));
    }
    const std::string path = "config." + name;
    const std::string remedy =
        fmt::format("give {} in {}..{}", field->is_float ? "a number" : "a whole number",
                    shown(*field, field->minimum), shown(*field, field->maximum));
    if (!value.is_number()) fail(path, "is not a number", remedy);
    const double number = value.get<double>();
    if (!field->is_float && number != std::floor(number))
      fail(path, fmt::format("{} is not a whole number", number), remedy);
    // Bits of non-negative binary32 numbers sort like the numbers; a minus sign makes them negative.
    const bool as_bits = field->is_float && std::abs(number) <= std::numeric_limits<float>::max();
    const double comparable =
        as_bits ? std::bit_cast<std::int32_t>(static_cast<float>(number)) : number;
    if (comparable < field->minimum || comparable > field->maximum)
      fail(path, fmt::format("{} is outside the register's range", number), remedy);
    field->set(config, static_cast<std::int32_t>(comparable));
  }

  static std::string shown(const ConfigField& field, std::int32_t value) {
    return field.is_float ? fmt::format("{}", std::bit_cast<float>(value)) : std::to_string(value);
  }

  std::string file_;
};

}  // namespace

ConfigFile parse_config_file(std::string_view text, const std::string& file) {
  return Reader(file).read(text);
}

ConfigFile read_config_file(const fs::path& file) {
  const Reader reader(file.string());
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (!fs::exists(status)) reader.fail("file", "does not exist", "check its name");
  if (!fs::is_regular_file(status)) reader.fail("file", "is no regular file", "name a file");
  if (fs::file_size(file, error) > kLargestFile || error)
    reader.fail("file", "is larger than 1 MiB", "give a device configuration file");
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream) reader.fail("file", "cannot be read", "check its permissions");
  return reader.read(text);
}

}  // namespace opd::tb
