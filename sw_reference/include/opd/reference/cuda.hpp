#pragma once
// Software reference on a CUDA device: the functors of the CPU reference, batches of completions,
// detector state that stays on the device.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "opd/reference/detector.hpp"
#include "opd/types/device.hpp"

struct CUstream_st;  // cudaStream_t is CUstream_st*, cudaEvent_t CUevent_st*: this header needs no
struct CUevent_st;   // CUDA toolkit

namespace opd::cuda {

/// True when a CUDA device can be used; otherwise `reason` (if given) says why not. Never throws.
bool device_available(std::string* reason = nullptr);

/// Where the elements of a batch lie.
enum class Memory { kHost, kDevice };

/// One completion of a batch. Its summary is that of `elements` and `statistic` together; the
/// default of either is empty, so a ready statistic has no elements and a tensor has no statistic.
struct Completion {
  OpDescriptor descriptor;
  /// Packed, little endian; on the device a multiple of the element size
  std::span<const std::byte> elements;
  TapSummary statistic;
};

/// What became of one completion.
struct Result {
  std::optional<OpRecord>
      record;          ///< none for an illegal completion (op >= num_ops, unknown format)
  TapSummary summary;  ///< clamped to counter_width; default for an illegal completion
};

/// Sizes that are allocated once, by the constructor.
struct Limits {
  std::size_t completions = 65536;         ///< per batch, >= 1
  std::size_t element_bytes = 1073741824;  ///< per batch, host and device elements
  std::size_t staging_bytes = 67108864;    ///< pinned: host elements, each rounded up to 16 bytes
  unsigned in_flight = 2;                  ///< batches submitted and not yet fetched, >= 1
};

/// A batch in pinned memory whose work can be enqueued any number of times, in a CUDA graph too: what
/// changes from time to time is written into it by CudaReference::renew.
class PreparedBatch {
 public:
  ~PreparedBatch();
  PreparedBatch(PreparedBatch&&) noexcept;
  PreparedBatch& operator=(PreparedBatch&&) noexcept;

 private:
  friend class CudaReference;
  struct State;
  explicit PreparedBatch(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Detection unit of all operators on the current CUDA device.
///
/// `submit` copies its arguments to pinned memory, enqueues everything on one stream of its own and
/// returns; only `fetch` and `states` wait. `prepare`, `renew` and `enqueue` are the same in parts,
/// for CUDA graphs.
/// Errors: std::runtime_error naming the CUDA call, everywhere. An error that the runtime still keeps
///         when the constructor or submit begins was reported to somebody before: it is cleared. A
///         batch whose submit failed is not in flight and uses none of its arguments any more; the
///         batches before it can be fetched. The states are those before it, and it can be submitted
///         again, unless it failed after its detectors had begun: then they are lost, and submit and
///         states say so from then on (std::runtime_error).
class CudaReference {
 public:
  /// Errors: std::invalid_argument for parameters, configuration or limits out of range.
  explicit CudaReference(const DeviceParameters& parameters = {}, const Config& config = {},
                         const Limits& limits = {});
  ~CudaReference();
  CudaReference(CudaReference&&) noexcept;
  CudaReference& operator=(CudaReference&&) noexcept;

  /// The learning rate changes with this training step: for the batches submitted from now on.
  void announce_learning_rate(std::uint32_t step);

  /// Enqueues completions first_seq, first_seq + 1, ... Illegal ones use up their seq and count as
  /// unseen. Device elements must be complete, or produced on stream(), or complete when the event
  /// `ready` has happened, and stay valid until the batch is fetched. ready: a cudaEvent_t that was
  /// recorded before the call, waited for on the device; null: none.
  /// Errors: std::invalid_argument when a limit is exceeded, a size is no multiple of the element
  ///         size or a device address is not aligned to it; std::logic_error when in_flight batches
  ///         wait to be fetched.
  void submit(std::uint32_t first_seq, std::span<const Completion> completions,
              Memory memory = Memory::kHost, CUevent_st* ready = nullptr);

  /// Waits for the oldest batch in flight and returns one result per completion, in the order
  /// submitted. After a CUDA error the batch stays in flight.
  /// Errors: std::logic_error when no batch is in flight.
  std::vector<Result> fetch();

  /// Plans a batch and allocates its pinned memory; enqueues nothing. Arguments as in submit, but
  /// there is one completion at least and all are legal. The learning rate is the one announced by
  /// now.
  /// Errors: std::invalid_argument as in submit.
  PreparedBatch prepare(std::uint32_t first_seq, std::span<const Completion> completions,
                        Memory memory = Memory::kHost) const;

  /// Plans another batch into the memory of one, whose work has ended: seq, steps, values, addresses
  /// and formats may be others, its shape may not. The shape is the number of completions, of
  /// operators among them, of chunks of 256 KiB, and the bytes of host elements, each completion's
  /// rounded up to 16. Calls nothing of the CUDA runtime.
  /// Errors: as prepare, and std::invalid_argument naming both shapes where they differ; then the
  ///         batch is as it was.
  void renew(PreparedBatch& batch, std::uint32_t first_seq, std::span<const Completion> completions,
             Memory memory = Memory::kHost) const;

  /// Puts the work of a batch on a stream (null: stream()): a copy, three kernels, a copy. It
  /// allocates nothing, waits for nothing, and every address it names stays, so that the stream may be
  /// capturing: the graph does at each launch what the batch then holds. Batches must run one
  /// after the other, whichever streams they are on, and a batch must neither be renewed nor
  /// destroyed before its work has ended; a graph must not be launched after the batch or this
  /// object is gone.
  /// Errors: as submit for CUDA errors. In a capture nothing has run, and no state is lost.
  void enqueue(const PreparedBatch& batch, CUstream_st* stream = nullptr);

  /// Results of the work that was enqueued last, once the caller has waited for it; as fetch.
  std::vector<Result> results(const PreparedBatch& batch) const;

  /// State of every operator after the last batch, indexed by op id. Waits for stream().
  std::vector<ref::OpState> states() const;

  /// Illegal completions submitted so far, saturating.
  std::uint32_t unseen_count() const;

  /// The stream that all work runs on.
  CUstream_st* stream() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace opd::cuda
