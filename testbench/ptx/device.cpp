#include "ptx/device.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <span>

namespace opd::ptx {
namespace {

constexpr std::uint32_t kMaxThreads = 1024;

Execution settings;
const Kernel* running = nullptr;
std::uint32_t launch_number = 0;

std::mt19937_64& generator() {
  static std::mt19937_64 rng(settings.seed);
  return rng;
}

std::map<std::string, const Kernel*>& registry() {
  static std::map<std::string, const Kernel*> kernels;
  return kernels;
}

[[noreturn]] void give_up(const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "emulated device: %s\n", what.c_str());
  std::_Exit(kFaultStatus);
}

// ---- Global memory

constexpr std::uint64_t kBase = 0x6A00'0000'0000;
constexpr std::uint64_t kBytes = std::uint64_t{16} << 30;
constexpr std::uint64_t kAlignment = 256;
constexpr std::uint64_t kGap =
    512;  // between allocations: what runs over the end of one meets no other
constexpr std::uint64_t kPage = 4096;

constexpr std::uint8_t kAllocated = 1, kWritten = 2;

/// Who touched a place, and between which barriers.
struct Touch {
  std::uint32_t launch = 0, block = 0, block_epoch = 0, warp_epoch = 0;
  std::uint16_t tid = 0;
  std::uint8_t bytes = 0;  // a bit each, of the word
  bool several_blocks = false;
};
struct Word {
  Touch write, read;
};

/// Address space without memory until it is touched.
template <class T>
T* reserve(std::uint64_t count, std::uint64_t at, int access) {
  void* found = mmap(
      reinterpret_cast<void*>(at), count * sizeof(T), access,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != 0 ? MAP_FIXED_NOREPLACE : 0), -1, 0);
  if (found == MAP_FAILED) {
    give_up(fmt::format(
        "cannot reserve {} bytes of addresses; raise the limit of virtual memory (ulimit -v)",
        count * sizeof(T)));
  }
  return static_cast<T*>(found);
}

struct Memory {
  std::map<std::uint64_t, std::uint64_t> allocations;  // address, bytes
  std::uint64_t next = kBase + kPage;
  std::uint8_t* states = reserve<std::uint8_t>(kBytes, 0, PROT_READ | PROT_WRITE);
  Word* words = nullptr;

  Memory() { reserve<std::byte>(kBytes, kBase, PROT_NONE); }
  std::uint8_t& state(std::uint64_t address) const { return states[address - kBase]; }
  Word* touched() {
    if (words == nullptr) words = reserve<Word>(kBytes / 4, 0, PROT_READ | PROT_WRITE);
    return words;
  }
};
Memory& memory() {
  static Memory instance;
  return instance;
}

/// The common case of an access: aligned, of 1, 2, 4, 8 or 16 bytes that all are written.
bool written(std::uint64_t address, unsigned bytes) {
  constexpr std::uint64_t kAll = 0x0303030303030303;
  static const Memory& m = memory();
  if (address - kBase >= kBytes || (address & (bytes - 1)) != 0) return false;
  const std::uint8_t* states = &m.state(address);
  std::uint64_t low = kAll, high = kAll;
  switch (bytes) {
    case 16:
      std::memcpy(&high, states + 8, 8);
      [[fallthrough]];
    case 8:
      std::memcpy(&low, states, 8);
      break;
    case 4:
      std::memcpy(&low, states, 4);
      break;
    case 2:
      std::memcpy(&low, states, 2);
      break;
    case 1:
      std::memcpy(&low, states, 1);
      break;
    default:
      return false;
  }
  return low == kAll && high == kAll;
}

