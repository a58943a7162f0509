#pragma once
// The registers of the computing vector unit: what software sets, and what really ran. One class in
// both models; UnitRegisterSocket puts it behind TLM-2.0.
//
//   access : words at multiples of 4; takes no time. A write counts for operators issued from then
//            on
//   errors : refusal() says why an access is refused; a refused one changes nothing
//   reset  : every register to its reset value; SATURATE and ACCUMULATOR as the unit was built
//   source : docs/registers.md, "Vector unit"
#include <array>
#include <cstdint>
#include <optional>

#include "opd/sc/register_file.hpp"
#include "opd/types/computation.hpp"
#include "opd/types/unit_registers.hpp"

namespace opd::sc {

class UnitRegisters {
 public:
  /// `built`: the settings that CONTROL starts with, and those that no register changes.
  explicit UnitRegisters(const UnitSettings& built) : built_(built) { reset(); }

  void reset();

  /// Empty when the access is legal. `data` is that of a write.
  static std::optional<Refusal> refusal(bool write, std::uint64_t address, std::uint32_t data);

  /// Precondition: not refused.
  std::uint32_t read(std::uint64_t address) const;
  void write(std::uint64_t address, std::uint32_t data);

  /// What the next operator is computed with.
  UnitSettings settings() const;
  /// The mode it runs in when its mode register says `mode`.
  Mode mode_at_issue(Mode mode) const;
  /// An operator was computed.
  void executed(Kernel kernel, const ExecutionStatus& status);

 private:
  UnitSettings built_;
  std::uint32_t control_ = 0;
  std::uint32_t status_ = 0;
  std::array<std::uint32_t, kModeNames.size()> counts_{};
};

}  // namespace opd::sc
