// The detection unit of all operators: records, independence of operators, illegal completions, bad
// arguments.
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "opd/reference/cpu.hpp"
#include "oracle.hpp"

namespace opd {
namespace {

using ref::CpuReference;

template <class Exception, class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(ReferenceCpu, RecordOfAnOverflow) {
  CpuReference reference;
  const OpDescriptor descriptor{.op = 3, .format = Format::kFp16, .step = 70000, .scale_log2 = 0};
  const TapSummary summary{.max_mag = 0x7BFF,
                           .element_count = 100,
                           .nonfinite_count = 2,
                           .first_nonfinite = 17,
                           .saturated_count = 1,
                           .subnormal_count = 4,
                           .zero_count = 5};
  const auto record = reference.complete(9, descriptor, summary);
  ASSERT_TRUE(record.has_value());
  const OpRecord expected{.seq = 9,
                          .step = 70000,
                          .op = 3,
                          .format = 0,
                          .mode = static_cast<std::uint8_t>(Mode::kStable),
                          .max_mag = 0x7BFF,
                          .nonfinite_count = 2,
                          .first_nonfinite = 17,
                          .saturated_count = 1,
                          .flags = 0b11100000,
                          .risk = 255,
                          .cause = static_cast<std::uint8_t>(Cause::kNonfinite)};
  EXPECT_EQ(*record, expected);
  EXPECT_EQ(reference.mode(3), Mode::kStable);
  EXPECT_EQ(reference.mode(2), Mode::kFast);
}

TEST(ReferenceCpu, TheBytesOfARecord) {
  const OpRecord record{.seq = 0x04030201,
                        .step = 0x08070605,
                        .op = 0x0A09,
                        .format = 0x0B,
                        .mode = 0x0C,
                        .max_mag = 0x100F0E0D,
                        .nonfinite_count = 0x14131211,
                        .first_nonfinite = 0x18171615,
                        .saturated_count = 0x1C1B1A19,
                        .flags = 0x1E1D,
                        .risk = 0x1F,
                        .cause = 0x20};
  std::array<std::uint8_t, 32> bytes;
  std::memcpy(bytes.data(), &record, sizeof record);
  for (std::size_t k = 0; k < bytes.size(); ++k) EXPECT_EQ(bytes[k], k + 1);
}

TEST(ReferenceCpu, OperatorsAreIndependent) {
  std::mt19937_64 rng(tb::case_seed(10));
  const DeviceParameters parameters{.num_ops = 8};
  CpuReference together(parameters);
  std::vector<CpuReference> alone(8, CpuReference(parameters));
  std::size_t compared = 0;
  for (std::uint32_t seq = 0; seq < 20000; ++seq) {
    const Format format = tb::kFormats[rng() % 5];
    const OpDescriptor descriptor{
        .op = static_cast<std::uint16_t>(rng() % 8), .format = format, .step = seq / 8};
    const std::vector<std::byte> bytes =
        tb::draw_elements(rng, format, static_cast<tb::Content>(rng() % 5), 16, 0);
    const TapSummary summary = ref::summarise(format, bytes);
    ASSERT_EQ(together.complete(seq, descriptor, summary),
              alone[descriptor.op].complete(seq, descriptor, summary));
    ASSERT_EQ(together.mode(descriptor.op), alone[descriptor.op].mode(descriptor.op));
    ++compared;
  }
  EXPECT_EQ(compared, 20000u);
}

TEST(ReferenceCpu, IllegalCompletionsAreUnseen) {
  CpuReference reference({.num_ops = 4});
  EXPECT_FALSE(reference.complete(0, {.op = 4}, {.nonfinite_count = 1}).has_value());
  EXPECT_FALSE(
      reference.complete(1, {.op = 0, .format = static_cast<Format>(5)}, {.nonfinite_count = 1})
          .has_value());
  EXPECT_FALSE(
      reference.complete(2, {.op = 9, .format = static_cast<Format>(255)}, {}).has_value());
  EXPECT_EQ(reference.unseen_count(), 3u);
  for (const ref::OpState& state : reference.states()) EXPECT_EQ(state, ref::OpState{});
  EXPECT_TRUE(reference.complete(3, {.op = 3}, {}).has_value());
  EXPECT_EQ(reference.unseen_count(), 3u);
}

TEST(ReferenceCpu, SummariesAreClampedToCounterWidth) {
  CpuReference reference({.counter_width = 4});
  const auto record = reference.complete(0, {},
                                         {.max_mag = 0xFFFFFFFFu,
                                          .nonfinite_count = 1000,
                                          .first_nonfinite = 500,
                                          .saturated_count = 16});
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->nonfinite_count, 15u);
  EXPECT_EQ(record->first_nonfinite, 14u);
  EXPECT_EQ(record->saturated_count, 15u);
  EXPECT_EQ(record->max_mag, 0xFFFFFFFFu);
}

TEST(ReferenceCpu, BadParametersAreNamed) {
  using E = std::invalid_argument;
  EXPECT_EQ(error_of<E>([] { CpuReference({.num_ops = 0}); }), "num_ops: 0 must be 1..65536");
  EXPECT_EQ(error_of<E>([] { CpuReference({.num_ops = 65537}); }),
            "num_ops: 65537 must be 1..65536");
  EXPECT_EQ(error_of<E>([] { CpuReference({.datapath_width = 544}); }),
            "datapath_width: 544 must be 32..512");
  EXPECT_EQ(error_of<E>([] { CpuReference({.datapath_width = 48}); }),
            "datapath_width: 48 must be a multiple of 32, 32..512");
  EXPECT_EQ(error_of<E>([] { CpuReference({.num_streams = 257}); }),
            "num_streams: 257 must be 1..256");
  EXPECT_EQ(error_of<E>([] { CpuReference({.queue_depth = 256}); }),
            "queue_depth: 256 must be 1..255");
  EXPECT_EQ(error_of<E>([] { CpuReference({.counter_width = 1}); }),
            "counter_width: 1 must be 2..32");
  EXPECT_EQ(error_of<E>([] { CpuReference({.counter_width = 33}); }),
            "counter_width: 33 must be 2..32");
  EXPECT_EQ(
      error_of<std::out_of_range>([] { static_cast<void>(CpuReference({.num_ops = 2}).mode(2)); }),
      "op: 2 must be 0..1");
  EXPECT_EQ(CpuReference({.num_ops = 65536}).mode(65535), Mode::kFast);
}

TEST(ReferenceCpu, BadConfigurationIsNamed) {
  std::size_t checked = 0;
  for (const ConfigField& field : kConfigFields) {
    for (const std::int32_t value : {field.minimum - 1, field.maximum + 1}) {
      Config config;
      field.set(config, value);
      if (field.get(config) != value) continue;  // the C++ type cannot hold it
      const std::string message =
          error_of<std::invalid_argument>([&] { CpuReference({}, config); });
      EXPECT_EQ(message, std::string(field.name) + " (" + std::string(field.path) +
                             "): " + std::to_string(value) + " must be " +
                             std::to_string(field.minimum) + ".." + std::to_string(field.maximum));
      ++checked;
    }
  }
  EXPECT_GE(checked, 20u);
}

}  // namespace
}  // namespace opd