/// While one lives, device memory can be touched; host code that follows a device pointer crashes otherwise.
class Access {
 public:
  Access() {
    if (depth()++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  ~Access() {
    if (--depth() == 0) protect(PROT_NONE);
  }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

 private:
  static unsigned& depth() {
    static unsigned value = 0;
    return value;
  }
  static void protect(int access) {
    const std::uint64_t bytes = (memory().next - kBase + kPage - 1) / kPage * kPage;
    if (mprotect(reinterpret_cast<void*>(kBase), bytes, access) != 0) give_up("mprotect failed");
  }
};

/// First byte of a range whose state lacks one of the bits, or `bytes`.
std::size_t first_without(std::uint64_t address, std::size_t bytes, std::uint8_t bits) {
  const std::uint8_t* states = &memory().state(address);
  for (std::size_t k = 0; k < bytes; ++k) {
    if ((states[k] & bits) != bits) return k;
  }
  return bytes;
}

bool in_device_memory(std::uint64_t address, std::uint64_t bytes) {
  return address - kBase < kBytes && bytes <= kBytes - (address - kBase);
}

// ---- Fibers

enum class State : std::uint8_t { kReady, kAtWarp, kAtBarrier, kDone };

struct Fiber {
  void* stack_pointer = nullptr;
  State state = State::kReady;
  WarpOperation operation = WarpOperation::kSync;
  std::uint32_t value = 0, b = 0, c = 0, mask = 0, result = 0;
  unsigned line = 0;
  Thread thread;
};

// Saves the caller's registers and stack in *from, goes on where `to` was saved. System V ABI of x86-64: the six registers
// and the stack pointer are all that a call preserves; the floating-point control words never change here.
extern "C" void opd_ptx_switch(void** from, void* to);
asm(R"(
.pushsection .text
.globl opd_ptx_switch
.type opd_ptx_switch, @function
opd_ptx_switch:
  push %rbx
  push %rbp
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbp
  pop %rbx
  ret
.size opd_ptx_switch, .-opd_ptx_switch
.popsection
)");

constexpr std::size_t kStackBytes = std::size_t{128} << 10;
Fiber fibers[kMaxThreads];
Fiber* current = nullptr;
void* scheduler = nullptr;

std::byte* stacks() {
  static std::byte* all = [] {
    auto* memory = reserve<std::byte>(kMaxThreads * kStackBytes, 0, PROT_READ | PROT_WRITE);
    for (unsigned k = 0; k < kMaxThreads;
         ++k) {  // the lowest page of each faults when it is reached
      if (mprotect(memory + k * kStackBytes, kPage, PROT_NONE) != 0) give_up("mprotect failed");
    }
    return memory;
  }();
  return all;
}

void leave() { opd_ptx_switch(&current->stack_pointer, scheduler); }

[[noreturn]] void fiber_main() {
  running->run(current->thread);
  current->state = State::kDone;
  leave();
  std::abort();
}

void start(Fiber& fiber, unsigned index) {
  // From the top: a word so that the stack is aligned as after a call, the return address, six registers.
  auto* top = reinterpret_cast<void**>(stacks() + (index + 1) * kStackBytes) - 8;
  std::fill(top, top + 8, nullptr);
  top[6] = reinterpret_cast<void*>(&fiber_main);
  fiber.stack_pointer = top;
  fiber.state = State::kReady;
}

void resume(Fiber& fiber) {
  current = &fiber;
  opd_ptx_switch(&scheduler, fiber.stack_pointer);
}

}  // namespace

// ---- A block

struct SharedByte {
  Touch write, read;
  bool written = false;
};

struct Block {
  std::vector<std::byte> bytes;
  std::vector<SharedByte> states;
  std::uint32_t epoch = 1;                                 // barriers of the block so far
  std::uint32_t warp_epoch[kMaxThreads / kWarpSize] = {};  // the same of each warp
  std::uint64_t pauses = 0;

