#pragma once
// Writer of trace files, for tools and tests. Captures are written by its twin, opd.trace in
// Python.
//
//   deterministic : the same content gives the same bytes, in both languages: JSON keys sorted, no
//                   white space, header padded with spaces to 8 bytes, tensors in the order of the
//                   safetensors library (falling dtype, then name)
//   validated     : the bytes are parsed as a reader would before anything reaches the disk
//   atomic        : written to a temporary file beside the target, synchronised, renamed
//   memory        : two copies of the file while it is validated
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "opd/trace/trace.hpp"

namespace opd::trace {

/// The content of a trace: what Trace reads back. Matrices are row-major [S, P]; an empty optional
/// vector is not written.
struct TraceContent {
  std::string name;
  Label label = Label::kData;
  std::optional<FirstBad> first_bad;
  std::string model, framework, seed;
  std::string manifest = "{}";  ///< JSON text, an object
  std::vector<Probe> probes;    ///< elements is not used: shape says it

  std::vector<std::int64_t> step;
  std::vector<float> max_abs;
  std::vector<std::int64_t> nonfinite;
  std::vector<std::int64_t> saturated, subnormal, zero;  ///< optional
  std::vector<float> min_abs, mean, var;                 ///< optional
  std::vector<float> loss, grad_norm, lr, loss_scale;    ///< optional

  std::vector<std::int64_t> raw_step;  ///< optional
  /// By probe name: raw_step.size() rows of elements
  std::map<std::string, std::vector<std::byte>> raw;

  std::vector<TracedOperator> operators;   ///< optional; has_elements is not used
  std::vector<std::int64_t> operand_step;  ///< optional
  /// By probe and operand name: operand_step.size() rows of elements, of a mask bytes
  std::map<std::string, std::map<std::string, std::vector<std::byte>>> operands;
  /// By probe name: operand_step.size() rows of elements
  std::map<std::string, std::vector<std::byte>> outputs;
};

/// The bytes of a trace file. `file` is the name that errors carry. Throws TraceError when the
/// content is not a valid trace.
std::vector<std::byte> serialize(const TraceContent& content, const std::string& file);

/// Writes a trace file, replacing what is there. Throws TraceError; then the target is as it was.
void write(const TraceContent& content, const std::filesystem::path& path);

/// A tensor to be written; data.size() must be the product of shape times the width of dtype.
struct TensorView {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;
};

/// The bytes of any safetensors file, deterministic as above. Not validated.
std::vector<std::byte> serialize_safetensors(const std::map<std::string, std::string>& metadata,
                                             const std::map<std::string, TensorView>& tensors);

}  // namespace opd::trace
