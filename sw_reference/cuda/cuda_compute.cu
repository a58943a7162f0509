// The operators of opd/reference/compute/ in CUDA kernels, on the lane type float.
//
//   memory : operands of rows and matrices as binary32 in device memory
//   sync   : every call waits for its result
#include <cuda_runtime.h>

#include <vector>

#include "../compute/plan.hpp"
#include "opd/reference/compute/operators.hpp"
#include "opd/reference/cuda_compute.hpp"
#include "resources.hpp"

namespace opd::cuda {
namespace {

using ref::lanes::Writes;

constexpr unsigned kBlockThreads = 128;

/// Zeroed device memory; of no elements, null.
template <class T>
DeviceArray<T> zeroed_array(std::size_t count) {
  if (count == 0) return nullptr;
  DeviceArray<T> array = device_array<T>(count);
  check(cudaMemset(array.get(), 0, count * sizeof(T)), "cudaMemset");
  return array;
}

struct DeviceOperand {
  const std::byte* elements;  ///< null: absent
  float* values;              ///< binary32, divided by 2^shift; not of a mask
  std::uint64_t count;
  Format format;
  std::uint32_t rows;
  int shift;
};

/// What a kernel gets, by value.
struct Launch {
  DeviceOperand operand[kMaxOperands];
  std::uint32_t rows, columns, depth;
  std::uint64_t outputs, threads;
  unsigned lanes;
  float attribute;
  bool masked, saturating;
  Format format;
  float* results;  ///< binary32; rows have kRowPadding more
  std::byte* output;
  Writes* writes;  ///< of every thread
};

__device__ std::uint64_t thread_index() {
  return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

__global__ void decode_operand(DeviceOperand operand) {
  const std::uint64_t k = thread_index();
  if (k >= operand.count) return;
  const std::uint64_t bytes = ref::layout_of(operand.format).bytes();
  ref::lanes::decode_row<float>(operand.format, operand.elements + k * bytes, 1,
                                operand.values + k);
  operand.values[k] = ref::lanes::scaled_by(operand.values[k], -operand.shift);
}

__device__ void cast_to_output(const Launch& launch, std::uint64_t k, const float* values,
                               std::uint64_t count) {
  const std::uint64_t bytes = ref::layout_of(launch.format).bytes();
  ref::lanes::encode_row<float>(launch.format, launch.saturating, values, count,
                                launch.output + k * bytes);
}

template <class Op>
__global__ void elementwise(Launch launch) {
  const std::uint64_t k = thread_index();
  if (k >= launch.threads) return;
  const std::uint64_t row = k / launch.columns, column = k % launch.columns;
  float value[kMaxOperands] = {};
  for (unsigned i = 0; i < kMaxOperands; ++i) {
    const DeviceOperand& operand = launch.operand[i];
    if (operand.elements != nullptr) {
      value[i] = operand.values[row % operand.rows * launch.columns + column];
    }
  }
  const float result = Op::apply(value[0], value[1], value[2], launch.attribute);
  cast_to_output(launch, k, &result, 1);
}

template <class Op, AccumulatorFormat kA>
__global__ void rows(Launch launch) {
  const std::uint64_t r = thread_index();
  if (r >= launch.threads) return;
  const auto row_of = [&](unsigned i) -> const float* {
    const DeviceOperand& operand = launch.operand[i];
    if (operand.elements == nullptr) return nullptr;
    return operand.values + r % operand.rows * launch.columns;
  };
  const DeviceOperand& mask = launch.operand[1];
  const bool masked = launch.masked && mask.elements != nullptr;
  const bool reduction = launch.outputs == launch.threads;
  ref::lanes::Rows<float> row;
  row.x = row_of(0);
  row.second = launch.masked ? nullptr : row_of(1);
  row.third = row_of(2);
  row.mask =
      masked ? reinterpret_cast<const std::uint8_t*>(mask.elements) + r % mask.rows * launch.columns
             : nullptr;
  row.result = launch.results + r * (std::uint64_t{launch.columns} + ref::lanes::kRowPadding);
  row.scratch = row.result;
  row.columns = launch.columns;
  row.lanes = launch.lanes;
  row.attribute = launch.attribute;
  row.shift = launch.operand[0].shift;
  ref::lanes::Watch<kA, float> watch;
  Op::template rows<kA, float, 1>(row, watch);
  launch.writes[r] = watch.writes;
  cast_to_output(launch, r * (launch.outputs / launch.threads), row.result,
                 reduction ? 1 : launch.columns);
}

template <class Op, AccumulatorFormat kA>
__global__ void outputs(Launch launch) {
  const std::uint64_t k = thread_index();
  if (k >= launch.threads) return;
  const std::uint64_t row = k / launch.columns, column = k % launch.columns;
  const std::uint64_t batch = row / launch.rows;
  const DeviceOperand& a = launch.operand[0];
  const DeviceOperand& b = launch.operand[1];
  const float* bias = launch.operand[2].elements == nullptr ? nullptr : launch.operand[2].values;
  ref::lanes::Watch<kA, float> watch;
  const auto sum = ref::lanes::dot<kA>(a.values + row * launch.depth,
                                       b.values + (batch * launch.columns + column) * launch.depth,
                                       launch.depth, watch);
  const float result = Op::write_back(ref::lanes::expanded<kA>(sum, a.shift + b.shift),
                                      bias == nullptr ? nullptr : bias + column, launch.attribute);
  launch.writes[k] = watch.writes;
  cast_to_output(launch, k, &result, 1);
}

unsigned blocks_of(std::uint64_t threads) {
  return static_cast<unsigned>((threads + kBlockThreads - 1) / kBlockThreads);
}

/// Starts an operator, by the shape of its kernel.
template <class Op>
struct StartOf {
  static void start(const Launch& launch, AccumulatorFormat accumulator) {
    constexpr KernelShape kShape = traits_of(Op::kKernel).shape;
    const unsigned blocks = blocks_of(launch.threads);
    if constexpr (kShape == KernelShape::kElementwise) {
      elementwise<Op><<<blocks, kBlockThreads>>>(launch);
    } else {
      ref::lanes::with_accumulator(accumulator, [&]<AccumulatorFormat kA>() {
        if constexpr (kShape == KernelShape::kMatrix) {
          outputs<Op, kA><<<blocks, kBlockThreads>>>(launch);
        } else {
          rows<Op, kA><<<blocks, kBlockThreads>>>(launch);
        }
      });
    }
  }
  static constexpr auto kValue = &start;
};

}  // namespace

Execution compute(const Computation& c, Mode mode, const UnitSettings& settings) {
  const ref::Plan plan = ref::plan_of(c, mode, settings);
  Execution execution;
  execution.status = plan.status;
  execution.cost = plan.cost;
  const KernelTraits& traits = traits_of(c.kernel);
  const bool masked = traits.operands[1] == "mask";
  const std::size_t element = ref::layout_of(plan.status.format).bytes();

  Launch launch{};
  launch.rows = c.rows;
  launch.columns = c.columns;
  launch.depth = c.depth;
  launch.outputs = c.output_elements();
  const bool by_row =
      traits.shape == KernelShape::kRow || traits.shape == KernelShape::kRowReduction;
  launch.threads = by_row ? c.rows : launch.outputs;
  launch.lanes = plan.lanes;
  launch.attribute = c.attribute;
  launch.masked = masked;
  launch.saturating = plan.status.saturating;
  launch.format = plan.status.format;

  std::vector<DeviceArray<std::byte>> elements;
  std::vector<DeviceArray<float>> values;
  for (std::size_t i = 0; i < kMaxOperands; ++i) {
    if (!c.has(i)) continue;
    const Operand& operand = c.operands[i];
    const auto& bytes = elements.emplace_back(zeroed_array<std::byte>(operand.elements.size()));
    check(cudaMemcpy(bytes.get(), operand.elements.data(), operand.elements.size(),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy(operand)");
    DeviceOperand& target = launch.operand[i];
    target = {bytes.get(),    nullptr,      std::uint64_t{operand.rows} * operand.columns,
              operand.format, operand.rows, plan.shift[i]};
    if (i == 1 && masked) continue;
    target.values =
        values.emplace_back(zeroed_array<float>(target.count + ref::lanes::kRowPadding)).get();
    decode_operand<<<blocks_of(target.count), kBlockThreads>>>(target);
    check(cudaGetLastError(), "decode_operand");
  }
  const auto output = zeroed_array<std::byte>(launch.outputs * element);
  const auto writes = zeroed_array<Writes>(launch.threads);
  const auto results =
      zeroed_array<float>(by_row ? c.rows * (std::size_t{c.columns} + ref::lanes::kRowPadding) : 0);
  launch.output = output.get();
  launch.writes = writes.get();
  launch.results = results.get();

  static constexpr auto kStart =
      ref::lanes::table_of<StartOf, void (*)(const Launch&, AccumulatorFormat)>(
          ref::lanes::kOperatorIndices);
  kStart[static_cast<std::size_t>(c.kernel)](launch, plan.status.accumulator);
  check(cudaGetLastError(), "compute");

  execution.output.resize(launch.outputs * element);
  check(cudaMemcpy(execution.output.data(), output.get(), execution.output.size(),
                   cudaMemcpyDeviceToHost),
        "cudaMemcpy(output)");
  if (plan.status.accumulates) {
    std::vector<Writes> all(launch.threads);
    check(cudaMemcpy(all.data(), writes.get(), all.size() * sizeof(Writes), cudaMemcpyDeviceToHost),
          "cudaMemcpy(writes)");
    ref::JobWrites total;
    for (const Writes& one : all) ref::add(total, one.largest, one.count, one.nonfinite);
    ref::report(execution, total);
  }
  return execution;
}

}  // namespace opd::cuda
