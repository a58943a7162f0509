#include "opd/sc/unit_registers.hpp"

#include <cassert>

namespace opd::sc {
namespace {

const Register* find_register(std::uint64_t address) {
  for (const Register& candidate : kUnitRegisters) {
    if (candidate.address == address) return &candidate;
  }
  return nullptr;
}

bool in_range(std::uint64_t address, std::uint32_t data) {
  for (const RegisterField& field : kUnitRegisterFields) {
    if (field.address != address || !field.writable) continue;
    const std::int64_t value = RegisterBits{field.low_bit, field.width}.get(data);
    if (value < field.minimum || value > field.maximum) return false;
  }
  return true;
}

template <typename Enum>
constexpr std::uint32_t code(Enum value) {
  return static_cast<std::uint32_t>(value);
}

}  // namespace

void UnitRegisters::reset() {
  control_ = find_register(unit_reg::kControl)->reset |
             unit_reg::kControlSaturate.put(code(built_.saturate)) |
             unit_reg::kControlAccumulator.put(code(built_.accumulator));
  status_ = 0;
  counts_.fill(0);
}

std::optional<Refusal> UnitRegisters::refusal(bool write, std::uint64_t address,
                                              std::uint32_t data) {
  const Register* target = find_register(address);
  if (target == nullptr) return Refusal::kNoRegister;
  if ((write ? target->writable : target->readable) == 0) return Refusal::kNotAccessible;
  if (write && !in_range(address, data)) return Refusal::kValue;
  return std::nullopt;
}

std::uint32_t UnitRegisters::read(std::uint64_t address) const {
  assert(!refusal(false, address, 0));
  switch (address) {
    case unit_reg::kControl:
      return control_;
    case unit_reg::kStatus:
      return status_;
    case unit_reg::kFastCount:
      return counts_[code(Mode::kFast)];
    case unit_reg::kStableCount:
      return counts_[code(Mode::kStable)];
    default:
      return counts_[code(Mode::kSafe)];
  }
}

void UnitRegisters::write(std::uint64_t address, std::uint32_t data) {
  assert(!refusal(true, address, data));
  control_ = data & find_register(address)->writable;
}

UnitSettings UnitRegisters::settings() const {
  UnitSettings settings = built_;
  settings.saturate = unit_reg::kControlSaturate.get(control_) != 0;
  settings.accumulator =
      static_cast<AccumulatorChoice>(unit_reg::kControlAccumulator.get(control_));
  return settings;
}

Mode UnitRegisters::mode_at_issue(Mode mode) const {
  return unit_reg::kControlForce.get(control_) != 0
             ? static_cast<Mode>(unit_reg::kControlForcedMode.get(control_))
             : mode;
}

void UnitRegisters::executed(Kernel kernel, const ExecutionStatus& status) {
  using namespace unit_reg;
  status_ = kStatusKernel.put(code(kernel)) | kStatusMode.put(code(status.mode)) |
            kStatusFormat.put(code(status.format)) |
            kStatusAccumulator.put(code(status.accumulator)) |
            kStatusAccumulates.put(code(status.accumulates)) |
            kStatusCompensated.put(code(status.compensated)) |
            kStatusCompressed.put(code(status.compressed)) |
            kStatusSaturating.put(code(status.saturating)) | kStatusValid.put(1);
  std::uint32_t& count = counts_[code(status.mode)];
  if (count != UINT32_MAX) ++count;
}

}  // namespace opd::sc
