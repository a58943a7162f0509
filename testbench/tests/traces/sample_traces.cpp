#include "sample_traces.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "seed.hpp"

namespace opd::tb {
namespace {

using trace::layout_of;
using trace::Probe;
using trace::ProbeKind;
using trace::TraceContent;
using trace::TracedOperand;
using trace::TracedOperator;

std::size_t index(std::mt19937_64& rng, std::size_t count) {
  return static_cast<std::size_t>(draw(rng, 0, static_cast<std::int64_t>(count) - 1));
}

/// Any float in [0, largest].
float magnitude(std::mt19937_64& rng, float largest) {
  const auto top = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(largest));
  return std::bit_cast<float>(static_cast<std::uint32_t>(draw(rng, 0, top)));
}

template <typename T, typename Make>
std::vector<T> fill(std::size_t count, Make make) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = make(i);
  return values;
}

template <typename T>
void append(std::vector<T>& values, std::optional<T> value) {
  if (value) values.push_back(*value);
}
void append(std::vector<std::int64_t>& values, std::optional<std::uint64_t> value) {
  if (value) values.push_back(static_cast<std::int64_t>(*value));
}

}  // namespace

TraceContent sample_trace() {
  TraceContent c;
  c.name = "sample-1.0_a";
  c.label = trace::Label::kSudden;
  c.first_bad = trace::FirstBad{7, "layer.0/out"};
  c.model = "two-layer MLP";
  c.framework = "none";
  c.seed = "42";
  c.manifest = R"({"arguments":["--lr","0.1"],"versions":{"opd":"0.1.0"}})";
  c.probes = {{"layer.0/out", ProbeKind::kActivation, Format::kFp16, {2, 3}, 6},
              {"layer.0/weight", ProbeKind::kWeight, Format::kBf16, {4}, 4},
              {"layer.0/grad", ProbeKind::kGradient, Format::kE4m3, {3}, 3},
              {"adam \"v\" \xC3\xA9", ProbeKind::kOptimizer, Format::kE5m2, {5}, 5},
              {"loss", ProbeKind::kCollective, Format::kFp32, {}, 1}};
  c.step = {0, 1, 7, 4294967295};
  c.max_abs = {1.0f, 2.0f,   3.0f,   4.0f,     5.0f, 65504.0f, 3e38f, 448.0f, 57344.0f, 3.4e38f,
               0.0f, 1e-40f, 0.001f, 0.00002f, 0.0f, 1.5f,     2.5f,  3.5f,   4.5f,     5.5f};
  c.nonfinite = {0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 6, 0, 3, 5, 1, 0, 4, 0, 0, 0};
  c.saturated = {0, 0, 0, 0, 0, 2, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  c.subnormal = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0};
  c.zero = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0};
  c.min_abs = fill<float>(20, [&](std::size_t i) { return c.max_abs[i] / 2; });
  c.mean = fill<float>(20, [&](std::size_t i) { return -c.max_abs[i] / 4; });
  c.var = fill<float>(20, [&](std::size_t i) { return c.max_abs[i] * 2; });  // 6.8e38 is Inf
  c.loss = {2.5f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
            -1.0f};
  c.grad_norm = {1.0f, 2.0f, -std::numeric_limits<float>::infinity(), 4.0f};
  c.lr = {0.0f, 1e-3f, 2e-3f, -1.0f};
  c.loss_scale = {65536.0f, 1.0f, 0.75f, 1e-45f};
  c.raw_step = {1, 4294967295};
  for (std::size_t p = 0; p < c.probes.size(); ++p) {
    if (p == 1) continue;  // a probe without raw rows
    const std::size_t bytes = 2 * c.probes[p].elements * layout_of(c.probes[p].format).bytes;
    c.raw[c.probes[p].name] =
        fill<std::byte>(bytes, [&](std::size_t i) { return static_cast<std::byte>(16 * p + i); });
  }
  return c;
}

