// The same programs for AVX2, FMA and F16C. Only what is declared between the pragmas is compiled
// for them: templates of the standard library that are shared with other files are not.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <vector>

#include "lane_programs.hpp"
#include "opd/sc/format.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define OPD_LANES avx2
#define OPD_LANES_AVX2  // the pragma does not define __F16C__ in time
#include "opd/sc/kernels/table.hpp"

namespace opd::sc {

void run_avx2(const Computation& computation, const UnitSettings& settings, Execution& result) {
  Execute unit(computation, settings, result);
  kPrograms[static_cast<std::size_t>(computation.kernel)].run(unit);
  unit.finish();
}

}  // namespace opd::sc
#pragma GCC pop_options

#else

namespace opd::sc {

void run_avx2(const Computation& computation, const UnitSettings& settings, Execution& result) {
  run_portable(computation, settings, result);
}

}  // namespace opd::sc
#endif
