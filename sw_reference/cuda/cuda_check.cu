// opd_cuda_check [--batches N] [--compare-only] [--seed N]: the CUDA reference against the CPU
// reference, and its bandwidth.
//
//   checks    : random batches of all formats with repeated, illegal and empty completions,
//               elements in host and in device memory and ready statistics; records, summaries and
//               final states must be equal. The same batches through the Thrust pipeline on the
//               device.
//               Every kernel of the vector unit on random bits, in every mode and format.
//   bandwidth : bytes summarised per second, beside a device-to-device copy of the same buffer
//               (read + write); not with --compare-only
//   exit code : 0 equal, 1 a mismatch or a CUDA error, 2 bad argument, 77 SKIPPED: no device
#include <cuda_runtime.h>
#include <thrust/device_vector.h>
#include <thrust/system/cuda/execution_policy.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "opd/reference/compute.hpp"
#include "opd/reference/cpu.hpp"
#include "opd/reference/cuda.hpp"
#include "opd/reference/cuda_compute.hpp"
#include "opd/reference/segmented.hpp"

namespace {

using opd::Format;
using opd::cuda::Completion;
using opd::cuda::CudaReference;
using opd::cuda::Memory;

constexpr int kSkipped = 77;
constexpr unsigned kBatches = 60;  // of each comparison, where --batches says nothing else
constexpr std::size_t kBatchCompletions = 400;
constexpr std::size_t kElementPool = std::size_t{4}
                                     << 20;  // bytes that completions take their elements from
constexpr std::size_t kBandwidthBytes = std::size_t{1} << 30;
constexpr int kRepeats = 5;
// Batches in flight: planning one on the host hides behind the one before on the device.
constexpr unsigned kPerRepeat = 8;

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
  }
}

std::size_t below(std::mt19937_64& rng, std::size_t bound) { return rng() % bound; }

/// Random bits with stretches of zeros and of moderate values, so that whole tiles stay below the
/// limit.
std::vector<std::byte> random_elements(std::mt19937_64& rng) {
  std::vector<std::byte> bytes(kElementPool);
  for (std::size_t begin = 0; begin < bytes.size();) {
    const std::size_t end = std::min(bytes.size(), begin + 1 + below(rng, 8192));
    const unsigned kind = static_cast<unsigned>(below(rng, 4));
    for (std::size_t k = begin; k < end; ++k) {
      const auto bits = static_cast<unsigned char>(rng() >> 56);
      bytes[k] = std::byte{static_cast<unsigned char>(kind == 0   ? bits
                                                      : kind == 1 ? 0
                                                                  : bits & 0xBF)};
    }
    begin = end;
  }
  return bytes;
}

/// A batch whose elements lie in the pool at `pool`, which may be a device address.
std::vector<Completion> random_batch(std::mt19937_64& rng, const std::byte* pool, unsigned num_ops,
                                     unsigned batch) {
  std::vector<Completion> completions(kBatchCompletions);
  for (Completion& completion : completions) {
    completion.descriptor = {
        .op = static_cast<std::uint16_t>(below(rng, num_ops + 2)),  // two are illegal
        .format = static_cast<Format>(below(rng, 40) == 0 ? 5 + below(rng, 250) : below(rng, 5)),
        .step = batch * 3 + static_cast<std::uint32_t>(below(rng, 3)),
        .scale_log2 = static_cast<std::int8_t>(below(rng, 2) == 0 ? 0 : below(rng, 256))};
    if (below(rng, 4) == 0) {
      completion.statistic = {
          .max_mag = static_cast<std::uint32_t>(rng()),
          .element_count = static_cast<std::uint32_t>(rng()),
          .nonfinite_count = static_cast<std::uint32_t>(below(rng, 4) == 0 ? rng() : 0),
          .first_nonfinite = opd::kNoElement,
          .saturated_count = static_cast<std::uint32_t>(below(rng, 4) == 0 ? rng() : 0),
          .subnormal_count = static_cast<std::uint32_t>(rng()),
          .zero_count = static_cast<std::uint32_t>(rng())};
      if (completion.statistic.nonfinite_count > 0)
        completion.statistic.first_nonfinite = static_cast<std::uint32_t>(rng());
      continue;
    }
    const std::size_t size = opd::ref::is_known(completion.descriptor.format)
                                 ? opd::ref::layout_of(completion.descriptor.format).bytes()
                                 : 1;
    const std::size_t most =
        below(rng, 20) == 0 ? std::size_t{600} << 10 : 5000;  // some span several chunks
    const std::size_t bytes = below(rng, most) / size * size;
    completion.elements = {pool + below(rng, (kElementPool - bytes) / size) * size, bytes};
  }
  return completions;
}

