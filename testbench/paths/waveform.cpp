#include "paths/waveform.hpp"

#include <fmt/format.h>
#include <verilated.h>
#include <verilated_fst_c.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "opd/trace/whole_file.hpp"
#include "opd/types/registers.hpp"

namespace opd::tb {
namespace {

/// Names of a signal's values; `values` where they are not 0, 1, 2 ..
struct Names {
  const char* table;
  std::span<const std::string_view> names;
  std::span<const unsigned> values = {};
};

constexpr std::array<std::string_view, 4> kDetectionNames = {"READ", "COMPUTE", "WRITE", "COMMAND"};
constexpr std::array<unsigned, 3> kModeRegisterValues = {0b000, 0b101, 0b110};  // with parity
const Names kModes{"mode", kModeNames};
const Names kModeRegisters{"mode_register", kModeNames, kModeRegisterValues};
const Names kFormats{"format", kFormatNames};
const Names kCauses{"cause", kCauseNames};
const Names kDetection{"detection_unit", kDetectionNames};

struct Signal {
  std::string name;  ///< with its scope, separated by blanks
  unsigned bits;     ///< 0: a real number
  const Names* names = nullptr;
  std::uint64_t value = 0;
};

struct Pin {
  const char* name;
  unsigned bits;
  std::uint32_t (*get)(const CycleOutput&);
  bool of_record = false;  ///< held until the next record
  const Names* names = nullptr;
};

const Pin kPins[] = {
    {"record_valid", 1, [](const CycleOutput& o) -> std::uint32_t { return o.record_valid; }},
    {"record_seq", 32, [](const CycleOutput& o) { return o.record.seq; }, true},
    {"record_step", 32, [](const CycleOutput& o) { return o.record.step; }, true},
    {"record_op", 16, [](const CycleOutput& o) -> std::uint32_t { return o.record.op; }, true},
    {"record_format", 3, [](const CycleOutput& o) -> std::uint32_t { return o.record.format; },
     true, &kFormats},
    {"record_mode", 2, [](const CycleOutput& o) -> std::uint32_t { return o.record.mode; }, true,
     &kModes},
    {"record_max_mag", 32, [](const CycleOutput& o) { return o.record.max_mag; }, true},
    {"record_nonfinite_count", 32, [](const CycleOutput& o) { return o.record.nonfinite_count; },
     true},
    {"record_first_nonfinite", 32, [](const CycleOutput& o) { return o.record.first_nonfinite; },
     true},
    {"record_saturated_count", 32, [](const CycleOutput& o) { return o.record.saturated_count; },
     true},
    {"record_element_count", 32, [](const CycleOutput& o) { return o.counts.element_count; }, true},
    {"record_subnormal_count", 32, [](const CycleOutput& o) { return o.counts.subnormal_count; },
     true},
    {"record_zero_count", 32, [](const CycleOutput& o) { return o.counts.zero_count; }, true},
    {"record_flags", 16, [](const CycleOutput& o) -> std::uint32_t { return o.record.flags; },
     true},
    {"record_risk", 8, [](const CycleOutput& o) -> std::uint32_t { return o.record.risk; }, true},
    {"record_cause", 3, [](const CycleOutput& o) -> std::uint32_t { return o.record.cause; }, true,
     &kCauses},
    {"mode", 2, [](const CycleOutput& o) { return static_cast<std::uint32_t>(o.mode); }, false,
     &kModes},
    {"stat_ready", 1, [](const CycleOutput& o) -> std::uint32_t { return o.stat_ready; }},
    {"queue_level", 8, [](const CycleOutput& o) -> std::uint32_t { return o.queue_level; }},
    {"queue_high_water", 8,
     [](const CycleOutput& o) -> std::uint32_t { return o.queue_high_water; }},
    {"unseen_count", 32, [](const CycleOutput& o) { return o.unseen_count; }},
    {"irq", 1, [](const CycleOutput& o) -> std::uint32_t { return o.irq; }},
    {"apb_ready", 1, [](const CycleOutput& o) -> std::uint32_t { return o.apb.ready; }},
    {"apb_error", 1, [](const CycleOutput& o) -> std::uint32_t { return o.apb.error; }},
    {"apb_data", 32, [](const CycleOutput& o) { return o.apb.data; }},
};
constexpr std::size_t kPinCount = std::size(kPins);

const Names* names_of(const StateField& field) {
  if (field.kind == StateKind::kMode) return &kModes;
  return field.name == "mode_register" ? &kModeRegisters : nullptr;
}

std::size_t reals() {
  std::size_t count = 0;
  for (const StateField& field : kStateFields) count += field.kind == StateKind::kBinary32;
  return count;
}

/// Signals of one device: pins, flags of the record one by one, state, its binary32 fields as
/// numbers.
std::size_t device_signals() {
  return kPinCount + kFlagNames.size() + kStateFields.size() + reals();
}

void add_device(std::vector<Signal>& signals, const std::string& device) {
  const std::string scope = "compare " + device + " ";
  for (const Pin& pin : kPins) signals.push_back({scope + pin.name, pin.bits, pin.names});
  for (const std::string_view flag : kFlagNames)
    signals.push_back({fmt::format("{}flags {}", scope, flag), 1});
  for (const StateField& field : kStateFields) {
    signals.push_back({fmt::format("{}state {}", scope, field.name), field.bits, names_of(field)});
  }
  for (const StateField& field : kStateFields) {
    if (field.kind == StateKind::kBinary32)
      signals.push_back({fmt::format("{}state {}_number", scope, field.name), 0});
  }
}

struct Input {
  const char* name;
  unsigned bits;
  const Names* names = nullptr;
};

const Input kInputs[] = {{"beat_valid", 1},
                         {"beat_op", 16},
                         {"beat_format", 3, &kFormats},
                         {"beat_step", 32},
                         {"beat_last", 1},
                         {"stat_valid", 1},
                         {"stat_op", 16},
                         {"stat_format", 3, &kFormats},
                         {"stat_step", 32},
                         {"stat_max_mag", 32},
                         {"mode_op", 16},
                         {"state_op", 16}};
constexpr std::size_t kInputCount = std::size(kInputs);

}  // namespace

/// All signals, in the order in which they are noted: inputs, SystemC's detection unit, SystemC, RTL,
/// what differs.
struct Waveform::Signals {
  std::vector<Signal> all;
  std::uint32_t first_code = 0;
  CycleOutput systemc;
  StoredState systemc_state;

