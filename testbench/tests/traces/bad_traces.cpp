#include "bad_traces.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>

#include "sample_traces.hpp"

namespace opd::tb {
namespace {

using trace::SafetensorsFile;
using trace::TensorView;

const std::string kRewrite = "; write the file with opd.trace or a safetensors library";
const std::string kCopyAgain = "; the file is damaged or cut off: copy or capture it again";
const std::string kGive =
    "give a trace (docs/formats.md); opd import makes traces of what other tools write";
const std::string kUnpack = "unpack it, and give the trace that is in it";
const std::string kConvert =
    "capture a trace (docs/capture.md); opd import reads tensors of .npz and .safetensors files";
const std::string kCapture = "; capture the trace again with opd.trace";

struct OwnedTensor {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> data;
};

/// A trace as metadata and tensors, to be broken at will.
struct Parts {
  std::map<std::string, std::string> metadata;
  std::map<std::string, OwnedTensor> tensors;

  explicit Parts(const std::vector<std::byte>& bytes) {
    const auto file = SafetensorsFile::parse(bytes, "sample");
    metadata = file.metadata();
    for (const auto& [name, t] : file.tensors()) {
      tensors[name] = {t.dtype, t.shape, {t.data.begin(), t.data.end()}};
    }
  }
  std::vector<std::byte> bytes() const {
    std::map<std::string, TensorView> views;
    for (const auto& [name, t] : tensors) views[name] = {t.dtype, t.shape, t.data};
    return trace::serialize_safetensors(metadata, views);
  }
  template <typename T>
  void set(const std::string& name, std::size_t index, T value) {
    auto& data = tensors.at(name).data;
    if ((index + 1) * sizeof(T) > data.size())
      throw std::logic_error("bad_traces: index out of range");
    std::memcpy(data.data() + index * sizeof(T), &value, sizeof(T));
  }
  void reshape(const std::string& name, std::vector<std::uint64_t> shape, std::size_t bytes) {
    tensors.at(name).shape = std::move(shape);
    tensors.at(name).data.resize(bytes);
  }
};

/// `text` with its one occurrence of `from` replaced.
std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos || text.find(from, at + 1) != std::string::npos) {
    throw std::logic_error("bad_traces: not exactly one \"" + std::string(from) + "\"");
  }
  return text.replace(at, from.size(), to);
}

