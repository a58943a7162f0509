#pragma once
// Device configuration files (docs/formats.md "Device configuration").
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

#include "opd/types/registers.hpp"

namespace opd::tb {

struct ConfigFile {
  std::string profile;  ///< of kProfileNames: what `config` started from
  Config config;        ///< every field, in range
};

/// A file that is no device configuration. The text is "FILE: FIELD: what is wrong; remedy".
class ConfigFileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The configuration in a text; `file` is its name in errors. Throws ConfigFileError.
[[nodiscard]] ConfigFile parse_config_file(std::string_view text, const std::string& file);

/// The same of a file of at most 1 MiB. Throws ConfigFileError.
[[nodiscard]] ConfigFile read_config_file(const std::filesystem::path& file);

}  // namespace opd::tb
