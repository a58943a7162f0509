// opd_registers alone, every output of every clock against a model written from docs/registers.md and
// docs/architecture.md ("Registers in time"). Every access below goes through that comparison.
#include "opd/types/registers.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <verilated.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "Vopd_registers.h"
#include "paths/coverage.hpp"
#include "seed.hpp"

namespace opd::tb {
namespace {

constexpr unsigned kNumOps = 5;  // parameters of the Verilated module: tests/rtl/CMakeLists.txt

std::uint32_t mask(unsigned width) { return width >= 32 ? ~0U : (1U << width) - 1; }

/// The bits of a packed struct, least significant first.
template <std::size_t Width>
struct Packed {
  std::array<std::uint32_t, (Width + 31) / 32> words{};

  [[nodiscard]] std::uint32_t get(unsigned low, unsigned width) const {
    std::uint32_t value = 0;
    for (unsigned i = 0; i < width; ++i)
      value |= (words[(low + i) / 32] >> (low + i) % 32 & 1) << i;
    return value;
  }
  void randomise(std::mt19937_64& rng) {
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(rng());
    words.back() &= mask(Width % 32);
  }
  bool operator==(const Packed&) const = default;
};
using Status = Packed<307>;   // opd_pkg::status_t
using OpState = Packed<191>;  // opd_pkg::op_state_t

/// Where a field that the device shows comes from.
struct Source {
  std::string_view path;
  enum { kConstant, kStatus, kOpState } from;
  unsigned value;  ///< constant, or least significant bit
};
constexpr Source kSources[] = {
    {"CAPABILITY_OPS.NUM_OPS", Source::kConstant, kNumOps},
    {"CAPABILITY_ENGINES.FORECAST", Source::kConstant, 1},
    {"CAPABILITY_ENGINES.PUBLISHED", Source::kConstant, 0},
    {"CAPABILITY_TAP.WIDTH", Source::kConstant, 96},
    {"CAPABILITY_TAP.STREAMS", Source::kConstant, 256},
    {"CAPABILITY_QUEUES.QUEUE_DEPTH", Source::kConstant, 3},
    {"CAPABILITY_QUEUES.EVENT_DEPTH", Source::kConstant, 255},
    {"CAPABILITY_QUEUES.COUNTER_WIDTH", Source::kConstant, 17},
    {"LAST_CLEAN.VALID", Source::kStatus, 0},
    {"LAST_CLEAN_STEP.STEP", Source::kStatus, 1},
    {"HINT_LEARNING_RATE.FACTOR", Source::kStatus, 33},
    {"HINT.CLIP_SHIFT", Source::kStatus, 50},
    {"HINT.LOSS_SCALE_SHIFT", Source::kStatus, 58},
    {"SAFE_OPS.COUNT", Source::kStatus, 66},
    {"STABLE_OPS.COUNT", Source::kStatus, 83},
    {"EVENT_SCORE.RISK", Source::kStatus, 100},
    {"EVENT_SCORE.FLAGS", Source::kStatus, 108},
    {"EVENT_OP.CAUSE", Source::kStatus, 124},
    {"EVENT_OP.NEW_MODE", Source::kStatus, 127},
    {"EVENT_OP.OLD_MODE", Source::kStatus, 129},
    {"EVENT_OP.OP", Source::kStatus, 131},
    {"EVENT_STEP.STEP", Source::kStatus, 147},
    {"UPSETS.COUNT", Source::kStatus, 179},
    {"EVENTS_LOST.COUNT", Source::kStatus, 211},
    {"EVENTS.HIGH_WATER", Source::kStatus, 243},
    {"EVENTS.LEVEL", Source::kStatus, 251},
    {"UNSEEN.COUNT", Source::kStatus, 259},
    {"QUEUE.HIGH_WATER", Source::kStatus, 291},
    {"QUEUE.LEVEL", Source::kStatus, 299},
    {"OP_CONTROL.LAST_STEP", Source::kOpState, 0},
    {"OP_CONTROL.TIMER", Source::kOpState, 8},
    {"OP_CONTROL.DISABLED", Source::kOpState, 16},
    {"OP_CONTROL.LOCKED", Source::kOpState, 17},
    {"OP_CONTROL.MODE", Source::kOpState, 18},
    {"OP_SLOPE.VALUE", Source::kOpState, 20},
    {"OP_LAST.VALUE", Source::kOpState, 52},
    {"OP_VARIANCE.VALUE", Source::kOpState, 84},
    {"OP_MEAN.VALUE", Source::kOpState, 116},
    {"OP_ANCHOR.VALUE", Source::kOpState, 148},
    {"OP_BASELINE.VALUE", Source::kOpState, 158},
    {"OP_HISTORY.NONFINITE_RUN", Source::kOpState, 175},
    {"OP_HISTORY.AGE", Source::kOpState, 183},
};

struct Inputs {
  bool psel = false, penable = false, pwrite = false;
  std::uint16_t paddr = 0;
  std::uint32_t pwdata = 0;
  std::uint8_t pstrb = 0;
  bool command_done = false;
  OpState command_state;
  Status status;
  std::uint8_t interrupts = 0;
};

struct Outputs {
  bool pready = false;
  std::uint32_t prdata = 0;
  bool pslverr = false;
  Packed<kConfigPackedBits> config;
  bool learning_rate_changed = false;
  std::uint32_t learning_rate_step = 0;
  bool clear_counters = false, event_pop = false, command_pending = false;
  std::uint32_t command = 0;  ///< opd_pkg::command_t
  bool irq = false;
  bool operator==(const Outputs&) const = default;
};

const Register* find_register(std::uint16_t address) {
  const auto* found = std::find_if(kRegisters.begin(), kRegisters.end(),
                                   [&](const Register& r) { return r.address == address; });
  return found == kRegisters.end() ? nullptr : found;
}

bool in_range(std::uint16_t address, std::uint32_t data) {
  return std::all_of(kRegisterFields.begin(), kRegisterFields.end(), [&](const RegisterField& f) {
    if (f.address != address || !f.writable) return true;
    std::int64_t value = data >> f.low_bit & mask(f.width);
    if (f.is_signed && value >> (f.width - 1) != 0) value -= std::int64_t{1} << f.width;
    return value >= f.minimum && value <= f.maximum;
  });
}

class Model {
 public:
  Model() {
    for (const Register& r : kRegisters) value_[r.address] = r.reset;
    pack_config();
  }

