#pragma once
// Output that never throws: whether standard output could be written is seen once, at the end of
// the program, and a standard error that cannot be written changes no exit status.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace opd::tb {

/// On standard output.
template <typename... Values>
void say(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

/// On standard error.
template <typename... Values>
void complain(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace opd::tb
