#include "paths/cuda_emulated_path.hpp"

#include <dlfcn.h>

#include <stdexcept>

#include "paths/batch_path.hpp"

namespace opd::tb {
namespace {

using Make = BatchUnit* (*)(const DeviceParameters&, const Config&, const cuda::Limits&);

/// The library's function; null, with the reason, where there is none.
Make load(std::string* reason) {
#ifdef OPD_EMULATED_LIBRARY
  void* const library = dlopen(OPD_EMULATED_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  void* const function = library == nullptr ? nullptr : dlsym(library, "opd_make_emulated_unit");
  if (function == nullptr) *reason = dlerror();
  return reinterpret_cast<Make>(function);
#else
  *reason = "built without it: " OPD_EMULATED_REASON;
  return nullptr;
#endif
}

}  // namespace

bool cuda_emulated_available(std::string* reason) { return load(reason) != nullptr; }

PathResult run_cuda_emulated(const OperatorStream& operators, const DeviceParameters& parameters,
                             const Config& config, std::span<const std::size_t> order,
                             const std::function<void(std::size_t, std::size_t)>& on_progress) {
  std::string reason;
  const Make make = load(&reason);
  if (make == nullptr) throw std::runtime_error(std::string(kCudaEmulated) + ": " + reason);
  PathResult result = run_batches(
      kCudaEmulated, operators, parameters, config, order,
      [make](const auto&... arguments) { return std::unique_ptr<BatchUnit>(make(arguments...)); },
      on_progress);
  result.reaction_ns.clear();  // times of the emulation are none of the path
  result.statistic_reaction_ns.clear();
  return result;
}

}  // namespace opd::tb