TraceContent operand_trace() {
  TraceContent c;
  c.name = "operands";
  c.framework = "none";
  // Four rows are two positions of two heads; `row` sums over seven columns, and has only shapes.
  c.probes = {{"attn.qk", ProbeKind::kActivation, Format::kFp16, {2, 2, 3}, 12},
              {"norm", ProbeKind::kActivation, Format::kFp16, {4, 3}, 12},
              {"attn/softmax", ProbeKind::kActivation, Format::kBf16, {2, 2, 3}, 12},
              {"row", ProbeKind::kActivation, Format::kFp32, {4}, 4},
              {"residual", ProbeKind::kActivation, Format::kE5m2, {4, 3}, 12}};
  c.step = {3, 4, 9};
  c.max_abs = std::vector<float>(15, 1.0f);
  c.nonfinite = std::vector<std::int64_t>(15, 0);
  c.operators = {{.probe = 2,
                  .kernel = Kernel::kSoftmax,
                  .rows = 4,
                  .columns = 3,
                  .attribute = 0.125f,
                  .operands = {{"x", Format::kFp16, 4, 3}, {"mask", Format::kFp16, 2, 3}}},
                 {.probe = 0,
                  .kernel = Kernel::kMatmul,
                  .batch = 2,
                  .rows = 2,
                  .columns = 3,
                  .depth = 4,
                  .attribute = 1.0f,
                  .operands = {{"a", Format::kFp16, 4, 4}, {"b", Format::kFp16, 6, 4}}},
                 {.probe = 1,
                  .kernel = Kernel::kLayerNorm,
                  .rows = 4,
                  .columns = 3,
                  .attribute = 1e-6f,
                  .operands = {{"x", Format::kFp16, 4, 3},
                               {"gain", Format::kFp32, 1, 3},
                               {"bias", Format::kBf16, 1, 3}}},
                 {.probe = 3,
                  .kernel = Kernel::kVariance,
                  .rows = 4,
                  .columns = 7,
                  .attribute = 1.0f,
                  .operands = {{"x", Format::kE4m3, 4, 7}}}};
  c.operand_step = {4, 9};
  const auto halves = [](std::initializer_list<std::uint16_t> values) {
    std::vector<std::byte> bytes(2 * values.size());
    std::memcpy(bytes.data(), values.begin(), bytes.size());
    return bytes;
  };
  // 1, 2, 3, ... in binary16, by step; the second step has an Inf.
  const auto counting = [&](std::size_t count) {
    std::vector<std::byte> bytes(2 * count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<std::uint16_t>(0x3C00 + 0x40 * i);
      std::memcpy(bytes.data() + 2 * i, &value, 2);
    }
    bytes.back() = std::byte{0x7C};
    bytes[bytes.size() - 2] = std::byte{0};
    return bytes;
  };
  c.operands["attn.qk"] = {{"a", counting(32)}, {"b", counting(48)}};
  std::vector<std::byte> gain(2 * 3 * 4);
  for (std::size_t i = 0; i < 6; ++i) {
    const float value = 0.5f * static_cast<float>(i + 1);
    std::memcpy(gain.data() + 4 * i, &value, 4);
  }
  c.operands["norm"] = {{"x", counting(24)},
                        {"gain", gain},
                        {"bias", halves({0x3F80, 0x4000, 0xBF80, 0, 0x8000, 0x7F80})}};
  c.operands["attn/softmax"] = {
      {"x", counting(24)},
      {"mask", fill<std::byte>(12, [](std::size_t i) { return std::byte{i % 3 != 2}; })}};
  c.outputs["attn.qk"] = counting(24);
  c.outputs["attn/softmax"] = counting(24);
  return c;
}