/// Operators and operands: one entry of `operators` broken, or a tensor of operand_trace().
std::vector<BadTrace> bad_operands() {
  const Parts good(trace::serialize(operand_trace(), "sample"));
  std::vector<BadTrace> cases;
  const auto parts_case = [&](std::string name, const std::function<void(Parts&)>& edit,
                              std::string error) {
    Parts parts = good;
    edit(parts);
    cases.push_back({std::move(name), parts.bytes(), std::move(error)});
  };
  const auto list_case = [&](std::string name, std::string_view text, std::string error) {
    parts_case(
        std::move(name),
        [&](Parts& p) {
          p.metadata["operators"] = text;
          std::erase_if(p.tensors, [](const auto& t) {
            return t.first.starts_with("operand") || t.first.starts_with("output/");
          });
        },
        std::move(error));
  };
  // The entry, alone in its list and without tensors; the error without "operators[0]".
  const auto entry_case = [&](std::string name, const std::string& entry,
                              const std::string& error) {
    list_case(std::move(name), "[" + entry + "]", "operators[0]" + error);
  };
  const auto edited = [](std::string_view entry, std::string_view from, std::string_view to) {
    return replaced(std::string(entry), from, to);
  };
  const std::string add =
      R"({"probe":"residual","kernel":"add","rows":4,"columns":3,"operands":{)"
      R"("a":{"format":"E5M2","shape":[4,3]},"b":{"format":"FP16","shape":[2,3]}}})";
  const std::string matmul =
      R"({"probe":"attn.qk","kernel":"matmul","batch":2,"rows":2,"columns":3,"depth":4,"factor":0.5,)"
      R"("operands":{"a":{"format":"FP16","shape":[4,4]},"b":{"format":"FP16","shape":[6,4]}}})";
  const std::string linear =
      R"({"probe":"attn.qk","kernel":"linear","rows":4,"columns":3,"depth":5,)"
      R"("operands":{"x":{"format":"FP16","shape":[4,5]},"weight":{"format":"FP16","shape":[3,5]},)"
      R"("bias":{"format":"FP16","shape":[1,3]}}})";
  const std::string softmax =
      R"({"probe":"norm","kernel":"softmax","rows":4,"columns":3,"factor":0.5,)"
      R"("operands":{"x":{"format":"FP16","shape":[4,3]},"mask":{"shape":[2,3]}}})";
  const std::string norm =
      R"({"probe":"norm","kernel":"rms_norm","rows":4,"columns":3,"epsilon":1e-6,)"
      R"("operands":{"x":{"format":"FP16","shape":[4,3]},"gain":{"format":"FP16","shape":[1,3]}}})";
  const std::string variance =
      R"({"probe":"row","kernel":"variance","rows":4,"columns":7,"correction":1,)"
      R"("operands":{"x":{"format":"FP16","shape":[4,7]}}})";

  // The list.
  for (const std::string text : {"{}", "[]", "null", "3", "\"add\""}) {
    list_case("operators_no_list_" + std::to_string(cases.size()), text,
              "operators: is not a list of operators; leave it out where there is none");
  }
  list_case("operators_no_json", "[", "operators: not valid JSON" + kCapture);
  list_case("operators_duplicate_key",
            edited("[" + add + "]", R"("rows":4)", R"("rows":4,"rows":4)"),
            "operators: duplicate key \"rows\"" + kCapture);
  list_case("operators_beyond_a_double", edited("[" + matmul + "]", "0.5", "1e999"),
            "operators: not valid JSON" + kCapture);
  list_case("operators_nan", edited("[" + matmul + "]", "0.5", "NaN"),
            "operators: not valid JSON" + kCapture);
  list_case("operator_no_object", "[" + add + ",3]", "operators[1]: is not an object" + kCapture);
  list_case("operator_twice", "[" + matmul + "," + linear + "]",
            "operators[1].probe: \"attn.qk\" has two operators; give a probe one operator at most");

  // Probe, kernel and names.
  entry_case("operator_probe_missing", edited(add, R"("probe":"residual",)", ""),
             ".probe: is missing or not a string" + kCapture);
  entry_case(
      "operator_probe_unknown", edited(add, "residual", "residue\xC3\xA9"),
      ".probe: \"residue\\xc3\\xa9\" is not in probes; add the probe or remove the operator");
  entry_case("operator_kernel_missing", edited(add, R"("kernel":"add")", R"("kernel":3)"),
             ".kernel: is missing or not a string" + kCapture);
  entry_case("operator_kernel_misspelt", edited(softmax, "softmax", "sofmax"),
             ".kernel: \"sofmax\" is not a kernel; did you mean softmax?");
  entry_case("operator_kernel_other_case", edited(norm, "rms_norm", "RMSNorm"),
             ".kernel: \"RMSNorm\" is not a kernel; docs/vector_unit.md lists the kernels");
  entry_case("operator_kernel_unknown",
             edited(add, R"("kernel":"add")", R"("kernel":"convolve2d")"),
             ".kernel: \"convolve2d\" is not a kernel; docs/vector_unit.md lists the kernels");
  entry_case("operator_kernel_long",
             edited(add, R"("kernel":"add")", "\"kernel\":\"" + std::string(65, 'a') + "\""),
             ".kernel: \"" + std::string(64, 'a') +
                 "...\" is not a kernel; docs/vector_unit.md lists the kernels");
  entry_case("operator_attribute_misspelt", edited(norm, "epsilon", "eps1lon"),
             ": \"eps1lon\" is not a field of rms_norm; did you mean epsilon?");
  entry_case("operator_attribute_unknown", edited(add, R"("rows":4)", R"("rows":4,"alpha":2)"),
             ": \"alpha\" is not a field of add; remove it");
  entry_case("operator_attribute_of_another", edited(norm, "epsilon", "factor"),
             ": \"factor\" is not a field of rms_norm; remove it");
  entry_case("operator_batch_without_matrix", edited(add, R"("rows":4)", R"("batch":1,"rows":4)"),
             ": \"batch\" is not a field of add; remove it");
  entry_case("operator_depth_without_matrix",
             edited(softmax, R"("rows":4)", R"("depth":3,"rows":4)"),
             ": \"depth\" is not a field of softmax; remove it");

  // Sizes.
  const std::string whole =
      " is not a whole number in 1..2^32-1; write a whole number, without a point";
  const std::string zero = " is 0, which makes nothing to compute; leave the operator out";
  for (const std::string key : {"rows", "columns", "batch", "depth"}) {
    const std::string at = "\"" + key + "\":";
    const std::string now = at + (key == "depth" ? "4" : key == "columns" ? "3" : "2");
    entry_case("operator_" + key + "_zero", edited(matmul, now, at + "0"), "." + key + ":" + zero);
    for (const std::string value :
         {"-1", "2.0", "\"2\"", "true", "null", "[2]", "4294967296", "99999999999999999999"}) {
      entry_case("operator_" + key + "_" + std::to_string(cases.size()),
                 edited(matmul, now, at + value), "." + key + ":" + whole);
    }
    if (key != "batch")
      entry_case("operator_" + key + "_missing", edited(matmul, now + ",", ""),
                 "." + key + ": is missing" + kCapture);
  }
  entry_case(
      "operator_batch_left_out", edited(matmul, R"("batch":2,)", ""),
      ": makes 6 elements, but probe \"attn.qk\" has 12; correct the shape of one of the two");
  entry_case("operator_batch_of_a_linear", edited(linear, R"("rows":4)", R"("rows":2,"batch":2)"),
             ".batch: 2, but a linear has one batch; count the rows of all batches in rows");
  entry_case(
      "operator_of_another_size", edited(add, R"("rows":4)", R"("rows":8)"),
      ": makes 24 elements, but probe \"residual\" has 12; correct the shape of one of the two");
  entry_case("operator_reduction_of_another_size", edited(variance, R"("rows":4)", R"("rows":8)"),
             ": makes 8 elements, but probe \"row\" has 4; correct the shape of one of the two");
  const std::string too_many = ": makes more than 2^63-1 elements or products; correct its shape";
  entry_case("operator_2_64_elements",
             edited(edited(add, R"("rows":4)", R"("rows":4294967295)"), R"("columns":3)",
                    R"("columns":4294967295)"),
             too_many);
  entry_case("operator_2_96_elements",
             edited(edited(edited(matmul, R"("rows":2)", R"("rows":4294967295)"), R"("columns":3)",
                           R"("columns":4294967295)"),
                    R"("batch":2)", R"("batch":4294967295)"),
             too_many);
  entry_case("operator_2_63_products",
             edited(edited(matmul, R"("rows":2)", R"("rows":2147483648)"), R"("depth":4)",
                    R"("depth":4294967295)"),
             too_many);
  entry_case("operator_rows_of_all_batches", edited(matmul, R"("rows":2)", R"("rows":2147483648)"),
             ": has operands of more than 2^32-1 rows; correct its shape");
  entry_case("operator_columns_of_all_batches",
             edited(matmul, R"("columns":3)", R"("columns":2147483648)"),
             ": has operands of more than 2^32-1 rows; correct its shape");

  // Attributes.
  for (const std::string value : {"true", "\"0.5\"", "null", "[0.5]", "{}"}) {
    entry_case("operator_factor_" + std::to_string(cases.size()), edited(matmul, "0.5", value),
               ".factor: is not a number; write a number");
  }
  for (const std::string& value : std::vector<std::string>{
           "1e39", "-1e308", "3.4028235677973366e38", "1" + std::string(60, '0')}) {
    entry_case("operator_factor_" + std::to_string(cases.size()), edited(matmul, "0.5", value),
               ".factor: is beyond binary32; write a number that binary32 can hold");
  }
  entry_case("operator_epsilon_infinite", edited(norm, "1e-6", "1e39"),
             ".epsilon: is beyond binary32; write a number that binary32 can hold");
  entry_case("operator_epsilon_negative", edited(norm, "1e-6", "-1e-45"),
             ".epsilon: is negative; write 0 or a positive number");
  entry_case("operator_epsilon_text", edited(norm, "1e-6", "\"1e-6\""),
             ".epsilon: is not a number; write a number");
  entry_case("operator_correction_negative",
             edited(variance, R"("correction":1)", R"("correction":-1)"),
             ".correction: is negative; write 0 or a positive number");
  entry_case("operator_correction_half",
             edited(variance, R"("correction":1)", R"("correction":0.5)"),
             ".correction: is not a whole number; write 0, 1, ...");
  entry_case("operator_correction_true",
             edited(variance, R"("correction":1)", R"("correction":true)"),
             ".correction: is not a number; write a number");

  // Operands.
  const std::string operands = ".operands: is missing or not an object" + kCapture;
  entry_case("operands_missing", R"({"probe":"residual","kernel":"add","rows":4,"columns":3})",
             operands);
  entry_case("operands_list",
             R"({"probe":"residual","kernel":"add","rows":4,"columns":3,"operands":[]})", operands);
  entry_case("operand_missing", edited(add, R"(,"b":{"format":"FP16","shape":[2,3]})", ""),
             ".operands.b: is missing, and add needs it; record it, or remove the operator");
  entry_case("operand_missing_first",
             edited(softmax, R"("x":{"format":"FP16","shape":[4,3]},)", ""),
             ".operands.x: is missing, and softmax needs it; record it, or remove the operator");
  entry_case("operand_unknown", edited(matmul, R"("b":)", R"("k":)"),
             ".operands: \"k\" is not an operand of matmul; use a or b");
  entry_case("operand_unknown_of_one", edited(variance, R"("x":)", R"("in":)"),
             ".operands: \"in\" is not an operand of variance; use x");
  entry_case("operand_unknown_of_three", edited(linear, R"("weight":)", R"("w":)"),
             ".operands: \"w\" is not an operand of linear; use x, weight or bias");
  entry_case("operand_no_object", edited(add, R"({"format":"FP16","shape":[2,3]})", "[2,3]"),
             ".operands.b: is not an object" + kCapture);
  entry_case("operand_field_unknown", edited(variance, R"("format")", R"("fromat":"","format")"),
             ".operands.x: \"fromat\" is not a field of an operand; did you mean format?");
  entry_case("operand_format_missing", edited(variance, R"("format":"FP16",)", ""),
             ".operands.x.format: is missing or not a string" + kCapture);
  entry_case("operand_format_unknown", edited(variance, "FP16", "FP64"),
             ".operands.x.format: \"FP64\" is not a format; use FP16, BF16, E4M3, E5M2 or FP32");
  entry_case("mask_with_format", edited(softmax, R"("mask":{)", R"("mask":{"format":"U8",)"),
             ".operands.mask: \"format\" is not a field of a mask; remove it");
  const std::string list = ": is missing or not a list of rows and columns" + kCapture;
  entry_case("operand_shape_missing", edited(variance, R"(,"shape":[4,7])", ""),
             ".operands.x.shape" + list);
  for (const std::string value : {"4", "[28]", "[1,4,7]", "{}"}) {
    entry_case("operand_shape_" + std::to_string(cases.size()), edited(variance, "[4,7]", value),
               ".operands.x.shape" + list);
  }
  for (const std::string value : {"[4.0,7]", "[4,\"7\"]", "[-4,7]", "[4,4294967296]", "[true,7]"}) {
    entry_case("operand_shape_" + std::to_string(cases.size()), edited(variance, "[4,7]", value),
               ".operands.x.shape:" + whole);
  }
  for (const std::string value : {"[0,7]", "[4,0]"}) {
    entry_case("operand_shape_" + std::to_string(cases.size()), edited(variance, "[4,7]", value),
               ".operands.x.shape:" + zero);
  }
  entry_case("operand_2_63_elements", edited(variance, "[4,7]", "[4294967295,4294967295]"),
             ".operands.x.shape: [4294967295, 4294967295] makes more than 2^63-1 elements; "
             "correct the shape");
  entry_case("operand_columns", edited(add, "[2,3]", "[2,6]"),
             ".operands.b.shape: [2, 6] has not the 3 columns of the operator; correct the shape");
  entry_case("operand_rows", edited(add, "[2,3]", "[3,3]"),
             ".operands.b.shape: [3, 3]: 4 rows of the operator are not a multiple of 3; correct "
             "the shape; the rows of an operand repeat");
  entry_case("operand_more_rows", edited(add, "[2,3]", "[8,3]"),
             ".operands.b.shape: [8, 3]: 4 rows of the operator are not a multiple of 8; correct "
             "the shape; the rows of an operand repeat");
  entry_case(
      "mask_columns", edited(softmax, "[2,3]", "[2,2]"),
      ".operands.mask.shape: [2, 2] has not the 3 columns of the operator; correct the shape");
  entry_case("mask_rows", edited(softmax, "[2,3]", "[3,3]"),
             ".operands.mask.shape: [3, 3]: 4 rows of the operator are not a multiple of 3; "
             "correct the shape; the rows of an operand repeat");
  entry_case(
      "gain_columns", edited(norm, "[1,3]", "[3,1]"),
      ".operands.gain.shape: [3, 1] has not the 3 columns of the operator; correct the shape");
  const std::string either = "; correct the shape of the operand or of the operator";
  entry_case("matmul_rows", edited(matmul, "[4,4]", "[2,4]"),
             ".operands.a.shape: is [2, 4] instead of [4, 4]" + either);
  entry_case("matmul_depth", edited(matmul, "[6,4]", "[6,5]"),
             ".operands.b.shape: is [6, 5] instead of [6, 4]" + either);
  entry_case("matmul_transposed", edited(matmul, "[6,4]", "[4,6]"),
             ".operands.b.shape: is [4, 6] instead of [6, 4]" + either);
  entry_case("linear_weight", edited(linear, "[3,5]", "[5,3]"),
             ".operands.weight.shape: is [5, 3] instead of [3, 5]" + either);
  entry_case("linear_bias", edited(linear, "[1,3]", "[3,1]"),
             ".operands.bias.shape: is [3, 1] instead of [1, 3]" + either);
  entry_case("linear_bias_of_all_rows", edited(linear, "[1,3]", "[4,3]"),
             ".operands.bias.shape: is [4, 3] instead of [1, 3]" + either);

  // Tensors.
  const auto rename = [](const char* from, const char* to) {
    return [=](Parts& p) {
      auto node = p.tensors.extract(from);
      node.key() = to;
      p.tensors.insert(std::move(node));
    };
  };
  parts_case(
      "operands_without_operators", [](Parts& p) { p.metadata.erase("operators"); },
      "tensor \"operand/attn.qk/a\": is of no operator in operators; add the operator or remove "
      "the "
      "tensor");
  const std::string no_operator =
      ": is of no operator in operators; add the operator or remove the tensor";
  parts_case("operand_of_no_probe", rename("operand/attn.qk/a", "operand/attn.k/a"),
             "tensor \"operand/attn.k/a\"" + no_operator);
  parts_case("operand_of_no_operator", rename("operand/attn.qk/a", "operand/residual/a"),
             "tensor \"operand/residual/a\"" + no_operator);
  parts_case("operand_without_name", rename("operand/attn.qk/a", "operand/attn.qk"),
             "tensor \"operand/attn.qk\"" + no_operator);
  parts_case("operand_without_probe", rename("operand/attn.qk/a", "operand//a"),
             "tensor \"operand//a\"" + no_operator);
  parts_case("output_of_no_operator", rename("output/attn.qk", "output/residual"),
             "tensor \"output/residual\"" + no_operator);
  parts_case(
      "operand_not_declared", rename("operand/attn.qk/a", "operand/attn.qk/mask"),
      "tensor \"operand/attn.qk/mask\": is of no operand of that operator; add the operand to "
      "operators or remove the tensor");
  parts_case(
      "operand_of_another_kernel", rename("operand/norm/gain", "operand/norm/weight"),
      "tensor \"operand/norm/weight\": is of no operand of that operator; add the operand to "
      "operators or remove the tensor");
  parts_case(
      "operand_left_out", [](Parts& p) { p.tensors.erase("operand/norm/bias"); },
      "tensor \"operand/norm/bias\": is missing while other operands of that operator are there; "
      "record all operands of an operator or none");
  parts_case(
      "output_alone",
      [](Parts& p) {
        p.tensors.erase("operand/attn.qk/a");
        p.tensors.erase("operand/attn.qk/b");
      },
      "tensor \"output/attn.qk\": is there, but no operand of that operator is; record its "
      "operands "
      "or remove it");
  parts_case(
      "operand_step_alone",
      [](Parts& p) {
        std::erase_if(p.tensors, [](const auto& t) {
          return t.first.starts_with("operand/") || t.first.starts_with("output/");
        });
      },
      "operand_step: is there, but no operand/ tensor is; remove it");
  parts_case(
      "operand_step_missing", [](Parts& p) { p.tensors.erase("operand_step"); },
      "operand_step: is missing" + kCapture);
  parts_case(
      "operand_step_dtype", [](Parts& p) { p.tensors["operand_step"].dtype = "U64"; },
      "operand_step: has dtype U64 instead of I64" + kCapture);
  parts_case(
      "operand_step_empty", [](Parts& p) { p.reshape("operand_step", {0}, 0); },
      "operand_step: holds no steps; record at least one step");
  parts_case(
      "operand_step_unknown", [](Parts& p) { p.set<std::int64_t>("operand_step", 1, 10); },
      "operand_step[1]: 10 is not in step; record the statistics of every step with operands");
  parts_case(
      "operand_step_repeats", [](Parts& p) { p.set<std::int64_t>("operand_step", 1, 4); },
      "operand_step[1]: 4 does not come after 4; record every step once, in order");
  parts_case(
      "operand_rows_of_the_tensor",
      [](Parts& p) {
        p.reshape("operand/attn.qk/a", {1, 4, 4}, 32);
      },
      "tensor \"operand/attn.qk/a\": has shape [1, 4, 4] instead of [2, 4, 4]" + kCapture);
  parts_case(
      "operand_flat",
      [](Parts& p) {
        p.tensors["operand/attn.qk/a"].shape = {2, 16};
      },
      "tensor \"operand/attn.qk/a\": has shape [2, 16] instead of [2, 4, 4]" + kCapture);
  parts_case(
      "operand_dtype", [](Parts& p) { p.tensors["operand/attn.qk/b"].dtype = "BF16"; },
      "tensor \"operand/attn.qk/b\": has dtype BF16 instead of F16" + kCapture);
  for (const std::string dtype : {"BOOL", "I8", "F8_E4M3"}) {
    parts_case(
        "mask_dtype_" + dtype,
        [&](Parts& p) { p.tensors["operand/attn/softmax/mask"].dtype = dtype; },
        "tensor \"operand/attn/softmax/mask\": has dtype " + dtype + " instead of U8" + kCapture);
  }
  parts_case(
      "mask_shape",
      [](Parts& p) {
        p.tensors["operand/attn/softmax/mask"].shape = {2, 3, 2};
      },
      "tensor \"operand/attn/softmax/mask\": has shape [2, 3, 2] instead of [2, 2, 3]" + kCapture);
  for (const unsigned value : {2u, 255u}) {
    parts_case(
        "mask_" + std::to_string(value),
        [&](Parts& p) { p.set("operand/attn/softmax/mask", 7, static_cast<std::uint8_t>(value)); },
        "tensor \"operand/attn/softmax/mask\": step 9: " + std::to_string(value) +
            " is neither 0 nor 1; write 0 for a hidden element, 1 for one that counts");
  }
  parts_case(
      "output_dtype", [](Parts& p) { p.tensors["output/attn.qk"].dtype = "BF16"; },
      "tensor \"output/attn.qk\": has dtype BF16 instead of F16" + kCapture);
  parts_case(
      "output_elements",
      [](Parts& p) {
        p.reshape("output/attn.qk", {2, 6}, 24);
      },
      "tensor \"output/attn.qk\": has shape [2, 6] instead of [2, 12]" + kCapture);
  parts_case(
      "output_in_the_probe_s_shape",
      [](Parts& p) {
        p.tensors["output/attn.qk"].shape = {2, 2, 2, 3};
      },
      "tensor \"output/attn.qk\": has shape [2, 2, 2, 3] instead of [2, 12]" + kCapture);
  return cases;
}