  [[nodiscard]] bool busy() const { return busy_; }

  [[nodiscard]] std::uint32_t read(std::uint16_t address, const Status& status) const {
    std::uint32_t data = value_.at(address) & find_register(address)->readable;
    for (const RegisterField& f : kRegisterFields) {
      if (f.address != address) continue;
      const auto* source = std::find_if(std::begin(kSources), std::end(kSources),
                                        [&](const Source& s) { return s.path == f.path; });
      if (source == std::end(kSources)) continue;
      const std::uint32_t value = source->from == Source::kConstant ? source->value
                                  : source->from == Source::kStatus
                                      ? status.get(source->value, f.width)
                                      : op_state_.get(source->value, f.width);
      data |= value << f.low_bit;
    }
    if (address == reg::kOpStatus) data = busy_;
    return data;
  }

  [[nodiscard]] Outputs outputs(const Inputs& in) const {
    Outputs out;
    out.pready = access_.has_value();
    out.pslverr = access_ && !access_->legal;
    if (access_ && access_->legal && !access_->write)
      out.prdata = read(access_->address, in.status);
    out.config = config_;
    out.learning_rate_changed = learning_rate_changed_;
    out.learning_rate_step = value_.at(reg::kLearningRateChange);
    out.clear_counters = clear_counters_;
    out.event_pop = event_pop_;
    out.command_pending = busy_;
    const std::uint32_t command = value_.at(reg::kOpCommand), setting = value_.at(reg::kOpSetting);
    out.command = (command & 0xFFFF) << 6 | (command >> 16) << 4 | (setting & 3) << 2 |
                  (setting >> 8 & 1) << 1 | (setting >> 16 & 1);
    out.irq = (value_.at(reg::kIrqStatus) & value_.at(reg::kIrqEnable)) != 0;
    return out;
  }