/// The same batch through the Thrust pipeline on the device, its state in `states`. Elements are on
/// the device.
void thrust_batch(std::uint32_t first_seq, const std::vector<Completion>& completions,
                  const opd::DeviceParameters& parameters, const opd::ref::DetectorSetup& setup,
                  thrust::device_vector<opd::ref::OpState>& states,
                  std::vector<opd::cuda::Result>& results) {
  std::vector<opd::ref::Segment> legal;
  for (std::size_t k = 0; k < completions.size(); ++k) {
    const Completion& completion = completions[k];
    const opd::OpDescriptor& descriptor = completion.descriptor;
    if (descriptor.op >= parameters.num_ops || !opd::ref::is_known(descriptor.format)) continue;
    legal.push_back(
        {.descriptor = descriptor,
         .seq = first_seq + static_cast<std::uint32_t>(k),
         .elements = completion.elements.data(),
         .count = completion.elements.size() / opd::ref::layout_of(descriptor.format).bytes(),
         .statistic = completion.statistic});
  }
  const opd::ref::BatchPlan plan = opd::ref::make_plan(std::move(legal), 4096);
  const thrust::device_vector<opd::ref::Segment> segments(plan.segments.begin(),
                                                          plan.segments.end());
  const thrust::device_vector<opd::ref::Chunk> chunks(plan.chunks.begin(), plan.chunks.end());
  const thrust::device_vector<std::uint32_t> op_begin(plan.op_begin.begin(), plan.op_begin.end());
  thrust::device_vector<opd::TapSummary> summaries(plan.segments.size());
  thrust::device_vector<opd::OpRecord> records(plan.segments.size());
  const thrust::device_vector<opd::ref::DetectorSetup> device_setup(1, setup);
  opd::ref::summarise_segments(thrust::cuda::par, chunks.data().get(), chunks.size(),
                               segments.data().get(), parameters.counter_width,
                               summaries.data().get());
  opd::ref::advance_ops(
      thrust::cuda::par,
      opd::ref::AdvanceOp{segments.data().get(), summaries.data().get(), op_begin.data().get(),
                          states.data().get(), records.data().get(), device_setup.data().get(),
                          parameters.counter_width},
      plan.op_begin.size() - 1);
  results.assign(completions.size(), {});
  std::vector<opd::TapSummary> host_summaries(summaries.size());
  std::vector<opd::OpRecord> host_records(records.size());
  thrust::copy(summaries.begin(), summaries.end(), host_summaries.begin());
  thrust::copy(records.begin(), records.end(), host_records.begin());
  for (std::size_t s = 0; s < host_records.size(); ++s) {
    results[host_records[s].seq - first_seq] = {host_records[s], host_summaries[s]};
  }
}

struct Tally {
  std::size_t compared = 0;
  std::size_t different = 0;

  void compare(bool equal, const char* what, std::uint32_t seq) {
    ++compared;
    if (!equal && ++different <= 10) std::printf("MISMATCH %s at seq %u\n", what, seq);
  }
};