  Touch touch(const Thread& thread, std::uint8_t bytes_of_word) const {
    return {.launch = launch_number,
            .block = thread.ctaid,
            .block_epoch = epoch,
            .warp_epoch = warp_epoch[thread.tid / kWarpSize],
            .tid = static_cast<std::uint16_t>(thread.tid),
            .bytes = bytes_of_word};
  }
};

namespace {

bool conflict(const Touch& earlier, const Touch& now) {
  if (earlier.launch != now.launch || (earlier.bytes & now.bytes) == 0) return false;
  if (earlier.several_blocks || earlier.block != now.block) return true;
  if (earlier.tid == now.tid || earlier.block_epoch != now.block_epoch) return false;
  return earlier.tid / kWarpSize != now.tid / kWarpSize || earlier.warp_epoch == now.warp_epoch;
}

/// Takes note of an access, or says with which kind of earlier one it collides.
const char* note(Touch& write, Touch& read, const Touch& now, bool is_write) {
  if (conflict(write, now))
    return is_write ? "written, and written before" : "read, and written before";
  if (is_write && conflict(read, now)) return "written, and read before";
  Touch& last = is_write ? write : read;
  Touch next = now;
  if (last.launch == now.launch && last.block == now.block && last.tid == now.tid &&
      last.block_epoch == now.block_epoch && last.warp_epoch == now.warp_epoch) {
    next.bytes |= last.bytes;
  } else if (last.launch == now.launch && last.block != now.block) {
    next.several_blocks = true;
  }
  last = next;
  return nullptr;
}

constexpr const char* kRace = "race: {} by another thread with no barrier between";

std::string place(std::uint64_t address, unsigned bytes) {
  return fmt::format(" (address {:#x}, {} bytes)", address, bytes);
}

void note_global(const Thread& thread, std::uint64_t address, unsigned bytes, bool is_write,
                 unsigned line) {
  Word* words = memory().touched();
  for (std::uint64_t at = address; at < address + bytes; at = at / 4 * 4 + 4) {
    const unsigned first = at % 4;
    const auto end =
        static_cast<unsigned>(std::min<std::uint64_t>(4, first + address + bytes - at));
    Word& word = words[(at - kBase) / 4];
    const Touch now =
        thread.block->touch(thread, static_cast<std::uint8_t>((1u << end) - (1u << first)));
    if (const char* what = note(word.write, word.read, now, is_write)) {
      fault(&thread, line, fmt::format(fmt::runtime(kRace), what) + place(at, end - first));
    }
  }
}

std::byte* shared(Thread& thread, std::uint64_t address, unsigned bytes, std::uint32_t used,
                  bool is_write, unsigned line) {
  Block& block = *thread.block;
  if (address % bytes != 0)
    fault(&thread, line, "shared memory: address not aligned" + place(address, bytes));
  if (address + bytes > block.bytes.size()) {
    fault(&thread, line, "shared memory: outside the block's" + place(address, bytes));
  }
  for (unsigned k = 0; k < bytes; ++k) {
    SharedByte& state = block.states[address + k];
    if (const char* what = note(state.write, state.read, block.touch(thread, 1), is_write)) {
      fault(&thread, line,
            "shared memory: " + fmt::format(fmt::runtime(kRace), what) + place(address + k, 1));
    }
    if (is_write) {
      state.written = true;
    } else if (!state.written && (used >> k & 1) != 0) {
      fault(&thread, line, "shared memory: read before it was written" + place(address + k, 1));
    }
  }
  return block.bytes.data() + address;
}

void check_global(const Thread& thread, std::uint64_t address, unsigned bytes, const char* access,
                  unsigned line) {
  if (!in_device_memory(address, bytes)) {
    fault(&thread, line,
          fmt::format("{}: no address of device memory", access) + place(address, bytes));
  }
  if (address % bytes != 0)
    fault(&thread, line, fmt::format("{}: address not aligned", access) + place(address, bytes));
  if (first_without(address, bytes, kAllocated) < bytes) {
    fault(&thread, line,
          fmt::format("{}: outside every allocation", access) + place(address, bytes));
  }
}

/// shfl.sync: the lane that `lane` reads from, or its own where that one is outside its segment.
unsigned source_lane(WarpOperation operation, unsigned lane, std::uint32_t b, std::uint32_t c) {
  const unsigned segment = c >> 8 & 31, clamp = c & 31;
  const int last = static_cast<int>((lane & segment) | (clamp & ~segment));
  const unsigned first = lane & segment, distance = b & 31;
  int from = static_cast<int>(lane);
  switch (operation) {
    case WarpOperation::kUp:
      from -= static_cast<int>(distance);
      return from >= last ? static_cast<unsigned>(from) : lane;
    case WarpOperation::kDown:
      from += static_cast<int>(distance);
      break;
    case WarpOperation::kButterfly:
      from = static_cast<int>(lane ^ distance);
      break;
    default:
      from = static_cast<int>(first | (distance & ~segment));
  }
  return from <= last ? static_cast<unsigned>(from) : lane;
}

/// Ends the operation that all lanes of `mask` wait in.
void complete_operation(std::span<Fiber> lanes, WarpOperation operation, std::uint32_t mask) {
  std::uint32_t sum = 0, low = ~0u, high = 0, ballot = 0;
  auto low_signed = std::numeric_limits<std::int32_t>::max();
  auto high_signed = std::numeric_limits<std::int32_t>::min();
  std::uint32_t values[kWarpSize];
  for (unsigned k = 0; k < lanes.size(); ++k) {
    if ((mask >> k & 1) == 0) continue;
    const std::uint32_t value = values[k] = lanes[k].value;
    sum += value;
    low = std::min(low, value);
    high = std::max(high, value);
    low_signed = std::min(low_signed, static_cast<std::int32_t>(value));
    high_signed = std::max(high_signed, static_cast<std::int32_t>(value));
    if (value != 0) ballot |= 1u << k;
  }
  for (unsigned k = 0; k < lanes.size(); ++k) {
    if ((mask >> k & 1) == 0) continue;
    Fiber& fiber = lanes[k];
    fiber.state = State::kReady;
    switch (operation) {
      case WarpOperation::kSync:
        fiber.result = 0;
        break;
      case WarpOperation::kAdd:
        fiber.result = sum;
        break;
      case WarpOperation::kMin:
        fiber.result = low;
        break;
      case WarpOperation::kMax:
        fiber.result = high;
        break;
      case WarpOperation::kMinSigned:
        fiber.result = static_cast<std::uint32_t>(low_signed);
        break;
      case WarpOperation::kMaxSigned:
        fiber.result = static_cast<std::uint32_t>(high_signed);
        break;
      case WarpOperation::kAny:
        fiber.result = ballot != 0;
        break;
      case WarpOperation::kAll:
        fiber.result = ballot == mask;
        break;
      case WarpOperation::kBallot:
        fiber.result = ballot;
        break;
      default: {
        const unsigned from = source_lane(operation, k, fiber.b, fiber.c);
        if ((mask >> from & 1) == 0) {
          fault(&fiber.thread, fiber.line,
                fmt::format("shuffle: lane {} reads lane {}, which the mask {:#x} does not name", k,
                            from, mask));
        }
        fiber.result = values[from];
      }
    }
  }
}

/// Ends one operation that all its lanes have reached. False when there is none.
bool resolve(Block& block, unsigned warp, std::span<Fiber> lanes) {
  for (Fiber& fiber : lanes) {
    if (fiber.state != State::kAtWarp) continue;
    bool complete = true;
    for (unsigned k = 0; k < kWarpSize && complete; ++k) {
      if ((fiber.mask >> k & 1) == 0) continue;
      if (k >= lanes.size()) {
        fault(&fiber.thread, fiber.line,
              fmt::format("warp operation: the mask {:#x} names lane {}, which does not exist",
                          fiber.mask, k));
      }
      const Fiber& other = lanes[k];
      if (other.state == State::kDone) {
        fault(&fiber.thread, fiber.line,
              fmt::format("warp operation: lane {} of the mask {:#x} has ended", k, fiber.mask));
      }
      complete = other.state == State::kAtWarp && other.mask == fiber.mask &&
                 other.operation == fiber.operation;
    }
    if (!complete) continue;
    const std::uint32_t present = lanes.size() == kWarpSize ? ~0u : (1u << lanes.size()) - 1;
    // Only bar.warp.sync orders memory; the other operations exchange values.
    if (fiber.operation == WarpOperation::kSync && fiber.mask == present) ++block.warp_epoch[warp];
    complete_operation(lanes, fiber.operation, fiber.mask);
    return true;
  }
  return false;
}

/// Runs a warp until none of its lanes can go on. False when none could.
bool run_warp(Block& block, unsigned warp, std::span<Fiber> lanes,
              std::span<const std::uint8_t> order) {
  bool moved = false;
  for (;;) {
    const std::uint64_t pauses = block.pauses;
    for (const unsigned k : order) {
      if (k < lanes.size() && lanes[k].state == State::kReady) {
        resume(lanes[k]);
        moved = true;
      }
    }
    if (!resolve(block, warp, lanes) || block.pauses != pauses) return moved;
    if (settings.shuffle && generator()() % 8 == 0) return true;  // another warp overtakes
  }
}

void run_block(const Kernel& kernel, std::uint32_t index, std::uint32_t grid, std::uint32_t threads,
               std::uint32_t dynamic_shared, const std::vector<std::byte>& parameters) {
  Block block;
  block.bytes.resize((kernel.static_shared + 15) / 16 * 16 + dynamic_shared);
  block.states.resize(block.bytes.size());
  const unsigned warps = (threads + kWarpSize - 1) / kWarpSize;
  for (std::uint32_t t = 0; t < threads; ++t) {
    fibers[t].thread = {.tid = t,
                        .ntid = threads,
                        .ctaid = index,
                        .nctaid = grid,
                        .parameters = parameters.data(),
                        .parameter_bytes = kernel.parameter_bytes,
                        .block = &block};
    start(fibers[t], t);
  }
  std::vector<unsigned> warp_order(warps);
  std::iota(warp_order.begin(), warp_order.end(), 0u);
  std::uint8_t lane_order[kWarpSize];
  std::iota(std::begin(lane_order), std::end(lane_order), std::uint8_t{0});
  for (unsigned rounds_paused = 0;;) {
    if (settings.shuffle) {
      std::shuffle(warp_order.begin(), warp_order.end(), generator());
      std::shuffle(std::begin(lane_order), std::end(lane_order), generator());
    }
    bool moved = false;
    const std::uint64_t pauses = block.pauses;
    for (const unsigned warp : warp_order) {
      const unsigned first = warp * kWarpSize;
      const std::span lanes(fibers + first, std::min(kWarpSize, threads - first));
      moved = run_warp(block, warp, lanes, lane_order) || moved;
    }
    const std::span all(fibers, threads);
    const auto in = [&all](State state) {
      return static_cast<unsigned>(std::count_if(
          all.begin(), all.end(), [state](const Fiber& fiber) { return fiber.state == state; }));
    };
    rounds_paused = block.pauses != pauses ? rounds_paused + 1 : 0;
    if (rounds_paused > 1'000'000)
      fault(&fibers[0].thread, 0, "a million pauses: it waits for what never comes");
    if (moved && in(State::kReady) > 0) continue;
    const unsigned done = in(State::kDone), at_barrier = in(State::kAtBarrier);
    if (done == threads) return;
    if (at_barrier + done == threads) {
      const Fiber& waiting = *std::find_if(all.begin(), all.end(), [](const Fiber& fiber) {
        return fiber.state == State::kAtBarrier;
      });
      if (done > 0)
        fault(&waiting.thread, waiting.line,
              fmt::format("barrier: {} threads of the block have ended", done));
      for (Fiber& fiber : all) fiber.state = State::kReady;
      ++block.epoch;
    } else if (!moved) {
      const Fiber& waiting = *std::find_if(
          all.begin(), all.end(), [](const Fiber& fiber) { return fiber.state == State::kAtWarp; });
      fault(&waiting.thread, waiting.line,
            fmt::format(
                "deadlock: the warp operation with mask {:#x} waits for lanes that wait elsewhere",
                waiting.mask));
    }
  }
}

}  // namespace

Execution& execution() { return settings; }

bool add_kernels(const Kernel* kernels, std::size_t number) {
  for (const Kernel& kernel : std::span(kernels, number)) {
    registry().emplace(kernel.name, &kernel);
    if (kernel.target != target())
      give_up(fmt::format("{}: kernels of sm_{} and of others", kernel.source, kernel.target));
  }
  return true;
}

unsigned target() { return registry().empty() ? 80 : registry().begin()->second->target; }

const Kernel* find_kernel(const std::string& name) {
  const auto found = registry().find(name);
  return found == registry().end() ? nullptr : found->second;
}

void fault(const Thread* thread, unsigned line, const std::string& what) {
  std::string where;
  if (running != nullptr) {
    where = fmt::format("{}:{}: kernel {}", running->source, line, running->name);
    if (thread != nullptr)
      where += fmt::format(", block {}, thread {}", thread->ctaid, thread->tid);
    where += ": ";
  }
  give_up(where + what);
}

void run(const Kernel& kernel, std::uint32_t grid, std::uint32_t threads,
         std::uint32_t dynamic_shared, const std::vector<std::byte>& parameters) {
  if (running != nullptr) give_up("a launch within a launch");
  running = &kernel;
  if (grid < 1 || grid > 0x7FFFFFFFu || threads < 1 ||
      threads > std::min(kernel.max_threads, kMaxThreads) ||
      kernel.static_shared + std::uint64_t{dynamic_shared} > kSharedLimit ||
      parameters.size() != kernel.parameter_bytes) {
    fault(nullptr, 0,
          fmt::format("launch of {} blocks of {} threads with {} + {} bytes of shared memory and "
                      "{} of parameters is none the device takes",
                      grid, threads, kernel.static_shared, dynamic_shared, parameters.size()));
  }
  const Access access;
  ++launch_number;
  std::vector<std::uint32_t> order;
  if (settings.shuffle && !kernel.waits_for_blocks) {
    order.resize(grid);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), generator());
  }
  for (std::uint32_t k = 0; k < grid; ++k) {
    run_block(kernel, order.empty() ? k : order[k], grid, threads, dynamic_shared, parameters);
  }
  running = nullptr;
}

