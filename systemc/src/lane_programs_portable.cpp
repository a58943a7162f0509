#include "lane_programs.hpp"
#include "opd/sc/kernels/table.hpp"

namespace opd::sc {

void run_portable(const Computation& computation, const UnitSettings& settings, Execution& result) {
  Execute unit(computation, settings, result);
  kPrograms[static_cast<std::size_t>(computation.kernel)].run(unit);
  unit.finish();
}

bool compresses(Kernel kernel) { return kPrograms[static_cast<std::size_t>(kernel)].compresses; }

}  // namespace opd::sc
