// The operators for AVX2 with FMA and F16C. Everything that the target pragma must not reach is
// included before it.
#define OPD_LANES_ISA avx2
#define OPD_LANES_AVX2
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

#pragma GCC target("avx2,fma,f16c")
#include "run.hpp"

namespace opd::ref {

void run_avx2(Job& job) { lanes::run(job); }

}  // namespace opd::ref
