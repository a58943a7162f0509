#pragma once
// One file per rule of the format, each broken in one place, and the words that both readers must
// say.
#include <cstddef>
#include <string>
#include <vector>

namespace opd::tb {

struct BadTrace {
  std::string name;              ///< of the case, [a-z0-9_]+
  std::vector<std::byte> bytes;  ///< the file
  std::string error;             ///< "FIELD: what is wrong; remedy"
};

std::vector<BadTrace> bad_traces();

}  // namespace opd::tb
