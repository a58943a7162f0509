#include "paths/batch_path.hpp"

#include <algorithm>
#include <chrono>
#include <optional>

#include "paths/cpu_path.hpp"

namespace opd::tb {

namespace {

using Clock = std::chrono::steady_clock;

/// One batch per training step, as a trainer would submit it.
struct Batch {
  std::uint32_t first_seq = 0;
  std::vector<std::uint32_t> learning_rate_changes;  ///< steps, announced before the batch
  std::vector<cuda::Completion> completions;
  std::vector<std::size_t> tags;
};

/// A dropped completion ends a batch, for its seq has no successor; so does a learning-rate change.
std::vector<Batch> batches_of(const OperatorStream& operators, std::span<const std::size_t> order) {
  std::vector<Batch> batches;
  const std::size_t count = order.empty() ? operators.size() : order.size();
  bool open = false;
  LearningRateSchedule schedule(operators);
  for (std::size_t seq = 0; seq < count; ++seq) {
    const std::size_t tag = order.empty() ? seq : order[seq];
    if (tag == kUnseen) {
      open = false;
      continue;
    }
    std::vector<std::uint32_t> changes;
    schedule.before(tag, [&](std::uint32_t step) { changes.push_back(step); });
    if (!changes.empty()) open = false;
    if (!open || batches.back().tags.size() == operators.probes()) {
      batches.push_back(
          {.first_seq = static_cast<std::uint32_t>(seq), .learning_rate_changes = changes});
      open = true;
    }
    const Operator op = operators.at(tag);
    batches.back().completions.push_back(
        {op.descriptor, op.elements, op.statistic.value_or(TapSummary{})});
    batches.back().tags.push_back(tag);
  }
  return batches;
}

/// Room for the largest batch; elements are staged in multiples of 16 bytes.
cuda::Limits limits_of(const std::vector<Batch>& batches) {
  cuda::Limits limits;
  for (const Batch& batch : batches) {
    std::size_t bytes = 0;
    for (const cuda::Completion& completion : batch.completions)
      bytes += (completion.elements.size() + 15) / 16 * 16;
    limits.completions = std::max(limits.completions, batch.completions.size());
    limits.element_bytes = std::max(limits.element_bytes, bytes);
    limits.staging_bytes = std::max(limits.staging_bytes, bytes);
  }
  return limits;
}

}  // namespace

PathResult run_batches(const std::string& path, const OperatorStream& operators,
                       const DeviceParameters& parameters, const Config& config,
                       std::span<const std::size_t> order, const MakeBatchUnit& make_unit,
                       const std::function<void(std::size_t, std::size_t)>& on_progress) {
  // The first batches run one by one: from submission to fetched records is the reaction. The rest
  // keep one batch in flight.
  constexpr std::size_t kOneByOne = 32;
  PathResult result{.path = path};
  const std::vector<Batch> batches = batches_of(operators, order);
  const std::unique_ptr<BatchUnit> unit = make_unit(parameters, config, limits_of(batches));
  const auto start = Clock::now();
  std::size_t fetched = 0;
  const auto fetch = [&](std::optional<Clock::time_point> submitted) {
    const Batch& batch = batches[fetched++];
    const std::vector<cuda::Result> results = unit->fetch();
    const auto now = Clock::now();
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!results[i].record) continue;
      const bool statistic = batch.completions[i].elements.empty();
      const TapSummary& summary = results[i].summary;
      if (submitted) {
        const double reaction_ns =
            std::chrono::duration<double, std::nano>(now - *submitted).count();
        (statistic ? result.statistic_reaction_ns : result.reaction_ns).push_back(reaction_ns);
      }
      result.bytes_read += batch.completions[i].elements.size();
      result.completions.push_back(
          {.tag = batch.tags[i],
           .from_beats = !statistic,
           .record = *results[i].record,
           .counts = {summary.element_count, summary.subnormal_count, summary.zero_count}});
    }
  };
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (on_progress) on_progress(i, batches.size());
    const auto submitted = Clock::now();
    for (const std::uint32_t step : batches[i].learning_rate_changes)
      unit->announce_learning_rate(step);
    unit->submit(batches[i].first_seq, batches[i].completions);
    if (i < kOneByOne) {
      fetch(submitted);
    } else if (i > kOneByOne) {
      fetch(std::nullopt);
    }
  }
  while (fetched < batches.size()) fetch(std::nullopt);
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  result.unseen_count = unit->unseen_count();
  return result;
}

}  // namespace opd::tb
