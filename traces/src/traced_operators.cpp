#include "traced_operators.hpp"

#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "json.hpp"
#include "names.hpp"
#include "opd/trace/suggestion.hpp"

namespace opd::trace {
namespace {

using nlohmann::json;

constexpr std::uint32_t kMaxExtent = std::numeric_limits<std::uint32_t>::max();
/// Half a unit above the largest binary32 number: from here on a double rounds to Inf.
constexpr double kTooLarge = 0x1.FFFFFFp127;

/// Names of the kernel's operands, without the empty ones.
std::vector<std::string_view> operand_names(const KernelTraits& traits) {
  std::vector<std::string_view> names;
  for (const std::string_view name : traits.operands) {
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

class OperatorReader {
 public:
  explicit OperatorReader(const Trace& trace) : trace_(trace) {}

  std::vector<TracedOperator> read(const std::string& text) {
    json list;
    try {
      list = parse_json(text);
    } catch (const JsonFault& fault) {
      fail("operators", fault.wrong, kCapture);
    }
    if (!list.is_array() || list.empty())
      fail("operators", "is not a list of operators", "leave it out where there is none");
    std::vector<TracedOperator> operators;
    for (const json& item : list) {
      entry_ = "operators[" + std::to_string(operators.size()) + "]";
      operators.push_back(read_operator(item));
    }
    return operators;
  }

 private:
  [[noreturn]] void fail(std::string_view field, std::string_view wrong,
                         std::string_view remedy) const {
    throw TraceError(trace_.file(), field, wrong, remedy);
  }

  const std::string& text(const json& item, const std::string& field, const char* key) const {
    const auto member = item.find(key);
    if (member == item.end() || !member->is_string())
      fail(field + "." + key, "is missing or not a string", kCapture);
    return member->get_ref<const std::string&>();
  }

  /// 1..2^32-1
  std::uint32_t extent(const json& value, const std::string& field) const {
    const auto count = as_unsigned(value);
    if (!count || *count > kMaxExtent)
      fail(field, "is not a whole number in 1..2^32-1", "write a whole number, without a point");
    if (*count == 0) fail(field, "is 0, which makes nothing to compute", "leave the operator out");
    return static_cast<std::uint32_t>(*count);
  }
  std::uint32_t extent(const json& item, const char* key) const {
    const auto member = item.find(key);
    if (member == item.end()) fail(entry_ + "." + key, "is missing", kCapture);
    return extent(*member, entry_ + "." + key);
  }

  TracedOperator read_operator(const json& item) {
    if (!item.is_object()) fail(entry_, "is not an object", kCapture);
    TracedOperator op;
    const std::string& probe_name = text(item, entry_, "probe");
    const auto probe = trace_.find_probe(probe_name);
    if (!probe) {
      fail(entry_ + ".probe", in_quotes(probe_name) + " is not in probes",
           "add the probe or remove the operator");
    }
    if (!taken_.insert(*probe).second) {
      fail(entry_ + ".probe", in_quotes(probe_name) + " has two operators",
           "give a probe one operator at most");
    }
    op.probe = *probe;

    const std::string& kernel_name = text(item, entry_, "kernel");
    const auto kernel = kernel_named(kernel_name);
    if (!kernel) {
      std::vector<std::string_view> known;
      for (const KernelTraits& traits : kKernels) known.push_back(traits.name);
      fail(entry_ + ".kernel", in_quotes(kernel_name) + " is not a kernel",
           suggestion(kernel_name, known, "docs/vector_unit.md lists the kernels"));
    }
    op.kernel = *kernel;
    const KernelTraits& traits = traits_of(op.kernel);
    const bool is_matrix = traits.shape == KernelShape::kMatrix;

    std::vector<std::string_view> known = {"probe", "kernel", "rows", "columns", "operands"};
    if (is_matrix) known.insert(known.end(), {"batch", "depth"});
    if (!traits.attribute.empty()) known.push_back(traits.attribute);
    check_keys(item, entry_, known, std::string(traits.name));

    op.rows = extent(item, "rows");
    op.columns = extent(item, "columns");
    if (is_matrix) {
      if (item.contains("batch")) op.batch = extent(item, "batch");
      op.depth = extent(item, "depth");
      if (op.kernel == Kernel::kLinear && op.batch != 1) {
        fail(entry_ + ".batch", std::to_string(op.batch) + ", but a linear has one batch",
             "count the rows of all batches in rows");
      }
    }
    op.attribute = read_attribute(item, traits);
    check_elements(op, traits);
    read_operands(item, op, traits);
    return op;
  }

  /// Nothing but these keys: a misspelt one would silently be its default.
  void check_keys(const json& item, const std::string& field,
                  const std::vector<std::string_view>& known, const std::string& owner) const {
    for (const auto& [key, value] : item.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      fail(field, in_quotes(key) + " is not a field of " + owner,
           suggestion(key, known, "remove it"));
    }
  }

  float read_attribute(const json& item, const KernelTraits& traits) const {
    if (traits.attribute.empty()) return 0;
    const auto member = item.find(traits.attribute);
    if (member == item.end()) return static_cast<float>(traits.attribute_default);
    const std::string field = entry_ + "." + std::string(traits.attribute);
    if (!member->is_number()) fail(field, "is not a number", "write a number");
    const auto value = member->get<double>();
    if (!(std::fabs(value) < kTooLarge))
      fail(field, "is beyond binary32", "write a number that binary32 can hold");
    if (traits.attribute != "factor" && value < 0)
      fail(field, "is negative", "write 0 or a positive number");
    if (traits.attribute == "correction" && value != std::floor(value))
      fail(field, "is not a whole number", "write 0, 1, ...");
    return static_cast<float>(value);
  }

  /// The output is that of the probe; it and the products of a matrix kernel can be counted.
  void check_elements(const TracedOperator& op, const KernelTraits& traits) const {
    std::uint64_t elements = std::uint64_t{op.batch} * op.rows;
    std::uint64_t work = 0;
    const std::uint64_t depth = traits.shape == KernelShape::kMatrix ? op.depth : 1;
    if (__builtin_mul_overflow(elements, op.columns, &work) ||
        __builtin_mul_overflow(work, depth, &work) || work > kMaxElements) {
      fail(entry_, "makes more than 2^63-1 elements or products", "correct its shape");
    }
    if (traits.shape == KernelShape::kMatrix &&
        (elements > kMaxExtent || std::uint64_t{op.batch} * op.columns > kMaxExtent)) {
      fail(entry_, "has operands of more than 2^32-1 rows", "correct its shape");
    }
    if (traits.shape != KernelShape::kRowReduction) elements *= op.columns;
    const Probe& probe = trace_.probes()[op.probe];
    if (elements != probe.elements) {
      fail(entry_,
           "makes " + std::to_string(elements) + " elements, but probe " + in_quotes(probe.name) +
               " has " + std::to_string(probe.elements),
           "correct the shape of one of the two");
    }
  }

  void read_operands(const json& item, TracedOperator& op, const KernelTraits& traits) const {
    const std::string field = entry_ + ".operands";
    const auto member = item.find("operands");
    if (member == item.end() || !member->is_object())
      fail(field, "is missing or not an object", kCapture);
    const std::vector<std::string_view> names = operand_names(traits);
    for (const auto& [name, value] : member->items()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        fail(field, in_quotes(name) + " is not an operand of " + std::string(traits.name),
             "use " + choice(names));
      }
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string name(names[i]);
      const auto operand = member->find(name);
      if (operand != member->end()) {
        op.operands.push_back(read_operand(*operand, field + "." + name, name, op, traits));
      } else if (i < traits.required) {
        fail(field + "." + name, "is missing, and " + std::string(traits.name) + " needs it",
             "record it, or remove the operator");
      }
    }
  }

  TracedOperand read_operand(const json& item, const std::string& field, const std::string& name,
                             const TracedOperator& op, const KernelTraits& traits) const {
    if (!item.is_object()) fail(field, "is not an object", kCapture);
    TracedOperand operand;
    operand.name = name;
    if (name == kMaskName) {
      check_keys(item, field, {"shape"}, "a mask");
    } else {
      check_keys(item, field, {"format", "shape"}, "an operand");
      const std::string& format_name = text(item, field, "format");
      const auto format = position(kFormatNames, format_name);
      if (!format) {
        fail(field + ".format", in_quotes(format_name) + " is not a format",
             "use " + choice(kFormatNames));
      }
      operand.format = static_cast<Format>(*format);
    }
    const auto shape = item.find("shape");
    if (shape == item.end() || !shape->is_array() || shape->size() != 2)
      fail(field + ".shape", "is missing or not a list of rows and columns", kCapture);
    operand.rows = extent((*shape)[0], field + ".shape");
    operand.columns = extent((*shape)[1], field + ".shape");
    check_shape(operand, field + ".shape", op, traits);
    return operand;
  }

  void check_shape(const TracedOperand& operand, const std::string& field, const TracedOperator& op,
                   const KernelTraits& traits) const {
    const auto is = shape_text({operand.rows, operand.columns});
    if (std::uint64_t{operand.rows} * operand.columns > kMaxElements)
      fail(field, is + " makes more than 2^63-1 elements", "correct the shape");
    if (traits.shape != KernelShape::kMatrix) {
      if (operand.columns != op.columns) {
        fail(field, is + " has not the " + std::to_string(op.columns) + " columns of the operator",
             "correct the shape");
      }
      if (op.rows % operand.rows != 0) {
        fail(field,
             is + ": " + std::to_string(op.rows) + " rows of the operator are not a multiple of " +
                 std::to_string(operand.rows),
             "correct the shape; the rows of an operand repeat");
      }
      return;
    }
    // a, b; x, weight, bias. The products have been bounded with the operator.
    std::vector<std::uint64_t> want;
    if (operand.name == traits.operands[0]) {
      want = {std::uint64_t{op.batch} * op.rows, op.depth};
    } else if (operand.name == traits.operands[1]) {
      want = {std::uint64_t{op.batch} * op.columns, op.depth};
    } else {
      want = {1, op.columns};
    }
    if (want[0] != operand.rows || want[1] != operand.columns) {
      fail(field, "is " + is + " instead of " + shape_text(want),
           "correct the shape of the operand or of the operator");
    }
  }

  const Trace& trace_;
  std::string entry_;
  std::set<std::size_t> taken_;  // probes that have an operator
};

/// The number as a trace file has it, in both languages: whole if it is, else the shortest decimal
/// that is this binary32 number, as Python writes it.
std::string number_text(float value) {
  constexpr float kWhole = 0x1p63f;
  if (value == 0 && std::signbit(value)) return "-0.0";
  if (std::fabs(value) < kWhole && value == std::floor(value))
    return std::to_string(static_cast<std::int64_t>(value));
  std::array<char, 64> digits{};
  const auto print = [&](std::chars_format format) {
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, format).ptr;
    return std::string(digits.data(), end);
  };
  const std::string scientific = print(std::chars_format::scientific);
  const std::size_t e = scientific.find('e');
  if (e == std::string::npos) return scientific;  // Inf or NaN, no JSON: the reader says so
  const int exponent = std::stoi(scientific.substr(e + 1));
  return exponent < -4 || exponent >= 16 ? scientific : print(std::chars_format::fixed);
}

}  // namespace

std::vector<TracedOperator> parse_operators(const std::string& text, const Trace& trace) {
  return OperatorReader(trace).read(text);
}

std::string operators_text(const std::vector<TracedOperator>& operators,
                           const std::vector<Probe>& probes) {
  std::string text;
  for (const TracedOperator& op : operators) {
    const KernelTraits& traits = traits_of(op.kernel);
    json operands = json::object();
    for (const TracedOperand& operand : op.operands) {
      operands[operand.name]["shape"] = {operand.rows, operand.columns};
      if (operand.name != kMaskName) {
        operands[operand.name]["format"] =
            kFormatNames.at(static_cast<std::size_t>(operand.format));
      }
    }
    std::map<std::string_view, std::string> members = {
        {"probe", json(op.probe < probes.size() ? probes[op.probe].name : "").dump()},
        {"kernel", json(traits.name).dump()},
        {"rows", std::to_string(op.rows)},
        {"columns", std::to_string(op.columns)},
        {"operands", operands.dump()}};
    if (traits.shape == KernelShape::kMatrix || op.batch != 1 || op.depth != 0) {
      members["batch"] = std::to_string(op.batch);
      members["depth"] = std::to_string(op.depth);
    }
    if (!traits.attribute.empty()) members[traits.attribute] = number_text(op.attribute);
    std::string entry;
    for (const auto& [key, value] : members) {
      entry += (entry.empty() ? "{\"" : ",\"") + std::string(key) + "\":" + value;
    }
    text += (text.empty() ? "[" : ",") + entry + "}";
  }
  return text + "]";
}

}  // namespace opd::trace
