#pragma once
// The CUDA runtime of the emulated device (device.hpp), linked in place of libcudart: what a test can set and see of it.
//
// Programs that know nothing of it are set by the environment variable OPD_EMULATED_CUDA: a list, by commas, of
//   order=eager|lazy|random   when work on a stream runs: at once, as late as the API allows, at any call
//   seed=N                    of every random order
//   shuffle                   threads, warps and blocks in random order
//   races                     look for races in global memory too
//
//   source : NVIDIA, CUDA Runtime API 13: stream order, what each call waits for, the last error
//   strict : cudaFree and cudaFreeHost wait for nothing, and pinned memory starts with A5 in every byte: work that still
//            uses what was freed, and results read too early, are faults or wrong values
//   not    : time (cudaEventElapsedTime gives cudaErrorNotSupported), streams that wait for the default one, more than one
//            device, grids and blocks of more than one dimension
#include <cstdint>
#include <functional>
#include <string>

namespace opd::ptx {

enum class Order { kEager, kLazy, kRandom };

struct RuntimeSettings {
  Order order = Order::kEager;
  std::uint64_t seed = 1;
  bool shuffle = false;
  bool races = false;
};

/// Settings of a list as above. Errors: std::invalid_argument naming the entry.
RuntimeSettings parse_settings(const std::string& list);
/// From now on. Work that waits on a stream runs in the new order.
void configure(const RuntimeSettings& settings);

/// Calls that can fail, since the process started. Registration, last errors and error texts cannot.
std::uint64_t calls();
/// The n-th call from now (1: the next) does nothing and gives `error` (a cudaError_t); later ones succeed. 0: none.
void fail_call(std::uint64_t n, int error);
/// Before the n-th call from now `call` is made, as if it stood in the code there. 0: none.
void plant(std::uint64_t n, std::function<void()> call);
/// Name of the last call that was made to fail, empty when none was.
const std::string& failed_call();

/// Allocations of pinned memory, streams, events and graphs that live.
std::uint64_t host_objects();
/// Work enqueued on any stream that has not run.
std::uint64_t pending();

}  // namespace opd::ptx
