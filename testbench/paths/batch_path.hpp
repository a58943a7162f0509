#pragma once
// A detection unit that takes completions in batches, as a path: the CUDA reference on a device, or emulated.
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "opd/reference/cuda.hpp"
#include "operators.hpp"
#include "paths/path_result.hpp"

namespace opd::tb {

/// The part of cuda::CudaReference that a path needs.
class BatchUnit {
 public:
  virtual ~BatchUnit() = default;
  virtual void announce_learning_rate(std::uint32_t step) = 0;
  virtual void submit(std::uint32_t first_seq, std::span<const cuda::Completion> completions) = 0;
  virtual std::vector<cuda::Result> fetch() = 0;
  [[nodiscard]] virtual std::uint32_t unseen_count() const = 0;
};

using MakeBatchUnit = std::function<std::unique_ptr<BatchUnit>(const DeviceParameters&,
                                                               const Config&, const cuda::Limits&)>;

/// As run_cpu, one batch per training step. on_progress: batches done, of how many.
[[nodiscard]] PathResult run_batches(
    const std::string& path, const OperatorStream& operators, const DeviceParameters& parameters,
    const Config& config, std::span<const std::size_t> order, const MakeBatchUnit& make_unit,
    const std::function<void(std::size_t, std::size_t)>& on_progress = {});

}  // namespace opd::tb