/// Random batches through CUDA and CPU; every completion is compared. The published engine scores
/// in either order, soon enough for the few samples of an operator in a batch.
Tally compare_batches(std::uint64_t seed, unsigned batch_count, unsigned counter_width,
                      opd::Order order) {
  const unsigned announced = batch_count / 3;  // with its first step the learning rate changes
  std::mt19937_64 rng(seed);
  const opd::DeviceParameters parameters{.num_ops = 37, .counter_width = counter_width};
  opd::Config config;
  config.published_order = static_cast<std::uint8_t>(order);
  config.published_min_samples = 8;
  config.z_threshold = 2;
  config.weight_z = 64;
  opd::ref::DetectorSetup setup;
  setup.config = config;
  CudaReference device(parameters, config, {.completions = kBatchCompletions, .in_flight = 3});
  opd::ref::CpuReference host(parameters, config);
  thrust::device_vector<opd::ref::OpState> thrust_states(parameters.num_ops, opd::ref::OpState{});

  const std::vector<std::byte> pool = random_elements(rng);
  const thrust::device_vector<std::byte> device_pool(pool.begin(), pool.end());
  const std::byte* device_base = device_pool.data().get();
  std::vector<std::vector<Completion>>
      batches;  // as the device sees them: elements at device addresses
  Tally tally;
  std::uint32_t fetched_seq = 0;
  std::size_t fetched = 0;
  const auto to_host = [&](Completion completion) {
    if (!completion.elements.empty()) {
      completion.elements = {pool.data() + (completion.elements.data() - device_base),
                             completion.elements.size()};
    }
    return completion;
  };
  const auto fetch_one = [&] {
    if (fetched == announced) {
      host.announce_learning_rate(announced * 3);
      setup.learning_rate_change = {true, announced * 3};
    }
    const std::vector<Completion>& batch = batches[fetched++];
    const std::vector<opd::cuda::Result> results = device.fetch();
    std::vector<opd::cuda::Result> thrust_results;
    thrust_batch(fetched_seq, batch, parameters, setup, thrust_states, thrust_results);
    for (std::size_t k = 0; k < batch.size(); ++k) {
      const Completion completion = to_host(batch[k]);
      const std::uint32_t seq = fetched_seq + static_cast<std::uint32_t>(k);
      opd::TapSummary summary;
      if (opd::ref::is_known(completion.descriptor.format)) {
        const opd::TapSummary elements =
            opd::ref::summarise(completion.descriptor.format, completion.elements, counter_width);
        summary = opd::ref::combine(opd::ref::sideband_summary(completion.descriptor.format,
                                                               completion.statistic, counter_width),
                                    elements, counter_width);
      }
      const std::optional<opd::ref::Detection> detection =
          host.complete(seq, completion.descriptor, summary);
      const auto is_detection = [&](const std::optional<opd::OpRecord>& record) {
        return record.has_value() == detection.has_value() &&
               (!record || *record == detection->record);
      };
      if (!detection) summary = {};
      tally.compare(is_detection(results[k].record), "record", seq);
      tally.compare(results[k].summary == summary, "summary", seq);
      tally.compare(is_detection(thrust_results[k].record), "Thrust record", seq);
      tally.compare(thrust_results[k].summary == summary, "Thrust summary", seq);
    }
    fetched_seq += static_cast<std::uint32_t>(batch.size());
  };
  for (unsigned batch = 0; batch < batch_count; ++batch) {
    batches.push_back(random_batch(rng, device_base, parameters.num_ops, batch));
    if (batch == announced) device.announce_learning_rate(announced * 3);
    const auto first_seq = static_cast<std::uint32_t>(batch * kBatchCompletions);
    if (batch % 2 == 0) {
      device.submit(first_seq, batches.back(), Memory::kDevice);
    } else {
      std::vector<Completion> host_batch(batches.back().size());
      std::transform(batches.back().begin(), batches.back().end(), host_batch.begin(), to_host);
      device.submit(first_seq, host_batch, Memory::kHost);
    }
    if (batch >= 2) fetch_one();  // two batches stay in flight
  }
  while (fetched < batches.size()) fetch_one();

  const std::vector<opd::ref::OpState> states = device.states();
  for (std::size_t op = 0; op < states.size(); ++op) {
    const opd::ref::OpState& expected = host.states()[op];
    tally.compare(states[op] == expected, "state of op", static_cast<std::uint32_t>(op));
    // Bit by bit: the numbers above compare +0 with -0 as equal.
    tally.compare(std::memcmp(&states[op].published, &expected.published, 4 * sizeof(float)) == 0,
                  "binary32 state of op", static_cast<std::uint32_t>(op));
  }
  tally.compare(device.unseen_count() == host.unseen_count(), "unseen_count", fetched_seq);
  return tally;
}

