#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace opd::tb {

/// Runs Python inside this process: opd.report.write(out, traces), which turns the files of a
/// replay into report.html. Returns the report's path. Throws std::runtime_error with Python's
/// message.
std::string write_report(const std::filesystem::path& out,
                         const std::vector<std::filesystem::path>& traces);

/// opd.triage.sentences(traces): what happened in each trace, in words. Throws std::runtime_error with
/// Python's message.
std::vector<std::string> triage_sentences(const std::vector<std::filesystem::path>& traces);

/// opd.capture.info.journal_text(journal): what the journal of a capture holds, which may be growing.
/// Throws std::runtime_error with Python's message.
std::string journal_text(const std::filesystem::path& journal);

/// opd.bench.torch_abs_max(bytes): seconds that torch.abs().max() takes on half elements, one
/// thread; negative when PyTorch is not installed. Throws std::runtime_error with Python's message.
double torch_abs_max_seconds(std::size_t bytes);

/// opd.bench.torch_row_kernel(kernel, rows, columns): seconds of PyTorch's own softmax, layer_norm
/// or rms_norm on half elements, one thread; negative when PyTorch is not installed. Throws
/// std::runtime_error with Python's message.
double torch_row_kernel_seconds(const std::string& kernel, std::uint32_t rows,
                                std::uint32_t columns);

}  // namespace opd::tb
