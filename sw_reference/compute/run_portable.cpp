// The operators for any x86-64.
#include "run.hpp"

namespace opd::ref {

void run_portable(Job& job) { lanes::run(job); }

}  // namespace opd::ref