namespace {

/// An operator of one of the probes, with whatever shape its kernel takes; the probe's shape follows.
TracedOperator random_operator(std::mt19937_64& rng, Probe& probe) {
  TracedOperator op;
  op.kernel = kKernels[index(rng, kKernels.size())].kernel;
  const KernelTraits& traits = traits_of(op.kernel);
  const auto extent = [&](std::size_t largest) {
    return static_cast<std::uint32_t>(1 + index(rng, largest));
  };
  const auto format = [&] { return static_cast<Format>(index(rng, kFormatNames.size())); };
  op.rows = 2 * extent(3);
  op.columns = extent(5);
  if (traits.shape == KernelShape::kMatrix) {
    op.depth = extent(4);
    if (op.kernel == Kernel::kMatmul) op.batch = extent(3);
  }
  if (traits.attribute == "correction") {
    op.attribute = static_cast<float>(index(rng, 3));
  } else if (!traits.attribute.empty()) {
    op.attribute = magnitude(rng, std::numeric_limits<float>::max());
    if (traits.attribute == "factor" && index(rng, 2) == 0) op.attribute = -op.attribute;
  }
  for (std::size_t i = 0; i < kMaxOperands && !traits.operands[i].empty(); ++i) {
    if (i >= traits.required && index(rng, 2) == 0) continue;
    TracedOperand operand{std::string(traits.operands[i]), format(), op.rows, op.columns};
    if (operand.name == "mask") operand.format = Format::kFp16;
    if (traits.shape != KernelShape::kMatrix) {
      if (index(rng, 2) == 0) operand.rows = index(rng, 2) == 0 ? 1 : op.rows / 2;
    } else if (i == 2) {
      operand.rows = 1;
    } else {
      operand.rows = op.batch * (i == 0 ? op.rows : op.columns);
      operand.columns = op.depth;
    }
    op.operands.push_back(operand);
  }
  probe.shape = {op.batch, op.rows};
  if (traits.shape != KernelShape::kRowReduction) probe.shape.push_back(op.columns);
  probe.elements = op.batch * op.rows * (probe.shape.size() == 3 ? op.columns : 1);
  return op;
}

/// Operands of some steps, and outputs of some operators; there may be none of either.
void fill_operands(TraceContent& c, std::mt19937_64& rng) {
  for (const std::int64_t step : c.step) {
    if (index(rng, 2) == 0) c.operand_step.push_back(step);
  }
  const auto any_byte = [&](std::size_t) { return static_cast<std::byte>(rng()); };
  for (const TracedOperator& op : c.operators) {
    if (c.operand_step.empty() || index(rng, 3) == 0) continue;
    const Probe& probe = c.probes[op.probe];
    for (const TracedOperand& operand : op.operands) {
      const std::size_t elements = c.operand_step.size() * operand.rows * operand.columns;
      c.operands[probe.name][operand.name] =
          operand.name == "mask"
              ? fill<std::byte>(elements, [&](std::size_t) { return std::byte(rng() & 1); })
              : fill<std::byte>(elements * layout_of(operand.format).bytes, any_byte);
    }
    if (index(rng, 2) == 0) {
      c.outputs[probe.name] = fill<std::byte>(
          c.operand_step.size() * probe.elements * layout_of(probe.format).bytes, any_byte);
    }
  }
  if (c.operands.empty()) c.operand_step.clear();
}

}  // namespace

TraceContent random_trace(std::mt19937_64& rng) {
  TraceContent c;
  const auto maybe = [&] { return draw(rng, 0, 1) == 1; };
  c.name = "random_" + std::to_string(draw(rng, 0, 999));
  c.label = static_cast<trace::Label>(index(rng, trace::kLabelNames.size()));
  c.model = maybe() ? "line\nbreak \"quoted\" \x01 \xE2\x82\xAC" : "";
  c.probes.resize(1 + index(rng, 5));
  for (std::size_t p = 0; p < c.probes.size(); ++p) {
    Probe& probe = c.probes[p];
    probe.name = "p" + std::to_string(p) + std::string(index(rng, 4), '/');
    probe.kind = static_cast<ProbeKind>(index(rng, trace::kProbeKindNames.size()));
    probe.format = static_cast<Format>(index(rng, kFormatNames.size()));
    probe.elements = 1;
    for (std::size_t axis = index(rng, 4); axis > 0; --axis) {
      probe.shape.push_back(1 + index(rng, 5));
      probe.elements *= probe.shape.back();
    }
    if (index(rng, 4) == 0) {
      c.operators.push_back(random_operator(rng, probe));
      c.operators.back().probe = p;
    }
  }
  std::shuffle(c.operators.begin(), c.operators.end(), rng);
  const std::size_t steps = 1 + index(rng, 6);
  const std::size_t ops = c.probes.size();
  std::int64_t next = 0;
  c.step = fill<std::int64_t>(steps, [&](std::size_t) { return next += draw(rng, 1, 700000000); });

  const auto count = [&](std::size_t i) {
    return draw(rng, 0, 2) == 0
               ? draw(rng, 0, static_cast<std::int64_t>(c.probes[i % ops].elements))
               : 0;
  };
  const auto value = [&](std::size_t i) {
    return magnitude(rng, layout_of(c.probes[i % ops].format).max_value);
  };
  const auto any = [&](std::size_t) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(rng()));
  };
  const auto finite = [&](std::size_t) {
    return magnitude(rng, std::numeric_limits<float>::max()) * (maybe() ? 1.0f : -1.0f);
  };
  c.max_abs = fill<float>(steps * ops, value);
  c.nonfinite = fill<std::int64_t>(steps * ops, count);
  for (auto* counts : {&c.saturated, &c.subnormal, &c.zero}) {
    if (maybe()) *counts = fill<std::int64_t>(steps * ops, count);
  }
  if (maybe()) c.min_abs = fill<float>(steps * ops, value);
  if (maybe()) c.mean = fill<float>(steps * ops, finite);
  if (maybe()) c.var = fill<float>(steps * ops, value);
  if (maybe()) c.loss = fill<float>(steps, any);
  if (maybe()) c.grad_norm = fill<float>(steps, any);
  if (maybe()) c.lr = fill<float>(steps, finite);
  if (maybe()) {
    c.loss_scale =
        fill<float>(steps, [&](std::size_t) { return std::max(magnitude(rng, 1e30f), 1e-30f); });
  }

  for (const std::int64_t step : c.step) {
    if (maybe()) c.raw_step.push_back(step);
  }
  for (const Probe& probe : c.probes) {
    const std::size_t bytes = c.raw_step.size() * probe.elements * layout_of(probe.format).bytes;
    if (bytes > 0 && maybe()) {
      c.raw[probe.name] =
          fill<std::byte>(bytes, [&](std::size_t) { return static_cast<std::byte>(rng()); });
    }
  }
  if (c.raw.empty()) c.raw_step.clear();
  fill_operands(c, rng);

  for (std::size_t i = 0; i < steps * ops && !c.first_bad; ++i) {
    if (c.nonfinite[i] > 0 && c.probes[i % ops].kind == ProbeKind::kActivation) {
      c.first_bad =
          trace::FirstBad{static_cast<std::uint32_t>(c.step[i / ops]), c.probes[i % ops].name};
    }
  }
  return c;
}

