// The emulated device: what it computes with small kernels, and every fault that it must find.
// Testplan: GPU-02
#include "ptx/device.hpp"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

namespace opd::ptx {
namespace {

template <class... T>
std::vector<std::byte> pack(const Kernel& kernel, T... values) {
  std::vector<std::byte> bytes(kernel.parameter_bytes);
  std::size_t k = 0;
  const auto put = [&](auto value) {
    ASSERT_EQ(sizeof value, kernel.parameters.at(k).bytes);
    std::memcpy(bytes.data() + kernel.parameters[k++].offset, &value, sizeof value);
  };
  (put(values), ...);
  EXPECT_EQ(k, kernel.parameters.size());
  return bytes;
}

template <class... T>
void launch(const char* name, std::uint32_t grid, std::uint32_t threads, T... parameters) {
  const Kernel* kernel = find_kernel(name);
  ASSERT_NE(kernel, nullptr) << name;
  run(*kernel, grid, threads, 0, pack(*kernel, parameters...));
}

/// Words of device memory, written with `first`, `first` + 1, ... when asked.
class Words {
 public:
  explicit Words(std::size_t count, bool written = true)
      : count_(count), pointer_(allocate(4 * count)) {
    std::vector<std::uint32_t> values(count);
    std::iota(values.begin(), values.end(), 100u);
    if (written) copy_memory(pointer_, values.data(), 4 * count);
  }
  ~Words() { release(pointer_); }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(pointer_); }
  std::byte* get() const { return pointer_; }
  std::vector<std::uint32_t> read() const {
    std::vector<std::uint32_t> values(count_);
    copy_memory(values.data(), pointer_, 4 * count_);
    return values;
  }