  void edge(const Inputs& in) {
    const std::optional<Access> ended = std::exchange(access_, std::nullopt);
    const bool busy_after = busy_ && !in.command_done;
    if (in.psel && !in.penable && !ended) {
      access_ = Access{.write = in.pwrite, .address = in.paddr, .data = in.pwdata};
      access_->legal = legal(in, busy_after);
    }
    busy_ = busy_after;
    if (in.command_done) op_state_ = in.command_state;
    clear_counters_ = event_pop_ = false;
    if (ended && ended->legal && ended->write) write(ended->address, ended->data);
    value_[reg::kIrqStatus] |= in.interrupts;
  }

 private:
  struct Access {
    bool write;
    std::uint16_t address;
    std::uint32_t data;
    bool legal = false;
  };

  static bool legal(const Inputs& in, bool busy) {
    const Register* r = find_register(in.paddr);
    if (r == nullptr) return false;
    if (!in.pwrite) return r->readable != 0;
    if (r->writable == 0 || in.pstrb != 0xF || !in_range(in.paddr, in.pwdata)) return false;
    return in.paddr != reg::kOpCommand || (!busy && (in.pwdata & 0xFFFF) < kNumOps);
  }

  void pack_config() {
    config_ = {};
    for (const ConfigField& f : kConfigFields) {
      const std::uint32_t value = value_.at(f.address) >> f.low_bit & mask(f.width);
      for (unsigned i = 0; i < f.width; ++i) {
        config_.words[(f.packed_low + i) / 32u] |= (value >> i & 1) << (f.packed_low + i) % 32u;
      }
    }
  }

  void write(std::uint16_t address, std::uint32_t data) {
    data &= find_register(address)->writable;
    if (address == reg::kIrqStatus) {
      value_[address] &= ~data;
    } else if (address == reg::kCommand) {
      clear_counters_ = data != 0;
    } else if (address == reg::kEventPop) {
      event_pop_ = data != 0;
    } else {
      value_[address] = data;
      pack_config();
    }
    if (address == reg::kOpCommand) busy_ = true;
    if (address == reg::kLearningRateChange) learning_rate_changed_ = true;
  }

  std::map<std::uint16_t, std::uint32_t> value_;
  std::optional<Access> access_;
  Packed<kConfigPackedBits> config_;  // cfg_t
  OpState op_state_;
  bool busy_ = false, learning_rate_changed_ = false, clear_counters_ = false, event_pop_ = false;
};

struct Answer {
  std::uint32_t data;
  bool error;
};

/// Module and model in lockstep.
class Bench {
 public:
  Bench() : model_(std::make_unique<Vopd_registers>(&context_)) {
    model_->rst_ni = 1;
    model_->eval();
    model_->rst_ni = 0;
    for (const int clk : {1, 0}) {
      model_->clk_i = static_cast<CData>(clk);
      model_->eval();
    }
    model_->rst_ni = 1;
  }
  ~Bench() {
    Verilated::threadContextp(&context_);
    model_->final();
    write_coverage(context_);
  }

  Inputs in;  ///< what the coming clocks see