std::byte* allocate(std::size_t bytes) {
  Memory& m = memory();
  if (bytes == 0 || bytes > kBase + kBytes - kGap - m.next) return nullptr;
  const std::uint64_t address = m.next;
  m.next = (address + bytes + kGap + kAlignment - 1) / kAlignment * kAlignment;
  m.allocations[address] = bytes;
  std::memset(&m.state(address), kAllocated, bytes);
  return reinterpret_cast<std::byte*>(address);
}

bool release(void* pointer) {
  Memory& m = memory();
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  const auto found = m.allocations.find(address);
  if (found == m.allocations.end()) return false;
  const std::uint64_t end = address + found->second;
  std::memset(&m.state(address), 0, found->second);
  const std::uint64_t first_page = (address + kPage - 1) / kPage * kPage,
                      last_page = end / kPage * kPage;
  if (last_page > first_page)
    madvise(reinterpret_cast<void*>(first_page), last_page - first_page, MADV_DONTNEED);
  m.allocations.erase(found);
  return true;
}

std::size_t allocations() { return memory().allocations.size(); }

bool is_device_address(const void* address) {
  return in_device_memory(reinterpret_cast<std::uint64_t>(address), 1);
}

void copy_memory(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const auto target = reinterpret_cast<std::uint64_t>(to),
             source = reinterpret_cast<std::uint64_t>(from);
  const auto inside = [bytes](std::uint64_t address, const char* which) {
    if (!in_device_memory(address, bytes) || first_without(address, bytes, kAllocated) < bytes) {
      fault(nullptr, 0,
            fmt::format("copy of {} bytes: {} {:#x} lies outside every allocation", bytes, which,
                        address));
    }
  };
  const bool to_device = is_device_address(to), from_device = is_device_address(from);
  if (to_device) inside(target, "its target");
  if (from_device) inside(source, "its source");
  const Access access;
  std::memmove(to, from, bytes);
  if (to_device && from_device) {
    std::memmove(&memory().state(target), &memory().state(source), bytes);
  } else if (to_device) {
    std::memset(&memory().state(target), kAllocated | kWritten, bytes);
  }
}

