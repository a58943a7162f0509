#pragma once
// The command line as `opd` reads it: nothing unknown, nothing twice, one line about what is wrong.
#include <CLI/CLI.hpp>
#include <optional>

namespace opd::tb {

constexpr int kEqual = 0;
constexpr int kMismatch = 1;
constexpr int kBadInput = 2;

/// Parses the arguments. Returns nothing when the command is to run, else the exit status: after a
/// help text that was asked for, and after a line on standard error about what is wrong.
[[nodiscard]] std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv);

}  // namespace opd::tb
