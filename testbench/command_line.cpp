#include "command_line.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "opd/trace/suggestion.hpp"
#include "say.hpp"

namespace opd::tb {
namespace {

/// The suggestion for a name among names that live as long as this call.
std::string suggested(const std::string& name, const std::vector<std::string>& known,
                      std::string_view otherwise) {
  return trace::suggestion(name, {known.begin(), known.end()}, otherwise);
}

/// The command that was named, or the program itself.
const CLI::App& chosen(const CLI::App& app) {
  const std::vector<CLI::App*> commands = app.get_subcommands();
  return commands.empty() ? app : *commands.front();
}

/// "opd replay"
std::string full_name(const CLI::App& command) {
  return command.get_parent() == nullptr ? "opd" : "opd " + command.get_name();
}

/// An option of one value that came more than once; empty when there is none.
std::string repeated(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const bool single = !option->get_positional() && option->get_items_expected_max() == 1;
    if (single && option->count() > 1) {
      return fmt::format("{}: is given {} times; give it once", option->get_name(),
                         option->count());
    }
  }
  return {};
}

/// What no option and no command took; empty when there is nothing.
std::string unexpected(const CLI::App& app, const CLI::App& command) {
  const std::vector<std::string> rest = app.remaining(true);
  if (rest.empty()) return {};
  const std::string& word = rest.front();
  const std::string see = fmt::format("{} --help lists what there is", full_name(command));
  if (!word.starts_with('-')) return fmt::format("'{}' is not expected; {}", word, see);
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::string name = word.substr(0, word.find('='));
  return fmt::format("{}: no such option; {}", name, suggested(name, known, see));
}

}  // namespace

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  if (argc < 2) {
    complain("{}", app.help());
    return kBadInput;
  }
  const std::string first = argv[1];
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    commands.push_back(command->get_name());
  if (!first.starts_with('-') &&
      std::find(commands.begin(), commands.end(), first) == commands.end()) {
    complain(
        "opd: {}: no such command; {}\n", first,
        suggested(first, commands, fmt::format("the commands are {}", fmt::join(commands, ", "))));
    return kBadInput;
  }
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    const CLI::App& command = chosen(app);
    std::string wrong = unexpected(app, command);
    if (wrong.empty()) wrong = repeated(command);
    const bool asked = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    if (wrong.empty() && asked) return app.exit(error);
    if (wrong.empty()) wrong = fmt::format("{}; see {} --help", error.what(), full_name(command));
    complain("opd: {}\n", wrong);
    return kBadInput;
  }
}

}  // namespace opd::tb
