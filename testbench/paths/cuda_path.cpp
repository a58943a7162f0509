#include "paths/cuda_path.hpp"

#include <algorithm>
#include <chrono>

#include "opd/reference/cuda.hpp"
#include "paths/cpu_path.hpp"

namespace opd::tb {

bool cuda_available(std::string* reason) { return cuda::device_available(reason); }

PathResult run_cuda(const OperatorStream& operators, const DeviceParameters& parameters, const Config& config,
                    std::span<const std::size_t> order) {
  using Clock = std::chrono::steady_clock;
  PathResult result{.path = "cuda"};
  cuda::CudaReference reference(parameters, config);
  const std::size_t count = order.empty() ? operators.size() : order.size();
  // One batch per training step, as a trainer would submit it; a dropped completion ends a batch, for its seq has no successor.
  std::vector<cuda::Completion> batch;
  std::vector<std::size_t> tags;
  std::uint32_t first_seq = 0;
  const auto run_batch = [&] {
    if (batch.empty()) return;
    const auto start = Clock::now();
    reference.submit(first_seq, batch);
    const std::vector<cuda::Result> results = reference.fetch();
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    result.seconds += elapsed;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!results[i].record) continue;
      const TapSummary& summary = results[i].summary;
      result.reaction_ns.push_back(elapsed * 1e9);  // a decision is there when its batch is
      result.bytes_read += batch[i].elements.size();
      result.completions.push_back({.tag = tags[i],
                                    .from_beats = !batch[i].elements.empty(),
                                    .record = *results[i].record,
                                    .counts = {summary.element_count, summary.subnormal_count, summary.zero_count}});
    }
    batch.clear();
    tags.clear();
  };
  for (std::size_t seq = 0; seq < count; ++seq) {
    const std::size_t tag = order.empty() ? seq : order[seq];
    if (tag == kUnseen || batch.size() == operators.probes()) run_batch();
    if (tag == kUnseen) continue;
    if (batch.empty()) first_seq = static_cast<std::uint32_t>(seq);
    const Operator op = operators.at(tag);
    batch.push_back({op.descriptor, op.elements, op.statistic.value_or(TapSummary{})});
    tags.push_back(tag);
  }
  run_batch();
  result.unseen_count = reference.unseen_count();
  return result;
}

}  // namespace opd::tb