 private:
  std::size_t count_;
  std::byte* pointer_;
};

class EmulatedDevice : public testing::Test {
 protected:
  void SetUp() override { execution() = {.shuffle = true, .races = true, .seed = 7}; }
};
using EmulatedDeviceFaults = EmulatedDevice;

#define OPD_EXPECT_FAULT(statement, text) \
  EXPECT_EXIT(statement, testing::ExitedWithCode(kFaultStatus), text)

TEST_F(EmulatedDevice, MemoryIsCopiedBothWaysAndOnTheDevice) {
  const Words in(64), out(64, false);
  launch("copy_words", 1, 64, in.address(), out.address(), 4u, 0u);
  EXPECT_EQ(out.read(), in.read());
  const Words third(64, false);
  copy_memory(third.get(), out.get(), 256);
  EXPECT_EQ(third.read(), in.read());
}

TEST_F(EmulatedDevice, BarriersOrderABlock) {
  const Words out(256, false);
  launch("reverse", 1, 256, out.address(), 1u);
  for (std::uint32_t k = 0; k < 256; ++k) EXPECT_EQ(out.read()[k], 255 - k);
  const Words turned(32, false);
  launch("rotate", 1, 32, turned.address(), 1u);
  for (std::uint32_t k = 0; k < 32; ++k) EXPECT_EQ(turned.read()[k], (k + 1) % 32);
}

TEST_F(EmulatedDevice, AWarpOperationTakesTheLanesOfItsMask) {
  const Words out(32);
  launch("reduce", 1, 16, out.address(), 0xFFFFu, 32u);
  EXPECT_EQ(out.read()[0], 120u);
  EXPECT_EQ(out.read()[15], 120u);
  EXPECT_EQ(out.read()[16], 116u);  // as it was
  launch("shuffle_half", 1, 32, out.address(), 0u);
  EXPECT_EQ(out.read()[15], 15u);
}

TEST_F(EmulatedDevice, BlocksThatWaitForOthersStartInOrder) {
  const Words flags(65);
  std::vector<std::uint32_t> zeros(65);
  zeros[0] = 1;
  copy_memory(flags.get(), zeros.data(), 260);
  launch("look_back", 64, 1, flags.address());
  EXPECT_EQ(flags.read()[64], 65u);
}

TEST_F(EmulatedDevice, ReleasedMemoryIsGone) {
  const std::size_t before = allocations();
  std::byte* pointer = allocate(100);
  EXPECT_EQ(allocations(), before + 1);
  EXPECT_TRUE(is_device_address(pointer));
  EXPECT_EQ(reinterpret_cast<std::uint64_t>(pointer) % 256, 0u);
  EXPECT_FALSE(release(pointer + 1));
  EXPECT_TRUE(release(pointer));
  EXPECT_FALSE(release(pointer));
  EXPECT_EQ(allocate(std::size_t{1} << 40), nullptr);
  int local = 0;
  EXPECT_FALSE(is_device_address(&local));
}

TEST_F(EmulatedDeviceFaults, GlobalMemory) {
  const Words in(64), out(64, false), empty(64, false);
  OPD_EXPECT_FAULT(
      launch("copy_words", 1, 64, empty.address(), out.address(), 4u, 0u),
      "device_kernels.ptx:[0-9]+: kernel copy_words, block 0, thread [0-9]+: load: never written");
  OPD_EXPECT_FAULT(launch("copy_words", 1, 65, in.address(), out.address(), 4u, 0u),
                   "load: outside every allocation");
  OPD_EXPECT_FAULT(launch("copy_words", 1, 1, in.address(), out.address() + 256, 4u, 0u),
                   "store: outside every allocation");
  OPD_EXPECT_FAULT(launch("copy_words", 1, 2, in.address(), out.address(), 3u, 0u),
                   "load: address not aligned");
  OPD_EXPECT_FAULT(launch("copy_words", 1, 1, in.address(), out.address() + 2, 4u, 0u),
                   "store: address not aligned");
  OPD_EXPECT_FAULT(launch("copy_words", 1, 1, std::uint64_t{64}, out.address(), 4u, 0u),
                   "load: no address of device memory");
  OPD_EXPECT_FAULT(copy_memory(in.get(), out.get(), 300),
                   "copy of 300 bytes: its target .* outside every allocation");
  EXPECT_DEATH(static_cast<void>(static_cast<volatile std::byte*>(in.get())[0]),
               "");  // host code that follows a device pointer
}

TEST_F(EmulatedDeviceFaults, SharedMemory) {
  const Words out(256, false);
  OPD_EXPECT_FAULT(launch("reverse", 1, 64, out.address(), 0u),
                   "kernel reverse.*shared memory: (race|read before)");
  OPD_EXPECT_FAULT(launch("rotate", 1, 32, out.address(), 0u),
                   "kernel rotate.*shared memory: (race|read before)");
  OPD_EXPECT_FAULT(launch("read_unwritten", 1, 1, out.address()),
                   "shared memory: read before it was written");
}

TEST_F(EmulatedDevice, AddressesInLocalMemoryAndOfParametersAreComputed) {
  const Words out(1, false);
  launch("keep_word", 1, 1, out.address(), 12u, 12u);
  EXPECT_EQ(out.read()[0], 7u);
  launch("keep_word", 1, 1, out.address(), 12u, 0u);
  EXPECT_EQ(out.read()[0], 5u);
  launch("divide_parameter", 1, 1, out.address(), 12u, 7u);  // by itself
  EXPECT_EQ(out.read()[0], 1u);
  launch("divide_parameter", 1, 1, out.address(), 8u, 3u);
  EXPECT_EQ(out.read()[0], 2u);  // 8 / 3
}

TEST_F(EmulatedDeviceFaults, LocalMemoryAndParameters) {
  const Words out(1, false);
  OPD_EXPECT_FAULT(launch("keep_word", 1, 1, out.address(), 4u, 8u),
                   "kernel keep_word.*local memory: read before it was written");
  OPD_EXPECT_FAULT(launch("keep_word", 1, 1, out.address(), 16u, 0u), "local memory: outside it");
  OPD_EXPECT_FAULT(launch("keep_word", 1, 1, out.address(), 4u, 14u), "local memory: outside it");
  OPD_EXPECT_FAULT(launch("keep_word", 1, 1, out.address(), 2u, 0u),
                   "local memory: address not aligned");
  OPD_EXPECT_FAULT(launch("divide_parameter", 1, 1, out.address(), 16u, 1u),
                   "load: outside the parameters");
  OPD_EXPECT_FAULT(launch("divide_parameter", 1, 1, out.address(), 0xFFFFFFFFu, 1u),
                   "load: outside the parameters");
  OPD_EXPECT_FAULT(launch("divide_parameter", 1, 1, out.address(), 2u, 1u),
                   "load: parameter address not aligned");
  OPD_EXPECT_FAULT(launch("divide_parameter", 1, 1, out.address(), 8u, 0u), "division by 0");
}

TEST_F(EmulatedDeviceFaults, Races) {
  const Words out(64);
  launch("mark", 4, 1, out.address(), 1u, 0u);  // a word each
  OPD_EXPECT_FAULT(launch("mark", 4, 1, out.address(), 0u, 0u),
                   "race: written, and written before by another thread");
  OPD_EXPECT_FAULT(launch("mark", 4, 1, out.address(), 1u, 1u),
                   "race: (read, and written before|written, and read before)");
  launch("mark", 1, 1, out.address(), 0u, 1u);
}

TEST_F(EmulatedDeviceFaults, WarpOperations) {
  const Words out(64);
  OPD_EXPECT_FAULT(launch("reduce", 1, 32, out.address(), 0xFFFEu, 32u),
                   "the mask 0xfffe does not name the caller");
  OPD_EXPECT_FAULT(launch("reduce", 1, 32, out.address(), 0xFFFFFFFFu, 20u),
                   "lane [0-9]+ of the mask 0xffffffff has ended");
  OPD_EXPECT_FAULT(launch("reduce", 1, 16, out.address(), 0xFFFFFFFFu, 32u),
                   "names lane 16, which does not exist");
  OPD_EXPECT_FAULT(launch("shuffle_half", 1, 32, out.address(), 1u),
                   "lane 15 reads lane 16, which the mask 0xffff does not name");
}

TEST_F(EmulatedDeviceFaults, Barriers) {
  launch("meet", 2, 64, 64u, 64u);
  OPD_EXPECT_FAULT(launch("meet", 1, 64, 40u, 64u), "barrier: 24 threads of the block have ended");
  OPD_EXPECT_FAULT(launch("meet", 1, 32, 64u, 20u), "deadlock: the warp operation");
  const Words flags(2);
  const std::array<std::uint32_t, 2> zeros{};
  copy_memory(flags.get(), zeros.data(), 8);
  OPD_EXPECT_FAULT(launch("look_back", 1, 1, flags.address()), "a million pauses");
}

TEST_F(EmulatedDeviceFaults, Launches) {
  const Words out(256);
  OPD_EXPECT_FAULT(launch("reverse", 1, 257, out.address(), 1u),
                   "launch of 1 blocks of 257 threads.* none the device takes");
  OPD_EXPECT_FAULT(launch("reverse", 0, 1, out.address(), 1u), "launch of 0 blocks");
  const Kernel& kernel = *find_kernel("reverse");
  OPD_EXPECT_FAULT(run(kernel, 1, 32, kSharedLimit, pack(kernel, out.address(), 1u)),
                   "bytes of shared memory");
  OPD_EXPECT_FAULT(run(kernel, 1, 32, 0, {}), "and 0 of parameters");
  EXPECT_EQ(find_kernel("none"), nullptr);
}

}  // namespace
}  // namespace opd::ptx
