#include "report.hpp"

#include "python.hpp"

namespace py = pybind11;

namespace opd::tb {
namespace {

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