const std::byte* readable(Thread& thread, Space space, std::uint64_t address, unsigned bytes,
                          std::uint32_t used, bool strong, unsigned line) {
  if (space == Space::kShared) return shared(thread, address, bytes, used, false, line);
  if (!written(address, bytes)) {
    check_global(thread, address, bytes, "load", line);
    for (unsigned k = 0; k < bytes; ++k) {
      if ((used >> k & 1) != 0 && (memory().state(address + k) & kWritten) == 0) {
        fault(&thread, line, "load: never written" + place(address + k, 1));
      }
    }
  }
  if (settings.races && !strong) note_global(thread, address, bytes, false, line);
  return reinterpret_cast<const std::byte*>(address);
}

std::byte* writable(Thread& thread, Space space, std::uint64_t address, unsigned bytes, bool strong,
                    unsigned line) {
  if (space == Space::kShared) return shared(thread, address, bytes, ~0u, true, line);
  check_global(thread, address, bytes, "store", line);
  if (settings.races && !strong) note_global(thread, address, bytes, true, line);
  std::memset(&memory().state(address), kAllocated | kWritten, bytes);
  return reinterpret_cast<std::byte*>(address);
}

std::size_t local_place(const Thread& thread, std::uint64_t address, unsigned bytes, bool* written,
                        std::size_t size, bool store, unsigned line) {
  const std::uint64_t at = address - kLocalAddress;
  if (at > size || bytes > size - at)
    fault(&thread, line, "local memory: outside it" + place(address, bytes));
  if (at % bytes != 0)
    fault(&thread, line, "local memory: address not aligned" + place(address, bytes));
  for (unsigned k = 0; k < bytes; ++k) {
    if (store) written[at + k] = true;
    if (!written[at + k])
      fault(&thread, line, "local memory: read before it was written" + place(address + k, 1));
  }
  return at;
}