  Signals() {
    for (const Input& input : kInputs)
      all.push_back({fmt::format("compare inputs {}", input.name), input.bits, input.names});
    all.push_back({"compare systemc detection_unit", 2, &kDetection});
    add_device(all, "systemc");
    add_device(all, "rtl");
    all.push_back({"compare pins_differ", 1});
    all.push_back({"compare state_differs", 1});
  }

  static std::size_t systemc_base() { return kInputCount + 1; }
  static std::size_t rtl_base() { return systemc_base() + device_signals(); }
  static std::size_t differ_base() { return rtl_base() + device_signals(); }

  void note_device(std::size_t base, const CycleOutput& output, const StoredState& state) {
    std::size_t next = base;
    for (const Pin& pin : kPins) {
      if (!pin.of_record || output.record_valid) all[next].value = pin.get(output);
      ++next;
    }
    for (std::size_t bit = 0; bit < kFlagNames.size(); ++bit, ++next) {
      if (output.record_valid) all[next].value = output.record.flags >> bit & 1u;
    }
    for (const StateField& field : kStateFields) all[next++].value = field_bits(field, state);
    for (const StateField& field : kStateFields) {
      if (field.kind != StateKind::kBinary32) continue;
      const double number = std::bit_cast<float>(field.get(state));
      all[next++].value = std::bit_cast<std::uint64_t>(number);
    }
  }

