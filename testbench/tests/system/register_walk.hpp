#pragma once
// Every register of an idle device, just out of reset, by the map that docs/registers.md and
// opd/types/registers.hpp share: reset values, every bit, access policies, ranges, addresses without
// a register. One walk for every bus.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "opd/driver/driver.hpp"
#include "opd/driver/fields.hpp"

namespace opd::tb {

class RegisterWalk {
 public:
  /// What was tried, for a test to assert that nothing was left out.
  struct Counts {
    unsigned reset_values = 0;
    unsigned bits_written = 0;  ///< single bits that a write changed, or had to leave alone
    unsigned range_ends = 0;    ///< values at the ends of a field's range and one past them
    unsigned refused_reads = 0;
    unsigned refused_writes = 0;
    bool operator==(const Counts&) const = default;
  };

  RegisterWalk(driver::RegisterBus& bus, const DeviceParameters& device)
      : bus_(bus), device_(device) {}

  Counts run() {
    check_reset_values();
    for (const Register& r : kRegisters) {
      SCOPED_TRACE(std::string(r.name));
      if (r.readable == 0) refuse_read(r.address);
      if (r.writable == 0) {
        for (const std::uint32_t value : {0u, 0xFFFFFFFFu}) refuse_write(r.address, value);
      } else if (stores(r)) {
        walk_bits(r);
        walk_ranges(r);
      } else {
        walk_actions(r);
      }
    }
    walk_addresses();
    check_reset_values();  // everything that was refused has changed nothing
    return counts;
  }

  Counts counts;

 private:
  /// A write stays there until the next one. The command register's starts something as well.
  static bool stores(const Register& r) {
    return (r.volatile_bits & r.writable) == 0 && r.address != reg::kOpCommand;
  }

  /// Values after reset of what the map leaves to parameters and state.
  std::uint32_t reset_value(const Register& r) const {
    using driver::field;
    using driver::place;
    switch (r.address) {
      case reg::kCapabilityOps:
        return place(field("CAPABILITY_OPS.NUM_OPS"), device_.num_ops);
      case reg::kCapabilityEngines:
        return place(field("CAPABILITY_ENGINES.FORECAST"), device_.forecast_engine) |
               place(field("CAPABILITY_ENGINES.PUBLISHED"), device_.published_engine);
      case reg::kCapabilityTap:
        return place(field("CAPABILITY_TAP.WIDTH"), device_.datapath_width) |
               place(field("CAPABILITY_TAP.STREAMS"), device_.num_streams);
      case reg::kCapabilityQueues:
        return place(field("CAPABILITY_QUEUES.QUEUE_DEPTH"), device_.queue_depth) |
               place(field("CAPABILITY_QUEUES.EVENT_DEPTH"), device_.event_depth) |
               place(field("CAPABILITY_QUEUES.COUNTER_WIDTH"), device_.counter_width);
      case reg::kHintLearningRate:
        return 65536;
      default:
        return r.reset;
    }
  }

  void check_reset_values() {
    for (const Register& r : kRegisters) {
      if (r.readable == 0) continue;
      EXPECT_EQ(bus_.read(r.address), reset_value(r)) << r.name;
      ++counts.reset_values;
    }
  }

  bool writes(std::uint16_t address, std::uint32_t value) {
    try {
      bus_.write(address, value);
      return true;
    } catch (const driver::BusError& error) {
      EXPECT_EQ(error.address(), address);
      EXPECT_EQ(error.value(), value);
      return false;
    }
  }
  void refuse_read(std::uint16_t address) {
    EXPECT_THROW(bus_.read(address), driver::BusError) << "read of address " << address;
    ++counts.refused_reads;
  }
  void refuse_write(std::uint16_t address, std::uint32_t value) {
    EXPECT_FALSE(writes(address, value)) << "write of " << value << " to address " << address;
    ++counts.refused_writes;
  }

  /// Every field of `value` is within its range.
  static bool legal(const Register& r, std::uint32_t value) {
    for (const RegisterField& f : kRegisterFields) {
      if (f.address != r.address || !f.writable) continue;
      const std::int64_t v = driver::extract(f, value);
      if (v < f.minimum || v > f.maximum) return false;
    }
    return true;
  }

