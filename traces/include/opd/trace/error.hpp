#pragma once
// The one exception of opd::trace.
#include <stdexcept>
#include <string>
#include <string_view>

namespace opd::trace {

/// A trace file that cannot be used. what() is "FILE: FIELD: what is wrong; remedy", one line of
/// printable text: bytes that came from the file are escaped and shortened.
class TraceError : public std::runtime_error {
 public:
  TraceError(std::string_view file, std::string_view field, std::string_view wrong,
             std::string_view remedy)
      : std::runtime_error(std::string(file) + ": " + std::string(field) + ": " +
                           std::string(wrong) + "; " + std::string(remedy)),
        file_(file),
        field_(field) {}

  const std::string& file() const { return file_; }
  const std::string& field() const { return field_; }

 private:
  std::string file_;
  std::string field_;
};

}  // namespace opd::trace