  static void declare(void* self, VerilatedFst* dump, std::uint32_t code) {
    Signals& signals = *static_cast<Signals*>(self);
    signals.first_code = code;
    int type = 1000;  // beyond those of the Verilated model
    std::vector<std::pair<const Names*, int>> types;
    for (Signal& signal : signals.all) {
      int of_signal = -1;
      if (signal.names != nullptr) {
        for (const auto& [names, known] : types)
          if (names == signal.names) of_signal = known;
        if (of_signal < 0) {
          of_signal = type++;
          types.emplace_back(signal.names, of_signal);
          declare_names(*dump, of_signal, signal.bits, *signal.names);
        }
      }
      if (signal.bits == 0) {
        dump->declDouble(code, signal.name.c_str(), -1, FST_VD_IMPLICIT, FST_VT_VCD_REAL, false,
                         -1);
      } else if (signal.bits == 1) {
        dump->declBit(code, signal.name.c_str(), -1, FST_VD_IMPLICIT, FST_VT_SV_LOGIC, false, -1);
      } else {
        dump->declBus(code, signal.name.c_str(), of_signal, FST_VD_IMPLICIT, FST_VT_SV_LOGIC, false,
                      -1, static_cast<int>(signal.bits) - 1, 0);
      }
      code += 2;
    }
  }

  static void declare_names(VerilatedFst& dump, int type, unsigned bits, const Names& names) {
    std::vector<std::string> values, texts(names.names.begin(), names.names.end());
    for (std::size_t i = 0; i < texts.size(); ++i)
      values.push_back(fmt::format("{:0{}b}", names.values.empty() ? i : names.values[i], bits));
    std::vector<const char*> value_pointers, text_pointers;
    for (const std::string& value : values) value_pointers.push_back(value.c_str());
    for (const std::string& text : texts) text_pointers.push_back(text.c_str());
    dump.declDTypeEnum(type, names.table, static_cast<std::uint32_t>(texts.size()), bits,
                       text_pointers.data(), value_pointers.data());
  }

