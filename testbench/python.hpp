#pragma once
// Python inside this process. Included only by files that are compiled with hidden visibility, as
// pybind11 wants it.
#include <pybind11/embed.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>

namespace opd::tb {

/// The interpreter of the virtual environment, with the package `opd` on its path. One per process,
/// and never ended: extension modules such as PyTorch do not survive being torn down before the
/// process.
void start_python();

/// What `call` returns. Throws std::runtime_error with the message of a Python exception.
template <class Call>
auto with_python(Call call) {
  start_python();
  try {
    return call();
  } catch (const pybind11::error_already_set& error) {
    throw std::runtime_error(
        pybind11::str(error.value()).cast<std::string>());  // no traceback: paths of this machine
  }
}

}  // namespace opd::tb
