#pragma once
// cuda::CudaReference as a BatchUnit, for whoever links one.
#include "paths/batch_path.hpp"

namespace opd::tb {

class CudaUnit final : public BatchUnit {
 public:
  CudaUnit(const DeviceParameters& parameters, const Config& config, const cuda::Limits& limits)
      : reference_(parameters, config, limits) {}
  void announce_learning_rate(std::uint32_t step) override {
    reference_.announce_learning_rate(step);
  }
  void submit(std::uint32_t first_seq, std::span<const cuda::Completion> completions) override {
    reference_.submit(first_seq, completions);
  }
  std::vector<cuda::Result> fetch() override { return reference_.fetch(); }
  [[nodiscard]] std::uint32_t unseen_count() const override { return reference_.unseen_count(); }

 private:
  cuda::CudaReference reference_;
};

}  // namespace opd::tb