  /// One clock. Compares the outputs before its edge and returns them.
  Outputs clock() {
    drive();
    model_->clk_i = 0;
    model_->eval();
    const Outputs actual = sample(), expected = reference_.outputs(in);
    if (!(actual == expected)) ++differences_;
    EXPECT_EQ(actual.pready, expected.pready) << where();
    EXPECT_EQ(actual.prdata, expected.prdata) << where();
    EXPECT_EQ(actual.pslverr, expected.pslverr) << where();
    EXPECT_TRUE(actual == expected) << where();
    ++clocks_;
    model_->clk_i = 1;
    model_->eval();
    reference_.edge(in);
    return actual;
  }

  Answer access(bool write, std::uint16_t address, std::uint32_t data = 0,
                std::uint8_t strobe = 0xF) {
    in.psel = true;
    in.penable = false;
    in.pwrite = write;
    in.paddr = address;
    in.pwdata = data;
    in.pstrb = write ? strobe : 0;
    clock();
    in.penable = true;
    const Outputs out = clock();
    in.psel = in.penable = false;
    ++accesses_;
    EXPECT_TRUE(out.pready) << where();
    return {out.prdata, out.pslverr};
  }
  Answer read(std::uint16_t address) { return access(false, address); }
  Answer write(std::uint16_t address, std::uint32_t data) { return access(true, address, data); }

  /// Ends the running command.
  void finish_command(const OpState& state = {}) {
    in.command_done = true;
    in.command_state = state;
    clock();
    in.command_done = false;
  }

  /// Reads every register that can be read.
  void read_all() {
    for (const Register& r : kRegisters) {
      if (r.readable == 0) continue;
      EXPECT_FALSE(read(r.address).error) << r.name;
    }
  }

  [[nodiscard]] bool busy() const { return reference_.busy(); }  ///< before the coming edge
  [[nodiscard]] std::uint64_t accesses() const { return accesses_; }
  [[nodiscard]] std::uint64_t clocks() const { return clocks_; }
  [[nodiscard]] std::uint64_t differences() const { return differences_; }

 private:
  [[nodiscard]] std::string where() const {
    return fmt::format("clock {}: address 0x{:03X} data 0x{:08X} write {}", clocks_, in.paddr,
                       in.pwdata, in.pwrite);
  }

  void drive() {
    model_->apb_psel_i = in.psel;
    model_->apb_penable_i = in.penable;
    model_->apb_pwrite_i = in.pwrite;
    model_->apb_paddr_i = in.paddr;
    model_->apb_pwdata_i = in.pwdata;
    model_->apb_pstrb_i = in.pstrb;
    model_->command_done_i = in.command_done;
    std::memcpy(&model_->command_state_i, in.command_state.words.data(),
                sizeof(model_->command_state_i));
    std::memcpy(&model_->status_i, in.status.words.data(), sizeof(model_->status_i));
    model_->interrupts_i = in.interrupts;
  }

  Outputs sample() {
    Outputs out;
    out.pready = model_->apb_pready_o != 0;
    out.prdata = model_->apb_prdata_o;
    out.pslverr = model_->apb_pslverr_o != 0;
    std::memcpy(out.config.words.data(), &model_->cfg_o, sizeof(model_->cfg_o));
    out.learning_rate_changed = model_->learning_rate_change_o >> 32 != 0;
    out.learning_rate_step = static_cast<std::uint32_t>(model_->learning_rate_change_o);
    out.clear_counters = model_->clear_counters_o != 0;
    out.event_pop = model_->event_pop_o != 0;
    out.command_pending = model_->command_pending_o != 0;
    out.command = model_->command_o;
    out.irq = model_->irq_o != 0;
    return out;
  }

