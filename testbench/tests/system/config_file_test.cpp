// Testplan: CFG-01. Device configuration files: what is read, and every rule broken once. The error
// must name file, field, fault and remedy.
#include "config_file.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <string>
#include <systemc>
#include <vector>

#include "metrics.hpp"

namespace opd::tb {
namespace {

namespace fs = std::filesystem;

std::string with_config(const std::string& fields) {
  return R"({"format": "opd-config", "version": 1, "config": {)" + fields + "}}";
}

std::string error_of(const std::string& text) {
  try {
    (void)parse_config_file(text, "dir/mine.json");
  } catch (const ConfigFileError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ConfigFile, NothingButTheFormatIsTheDefaultProfile) {
  const ConfigFile file = parse_config_file(with_config(""), "f");
  EXPECT_EQ(file.profile, "forecast");
  EXPECT_EQ(file.config, Config{});
}

TEST(ConfigFile, FieldsAreSetOnTopOfTheProfile) {
  const ConfigFile file = parse_config_file(
      R"({"format": "opd-config", "version": 1, "profile": "published", "calibration": {"x": [1]},
          "config": {"jump_threshold": 160, "hint_clip_shift": -2, "z_threshold": 4.3,
                     "weight_d2": 0, "baseline_shift": 5.0}})",
      "f");
  Config expected = with_profile({}, 1);
  expected.jump_threshold = 160;
  expected.hint_clip_shift = -2;
  expected.z_threshold = 4.3f;
  expected.weight_d2 = 0;
  expected.baseline_shift = 5;
  EXPECT_EQ(file.profile, "published");
  EXPECT_EQ(file.config, expected);
}

/// Every field at both ends of its range, and one beyond them.
TEST(ConfigFile, TheWholeRangeOfEveryFieldIsTakenAndNothingElse) {
  const auto text_of = [](const ConfigField& field, double value) {
    return with_config("\"" + std::string(field.name) + "\": " +
                       (field.is_float ? std::to_string(value)
                                       : std::to_string(static_cast<std::int64_t>(value))));
  };
  for (const ConfigField& field : kConfigFields) {
    const auto number = [&](std::int32_t value) {
      return field.is_float ? double{std::bit_cast<float>(value)} : static_cast<double>(value);
    };
    if (!field.is_float || field.minimum == 0) {
      const Config low = parse_config_file(text_of(field, number(field.minimum)), "f").config;
      EXPECT_EQ(field.get(low), field.minimum) << field.name;
      EXPECT_NE(error_of(text_of(field, number(field.minimum) - 1)).find("outside the register's"),
                std::string::npos)
          << field.name;
    }
    const Config high = parse_config_file(text_of(field, number(field.maximum)), "f").config;
    EXPECT_EQ(field.get(high), field.maximum) << field.name;
    const double beyond = field.is_float ? number(field.maximum) * 2 : number(field.maximum) + 1;
    EXPECT_NE(error_of(text_of(field, beyond)).find("outside the register's"), std::string::npos)
        << field.name;
  }
}

struct Fault {
  std::string text;   ///< the file
  std::string error;  ///< after the file's name
};

TEST(ConfigFile, EveryFaultIsNamed) {
  const std::string again = "; write it again as docs/formats.md says";
  const std::vector<Fault> faults = {
      {"", "file: is not valid JSON" + again},
      {"{\"format\": ", "file: is not valid JSON" + again},
      {with_config("\"z_threshold\": NaN"), "file: is not valid JSON" + again},
      {with_config("\"risk_safe\": 9, \"risk_safe\": 8"),
       "file: is duplicate key \"risk_safe\"" + again},
      {"[]", "file: is no JSON object" + again},
      {"{}", "format: is not \"opd-config\"; give a device configuration file"},
      {R"({"format": "opd-trace", "version": 1, "config": {}})",
       "format: is not \"opd-config\"; give a device configuration file"},
      {R"({"format": "opd-config", "config": {}})",
       "version: is not 1; this program reads version 1"},
      {R"({"format": "opd-config", "version": 2, "config": {}})",
       "version: is not 1; this program reads version 1"},
      {R"({"format": "opd-config", "version": true, "config": {}})",
       "version: is not 1; this program reads version 1"},
      {R"({"format": "opd-config", "version": 1, "config": {}, "calibration": 3})",
       "calibration: is no JSON object; give an object, or leave it out"},
      {R"({"format": "opd-config", "version": 1, "config": {}, "profile": "paper"})",
       "profile: is no risk profile; use forecast or published"},
      {R"({"format": "opd-config", "version": 1, "config": {}, "profil": "forecast"})",
       "\"profil\": is not known; did you mean profile?"},
      {R"({"format": "opd-config", "version": 1, "config": {}, "author": "me"})",
       "\"author\": is not known; the keys are format, version, profile, config, calibration"},
      {R"({"format": "opd-config", "version": 1})",
       "config: is missing or no JSON object; give {\"FIELD\": NUMBER, ...}, or {}"},
      {with_config("\"jump_treshold\": 90"),
       "config.\"jump_treshold\": is no configuration field; did you mean jump_threshold?"},
      {with_config("\"window\": 90"),
       "config.\"window\": is no configuration field; opd registers lists the fields"},
      {with_config("\"\\u001b[2J\": 1"),
       "config.\"\\x1b[2J\": is no configuration field; opd registers lists the fields"},
      {with_config("\"baseline_shift\": 9"),
       "config.baseline_shift: 9 is outside the register's range; give a whole number in 1..8"},
      {with_config("\"baseline_shift\": 4.5"),
       "config.baseline_shift: 4.5 is not a whole number; give a whole number in 1..8"},
      {with_config("\"baseline_shift\": \"4\""),
       "config.baseline_shift: is not a number; give a whole number in 1..8"},
      {with_config("\"control_enable\": true"),
       "config.control_enable: is not a number; give a whole number in 0..1"},
      {with_config("\"z_threshold\": -0.5"),
       "config.z_threshold: -0.5 is outside the register's range; give a number in 0..32768"},
      {with_config("\"z_threshold\": null"),
       "config.z_threshold: is not a number; give a number in 0..32768"},
      {with_config("\"published_alpha\": 0"),
       "config.published_alpha: 0 is outside the register's range; give a number in "
       "1.1754944e-38..1"},
  };
  for (const Fault& fault : faults) {
    EXPECT_EQ(error_of(fault.text), "dir/mine.json: " + fault.error);
  }
}

TEST(ConfigFile, AFileThatCannotBeReadIsNamed) {
  const fs::path folder = fs::path(testing::TempDir()) / "opd_config_file_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  std::ofstream(folder / "large.json") << std::string((1 << 20) + 1, ' ');
  std::ofstream(folder / "good.json") << with_config("\"risk_safe\": 200");
  const auto error = [&](const fs::path& file) -> std::string {
    try {
      (void)read_config_file(file);
    } catch (const ConfigFileError& caught) {
      return caught.what();
    }
    return "accepted";
  };
  EXPECT_EQ(read_config_file(folder / "good.json").config.risk_safe, 200);
  EXPECT_EQ(error(folder / "none.json"),
            (folder / "none.json").string() + ": file: does not exist; check its name");
  EXPECT_EQ(error(folder), folder.string() + ": file: is no regular file; name a file");
  EXPECT_EQ(error(folder / "large.json"), (folder / "large.json").string() +
                                              ": file: is larger than 1 MiB; give a device "
                                              "configuration file");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace opd::tb

/// The paths' library holds SystemC, whose main() calls this.
int sc_main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
