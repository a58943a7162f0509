#pragma once
// The tap on the vector unit's write-back bus: two pipeline stages, no back-pressure.
//
//   stage 1 : classifies the lanes of the sampled beat and reduces them to one ElementStatistics
//   stage 2 : folds that into the registers of the beat's stream; a last beat makes the completion
//
//   latency    : a beat sampled at edge n is folded at edge n + 1
//   throughput : one beat per clock, of any stream
//   no lane    : a beat without enabled lanes changes no counter, but its lanes keep their indices
//   invalid    : a beat of a stream that does not exist is ignored
//   source     : docs/numerics.md "Tap", docs/architecture.md "Timing contract"
#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "opd/sc/element_statistics.hpp"
#include "opd/sc/format.hpp"
#include "opd/types/device.hpp"

namespace opd::sc {

class Tap {
 public:
  explicit Tap(const DeviceParameters& parameters)
      : beat_bytes_(parameters.datapath_width / 8),
        counter_limit_(parameters.counter_width),
        streams_(parameters.num_streams) {}

  void reset() {
    stage1_.reset();
    streams_.assign(streams_.size(), StreamRegisters{});
  }

  /// True when the coming edge folds a last beat. A function of registers.
  bool completes() const { return stage1_ && stage1_->last; }

  /// No beat is between the stages. A function of registers.
  bool empty() const { return !stage1_; }

  /// Stage 2, at an edge: returns the completion if there is one. Call it before sample(), which
  /// overwrites the register between the stages.
  std::optional<Statistic> fold() {
    if (!stage1_) return std::nullopt;
    const Stage1& in = *stage1_;
    StreamRegisters& stream = streams_[in.stream];
    stream.add(in.lanes, in.element_slots);
    if (!in.last) return std::nullopt;
    const Statistic completion{in.descriptor, counter_limit_.clamp(stream.statistics)};
    stream = {};
    return completion;
  }

  /// Stage 1, at an edge: `beat` is null when beat_valid is 0.
  void sample(const Beat* beat) {
    if (beat == nullptr || beat->stream >= streams_.size()) {
      stage1_.reset();
      return;
    }
    const Format format = beat->descriptor.format;
    const std::size_t element_slots =
        is_format(format) ? beat_bytes_ / properties(format).element_bytes() : 0;
    stage1_.emplace(Stage1{
        .descriptor = beat->descriptor,
        .stream = beat->stream,
        .last = beat->last,
        .element_slots = element_slots,
        .lanes = beat_statistics(format, reinterpret_cast<const std::byte*>(beat->data.data()),
                                 element_slots, beat->lane_enable)});
  }

 private:
  struct Stage1 {
    OpDescriptor descriptor;
    std::uint8_t stream;
    bool last;
    std::size_t element_slots;  ///< elements per beat, enabled or not
    ElementStatistics lanes;    ///< first_nonfinite is a lane number
  };

  /// The max-abs register of one stream and its counters. 64 bits do not overflow in a simulation,
  /// so they are clamped to counter_width once, at the completion: the same value as counters that
  /// stop.
  struct StreamRegisters {
    ElementStatistics statistics;
    std::uint64_t first_index = 0;  ///< element index of lane 0 of the next beat

    void add(const ElementStatistics& lanes, std::size_t element_slots) {
      statistics.max_mag = std::max(statistics.max_mag, lanes.max_mag);
      statistics.element_count += lanes.element_count;
      if (lanes.nonfinite_count > 0 && statistics.nonfinite_count == 0) {
        statistics.first_nonfinite = first_index + lanes.first_nonfinite;
      }
      statistics.nonfinite_count += lanes.nonfinite_count;
      statistics.saturated_count += lanes.saturated_count;
      statistics.subnormal_count += lanes.subnormal_count;
      statistics.zero_count += lanes.zero_count;
      first_index += element_slots;
    }
  };

  std::size_t beat_bytes_;
  CounterLimit counter_limit_;
  std::optional<Stage1> stage1_;
  std::vector<StreamRegisters> streams_;
};

}  // namespace opd::sc