  template <bool kFull>
  static void dump(void* self, VerilatedFst::Buffer* buffer) {
    const Signals& signals = *static_cast<const Signals*>(self);
    std::uint32_t code = signals.first_code;
    for (const Signal& signal : signals.all) {
      std::uint32_t* old = buffer->oldp(code);
      const auto value = static_cast<IData>(signal.value);
      if (signal.bits == 0) {
        const double number = std::bit_cast<double>(signal.value);
        kFull ? buffer->fullDouble(old, number) : buffer->chgDouble(old, number);
      } else if (signal.bits == 1) {
        const auto bit = static_cast<CData>(value);
        kFull ? buffer->fullBit(old, bit) : buffer->chgBit(old, bit);
      } else {
        const int bits = static_cast<int>(signal.bits);
        kFull ? buffer->fullIData(old, value, bits) : buffer->chgIData(old, value, bits);
      }
      code += 2;
    }
  }
};

Waveform::Waveform(WaveformWindow window)
    : window_(std::move(window)), signals_(std::make_unique<Signals>()) {}
Waveform::~Waveform() = default;

void Waveform::note_inputs(const CycleInput& input) {
  auto& all = signals_->all;
  all[0].value = input.beat_valid;
  if (input.beat_valid) {
    const OpDescriptor& d = input.beat.descriptor;
    all[1].value = d.op;
    all[2].value = static_cast<std::uint64_t>(d.format);
    all[3].value = d.step;
    all[4].value = input.beat.last;
  }
  all[5].value = input.stat_valid;
  if (input.stat_valid) {
    const OpDescriptor& d = input.statistic.descriptor;
    all[6].value = d.op;
    all[7].value = static_cast<std::uint64_t>(d.format);
    all[8].value = d.step;
    all[9].value = input.statistic.summary.max_mag;
  }
  all[10].value = input.mode_op;
  all[11].value = window_.op;
}

void Waveform::note_systemc(const CycleOutput& output, const StoredState& state,
                            unsigned detection_unit) {
  signals_->all[kInputCount].value = detection_unit;
  signals_->note_device(Signals::systemc_base(), output, state);
  signals_->systemc = output;
  signals_->systemc_state = state;
}

void Waveform::note_rtl(const CycleOutput& output, const StoredState& state) {
  signals_->note_device(Signals::rtl_base(), output, state);
  signals_->all[Signals::differ_base()].value = output != signals_->systemc;
  signals_->all[Signals::differ_base() + 1].value = state != signals_->systemc_state;
}

void Waveform::join(VerilatedFstC& dump) {
  dump.spTrace()->addInitCb(&Signals::declare, signals_.get());
  dump.spTrace()->addFullCb(&Signals::dump<true>, signals_.get());
  dump.spTrace()->addChgCb(&Signals::dump<false>, signals_.get());
}

void write_save_file(const WaveformWindow& window, std::uint64_t marker, const std::string& field) {
  constexpr double kFrames = 4;  // of 200 pixels, in which GTKWave counts its zoom
  constexpr int kHex = 0x22, kSigned = 0x420, kDecimal = 0x24;  // formats of GTKWave, aligned right
  const std::uint64_t start = 1000 * (window.first - 1);
  const double length = 1000.0 * static_cast<double>(window.last + 1 - window.first);
  std::filesystem::path view = window.file;
  view.replace_extension(".gtkw");
  // GTKWave looks for a dump without a folder beside the save file.
  std::string text = fmt::format(
      "[dumpfile] \"{}\"\n[savefile] \"{}\"\n[timestart] {}\n[size] 1400 1000\n[pos] -1 -1\n"
      "*{:.2f} {}\n[treeopen] compare.\n[treeopen] TOP.\n[sst_width] 180\n[signals_width] 280\n",
      window.file.filename().string(), view.filename().string(), start,
      -std::log2(length / kFrames),
      marker == 0 ? std::int64_t{-1} : static_cast<std::int64_t>(1000 * marker));
  const auto heading = [&](const std::string& words) { text += fmt::format("@200\n-{}\n", words); };
  const auto trace = [&](const std::string& label, const std::string& name, unsigned bits,
                         const Names* names, int format) {
    if (names != nullptr) {
      text += "@100000028\n";  // binary, by the names in the dump
    } else {
      text += fmt::format("@{:x}\n", bits == 1 ? 0x28 : format);
    }
    text += fmt::format("+{{{}}} {}", label, name);
    text += bits > 1 ? fmt::format("[{}:0]\n", bits - 1) : "\n";
  };
  const auto pair = [&](const std::string& name, unsigned bits, const Names* names, int format) {
    std::string label = name.starts_with("state.") ? name.substr(6) : name;
    for (const char* device : {"rtl", "systemc"}) {
      trace(fmt::format("{} {}", device, label), fmt::format("compare.{}.{}", device, name), bits,
            names, format);
    }
  };
  const auto state = [&](const StateField& f) {
    const Names* names = names_of(f);
    pair(fmt::format("state.{}", f.name), f.bits, names,
         f.kind == StateKind::kSigned     ? kSigned
         : f.kind == StateKind::kBinary32 ? kHex
                                          : kDecimal);
    if (f.kind == StateKind::kBinary32)
      pair(fmt::format("state.{}_number", f.name), 0, nullptr, kDecimal);
  };
  trace("clk", "TOP.clk_i", 1, nullptr, kHex);
  trace("pins differ", "compare.pins_differ", 1, nullptr, kHex);
  trace("state differs", "compare.state_differs", 1, nullptr, kHex);
  heading("detection unit");
  trace("rtl", "TOP.opd_top.u_detection_unit.state_q", 2, &kDetection, kHex);
  trace("systemc", "compare.systemc.detection_unit", 2, &kDetection, kHex);
  const auto pins = [&](const Pin& pin) {
    const bool hex = pin.bits > 16 || pin.name == std::string_view("record_flags");
    pair(pin.name, pin.bits, pin.names, hex ? kHex : kDecimal);
  };
  if (!field.empty()) {
    heading("what differs first: " + field);
    for (const StateField& f : kStateFields)
      if (fmt::format("state.{}", f.name) == field) state(f);
    for (const Pin& pin : kPins)
      if (pin.name == field || pin.name == "record_" + field ||
          pin.name + std::string("_o") == field)
        pins(pin);
  }
  heading(fmt::format("stored state of operator {}", window.op));
  for (const StateField& f : kStateFields) state(f);
  heading("records and pins");
  for (const Pin& pin : kPins) pins(pin);
  heading("inputs of both");
  for (const Input& input : kInputs)
    trace(input.name, fmt::format("compare.inputs.{}", input.name), input.bits, input.names,
          kDecimal);
  opd::trace::write_whole(view, text);
}

}  // namespace opd::tb