  /// Writes and expects what the map says: taken, without the bits outside the fields, or refused.
  void try_value(const Register& r, std::uint32_t value) {
    const std::uint32_t before = bus_.read(r.address);
    if (legal(r, value)) {
      EXPECT_TRUE(writes(r.address, value)) << value;
      EXPECT_EQ(bus_.read(r.address), value & r.writable) << value;
    } else {
      refuse_write(r.address, value);
      EXPECT_EQ(bus_.read(r.address), before) << "a refused write of " << value;
    }
  }

  void walk_bits(const Register& r) {
    for (unsigned bit = 0; bit < 32; ++bit) {
      try_value(r, r.reset ^ std::uint32_t{1} << bit);
      try_value(r, r.reset);
      ++counts.bits_written;
    }
  }

  void walk_ranges(const Register& r) {
    for (const RegisterField& f : kRegisterFields) {
      if (f.address != r.address) continue;
      SCOPED_TRACE(std::string(f.path));
      const std::uint32_t others = r.reset & ~driver::place(f, -1);
      for (const std::int64_t v : {f.minimum, f.maximum, f.minimum - 1, f.maximum + 1}) {
        if (driver::extract(f, driver::place(f, v)) != v) continue;  // not a value of these bits
        try_value(r, others | driver::place(f, v));
        ++counts.range_ends;
      }
      try_value(r, r.reset);
    }
  }

  /// Registers that do something: without anything to do, nothing changes.
  void walk_actions(const Register& r) {
    if (r.address == reg::kOpCommand) return walk_command(r);
    for (const std::uint32_t value : {0u, r.writable, ~r.writable}) {
      EXPECT_TRUE(writes(r.address, value)) << value;
      EXPECT_EQ(r.readable == 0 ? 0 : bus_.read(r.address), 0u);
      ++counts.bits_written;
    }
  }

  /// READ of every operator at the ends, the other commands on the first, none beyond the last.
  void walk_command(const Register& r) {
    const auto word = [](std::uint32_t op, Command command) {
      return driver::place(driver::field("OP_COMMAND.OP"), op) |
             driver::place(driver::field("OP_COMMAND.COMMAND"), static_cast<std::int64_t>(command));
    };
    const auto finish = [&] {
      for (int i = 0; i < 100 && bus_.read(reg::kOpStatus) != 0; ++i) {
      }
      EXPECT_EQ(bus_.read(reg::kOpStatus), 0u) << "the command does not end";
    };
    for (const std::uint32_t op : {0u, device_.num_ops - 1}) {
      EXPECT_TRUE(writes(r.address, word(op, Command::kRead)));
      EXPECT_EQ(bus_.read(r.address), word(op, Command::kRead));
      finish();
      counts.range_ends += 2;
    }
    for (const std::uint32_t op : {device_.num_ops, 65535u}) {
      if (op >= 65536 || op < device_.num_ops) continue;
      refuse_write(r.address, word(op, Command::kClear));
      EXPECT_EQ(bus_.read(r.address), word(device_.num_ops - 1, Command::kRead));
      ++counts.range_ends;
    }
    for (const Command command : {Command::kClear, Command::kReseed, Command::kSet}) {
      EXPECT_TRUE(writes(r.address, word(0, command)));
      finish();
      ++counts.bits_written;
    }
    EXPECT_TRUE(writes(r.address, word(0, Command::kRead)));  // as after reset
    finish();
  }

  /// No register: every other address of the map's 4 KiB.
  void walk_addresses() {
    std::map<std::uint16_t, bool> used;
    for (const Register& r : kRegisters) used[r.address] = true;
    for (std::uint16_t address = 0; address < 0x1000; ++address) {
      if (used.contains(address)) continue;
      refuse_read(address);
      refuse_write(address, 0);
    }
  }

  driver::RegisterBus& bus_;
  const DeviceParameters device_;
};

}  // namespace opd::tb