TraceContent content_of(const trace::Trace& t) {
  TraceContent c;
  c.name = t.name();
  c.label = t.label();
  c.first_bad = t.first_bad();
  c.model = t.model();
  c.framework = t.framework();
  c.seed = t.seed();
  c.manifest = t.manifest();
  c.probes.assign(t.probes().begin(), t.probes().end());
  c.step.assign(t.steps().begin(), t.steps().end());
  for (std::size_t s = 0; s < t.steps().size(); ++s) {
    for (std::size_t p = 0; p < t.probes().size(); ++p) {
      c.max_abs.push_back(t.max_abs(s, p));
      append(c.nonfinite, std::optional(t.nonfinite(s, p)));
      append(c.saturated, t.saturated(s, p));
      append(c.subnormal, t.subnormal(s, p));
      append(c.zero, t.zero(s, p));
      append(c.min_abs, t.min_abs(s, p));
      append(c.mean, t.mean(s, p));
      append(c.var, t.var(s, p));
      const auto row = t.raw(p, s);
      if (row.empty()) continue;
      if (c.raw_step.empty() || c.raw_step.back() != t.steps()[s])
        c.raw_step.push_back(t.steps()[s]);
      auto& rows = c.raw[t.probes()[p].name];
      rows.insert(rows.end(), row.begin(), row.end());
    }
  }
  c.operators = t.operators();
  c.operand_step = t.operand_steps();
  for (trace::TracedOperator& op : c.operators) {
    op.has_elements = false;  // not a member of the content
    const std::string& name = c.probes[op.probe].name;
    const auto& names = traits_of(op.kernel).operands;
    for (std::size_t s = 0; s < t.steps().size(); ++s) {
      const auto computation = t.computation(op.probe, s);
      for (std::size_t i = 0; computation && i < kMaxOperands; ++i) {
        if (!computation->has(i)) continue;
        const auto row = computation->operand(i).elements;
        auto& rows = c.operands[name][std::string(names[i])];
        rows.insert(rows.end(), row.begin(), row.end());
      }
      const auto output = t.computed_output(op.probe, s);
      if (!output.empty())
        c.outputs[name].insert(c.outputs[name].end(), output.begin(), output.end());
    }
  }
  c.loss.assign(t.loss().begin(), t.loss().end());
  c.grad_norm.assign(t.grad_norm().begin(), t.grad_norm().end());
  c.lr.assign(t.lr().begin(), t.lr().end());
  c.loss_scale.assign(t.loss_scale().begin(), t.loss_scale().end());
  return c;
}

std::string header_of(std::span<const std::byte> bytes) {
  const auto length = trace::load<std::uint64_t>(bytes, 0);
  return {reinterpret_cast<const char*>(bytes.data()) + 8, length};
}

std::vector<std::byte> with_header(std::span<const std::byte> bytes, std::string_view header) {
  const auto old_length = trace::load<std::uint64_t>(bytes, 0);
  const std::uint64_t length = header.size();
  std::vector<std::byte> result(8 + length + bytes.size() - 8 - old_length);
  const auto rest = bytes.subspan(8 + old_length);
  std::memcpy(result.data(), &length, 8);
  std::copy(header.begin(), header.end(), reinterpret_cast<char*>(result.data()) + 8);
  std::copy(rest.begin(), rest.end(), result.begin() + 8 + static_cast<std::ptrdiff_t>(length));
  return result;
}

}  // namespace opd::tb
