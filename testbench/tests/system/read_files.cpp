// The C++ readers of files that nobody vouches for, many files in one process: the C++ half of the
// fuzz targets (testbench/tests/python/fuzzing.py).
//
//   read_files < LINES    of each line "trace FILE" or "config FILE" one line: "ok", or the error
#include <exception>
#include <iostream>
#include <string>

#include "config_file.hpp"
#include "opd/trace/trace.hpp"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const std::size_t space = line.find(' ');
    const std::string kind = line.substr(0, space), file = line.substr(space + 1);
    std::string answer = "ok";
    try {
      if (kind == "trace") {
        (void)opd::trace::Trace::read(file);
      } else if (kind == "config") {
        (void)opd::tb::read_config_file(file);
      } else {
        answer = "unknown reader " + kind;
      }
    } catch (const opd::trace::TraceError& error) {
      answer = error.what();
    } catch (const opd::tb::ConfigFileError& error) {
      answer = error.what();
    } catch (const std::exception& error) {
      answer = std::string("not an error of a reader: ") + error.what();
    }
    std::cout << answer << std::endl;
  }
}
