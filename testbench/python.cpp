#include "python.hpp"

#include <cstdlib>

namespace opd::tb {

void start_python() {
  static const pybind11::scoped_interpreter* const interpreter = [] {
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    setenv("OPD_BUILD", OPD_BUILD_FOLDER, 0);  // where the reference for Python is
    PyConfig_SetBytesString(&config, &config.program_name, OPD_PYTHON_EXECUTABLE);
    PyConfig_SetBytesString(&config, &config.executable, OPD_PYTHON_EXECUTABLE);
    const auto* started = new pybind11::scoped_interpreter(&config, 0, nullptr, false);
    pybind11::module_::import("sys").attr("path").attr("insert")(0, OPD_PYTHON_PACKAGES);
    return started;
  }();
  (void)interpreter;
}

}  // namespace opd::tb
