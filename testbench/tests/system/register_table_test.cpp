// Testplan: REG-03 (the generated map, from which RTL, SystemC and the driver have theirs, against the
// table kept by hand; the reference's Config against it as well).
#include "register_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "opd/reference/cpu.hpp"
#include "opd/types/registers.hpp"

namespace {

using namespace opd;
using namespace opd::tb;

std::uint32_t bits_of(const TableField& f) {
  return static_cast<std::uint32_t>(((std::uint64_t{1} << f.width) - 1) << f.low_bit);
}

TEST(RegisterTable, FieldsOfTheMapAreThoseOfTheTable) {
  ASSERT_EQ(kRegisterFields.size(), kRegisterTable.size());
  for (std::size_t i = 0; i < kRegisterTable.size(); ++i) {
    const TableField& want = kRegisterTable[i];
    const RegisterField& is = kRegisterFields[i];
    SCOPED_TRACE(std::string(want.path));
    EXPECT_EQ(is.path, want.path);
    EXPECT_EQ(is.address, want.address);
    EXPECT_EQ(is.low_bit, want.low_bit);
    EXPECT_EQ(is.width, want.width);
    EXPECT_EQ(is.writable, want.access != Access::kRo);
    EXPECT_EQ(is.is_signed, want.minimum < 0);
    EXPECT_EQ(is.minimum, want.minimum);
    EXPECT_EQ(is.maximum, want.maximum);
  }
}

TEST(RegisterTable, ResetAndAccessOfTheMapAreThoseOfTheTable) {
  unsigned registers = 0;
  for (const Register& r : kRegisters) {
    SCOPED_TRACE(std::string(r.name));
    std::uint32_t readable = 0, writable = 0, write_one_clears = 0, reset = 0;
    for (const TableField& f : kRegisterTable) {
      if (f.address != r.address) continue;
      EXPECT_EQ(f.path.substr(0, f.path.find('.')), r.name);
      if (f.access != Access::kWo) readable |= bits_of(f);
      if (f.access != Access::kRo) writable |= bits_of(f);
      if (f.access == Access::kW1c) write_one_clears |= bits_of(f);
      reset |= static_cast<std::uint32_t>(f.reset << f.low_bit) & bits_of(f);
    }
    EXPECT_EQ(r.readable, readable);
    EXPECT_EQ(r.writable, writable);
    EXPECT_EQ(r.write_one_clears, write_one_clears);
    EXPECT_EQ(r.reset, reset);
    ++registers;
  }
  EXPECT_EQ(registers, 61u);
}

/// Whether the reference takes a configuration with this value of the field.
bool takes(const ConfigField& field, std::int64_t value) {
  Config config;
  field.set(config, static_cast<std::int32_t>(value));
  if (field.get(config) != value) return false;  // the member cannot even hold it
  try {
    ref::validate(config);
    return true;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

TEST(RegisterTable, ConfigOfTheReferenceHasItsResetValuesAndRanges) {
  const Config config;
  unsigned fields = 0;
  for (const TableField& want : kRegisterTable) {
    if (want.address < 0x100) continue;
    SCOPED_TRACE(std::string(want.path));
    const auto is = std::find_if(kConfigFields.begin(), kConfigFields.end(),
                                 [&](const ConfigField& f) { return f.path == want.path; });
    ASSERT_NE(is, kConfigFields.end());
    EXPECT_EQ(is->get(config), want.reset);
    EXPECT_TRUE(takes(*is, want.minimum));
    EXPECT_TRUE(takes(*is, want.maximum));
    EXPECT_FALSE(takes(*is, want.minimum - 1));
    EXPECT_FALSE(takes(*is, want.maximum + 1));
    ++fields;
  }
  EXPECT_EQ(fields, kConfigFields.size());
}

}  // namespace
