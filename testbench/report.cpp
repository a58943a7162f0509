#include "report.hpp"

#include <pybind11/embed.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <stdexcept>

namespace py = pybind11;

namespace opd::tb {
namespace {

/// The interpreter of the virtual environment, with the package `opd` on its path. One per process,
/// and never ended: extension modules such as PyTorch do not survive being torn down before the
/// process.
void start_python() {
  static const py::scoped_interpreter* const interpreter = [] {
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    setenv("OPD_BUILD", OPD_BUILD_FOLDER, 0);  // where the reference for Python is
    PyConfig_SetBytesString(&config, &config.program_name, OPD_PYTHON_EXECUTABLE);
    PyConfig_SetBytesString(&config, &config.executable, OPD_PYTHON_EXECUTABLE);
    const auto* started = new py::scoped_interpreter(&config, 0, nullptr, false);
    py::module_::import("sys").attr("path").attr("insert")(0, OPD_PYTHON_PACKAGES);
    return started;
  }();
  (void)interpreter;
}

template <class Call>
auto with_python(Call call) {
  start_python();
  try {
    return call();
  } catch (const py::error_already_set& error) {
    throw std::runtime_error(
        py::str(error.value()).cast<std::string>());  // no traceback: paths of this machine
  }
}

std::vector<std::string> names_of(const std::vector<std::filesystem::path>& files) {
  std::vector<std::string> names;
  for (const auto& file : files) names.push_back(file.string());
  return names;
}

}  // namespace

std::string write_report(const std::filesystem::path& out,
                         const std::vector<std::filesystem::path>& traces) {
  return with_python([&] {
    return py::module_::import("opd.report")
        .attr("write")(out.string(), names_of(traces))
        .cast<std::string>();
  });
}

std::vector<std::string> triage_sentences(const std::vector<std::filesystem::path>& traces) {
  return with_python([&] {
    return py::module_::import("opd.triage")
        .attr("sentences")(names_of(traces))
        .cast<std::vector<std::string>>();
  });
}

std::string journal_text(const std::filesystem::path& journal) {
  return with_python([&] {
    const py::object text = py::module_::import("opd.capture.info").attr("journal_text");
    return text(journal.string()).cast<std::string>();
  });
}

double torch_abs_max_seconds(std::size_t bytes) {
  return with_python(
      [&] { return py::module_::import("opd.bench").attr("torch_abs_max")(bytes).cast<double>(); });
}

double torch_row_kernel_seconds(const std::string& kernel, std::uint32_t rows,
                                std::uint32_t columns) {
  return with_python([&] {
    return py::module_::import("opd.bench")
        .attr("torch_row_kernel")(kernel, rows, columns)
        .cast<double>();
  });
}

}  // namespace opd::tb
