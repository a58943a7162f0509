#include "metrics.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "opd/reference/cpu.hpp"

namespace opd::tb {
namespace {

/// One sample of one operator, in the order of its execution.
struct Sample {
  std::uint32_t step;
  bool nonfinite;
  bool alarm;
  Mode mode;  ///< after it
  /// In force at issue, where that is not the mode after the sample before
  std::optional<Mode> mode_at_issue = std::nullopt;
};

Sample sample_of(const OpRecord& record, const Config& config) {
  return {record.step, record.nonfinite_count > 0, record.risk >= config.risk_stable,
          static_cast<Mode>(record.mode), std::nullopt};
}

/// The first non-finite sample of a history and the warning before it. An alarm stands while its
/// operator is not in FAST.
std::optional<Incident> first_incident(std::uint16_t op, std::span<const Sample> history) {
  const auto bad =
      std::find_if(history.begin(), history.end(), [](const Sample& s) { return s.nonfinite; });
  if (bad == history.end()) return std::nullopt;
  Incident incident{.op = op, .step = bad->step};
  Mode mode = Mode::kFast;
  std::uint32_t since = history.front().step;  // of a mode that is not FAST
  const auto change = [&](Mode now, std::uint32_t step) {
    if (now != Mode::kFast && mode == Mode::kFast) since = step;
    mode = now;
  };
  std::uint32_t last_step = since;
  for (auto sample = history.begin(); sample != bad; ++sample) {
    if (sample->mode_at_issue) change(*sample->mode_at_issue, last_step);
    last_step = sample->step;
    change(sample->mode, sample->step);
    if (sample->alarm && !incident.first_alarm && bad->step - sample->step <= kLeadWindow) {
      incident.first_alarm = sample->step;
    }
  }
  if (bad->mode_at_issue) change(*bad->mode_at_issue, last_step);
  incident.mode_before = mode;
  if (mode != Mode::kFast) incident.lead_steps = std::min(bad->step - since, kLeadWindow);
  return incident;
}

}  // namespace

DetectionQuality assess(const OperatorStream& operators, std::span<const Completion> completions,
                        const Config& config, bool commanded) {
  DetectionQuality quality;
  quality.probe_steps = completions.size();
  std::vector<std::vector<Sample>> history(operators.ops());
  std::vector<bool> gone_bad(operators.ops(), false);
  std::vector<std::uint16_t> order_of_failure;
  for (const Completion& completion : completions) {
    const OpRecord& r = completion.record;
    Sample sample = sample_of(r, config);
    if (commanded) sample.mode_at_issue = completion.mode_at_issue;
    history[r.op].push_back(sample);
    if (sample.nonfinite && !gone_bad[r.op]) {
      gone_bad[r.op] = true;
      order_of_failure.push_back(r.op);
    }
    if (sample.alarm && !gone_bad[r.op]) ++quality.alarms;
    if ((r.flags & kAlarmFlags) != 0) ++quality.flagged;
    for (std::size_t flag = 0; flag < kFlagNames.size(); ++flag)
      quality.flag_counts[flag] += r.flags >> flag & 1u;
    const auto cause = static_cast<Cause>(r.cause);
    if (static_cast<Mode>(r.mode) == Mode::kStable &&
        (cause == Cause::kRisk || cause == Cause::kNonfinite)) {
      ++quality.downshifts;
    }
  }
  for (const std::uint16_t op : order_of_failure) {
    if (auto incident = first_incident(op, history[op])) quality.incidents.push_back(*incident);
  }
  const trace::Trace& trace = operators.trace();
  for (const Incident& incident : quality.incidents) {
    // Accumulators are of their probe's kind, but not the operator that a trace names.
    const trace::Probe& probe = trace.probes()[operators.probe_of(incident.op)];
    const bool named = trace.first_bad() && trace.first_bad()->op == operators.name_of(incident.op);
    const bool forward = !trace.first_bad() && probe.kind == trace::ProbeKind::kActivation;
    if ((named || forward) && !quality.first) quality.first = incident;
  }
  if (!quality.first && !quality.incidents.empty()) quality.first = quality.incidents.front();
  return quality;
}

double ModeShares::outside_fast() const {
  const std::uint64_t all = std::accumulate(issued.begin(), issued.end(), std::uint64_t{0});
  return all == 0 ? 0.0 : static_cast<double>(all - issued[0]) / static_cast<double>(all);
}

ModeShares mode_shares(std::span<const Completion> completions) {
  ModeShares shares;
  std::set<std::uint16_t> gone_bad;
  for (const Completion& completion : completions) {
    const auto mode = static_cast<std::size_t>(completion.mode_at_issue);
    ++shares.issued[mode];
    if (completion.record.nonfinite_count > 0 && gone_bad.insert(completion.record.op).second)
      ++shares.incidents[mode];
  }
  return shares;
}

Config with_profile(Config config, std::size_t profile) {
  const bool published = kProfileNames[profile] == "published";
  for (const ProfileSetting& setting : kPublishedProfile) {
    for (const ConfigField& field : kConfigFields) {
      if (field.name == setting.field)
        field.set(config, published ? setting.value : field.get(Config{}));
    }
  }
  return config;
}

std::vector<EngineDetection> compare_engines(const OperatorStream& operators,
                                             std::span<const Completion> completions,
                                             std::optional<std::uint16_t> op,
                                             const DeviceParameters& parameters,
                                             const Config& config) {
  constexpr std::uint16_t kForecastFlags =
      flag_bit(Flag::kForecast) | flag_bit(Flag::kCritical) | flag_bit(Flag::kJump);
  constexpr std::uint16_t kPublishedFlags = flag_bit(Flag::kZ) | flag_bit(Flag::kD2);
  std::vector<EngineDetection> engines;
  if (parameters.forecast_engine)
    engines.push_back({.name = kProfileNames[0], .flag_mask = kForecastFlags});
  if (parameters.published_engine) {
    for (const Order order : {Order::kBefore, Order::kAfter})
      engines.push_back({.name = kProfileNames[1], .order = order, .flag_mask = kPublishedFlags});
  }
  for (EngineDetection& engine : engines) {
    const bool published = engine.flag_mask == kPublishedFlags;
    Config tried = with_profile(config, published ? 1 : 0);
    if (published) tried.published_order = static_cast<std::uint8_t>(engine.order);
    ref::CpuReference reference(parameters, tried);
    LearningRateSchedule schedule(operators);
    std::vector<Sample> history;  // of `op`
    std::vector<bool> gone_bad(operators.ops(), false);
    for (const Completion& completion : completions) {
      const OpRecord& seen = completion.record;
      schedule.before(completion.tag,
                      [&](std::uint32_t step) { reference.announce_learning_rate(step); });
      OpDescriptor descriptor = operators.descriptor(completion.tag);
      descriptor.format = static_cast<Format>(seen.format);
      const ref::Detection detection =
          *reference.complete(seen.seq, descriptor,
                              {.max_mag = seen.max_mag,
                               .element_count = completion.counts.element_count,
                               .nonfinite_count = seen.nonfinite_count,
                               .first_nonfinite = seen.first_nonfinite,
                               .saturated_count = seen.saturated_count,
                               .subnormal_count = completion.counts.subnormal_count,
                               .zero_count = completion.counts.zero_count});
      const OpRecord& record = detection.record;
      const Sample sample = sample_of(record, tried);
      ++engine.probe_steps;
      if (sample.nonfinite) gone_bad[record.op] = true;
      engine.alarms += sample.alarm && !gone_bad[record.op];
      engine.flagged += (record.flags & engine.flag_mask) != 0;
      engine.downshifts += detection.old_mode == Mode::kFast && sample.mode == Mode::kStable;
      if (record.op == op) history.push_back(sample);
      if (published && detection.score.scored &&
          (!engine.largest_z || detection.score.z() > engine.largest_z->z)) {
        engine.largest_z = {detection.score.z(), record.op, record.step};
      }
    }
    if (op) engine.incident = first_incident(*op, history);
  }
  return engines;
}

std::vector<SampledDetection> detect_sampled(const OperatorStream& operators,
                                             const Incident& incident,
                                             const DeviceParameters& parameters,
                                             const Config& config) {
  std::vector<SampledDetection> result;
  for (const unsigned every : {1u, 2u, 4u, 8u, 16u, 32u, 64u}) {
    ref::CpuReference reference(parameters, config);
    std::vector<Sample> history;  // of the incident's operator
    std::vector<bool> gone_bad(operators.probes(), false);
    std::uint64_t samples = 0, alarms = 0;
    LearningRateSchedule schedule(operators);
    for (std::size_t step = 0; step < operators.steps(); ++step) {
      schedule.before(step * operators.probes(),
                      [&](std::uint32_t s) { reference.announce_learning_rate(s); });
      for (std::size_t probe = 0; probe < operators.probes(); ++probe) {
        const Operator op = operators.at(step * operators.probes() + probe);
        const bool is_incident = probe == incident.op && op.descriptor.step == incident.step;
        if (step % every != 0 && !is_incident) continue;
        const OpRecord record = reference
                                    .complete(static_cast<std::uint32_t>(samples++), op.descriptor,
                                              operators.trace().statistic(step, probe))
                                    ->record;
        const Sample sample = sample_of(record, config);
        if (sample.nonfinite) gone_bad[probe] = true;
        alarms += sample.alarm && !gone_bad[probe];
        if (probe == incident.op) history.push_back(sample);
      }
    }
    const auto found = first_incident(incident.op, history);
    result.push_back({every, found ? found->lead_steps : 0,
                      1000.0 * static_cast<double>(alarms) / static_cast<double>(samples)});
  }
  return result;
}

std::optional<Spread> spread_of(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const auto at = [&](double quantile) {
    return values[static_cast<std::size_t>(quantile * static_cast<double>(values.size() - 1))];
  };
  return Spread{values.front(), at(0.5), at(0.99), values.back()};
}

}  // namespace opd::tb
