#pragma once
// Random APB transfers of a host that knows the rules but nothing else: reads of anything at any
// time, refused accesses, interrupts, event pops, counters, commands on operators. Configuration and
// learning-rate changes come when everything has drained: it asks for that and waits.
#include <cstdint>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "opd/driver/fields.hpp"
#include "opd/types/device.hpp"
#include "seed.hpp"

namespace opd::tb {

class HostTraffic {
 public:
  HostTraffic(const DeviceParameters& parameters, const Config& base, std::uint64_t seed)
      : parameters_(parameters), base_(base), config_(base), rng_(seed) {}

  /// The vector unit must be held back until this falls.
  [[nodiscard]] bool wants_quiet() const { return quiet_; }

  /// The request of the coming clock. `drained`: no completion is in flight. `settled`: no command
  /// can be running. `step`: of the operators that begin now.
  ApbRequest next(bool drained, bool settled, std::uint32_t step) {
    if (access_) return finish();
    if (transfers_.empty()) {
      if (setup_written_) {
        setup_written_ = quiet_ = false;  // the vector unit may go on
      } else if (quiet_) {
        if (drained) set_up(step);
      } else if (chance(busy_)) {
        act(settled);
      }
    }
    if (transfers_.empty()) return {};
    access_ = true;
    return transfers_.front();
  }

  /// The access clock of a transfer that has begun; nothing new.
  ApbRequest finish() {
    if (!std::exchange(access_, false)) return {};
    ApbRequest request = transfers_.front();
    transfers_.pop_front();
    request.enable = true;
    return request;
  }

 private:
  unsigned below(std::uint64_t bound) { return static_cast<unsigned>(rng_() % bound); }
  bool chance(double p) { return static_cast<double>(rng_() >> 11) * 0x1.0p-53 < p; }

  void read(std::uint32_t address) {
    transfers_.push_back({.select = true, .address = static_cast<std::uint16_t>(address)});
  }
  void write(std::uint32_t address, std::uint32_t data, std::uint8_t strobe = 0xF) {
    transfers_.push_back({.select = true,
                          .write = true,
                          .address = static_cast<std::uint16_t>(address),
                          .data = data,
                          .strobe = strobe});
  }

  void act(bool settled) {
    if (chance(0.002)) busy_ = std::vector{0.02, 0.3, 1.0}[below(3)];
    const unsigned dice = below(1000);
    if (dice < 250) {
      read(kRegisters[below(kRegisters.size())].address);
    } else if (dice < 300) {
      for (std::uint32_t address = reg::kOpControl; address <= reg::kOpSlope; address += 4)
        read(address);
    } else if (dice < 340) {
      read(below(0x1000));  // mostly no register
    } else if (dice < 380) {
      refused_write();
    } else if (dice < 560) {
      take_event();
    } else if (dice < 660) {
      write(reg::kIrqStatus, static_cast<std::uint32_t>(rng_()));
    } else if (dice < 700) {
      write(reg::kIrqEnable, static_cast<std::uint32_t>(rng_()));
    } else if (dice < 720) {
      write(reg::kEventPop, below(2));
    } else if (dice < 730) {
      if (settled) write(reg::kCommand, below(4) != 0);  // else the order of the two is open
    } else if (dice < 860) {
      for (const std::uint16_t address :
           {reg::kStableOps, reg::kSafeOps, reg::kHint, reg::kHintLearningRate, reg::kLastCleanStep,
            reg::kLastClean, reg::kIrqStatus})
        read(address);
    } else if (dice < 980) {
      command(settled);
    } else {
      quiet_ = true;
    }
  }

  void refused_write() {
    switch (below(4)) {
      case 0:
        write(below(0x1000), static_cast<std::uint32_t>(rng_()),
              static_cast<std::uint8_t>(below(15)));
        break;
      case 1:  // read only
        write(std::vector<std::uint32_t>{reg::kId, reg::kQueue, reg::kHint,
                                         reg::kOpControl}[below(4)],
              static_cast<std::uint32_t>(rng_()));
        break;
      case 2:  // no such operator, and nothing below it in the field
        if (parameters_.num_ops < 65536)
          write(reg::kOpCommand, parameters_.num_ops + below(65536 - parameters_.num_ops));
        break;
      default:
        write(1 + below(3) + 4 * below(0x400), static_cast<std::uint32_t>(rng_()));
    }
  }

  void take_event() {
    read(reg::kEvents);
    for (unsigned i = 1 + below(4); i > 0; --i) {
      read(reg::kEventStep);
      read(reg::kEventOp);
      read(reg::kEventScore);
      write(reg::kEventPop, 1);
    }
    read(reg::kEventsLost);
  }

  void command(bool settled) {
    // Few commands make long histories.
    if (!chance(0.1)) return;
    const std::uint32_t op =
        below(chance(0.7) ? std::min(parameters_.num_ops, 4u) : parameters_.num_ops);
    const Command what = std::vector{Command::kRead,   Command::kRead, Command::kClear,
                                     Command::kReseed, Command::kSet,  Command::kSet}[below(6)];
    // The setting of a running command must stay.
    if (settled && what == Command::kSet) {
      write(reg::kOpSetting,
            below(3) | (chance(0.2) ? 1u << 8 : 0u) | (chance(0.15) ? 1u << 16 : 0u));
    }
    write(reg::kOpCommand, op | static_cast<std::uint32_t>(what) << 16);
    if (chance(0.2)) write(reg::kOpCommand, op);  // while BUSY
    for (unsigned i = below(8); i > 0; --i) read(reg::kOpStatus);
  }

  /// Everything has drained: a new configuration, the first one again, or a learning-rate change.
  void set_up(std::uint32_t step) {
    setup_written_ = true;
    if (chance(0.3)) {
      write(reg::kLearningRateChange,
            chance(0.8) ? step + below(3) : static_cast<std::uint32_t>(rng_()));
      return;
    }
    const bool back = config_ != base_ && chance(0.7);
    if (back) config_ = base_;
    for (unsigned changes = back ? 0 : 1 + below(2); changes > 0; --changes) {
      const ConfigField& field = kConfigFields[below(kConfigFields.size())];
      field.set(config_, static_cast<std::int32_t>(draw(rng_, field.minimum, field.maximum)));
    }
    std::uint32_t last = 0;
    for (const ConfigField& field : kConfigFields) {
      if (field.address != last)
        write(field.address, driver::configuration_value(config_, field.address));
      last = field.address;
    }
  }

  const DeviceParameters parameters_;
  const Config base_;
  Config config_;  ///< as written last
  std::mt19937_64 rng_;
  std::deque<ApbRequest> transfers_;  ///< in their setup form
  bool access_ = false;               ///< the coming clock is the access clock of the first
  bool quiet_ = false;
  bool setup_written_ = false;  ///< the transfers are those of set_up
  double busy_ = 0.3;           ///< share of free clocks at which something is begun
};

}  // namespace opd::tb
