// The tile loop of each format as a kernel of its own, for scripts/sass.py to find in the machine code. Elements are reached
// as in summarise_chunks: by an address that is read from a table.
#include "opd/reference/segmented.hpp"

template <opd::Format kFormat>
__device__ void summarise(const opd::ref::Segment* segments, opd::TapSummary* partials,
                          const opd::ref::Chunk* chunks) {
  const opd::ref::Chunk chunk = chunks[blockIdx.x];
  const std::byte* elements =
      segments[chunk.segment].elements + chunk.first * opd::ref::layout_of(kFormat).bytes();
  partials[blockIdx.x * blockDim.x + threadIdx.x] =
      opd::ref::summarise_slice<kFormat>(elements, chunk.count, chunk.first, threadIdx.x, 256);
}

#define OPD_KERNEL(name, format)                                         \
  extern "C" __global__ void __launch_bounds__(256)                      \
      name(const opd::ref::Segment* segments, opd::TapSummary* partials, \
           const opd::ref::Chunk* chunks) {                              \
    summarise<opd::Format::format>(segments, partials, chunks);          \
  }
OPD_KERNEL(FP16, kFp16)
OPD_KERNEL(BF16, kBf16)
OPD_KERNEL(E4M3, kE4m3)
OPD_KERNEL(E5M2, kE5m2)
OPD_KERNEL(FP32, kFp32)