/// One execution of every kernel in every format, mode and accumulator, all operands there.
Tally compare_computations(std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  Tally tally;
  for (const opd::KernelTraits& traits : opd::kKernels) {
    const bool matrix = traits.shape == opd::KernelShape::kMatrix;
    for (unsigned code = 0; code < opd::kFormatNames.size(); ++code) {
      const auto format = static_cast<Format>(code);
      opd::Computation computation{.kernel = traits.kernel,
                                   .format = format,
                                   .rows = 7,
                                   .columns = 70,
                                   .depth = matrix ? 33u : 0u,
                                   .attribute = static_cast<float>(traits.attribute_default)};
      const std::size_t element = opd::ref::layout_of(format).bytes();
      std::vector<std::byte> bytes[opd::kMaxOperands];
      for (std::size_t i = 0; i < opd::kMaxOperands; ++i) {
        if (traits.operands[i].empty()) continue;
        std::uint32_t rows = i == 0 ? computation.rows : 1 + static_cast<std::uint32_t>(rng() % 7);
        if (matrix) rows = i == 0 ? computation.rows : i == 1 ? computation.columns : 1;
        const std::uint32_t columns = matrix && i < 2 ? computation.depth : computation.columns;
        bytes[i].resize(std::size_t{rows} * columns * (traits.operands[i] == "mask" ? 1 : element));
        // Half of the operands stay clear of the largest exponents.
        const std::uint64_t keep = rng() % 2 == 0 ? 0xFF : 0xBF;
        for (std::byte& byte : bytes[i]) byte = static_cast<std::byte>(rng() & keep);
        computation.operands[i] = {bytes[i], format, rows, columns};
      }
      for (unsigned choice = 0; choice < 3; ++choice) {
        const opd::UnitSettings settings{
            .datapath_width = choice == 1 ? 96u : 512u,
            .saturate = choice == 2,
            .accumulator = static_cast<opd::AccumulatorChoice>(choice)};
        for (const opd::Mode mode : {opd::Mode::kFast, opd::Mode::kStable, opd::Mode::kSafe}) {
          ++tally.compared;
          if (opd::cuda::compute(computation, mode, settings) ==
              opd::ref::compute(computation, mode, settings)) {
            continue;
          }
          if (tally.different++ == 0) {
            std::printf("%s, %s, mode %s: not the CPU's result\n", traits.name.data(),
                        opd::kFormatNames[code].data(),
                        opd::kModeNames[static_cast<std::size_t>(mode)].data());
          }
        }
      }
    }
  }
  return tally;
}

/// Best of kRepeats: seconds per batch of kPerRepeat that `enqueue` puts on the stream.
template <class Enqueue, class Wait>
double best_seconds(cudaStream_t stream, Enqueue enqueue, Wait wait) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  double best = 1e9;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    for (unsigned k = 0; k < kPerRepeat; ++k) enqueue();
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    for (unsigned k = 0; k < kPerRepeat; ++k) wait();
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    best = std::min(best, milliseconds * 1e-3 / kPerRepeat);
  }
  check(cudaEventDestroy(begin), "cudaEventDestroy");
  check(cudaEventDestroy(end), "cudaEventDestroy");
  return best;
}

