#pragma once
// The emulated device, as translated kernels and the runtime see it: memory that knows what was written and by whom,
// threads that are fibers, barriers and warp operations that check who takes part.
//
//   order  : blocks one after another, the threads of a block one at a time, from one synchronisation to the next; in an
//            order drawn from a seed when asked
//   races  : two accesses of one place, one of them a write, by threads that no barrier of the block (bar.sync) or of the
//            warp (sync, shuffle, vote, redux) has ordered. Per place the last writer and the last reader are remembered: a
//            conflict with an earlier one can pass. Strong accesses (relaxed, release, cg) take no part.
//   faults : a fault names the kernel, the line of the PTX, block, thread and address and ends the process with
//            kFaultStatus: a launch that would be undefined on a device never gives a result
//   not    : ptxas, true concurrency, the weak memory order of a GPU, time
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace opd::ptx {

inline constexpr int kFaultStatus = 66;
inline constexpr unsigned kWarpSize = 32;
inline constexpr std::uint32_t kSharedLimit = 49152;  ///< static and dynamic, of a block

struct Block;

/// A thread of a launch, as its kernel sees it.
struct Thread {
  std::uint32_t tid = 0, ntid = 0, ctaid = 0, nctaid = 0;
  const std::byte* parameters = nullptr;
  std::uint32_t parameter_bytes = 0;
  Block* block = nullptr;

  std::uint32_t lane() const { return tid % kWarpSize; }
};

struct Parameter {
  std::uint32_t offset, bytes;
};

/// A translated kernel.
struct Kernel {
  const char* name;
  const char* source;  ///< the PTX file
  void (*run)(Thread&);
  std::vector<Parameter> parameters;
  std::uint32_t parameter_bytes, static_shared, max_threads;
  bool
      waits_for_blocks;  ///< it polls memory that other blocks write: its blocks start in order, as on a device
  unsigned target;  ///< compute capability of its PTX, times ten
};

/// Makes a translation unit's kernels known. Kernels of one name must be the same.
bool add_kernels(const Kernel* kernels, std::size_t count);
const Kernel* find_kernel(const std::string& name);
/// Compute capability of the device, times ten: that of the kernels made known, which must all be of one.
unsigned target();

/// How launches run; fixed while one runs.
struct Execution {
  bool shuffle = false;  ///< threads, warps and blocks in random order
  bool races =
      false;  ///< look for races in global memory (in shared memory they are always looked for)
  std::uint64_t seed = 1;
  unsigned mutant = 0;  ///< which planted fault of a translation is switched on; 0: none
};
Execution& execution();
inline unsigned mutant() { return execution().mutant; }

/// Runs a launch to its end. parameters: parameter_bytes of them. Faults where the launch is not one the device takes.
void run(const Kernel& kernel, std::uint32_t grid, std::uint32_t threads,
         std::uint32_t dynamic_shared, const std::vector<std::byte>& parameters);

// ---- Global memory: addresses of their own, which host code cannot touch.

/// nullptr when the device's memory (16 GiB of addresses) is used up. Aligned to 256 bytes, its content not written.
std::byte* allocate(std::size_t bytes);
/// False when `address` is no allocation.
bool release(void* address);
std::size_t allocations();
bool is_device_address(const void* address);
/// Copies between host and device or on the device. Faults: outside an allocation. What was never written can be copied,
/// and stays so.
void copy_memory(void* to, const void* from, std::size_t bytes);

// ---- What the translated instructions call. line: of the PTX.

enum class Space { kGlobal, kShared };

/// Checks an access and says where the bytes are. used: a bit per byte that a load needs (the others may be anything).
const std::byte* readable(Thread& thread, Space space, std::uint64_t address, unsigned bytes,
                          std::uint32_t used, bool strong, unsigned line);
std::byte* writable(Thread& thread, Space space, std::uint64_t address, unsigned bytes, bool strong,
                    unsigned line);

template <class T, unsigned kCount>
struct Vector {
  T x[kCount];
};

template <Space kSpace, class T, unsigned kCount>
Vector<T, kCount> load(Thread& thread, std::uint64_t address, std::uint32_t used, bool strong,
                       unsigned line) {
  Vector<T, kCount> vector;
  std::memcpy(&vector, readable(thread, kSpace, address, sizeof vector, used, strong, line),
              sizeof vector);
  return vector;
}
template <Space kSpace, class T, unsigned kCount>
void store(Thread& thread, std::uint64_t address, const Vector<T, kCount>& vector, bool strong,
           unsigned line) {
  std::memcpy(writable(thread, kSpace, address, sizeof vector, strong, line), &vector,
              sizeof vector);
}
/// A thread's own memory, at addresses of its own that are no global ones.
inline constexpr std::uint64_t kLocalAddress = 0x10000;
template <std::size_t kBytes>
struct Local {
  alignas(16) std::byte bytes[kBytes];
  bool written[kBytes] = {};
};

/// Checks an access to local memory and gives the place in it. written: of every byte; a store sets it.
std::size_t local_place(const Thread& thread, std::uint64_t address, unsigned bytes, bool* written,
                        std::size_t size, bool store, unsigned line);

template <class T, unsigned kCount, std::size_t kBytes>
Vector<T, kCount> load_local(const Thread& thread, Local<kBytes>& local, std::uint64_t address,
                             unsigned line) {
  Vector<T, kCount> vector;
  const std::size_t at =
      local_place(thread, address, sizeof vector, local.written, kBytes, false, line);
  std::memcpy(&vector, local.bytes + at, sizeof vector);
  return vector;
}
template <class T, unsigned kCount, std::size_t kBytes>
void store_local(const Thread& thread, Local<kBytes>& local, std::uint64_t address,
                 const Vector<T, kCount>& vector, unsigned line) {
  const std::size_t at =
      local_place(thread, address, sizeof vector, local.written, kBytes, true, line);
  std::memcpy(local.bytes + at, &vector, sizeof vector);
}

template <class T>
T parameter(const Thread& thread, unsigned offset) {
  T value;
  std::memcpy(&value, thread.parameters + offset, sizeof value);
  return value;
}
/// Where a kernel computes an address of a parameter: at addresses of their own too.
inline constexpr std::uint64_t kParameterAddress = 0x8000;
std::size_t parameter_place(const Thread& thread, std::uint64_t address, unsigned bytes,
                            unsigned line);
template <class T, unsigned kCount>
Vector<T, kCount> load_parameter(const Thread& thread, std::uint64_t address, unsigned line) {
  Vector<T, kCount> vector;
  std::memcpy(&vector, thread.parameters + parameter_place(thread, address, sizeof vector, line),
              sizeof vector);
  return vector;
}

enum class WarpOperation {
  kSync,
  kAdd,
  kMin,
  kMax,
  kMinSigned,
  kMaxSigned,
  kUp,
  kDown,
  kButterfly,
  kIndex,
  kAny,
  kAll,
  kBallot
};

/// bar.sync 0: every thread of the block must come.
void barrier(Thread& thread, unsigned line);
/// Waits for the lanes of `mask`, which must name the caller, and gives the caller's result.
std::uint32_t warp(Thread& thread, WarpOperation operation, std::uint32_t value, std::uint32_t b,
                   std::uint32_t c, std::uint32_t mask, unsigned line);
/// nanosleep: lets the other threads of the block go on.
void pause(Thread& thread, unsigned line);

/// Ends the process with kFaultStatus. thread: null outside a kernel.
[[noreturn]] void fault(const Thread* thread, unsigned line, const std::string& what);

/// Of integers: PTX leaves open what 0 gives.
template <class T>
T divisor(const Thread& thread, T value, unsigned line) {
  if (value == 0) fault(&thread, line, "division by 0");
  return value;
}

}  // namespace opd::ptx