  VerilatedContext context_;
  std::unique_ptr<Vopd_registers> model_;
  Model reference_;
  std::uint64_t accesses_ = 0, clocks_ = 0, differences_ = 0;
};

TEST(RtlRegisters, ResetValuesAndStatus) {
  Bench bench;
  bench.read_all();
  std::mt19937_64 rng(case_seed(0x4E60));
  for (int i = 0; i < 20; ++i) {  // status is what the device shows in the clock of the answer
    bench.in.status.randomise(rng);
    bench.read_all();
  }
  std::size_t readable = 0;
  for (const Register& r : kRegisters) readable += r.readable != 0;
  EXPECT_EQ(bench.accesses(), 21 * readable);
}

TEST(RtlRegisters, EveryBit) {
  // Each bit of each register is written 0 and 1 on top of its value; then every register is read.
  Bench bench;
  std::mt19937_64 rng(case_seed(0x4E61));
  int taken = 0, refused = 0;
  for (const Register& r : kRegisters) {
    for (unsigned bit = 0; bit < 32; ++bit) {
      for (const bool one : {true, false}) {
        bench.in.status.randomise(rng);
        bench.in.interrupts = r.write_one_clears != 0 ? 0x3F : 0;
        bench.clock();  // sets what the write may clear
        bench.in.interrupts = 0;
        const std::uint32_t before =
            r.readable != 0 && r.write_one_clears == 0 ? bench.read(r.address).data : 0;
        const std::uint32_t data = one ? before | 1U << bit : before & ~(1U << bit);
        const bool error = bench.write(r.address, data).error;
        const bool legal = r.writable != 0 && in_range(r.address, data) &&
                           (r.address != reg::kOpCommand || (data & 0xFFFF) < kNumOps);
        EXPECT_EQ(error, !legal) << r.name << " bit " << bit;
        (error ? refused : taken)++;
        if (r.writable != 0 && r.volatile_bits == 0) {
          EXPECT_EQ(bench.read(r.address).data, legal ? data & r.writable : before) << r.name;
        }
        if (r.write_one_clears != 0) {
          EXPECT_EQ(bench.read(r.address).data, 0x3FU & ~data) << bit;
        }
        bench.clock();
        if (r.address == reg::kOpCommand && legal) bench.finish_command();
        bench.read_all();
      }
    }
  }
  EXPECT_EQ(taken + refused, 2 * 32 * static_cast<int>(kRegisters.size()));
  EXPECT_GT(taken, 1500);
  EXPECT_GT(refused, 1500);
  EXPECT_GT(bench.accesses(), 200'000u);
  fmt::print("{} writes taken, {} refused, {} accesses, {} clocks compared\n", taken, refused,
             bench.accesses(), bench.clocks());
}

TEST(RtlRegisters, RangesEndWhereTheMapSays) {
  Bench bench;
  int tried = 0;
  for (const RegisterField& f : kRegisterFields) {
    const Register& r = *find_register(f.address);
    if (!f.writable || r.volatile_bits != 0) continue;
    const std::int64_t lowest = f.is_signed ? -(std::int64_t{1} << (f.width - 1)) : 0;
    const std::int64_t highest = lowest + mask(f.width);
    for (const std::int64_t value :
         {lowest, std::int64_t{kNumOps} - 1, std::int64_t{kNumOps}, f.minimum - 1, f.minimum,
          f.minimum + 1, f.maximum - 1, f.maximum, f.maximum + 1, highest}) {
      if (value < lowest || value > highest) continue;
      const std::uint32_t before = bench.read(f.address).data;
      const std::uint32_t in_place = mask(f.width) << f.low_bit;
      const std::uint32_t data =
          (before & ~in_place) | ((static_cast<std::uint32_t>(value) << f.low_bit) & in_place);
      const bool legal = value >= f.minimum && value <= f.maximum &&
                         (f.path != "OP_COMMAND.OP" || value < kNumOps);
      EXPECT_EQ(bench.write(f.address, data).error, !legal) << f.path << " = " << value;
      EXPECT_EQ(bench.read(f.address).data, legal ? data : before) << f.path << " = " << value;
      if (f.address == reg::kOpCommand && legal) bench.finish_command();
      ++tried;
    }
  }
  EXPECT_GT(tried, 300);
  fmt::print("{} values, {} accesses\n", tried, bench.accesses());
}

TEST(RtlRegisters, EveryAddressAndStrobe) {
  Bench bench;
  int answered = 0;
  for (std::uint16_t address = 0; address < 4096; ++address) {
    const Register* r = find_register(address);
    EXPECT_EQ(bench.read(address).error, r == nullptr || r->readable == 0) << address;
    const std::uint32_t data = r != nullptr ? r->reset : 0;
    EXPECT_EQ(bench.write(address, data).error, r == nullptr || r->writable == 0) << address;
    answered += 2;
    if (address == reg::kOpCommand) bench.finish_command();
    if (r == nullptr) continue;
    for (std::uint8_t strobe = 0; strobe < 15; ++strobe) {
      EXPECT_TRUE(bench.access(true, address, data, strobe).error) << r->name << int(strobe);
      ++answered;
    }
    bench.read_all();
  }
  EXPECT_EQ(answered, 2 * 4096 + 15 * static_cast<int>(kRegisters.size()));
  fmt::print("{} accesses\n", bench.accesses());
}

// The claims of "Registers in time", clock by clock and without the model.
TEST(RtlRegisters, TimingOfAWrite) {
  constexpr unsigned kEnable = kConfigFields.back().packed_low;
  ASSERT_EQ(kConfigFields.back().path, std::string_view("CONTROL.ENABLE"));
  Bench bench;
  bench.in = {.psel = true, .pwrite = true, .paddr = reg::kControl, .pwdata = 0, .pstrb = 0xF};
  EXPECT_FALSE(bench.clock().pready);  // setup clock
  bench.in.penable = true;
  const Outputs answer = bench.clock();  // access clock
  EXPECT_TRUE(answer.pready);
  EXPECT_EQ(answer.config.get(kEnable, 1), 1u);  // as before, until its edge
  bench.in.psel = bench.in.penable = false;
  const Outputs after = bench.clock();
  EXPECT_FALSE(after.pready);
  EXPECT_EQ(after.config.get(kEnable, 1), 0u);
}

TEST(RtlRegisters, TimingOfPulses) {
  Bench bench;
  for (const std::uint16_t address : {reg::kCommand, reg::kEventPop}) {
    EXPECT_FALSE(bench.write(address, 1).error);
    const Outputs pulse = bench.clock();  // its edge is the one after the write's
    EXPECT_EQ(pulse.clear_counters, address == reg::kCommand);
    EXPECT_EQ(pulse.event_pop, address == reg::kEventPop);
    const Outputs after = bench.clock();
    EXPECT_FALSE(after.clear_counters || after.event_pop);
    bench.write(address, 0);
    const Outputs none = bench.clock();
    EXPECT_FALSE(none.clear_counters || none.event_pop);
  }
}

TEST(RtlRegisters, TimingOfACommand) {
  Bench bench;
  std::mt19937_64 rng(case_seed(0x4E62));
  const std::uint32_t set = 3 | static_cast<std::uint32_t>(Command::kSet) << 16;
  EXPECT_FALSE(bench.write(reg::kOpCommand, set).error);
  EXPECT_TRUE(bench.clock().command_pending);
  EXPECT_EQ(bench.read(reg::kOpStatus).data, 1u);
  EXPECT_TRUE(bench.write(reg::kOpCommand, 1).error);  // refused while busy
  EXPECT_EQ(bench.read(reg::kOpCommand).data, set);

  // A command that ends at the edge of the setup clock is over in the access clock: accepted.
  OpState state;
  state.randomise(rng);
  bench.in = {.psel = true, .pwrite = true, .paddr = reg::kOpCommand, .pwdata = 1, .pstrb = 0xF};
  bench.in.command_done = true;
  bench.in.command_state = state;
  EXPECT_TRUE(bench.clock().command_pending);
  bench.in.command_done = false;
  bench.in.command_state = {};
  bench.in.penable = true;
  const Outputs answer = bench.clock();
  EXPECT_TRUE(answer.pready && !answer.pslverr && !answer.command_pending);
  bench.in = {};
  EXPECT_TRUE(bench.clock().command_pending);
  EXPECT_EQ(bench.read(reg::kOpSlope).data, state.get(20, 32));  // kept while the next one runs
  bench.finish_command();
  EXPECT_EQ(bench.read(reg::kOpStatus).data, 0u);
  EXPECT_EQ(bench.read(reg::kOpSlope).data, 0u);

  // One clock later, at the edge of the access clock, it is too late.
  bench.write(reg::kOpCommand, 2);
  bench.in = {.psel = true, .pwrite = true, .paddr = reg::kOpCommand, .pwdata = 1, .pstrb = 0xF};
  bench.clock();
  bench.in.penable = true;
  bench.in.command_done = true;
  EXPECT_TRUE(bench.clock().pslverr);
  bench.in = {};
  EXPECT_FALSE(bench.clock().command_pending);
}

TEST(RtlRegisters, InterruptSetWinsOverClear) {
  for (unsigned bit = 0; bit < 6; ++bit) {
    Bench bench;
    bench.write(reg::kIrqEnable, 1U << bit);
    bench.in.interrupts = static_cast<std::uint8_t>(1U << bit);
    EXPECT_FALSE(bench.clock().irq);
    bench.in.interrupts = 0;
    EXPECT_TRUE(bench.clock().irq);
    // A pulse in the access clock of the write that clears it.
    bench.in.psel = bench.in.pwrite = true;
    bench.in.paddr = reg::kIrqStatus;
    bench.in.pwdata = 0x3F;
    bench.in.pstrb = 0xF;
    bench.clock();
    bench.in.penable = true;
    bench.in.interrupts = static_cast<std::uint8_t>(1U << bit);
    bench.clock();
    bench.in = {};
    EXPECT_TRUE(bench.clock().irq);
    bench.write(reg::kIrqStatus, 0x3F);
    EXPECT_FALSE(bench.clock().irq);
  }
}

TEST(RtlRegisters, RandomTrafficMatchesTheModel) {
  const std::uint64_t seed = case_seed(0x4E63);
  SCOPED_TRACE(fmt::format("reproduce: OPD_SEED={} --gtest_filter=RtlRegisters.Random*", seed));
  std::mt19937_64 rng(seed);
  Bench bench;
  for (int i = 0; i < 100'000 && !HasFailure(); ++i) {
    // Half of the accesses go to a register with data near its reset value, the rest anywhere.
    const Register& r = kRegisters[static_cast<std::size_t>(draw(rng, 0, kRegisters.size() - 1))];
    const bool known = rng() % 8 != 0;
    Inputs& in = bench.in;
    in.psel = rng() % 3 != 0;
    in.penable = !in.psel && rng() % 2 != 0;  // without psel the other lines mean nothing
    in.pwrite = rng() % 2 != 0;
    in.paddr = known ? r.address : static_cast<std::uint16_t>(rng() % 4096);
    in.pwdata = rng() % 2 != 0 ? r.reset ^ 1U << rng() % 32 : static_cast<std::uint32_t>(rng());
    in.pstrb = rng() % 16 != 0 ? 0xF : static_cast<std::uint8_t>(rng() % 16);
    for (int half = 0; half < (in.psel ? 2 : 1); ++half) {
      in.interrupts = rng() % 4 == 0 ? static_cast<std::uint8_t>(1U << rng() % 6) : 0;
      in.status.randomise(rng);
      in.command_done = bench.busy() && rng() % 8 == 0;
      in.command_state.randomise(rng);
      if (half == 1) in.penable = rng() % 8 != 0;  // nothing depends on it in the access clock
      bench.clock();
    }
  }
  EXPECT_EQ(bench.differences(), 0u);
  EXPECT_GT(bench.clocks(), 150'000u);
  fmt::print("{} clocks compared\n", bench.clocks());
}

}  // namespace
}  // namespace opd::tb