std::size_t parameter_place(const Thread& thread, std::uint64_t address, unsigned bytes,
                            unsigned line) {
  const std::uint64_t at = address - kParameterAddress;
  if (at > thread.parameter_bytes || bytes > thread.parameter_bytes - at)
    fault(&thread, line, "load: outside the parameters" + place(address, bytes));
  if (at % bytes != 0)
    fault(&thread, line, "load: parameter address not aligned" + place(address, bytes));
  return at;
}

void barrier(Thread&, unsigned line) {
  current->state = State::kAtBarrier;
  current->line = line;
  leave();
}

std::uint32_t warp(Thread& thread, WarpOperation operation, std::uint32_t value, std::uint32_t b,
                   std::uint32_t c, std::uint32_t mask, unsigned line) {
  Fiber& self = *current;
  if ((mask >> thread.lane() & 1) == 0)
    fault(&thread, line,
          fmt::format("warp operation: the mask {:#x} does not name the caller", mask));
  self.operation = operation;
  self.value = value;
  self.b = b;
  self.c = c;
  self.mask = mask;
  self.line = line;
  self.state = State::kAtWarp;
  leave();
  return self.result;
}

void pause(Thread& thread, unsigned line) {
  ++thread.block->pauses;
  current->line = line;
  leave();
}

}  // namespace opd::ptx