void print_bandwidth(std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  // Finite values of every format, as a healthy tensor has: the second-highest bit of every byte is
  // clear.
  std::vector<std::uint64_t> words(kBandwidthBytes / 8);
  for (std::uint64_t& word : words) word = rng() & 0xBFBFBFBFBFBFBFBFull;
  const thrust::device_vector<std::uint64_t> elements(words.begin(), words.end());
  thrust::device_vector<std::uint64_t> copy(words.size());
  const auto* base = reinterpret_cast<const std::byte*>(elements.data().get());

  CudaReference device({}, {},
                       {.completions = 64,
                        .element_bytes = kBandwidthBytes,
                        .staging_bytes = 0,
                        .in_flight = kPerRepeat});
  const double copied = best_seconds(
      device.stream(),
      [&] {
        check(cudaMemcpyAsync(copy.data().get(), base, kBandwidthBytes, cudaMemcpyDeviceToDevice,
                              device.stream()),
              "cudaMemcpyAsync");
      },
      [] {});
  const double copy_rate = 2e-9 * kBandwidthBytes / copied;
  std::printf("copy           %8.1f GB/s (read + write)\n", copy_rate);
  std::uint32_t seq = 0;
  for (unsigned format = 0; format < opd::kFormatNames.size(); ++format) {
    for (const std::size_t parts : {std::size_t{1}, std::size_t{64}}) {
      std::vector<Completion> batch(parts);
      const std::size_t part = kBandwidthBytes / parts;
      for (std::size_t k = 0; k < parts; ++k) {
        batch[k].descriptor = {.op = static_cast<std::uint16_t>(k),
                               .format = static_cast<Format>(format)};
        batch[k].elements = {base + k * part, part};
      }
      const double seconds = best_seconds(
          device.stream(), [&] { device.submit(seq++ * 64, batch, Memory::kDevice); },
          [&] { static_cast<void>(device.fetch()); });
      const double rate = 1e-9 * kBandwidthBytes / seconds;
      std::printf("%-5s x %2zu ops  %8.1f GB/s  %.2f of copy\n", opd::kFormatNames[format].data(),
                  parts, rate, rate / copy_rate);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seed = 20240607, batches = kBatches;
  bool compare_only = false;
  for (int k = 1; k < argc; ++k) {
    const std::string argument = argv[k];
    if (argument == "--compare-only") {
      compare_only = true;
      continue;
    }
    std::uint64_t* value = argument == "--seed"      ? &seed
                           : argument == "--batches" ? &batches
                                                     : nullptr;
    char* end = nullptr;
    if (value != nullptr && k + 1 < argc) *value = std::strtoull(argv[++k], &end, 0);
    if (end == nullptr || end == argv[k] || *end != '\0' || batches < 3 || batches > 100000) {
      std::fprintf(stderr,
                   "usage: opd_cuda_check [--batches N] [--compare-only] [--seed N], N an unsigned "
                   "integer, decimal or 0x hex; 3 to 100000 batches\n");
      return 2;
    }
  }
  std::string reason;
  if (!opd::cuda::device_available(&reason)) {
    std::printf("SKIPPED: %s\n", reason.c_str());
    return kSkipped;
  }
  try {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    std::printf("device %s, sm_%d%d, seed %llu\n", properties.name, properties.major,
                properties.minor, static_cast<unsigned long long>(seed));
    Tally total;
    for (const unsigned counter_width : {32u, 12u}) {
      const Tally tally =
          compare_batches(seed + counter_width, static_cast<unsigned>(batches), counter_width,
                          counter_width == 32 ? opd::Order::kBefore : opd::Order::kAfter);
      total.compared += tally.compared;
      total.different += tally.different;
    }
    const Tally computations = compare_computations(seed);
    total.compared += computations.compared;
    total.different += computations.different;
    std::printf("%zu comparisons, %zu different\n", total.compared, total.different);
    if (!compare_only) print_bandwidth(seed);
    return total.different == 0 && total.compared > 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "opd_cuda_check: %s\n", error.what());
    return 1;
  }
}
