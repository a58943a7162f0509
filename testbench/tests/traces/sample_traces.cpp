#include "sample_traces.hpp"

#include <bit>
#include <limits>

#include "seed.hpp"

namespace opd::tb {
namespace {

using trace::layout_of;
using trace::Probe;
using trace::ProbeKind;
using trace::TraceContent;

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
  }
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
