// The operators for AVX-512 (F, BW, DQ, VL) besides AVX2, FMA and F16C. Everything that the target pragma must not reach is
// included before it.
#define OPD_LANES_ISA avx512
#define OPD_LANES_AVX2
#define OPD_LANES_AVX512
#include <immintrin.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "job.hpp"
#include "opd/reference/compute/isa.hpp"
#include "opd/reference/compute/program.hpp"

#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#include "run.hpp"

namespace opd::ref {

/// Eight accumulators fill no vector of sixteen lanes.
void run_avx512(Job& job) { job.plan.lanes == 8 ? run_avx2(job) : lanes::run(job); }

}  // namespace opd::ref