/// A file of that header and no data.
std::vector<std::byte> only_header(std::string_view header) {
  return with_header(std::vector<std::byte>(8), header);
}

}  // namespace

std::vector<BadTrace> bad_traces() {
  const std::vector<std::byte> good = trace::serialize(sample_trace(), "sample");
  const std::string header = header_of(good);
  std::vector<BadTrace> cases;
  const auto bytes_case = [&](std::string name, std::vector<std::byte> bytes, std::string error) {
    cases.push_back({std::move(name), std::move(bytes), std::move(error)});
  };
  const auto header_case = [&](std::string name, std::string_view from, std::string_view to,
                               std::string error) {
    bytes_case(std::move(name), with_header(good, replaced(header, from, to)), std::move(error));
  };
  const auto parts_case = [&](std::string name, const std::function<void(Parts&)>& edit,
                              std::string error) {
    Parts parts(good);
    edit(parts);
    bytes_case(std::move(name), parts.bytes(), std::move(error));
  };
  const auto metadata_case = [&](std::string name, const std::string& key, const std::string& value,
                                 std::string error) {
    parts_case(
        std::move(name), [&](Parts& p) { p.metadata[key] = value; }, std::move(error));
  };
  const auto probe_case = [&](std::string name, std::string_view from, std::string_view to,
                              std::string error) {
    parts_case(
        std::move(name),
        [&](Parts& p) { p.metadata["probes"] = replaced(p.metadata["probes"], from, to); },
        std::move(error));
  };
  const auto cut = [&](std::size_t size) {
    return std::vector(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
  };
  const auto length = [&](std::uint64_t value) {
    auto bytes = good;
    std::memcpy(bytes.data(), &value, 8);
    return bytes;
  };
  const std::string follow = std::to_string(good.size() - 8);
  const std::string data_bytes = std::to_string(good.size() - 8 - header.size());

  // Container: length and header.
  bytes_case("no_length", cut(7),
             "header length: the file is shorter than the 8 bytes of the length" + kCopyAgain);
  bytes_case("length_zero", length(0), "header: not valid JSON" + kRewrite);
  bytes_case("length_over_64_mib", length((64u << 20) + 1),
             "header length: 67108865 bytes, more than the 64 MiB allowed" + kRewrite);
  bytes_case("length_all_ones", length(~std::uint64_t{0}),
             "header length: 18446744073709551615 bytes, more than the 64 MiB allowed" + kRewrite);
  bytes_case("length_past_the_file", length(good.size() - 7),
             "header length: " + std::to_string(good.size() - 7) + " bytes, but only " + follow +
                 " follow" + kCopyAgain);
  bytes_case("truncated_header", cut(100),
             "header length: " + std::to_string(header.size()) + " bytes, but only 92 follow" +
                 kCopyAgain);
  bytes_case("truncated_data", cut(good.size() - 1),
             "tensor \"raw/adam \\x22v\\x22 \\xc3\\xa9\": ends at byte " + data_bytes +
                 " of the data, past its " + std::to_string(good.size() - 9 - header.size()) +
                 " bytes" + kCopyAgain);
  bytes_case(
      "trailing_data",
      [&] {
        auto b = good;
        b.resize(b.size() + 3);
        return b;
      }(),
      "file: 3 bytes after the last tensor" + kRewrite);
  bytes_case("not_json", only_header("{\"step\": }"), "header: not valid JSON" + kRewrite);
  bytes_case("two_values", only_header("{} {}"), "header: not valid JSON" + kRewrite);
  bytes_case("not_utf8", only_header("{\"\xFF\":1}"), "header: not valid JSON" + kRewrite);
  bytes_case("lone_surrogate", only_header("{\"\\ud800\":1}"), "header: not valid JSON" + kRewrite);
  bytes_case("nul_after_json", only_header(std::string_view("{}\0{", 4)),
             "header: not valid JSON" + kRewrite);
  bytes_case("byte_order_mark", only_header("\xEF\xBB\xBF{}"), "header: not valid JSON" + kRewrite);
  bytes_case("number_overflow", only_header("{\"a\":1e999}"), "header: not valid JSON" + kRewrite);
  bytes_case("json_nan", only_header("{\"a\":NaN}"), "header: not valid JSON" + kRewrite);
  bytes_case("pickle", only_header("\x80\x04\x95"), "header: not valid JSON" + kRewrite);

  // Other kinds of files: what they are, and not what their first bytes would mean as a length.
  const auto foreign_case = [&](std::string name, std::string_view head, const std::string& what,
                                const std::string& remedy) {
    const bool padded = remedy == kUnpack || remedy == kConvert;  // else text ends as it does
    std::vector<std::byte> bytes(padded ? std::max<std::size_t>(head.size(), 600) : head.size());
    std::memcpy(bytes.data(), head.data(), head.size());
    bytes_case(
        "foreign_" + name, std::move(bytes),
        "file: is not a safetensors file" + (what.empty() ? "" : ", but " + what) + "; " + remedy);
  };
  using namespace std::string_view_literals;  // some hold a zero byte
  foreign_case("text", "# A page\nof some words.\n", "text", kGive);
  foreign_case("short_text", "hello\n", "text", kGive);
  foreign_case("eight_bytes", "12345678", "text", kGive);
  foreign_case("coloured_text", "\x1b[31mloss 2.5\x1b[0m\n", "text", kGive);
  foreign_case("utf8_text", "\xE2\x82\xAC is a letter too\n", "text", kGive);
  foreign_case("utf16_text", "\xFF\xFEs\0t\0e\0p\0\n\0"sv, "UTF-16 text", kGive);
  foreign_case("json", "{\"loss\":{\"step 1\": 2.5}}", "JSON text", kGive);
  foreign_case("json_lines", "  [1, 2, 3, 4, 5]\n", "JSON text", kGive);
  foreign_case("html", "\n<!DOCTYPE html><html><body>Log in</body></html>", "an HTML page",
               "download the file itself");
  foreign_case("html_without_type", "<HTML><body>Log in</body></html>", "an HTML page",
               "download the file itself");
  foreign_case(
      "lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n" + std::string(600, '\n'),
      "a Git LFS pointer", "fetch the file itself with git lfs pull");
  foreign_case("gzip", "\x1F\x8B\x08\x08\x11\x22\x33\x44\0\x03x"sv, "gzip data", kUnpack);
  foreign_case("gzip_without_time", "\x1F\x8B\x08\0\0\0\0\0\0\x03x"sv, "gzip data", kUnpack);
  foreign_case("zstandard", "\x28\xB5\x2F\xFD\0\0\0\0x"sv, "Zstandard data", kUnpack);
  foreign_case("xz",
               "\xFD"
               "7zXZ\0\0\x04x"sv,
               "xz data", kUnpack);
  foreign_case("bzip2", "BZh91AY&SY\x01", "bzip2 data", kUnpack);
  foreign_case("tar", "name" + std::string(253, '\0') + "ustar", "a tar archive", kUnpack);
  const auto zip = [](std::string_view member) {
    std::string head = "PK\x03\x04" + std::string(26, '\0') + std::string(member);
    head[26] = static_cast<char>(member.size());
    return head;
  };
  foreign_case("zip", zip("notes.txt"), "a zip archive", kUnpack);
  foreign_case("empty_zip", "PK\x05\x06" + std::string(18, '\0'), "a zip archive", kUnpack);
  foreign_case("npz", zip("max_abs.npy"), "a NumPy archive (.npz)", kConvert);
  foreign_case("torch", zip("model/data.pkl"), "a PyTorch checkpoint", kConvert);
  foreign_case("npy", "\x93NUMPY\x01\0v\0{'descr'"sv, "a NumPy array (.npy)", kConvert);
  foreign_case("hdf5", "\x89HDF\r\n\x1A\n\0"sv, "an HDF5 file", kConvert);
  foreign_case("pickle", "\x80\x04\x95\x11\0\0\0\0\0\0\0}"sv, "a Python pickle", kConvert);
  foreign_case("journal", "opdjH\x10\0\0\0\0\0\0\0"sv, "the journal of a capture",
               "opd capture --recover makes a trace of it");
  foreign_case("event_file",
               "\x18\0\0\0\0\0\0\0\xA3\x7FK\x22\x09\0\0\x1A\x0D"
               "brain.Event:2"sv,
               "a TensorBoard event file", kGive);
  foreign_case("parquet", "PAR1\x15\x04\x15\x10\x15"sv, "a Parquet file", kGive);
  foreign_case("sqlite", "SQLite format 3\0\x10"sv, "an SQLite database", kGive);
  foreign_case("unknown",
               "\x7F"
               "ELF\x02\x01\x01\0\0\0\0\0"sv,
               "", kGive);

  bytes_case("header_list", only_header("[]"),
             "header: is not a JSON object that starts at its first byte" + kRewrite);
  bytes_case("header_leading_space", with_header(good, " " + header),
             "header: is not a JSON object that starts at its first byte" + kRewrite);
  bytes_case("depth_bomb",
             only_header("{\"a\":" + std::string(1000000, '[') + std::string(1000000, ']') + "}"),
             "header: JSON nested deeper than 64" + kRewrite);
  bytes_case("depth_65", only_header("{\"a\":" + std::string(64, '[') + std::string(64, ']') + "}"),
             "header: JSON nested deeper than 64" + kRewrite);
  bytes_case("value_bomb", only_header([] {
               std::string text = "{\"a\":[0";
               for (int i = 0; i < (1 << 21); ++i) text += ",0";
               return text + "]}";
             }()),
             "header: JSON of more than 2097152 values" + kRewrite);
  header_case("duplicate_tensor", "\"lr\":{", "\"loss\":{",
              "header: duplicate key \"loss\"" + kRewrite);
  header_case("duplicate_metadata", "\"seed\":\"42\"", "\"seed\":\"42\",\"name\":\"b\"",
              "header: duplicate key \"name\"" + kRewrite);
  header_case("duplicate_member", "\"dtype\":\"I64\",\"shape\":[4]",
              "\"dtype\":\"I64\",\"dtype\":\"I64\",\"shape\":[4]",
              "header: duplicate key \"dtype\"" + kRewrite);
  header_case("metadata_not_object", "\"__metadata__\":{", "\"__metadata__\":1,\"x\":{",
              "__metadata__: is not an object" + kRewrite);
  header_case("metadata_not_string", "\"seed\":\"42\"", "\"seed\":42",
              "__metadata__: \"seed\" is not a string" + kRewrite);

  // Container: tensors. `lr` is one of four F32 [4], so its numbers are found by its name.
  const std::string lr_entry = [&] {
    const std::size_t at = header.find("\"lr\":");
    return header.substr(at, header.find('}', at) + 1 - at);
  }();
  const std::size_t offset_at = lr_entry.find('[') + 1;
  const std::uint64_t begin = std::stoull(lr_entry.substr(offset_at));
  const auto entry = [&](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return "\"lr\":{\"data_offsets\":" + std::string(offsets) + ",\"dtype\":" + std::string(dtype) +
           ",\"shape\":" + std::string(shape) + "}";
  };
  const auto range = [&](std::uint64_t first, std::uint64_t last) {
    return "[" + std::to_string(first) + "," + std::to_string(last) + "]";
  };
  const std::string ok = range(begin, begin + 16);
  const auto tensor_case = [&](std::string name, const std::string& text, std::string error) {
    header_case(std::move(name), lr_entry, text, "tensor \"lr\": " + std::move(error));
  };
  tensor_case("tensor_not_object", "\"lr\":[]",
              "is not an object of dtype, shape and data_offsets" + kRewrite);
  tensor_case("tensor_member_missing", "\"lr\":{\"dtype\":\"F32\",\"shape\":[4]}",
              "is not an object of dtype, shape and data_offsets" + kRewrite);
  tensor_case("tensor_member_extra", replaced(lr_entry, "}", ",\"x\":0}"),
              "is not an object of dtype, shape and data_offsets" + kRewrite);
  tensor_case("dtype_not_string", entry("32", "[4]", ok), "dtype is not a string" + kRewrite);
  tensor_case("dtype_unknown", entry("\"F31\"", "[4]", ok), "unknown dtype \"F31\"" + kRewrite);
  tensor_case("shape_not_list", entry("\"F32\"", "4", ok), "shape is not a list" + kRewrite);
  tensor_case("shape_negative", entry("\"F32\"", "[-4]", ok),
              "shape holds a value that is not a size" + kRewrite);
  tensor_case("shape_fraction", entry("\"F32\"", "[4.0]", ok),
              "shape holds a value that is not a size" + kRewrite);
  tensor_case("shape_bool", entry("\"F32\"", "[4,true]", ok),
              "shape holds a value that is not a size" + kRewrite);
  tensor_case("shape_2_64", entry("\"F32\"", "[18446744073709551616]", ok),
              "shape holds a value that is not a size" + kRewrite);
  tensor_case("shape_overflow", entry("\"F32\"", "[4294967296,4294967296]", ok),
              "shape overflows 64 bits" + kRewrite);
  tensor_case("shape_overflow_to_16", entry("\"F32\"", "[4611686018427387908]", ok),
              "shape overflows 64 bits" + kRewrite);
  tensor_case("shape_overflow_times_zero", entry("\"F32\"", "[4294967296,4294967296,0]", ok),
              "shape overflows 64 bits" + kRewrite);
  tensor_case("shape_overflow_after_zero", entry("\"F32\"", "[0,4294967296,4294967296]", ok),
              "shape overflows 64 bits" + kRewrite);
  tensor_case("offsets_not_pair", entry("\"F32\"", "[4]", "[0]"),
              "data_offsets is not a pair [begin, end] with begin <= end" + kRewrite);
  tensor_case("offsets_negative", entry("\"F32\"", "[4]", "[-16,0]"),
              "data_offsets is not a pair [begin, end] with begin <= end" + kRewrite);
  tensor_case("offsets_backwards", entry("\"F32\"", "[4]", range(begin + 16, begin)),
              "data_offsets is not a pair [begin, end] with begin <= end" + kRewrite);
  tensor_case("size_lies", entry("\"F32\"", "[5]", ok),
              "data_offsets span 16 bytes, but shape and dtype make 20" + kRewrite);
  tensor_case("size_lies_by_dtype", entry("\"F64\"", "[4]", ok),
              "data_offsets span 16 bytes, but shape and dtype make 32" + kRewrite);
  tensor_case("end_past_the_file",
              entry("\"U8\"", "[1152921504606846976]", "[0,1152921504606846976]"),
              "ends at byte 1152921504606846976 of the data, past its " + data_bytes + " bytes" +
                  kCopyAgain);
  tensor_case("overlap", entry("\"F32\"", "[4]", range(begin - 4, begin + 12)),
              "overlaps another tensor" + kRewrite);
  bytes_case(
      "gap",
      [&] {
        Parts p(good);
        p.tensors.erase("raw/loss");  // the next in the file are the E4M3 rows
        auto bytes = p.bytes();
        const std::string text = header_of(bytes);
        const std::string name = "\"raw/layer.0/grad\":{\"data_offsets\":[";
        const std::size_t at = text.find(name) + name.size();
        const std::uint64_t first = std::stoull(text.substr(at));
        const std::uint64_t last = first + 6;
        return with_header(
            bytes, replaced(text, range(first, last) + ",\"dtype\":\"F8_E4M3\",\"shape\":[2,3]",
                            range(first + 1, last) + ",\"dtype\":\"F8_E4M3\",\"shape\":[5]"));
      }(),
      "tensor \"raw/layer.0/grad\": leaves a gap before its data" + kRewrite);

  // Metadata.
  bytes_case("no_metadata", only_header("{}"),
             "format: is not \"opd-trace\"; give a trace file; other tensors are not read");
  metadata_case("foreign", "format", "pt",
                "format: is not \"opd-trace\"; give a trace file; other tensors are not read");
  for (const char* key :
       {"version", "name", "label", "model", "framework", "seed", "manifest", "probes"}) {
    parts_case(
        "no_" + std::string(key), [&](Parts& p) { p.metadata.erase(key); },
        std::string(key) + ": is missing from __metadata__" + kCapture);
  }
  metadata_case("version_2", "version", "2",
                "version: \"2\" is not known; use a reader of that version, or version 1");
  metadata_case("name_empty", "name", "",
                "name: \"\" is not a short name; use letters, digits, '_', '.' and '-' only");
  metadata_case(
      "name_path", "name", "../a\n\x7F",
      "name: \"../a\\x0a\\x7f\" is not a short name; use letters, digits, '_', '.' and '-' only");
  metadata_case("label_unknown", "label", std::string(100, 'x'),
                "label: \"" + std::string(64, 'x') +
                    "...\" is not a label; use healthy, stressed, near-limit, gradual, sudden, "
                    "saturating, injected, data or unknown");
  metadata_case("manifest_text", "manifest", "none", "manifest: not valid JSON" + kCapture);
  metadata_case("manifest_list", "manifest", "[]", "manifest: not a JSON object" + kCapture);
  metadata_case("manifest_duplicate", "manifest", R"({"a":{"b":1,"b":2}})",
                "manifest: duplicate key \"b\"" + kCapture);
  metadata_case("manifest_depth_bomb", "manifest", std::string(200000, '['),
                "manifest: JSON nested deeper than 64" + kCapture);

  // Probes.
  metadata_case("probes_text", "probes", "[", "probes: not valid JSON" + kCapture);
  metadata_case("probes_object", "probes", "{}",
                "probes: is not a list of probes; probe at least one operator");
  metadata_case("probes_empty", "probes", "[]",
                "probes: is not a list of probes; probe at least one operator");
  metadata_case(
      "probes_65537", "probes",
      [] {
        std::string text = "[0";
        for (int i = 0; i < 65536; ++i) text += ",0";
        return text + "]";
      }(),
      "probes: 65537 probes, more than the 65536 op ids; probe fewer operators");
  metadata_case("probe_number", "probes", "[0]", "probes[0]: is not an object" + kCapture);
  probe_case("probe_without_name", R"("name":"loss",)", "",
             "probes[4].name: is missing or not a string" + kCapture);
  probe_case("probe_name_empty", R"("name":"loss")", R"("name":"")",
             "probes[4].name: is empty; name the probe");
  probe_case(
      "probe_name_twice", R"("name":"loss")", R"("name":"layer.0/out")",
      "probes[4].name: \"layer.0/out\" names two probes; give every probe a name of its own");
  probe_case("probe_kind_unknown", R"("kind":"weight")", R"("kind":"bias")",
             "probes[1].kind: \"bias\" is not a kind; use activation, weight, gradient, optimizer "
             "or collective");
  probe_case("probe_format_unknown", R"("format":"E5M2")", R"("format":"INT8")",
             "probes[3].format: \"INT8\" is not a format; use FP16, BF16, E4M3, E5M2 or FP32");
  probe_case("probe_format_number", R"("format":"E5M2")", R"("format":3)",
             "probes[3].format: is missing or not a string" + kCapture);
  probe_case("probe_without_shape", R"(,"shape":[])", "",
             "probes[4].shape: is missing or not a list" + kCapture);
  probe_case("probe_shape_text", "[2,3]", R"(["2"])",
             "probes[0].shape: holds a value that is not a size" + kCapture);
  probe_case("probe_without_elements", "[2,3]", "[2,0]",
             "probes[0].shape: makes a probe without elements; leave the probe out");
  probe_case("probe_2_63_elements", "[2,3]", "[2147483648,4294967296]",
             "probes[0].shape: makes more than 2^63-1 elements; correct the shape");
  probe_case("probe_elements_overflow", "[2,3]", "[4294967296,4294967296]",
             "probes[0].shape: makes more than 2^63-1 elements; correct the shape");

  // Tensors of a trace.
  parts_case(
      "raw_of_no_probe",
      [](Parts& p) {
        p.tensors["raw/x"] = {"F16", {2, 1}, std::vector<std::byte>(4)};
      },
      "tensor \"raw/x\": is of no probe in the list; add the probe or remove the tensor");
  parts_case(
      "tensor_unknown",
      [](Parts& p) {
        p.tensors["maxabs"] = {"F32", {1}, std::vector<std::byte>(4)};
      },
      "tensor \"maxabs\": is not part of a trace; correct its name or remove it");
  for (const char* name : {"step", "max_abs", "nonfinite"}) {
    parts_case(
        "no_tensor_" + std::string(name), [&](Parts& p) { p.tensors.erase(name); },
        std::string(name) + ": is missing" + kCapture);
  }
  parts_case(
      "step_dtype", [](Parts& p) { p.tensors["step"].dtype = "U64"; },
      "step: has dtype U64 instead of I64" + kCapture);
  parts_case(
      "step_empty", [](Parts& p) { p.reshape("step", {0}, 0); },
      "step: holds no steps; record at least one step");
  parts_case(
      "step_matrix",
      [](Parts& p) {
        p.reshape("step", {2, 2}, 32);
      },
      "step: has shape [2, 2] instead of [0]" + kCapture);
  parts_case(
      "step_negative", [](Parts& p) { p.set<std::int64_t>("step", 0, -1); },
      "step[0]: -1 is not in 0..2^32-1; count steps from 0");
  parts_case(
      "step_2_32", [](Parts& p) { p.set<std::int64_t>("step", 3, 4294967296); },
      "step[3]: 4294967296 is not in 0..2^32-1; count steps from 0");
  parts_case(
      "step_repeats", [](Parts& p) { p.set<std::int64_t>("step", 2, 1); },
      "step[2]: 1 does not come after 1; record every step once, in order");
  parts_case(
      "step_goes_back", [](Parts& p) { p.set<std::int64_t>("step", 2, 0); },
      "step[2]: 0 does not come after 1; record every step once, in order");
  parts_case(
      "matrix_short",
      [](Parts& p) {
        p.reshape("max_abs", {3, 5}, 60);
      },
      "max_abs: has shape [3, 5] instead of [4, 5]" + kCapture);
  parts_case(
      "matrix_rank",
      [](Parts& p) {
        p.reshape("zero", {1, 1, 1, 1, 1, 1, 1, 1, 20}, 160);
      },
      "zero: has shape [1, 1, 1, 1, 1, 1, 1, 1, ...] instead of [4, 5]" + kCapture);
  parts_case(
      "matrix_dtype", [](Parts& p) { p.tensors["mean"].dtype = "I32"; },
      "mean: has dtype I32 instead of F32" + kCapture);
  parts_case(
      "series_short", [](Parts& p) { p.reshape("loss", {3}, 12); },
      "loss: has shape [3] instead of [4]" + kCapture);

  // Values. Cell 7 is step 1 of layer.0/grad (E4M3, 3 elements).
  const std::string cell_7 = "step 1, probe \"layer.0/grad\": ";
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const char* name : {"max_abs", "min_abs", "mean", "var"}) {
    parts_case(
        std::string(name) + "_nan", [&](Parts& p) { p.set(name, 7, nan); },
        name + (": " + cell_7) + "is NaN; take statistics over the finite elements only");
  }
  for (const char* name : {"max_abs", "min_abs", "var"}) {
    parts_case(
        std::string(name) + "_negative", [&](Parts& p) { p.set(name, 7, -1.0f); },
        name + (": " + cell_7) + "is negative" + kCapture);
  }
  for (const char* name : {"max_abs", "min_abs"}) {
    const std::string error = name + (": " + cell_7) +
                              "is above the largest finite E4M3; take the largest finite "
                              "magnitude, or correct the probe's format";
    parts_case(
        std::string(name) + "_infinite", [&](Parts& p) { p.set(name, 7, infinity); }, error);
    parts_case(
        std::string(name) + "_above",
        [&](Parts& p) { p.set(name, 7, std::nextafter(448.0f, 449.0f)); }, error);
  }
  parts_case(
      "max_abs_fp32_infinite", [&](Parts& p) { p.set("max_abs", 9, infinity); },
      "max_abs: step 1, probe \"loss\": is above the largest finite FP32; take the largest finite "
      "magnitude, "
      "or correct the probe's format");
  for (const char* name : {"nonfinite", "saturated", "subnormal", "zero"}) {
    parts_case(
        std::string(name) + "_over", [&](Parts& p) { p.set<std::int64_t>(name, 7, 4); },
        name + (": " + cell_7) + "4 is not in 0..3, the number of elements" + kCapture);
    parts_case(
        std::string(name) + "_negative", [&](Parts& p) { p.set<std::int64_t>(name, 7, -1); },
        name + (": " + cell_7) + "-1 is not in 0..3, the number of elements" + kCapture);
  }
  parts_case(
      "lr_infinite", [&](Parts& p) { p.set("lr", 2, infinity); },
      "lr: step 7: is Inf or NaN; leave lr out, or record a finite one");
  for (const float scale : {nan, infinity, 0.0f, -1.0f}) {
    parts_case(
        "loss_scale_" + std::to_string(cases.size()),
        [&](Parts& p) { p.set("loss_scale", 2, scale); },
        "loss_scale: step 7: is not positive and finite; leave loss_scale out, or record 1 where "
        "there is none");
  }

  // Raw rows.
  parts_case(
      "raw_step_alone",
      [](Parts& p) {
        std::erase_if(p.tensors, [](const auto& t) { return t.first.starts_with("raw/"); });
      },
      "raw_step: is there, but no raw/ tensor is; remove it");
  parts_case(
      "raw_step_missing", [](Parts& p) { p.tensors.erase("raw_step"); },
      "raw_step: is missing" + kCapture);
  parts_case(
      "raw_step_unknown", [](Parts& p) { p.set<std::int64_t>("raw_step", 0, 2); },
      "raw_step[0]: 2 is not in step; record the statistics of every step with raw rows");
  parts_case(
      "raw_step_goes_back", [](Parts& p) { p.set<std::int64_t>("raw_step", 1, 0); },
      "raw_step[1]: 0 does not come after 1; record every step once, in order");
  parts_case(
      "raw_rows",
      [](Parts& p) {
        p.reshape("raw/loss", {3, 1}, 12);
      },
      "tensor \"raw/loss\": has shape [3, 1] instead of [2, 1]" + kCapture);
  parts_case(
      "raw_elements",
      [](Parts& p) {
        p.reshape("raw/layer.0/out", {2, 2, 3}, 24);
      },
      "tensor \"raw/layer.0/out\": has shape [2, 2, 3] instead of [2, 6]" + kCapture);
  parts_case(
      "raw_dtype", [](Parts& p) { p.tensors["raw/layer.0/out"].dtype = "BF16"; },
      "tensor \"raw/layer.0/out\": has dtype BF16 instead of F16" + kCapture);

  // First bad step and op: step 7, probe 0 in the sample.
  parts_case(
      "first_bad_op_missing", [](Parts& p) { p.metadata.erase("first_bad_op"); },
      "first_bad_op: is missing while the other of the two is there; record both or none");
  parts_case(
      "first_bad_step_missing", [](Parts& p) { p.metadata.erase("first_bad_step"); },
      "first_bad_step: is missing while the other of the two is there; record both or none");
  for (const std::string text :
       {"", "x", "-1", "+7", "7.0", "2", "4294967303", "99999999999999999999"}) {
    metadata_case("first_bad_step_" + std::to_string(cases.size()), "first_bad_step", text,
                  "first_bad_step: \"" + text + "\" is not in step" + kCapture);
  }
  metadata_case("first_bad_op_unknown", "first_bad_op", "layer.9",
                "first_bad_op: \"layer.9\" is not in probes" + kCapture);
  metadata_case("first_bad_op_finite", "first_bad_op", "layer.0/weight",
                "first_bad_op: step 7, probe \"layer.0/weight\": nonfinite is 0" + kCapture);
  metadata_case("first_bad_not_first", "first_bad_op", "layer.0/grad",
                "first_bad_step: step 7, probe \"layer.0/out\": nonfinite is not 0, and that is "
                "not the step and op "
                "recorded as first; record the first non-finite activation");
  parts_case(
      "first_bad_not_named",
      [](Parts& p) {
        p.metadata.erase("first_bad_step");
        p.metadata.erase("first_bad_op");
      },
      "first_bad_step: step 7, probe \"layer.0/out\": nonfinite is not 0, and that is not the step "
      "and op "
      "recorded as first; record the first non-finite activation");
  parts_case(
      "first_bad_one_before",
      [](Parts& p) {  // cell 11 is bad as well, and it is forward
        p.metadata["probes"] =
            replaced(p.metadata["probes"], R"("kind":"weight")", R"("kind":"activation")");
        p.metadata["first_bad_op"] = "layer.0/grad";
        p.set<std::int64_t>("nonfinite", 6, 0);
        p.set<std::int64_t>("nonfinite", 10, 0);
        p.set<std::int64_t>("nonfinite", 11, 1);
      },
      "first_bad_step: step 7, probe \"layer.0/weight\": nonfinite is not 0, and that is not the "
      "step and op recorded "
      "as first; record the first non-finite activation");
  for (BadTrace& bad : bad_operands()) cases.push_back(std::move(bad));
  return cases;
}

}  // namespace opd::tb
