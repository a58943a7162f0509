// Mutations of a valid file: the reader gives a trace that can be read in full, or a TraceError,
// and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "sample_traces.hpp"
#include "seed.hpp"

namespace opd::tb {
namespace {

using trace::Trace;
using trace::TraceError;

constexpr std::string_view kTokens[] = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "\"",
                                        "\\",
                                        "null",
                                        "true",
                                        "-1",
                                        "0",
                                        "1e9",
                                        "18446744073709551615",
                                        "9223372036854775808",
                                        "4294967296",
                                        "\"F32\"",
                                        "\"I64\"",
                                        "\"F16\"",
                                        "\"BF16\"",
                                        "\"shape\"",
                                        "\"dtype\"",
                                        "\"data_offsets\"",
                                        "\"__metadata__\"",
                                        "\"raw/loss\"",
                                        "\"step\"",
                                        "\\\"mask\\\"",
                                        "\\\"rows\\\"",
                                        "\\\"add\\\"",
                                        "\"operand/norm/x\"",
                                        "\"U8\"",
                                        "0.5",
                                        "\\u0000",
                                        "\\ud800",
                                        "\xFF",
                                        "\xC3\xA9"};

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : rng_(seed) {}

  std::vector<std::byte> mutate(std::vector<std::byte> bytes) {
    for (std::size_t edits = 1 + index(3); edits > 0; --edits) {
      switch (index(8)) {
        case 0:  // flip bits anywhere
          if (!bytes.empty()) bytes[index(bytes.size())] ^= static_cast<std::byte>(1u << index(8));
          break;
        case 1:  // a word of data
          if (bytes.size() >= 8) {
            constexpr std::uint64_t kWords[] = {0,          1,          ~0ull,      1ull << 63,
                                                0x7F800000, 0x7FC00000, 0xFF800000, 1ull << 32};
            std::memcpy(bytes.data() + index(bytes.size() - 7), &kWords[index(std::size(kWords))],
                        8);
          }
          break;
        case 2:  // cut
          if (index(4) == 0) bytes.resize(index(bytes.size() + 1));
          break;
        case 3:  // grow
          if (index(4) == 0)
            bytes.insert(bytes.end(), 1 + index(16), static_cast<std::byte>(rng_()));
          break;
        default:
          bytes = with_edited_header(bytes);
      }
    }
    return bytes;
  }

 private:
  std::size_t index(std::size_t count) { return static_cast<std::size_t>(rng_() % count); }

  std::vector<std::byte> with_edited_header(const std::vector<std::byte>& bytes) {
    if (bytes.size() < 9) return bytes;
    const auto length = trace::load<std::uint64_t>(bytes, 0);
    if (length == 0 || length > bytes.size() - 8) return bytes;
    std::string header = header_of(bytes);
    const std::size_t at = index(header.size());
    const std::string token(kTokens[index(std::size(kTokens))]);
    switch (index(6)) {
      case 0:  // another digit: offsets, shapes, dtypes
        if (const auto digit = header.find_first_of("0123456789", at); digit != std::string::npos) {
          header[digit] = static_cast<char>('0' + index(10));
        }
        break;
      case 1:  // another number
        if (const auto digit = header.find_first_of("0123456789", at); digit != std::string::npos) {
          const auto end = header.find_first_not_of("0123456789", digit);
          header.replace(digit, end - digit, token);
        }
        break;
      case 2:
        header.insert(at, token);
        break;
      case 3:
        header.erase(at, 1 + index(20));
        break;
      case 4:  // copy a stretch elsewhere: duplicate keys, shared ranges
        header.insert(at, header.substr(index(header.size()), 1 + index(60)));
        break;
      default:  // another key or text
        if (const auto quote = header.find('"', at); quote != std::string::npos) {
          const auto end = header.find('"', quote + 1);
          if (end != std::string::npos) header.replace(quote, end + 1 - quote, token);
        }
    }
    return with_header(bytes, header);
  }

  std::mt19937_64 rng_;
};

bool is_one_printable_line(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
}

/// Runs `count` mutations of `good` and returns how many were still traces.
int run(const std::vector<std::byte>& good, std::uint64_t seed, int count) {
  Mutator mutator(seed);
  int accepted = 0;
  for (int i = 0; i < count; ++i) {
    const std::vector<std::byte> bytes = mutator.mutate(good);
    try {
      const Trace t = Trace::parse(bytes, "fuzz");
      const auto again = trace::serialize(content_of(t), "fuzz");
      for (std::size_t s = 0; s < t.steps().size(); ++s) {
        for (std::size_t p = 0; p < t.probes().size(); ++p) {
          t.statistic(s, p);
          t.scale_log2(s, p);
          t.computation_shape(p);
        }
      }
      EXPECT_EQ(trace::serialize(content_of(Trace::parse(again, "again")), "again"), again)
          << "case " << i;
      ++accepted;
    } catch (const TraceError& error) {
      const std::string_view text = error.what();
      EXPECT_TRUE(is_one_printable_line(text)) << "case " << i << ": " << text;
      EXPECT_LT(text.size(), 400u) << "case " << i;
      EXPECT_EQ(error.file(), "fuzz") << "case " << i;
      EXPECT_FALSE(error.field().empty()) << "case " << i;
      EXPECT_NE(text.find("; "), std::string_view::npos) << "case " << i;
    }
    if (testing::Test::HasFailure()) break;
  }
  return accepted;
}

TEST(Fuzz, SampleWithEveryMember) {
  const std::uint64_t seed = case_seed(0x7ACE0010);
  SCOPED_TRACE("reproduce: OPD_SEED=" + std::to_string(seed));
  constexpr int kCases = 40000;
  const int accepted = run(trace::serialize(sample_trace(), "sample"), seed, kCases);
  EXPECT_GT(accepted, kCases / 50);  // mutations that only meet values
  EXPECT_LT(accepted, kCases / 2);
}

TEST(Fuzz, SampleWithOperands) {
  const std::uint64_t seed = case_seed(0x7ACE0012);
  SCOPED_TRACE("reproduce: OPD_SEED=" + std::to_string(seed));
  constexpr int kCases = 40000;
  const int accepted = run(trace::serialize(operand_trace(), "operands"), seed, kCases);
  EXPECT_GT(accepted, kCases / 50);
  EXPECT_LT(accepted, kCases / 2);
}

TEST(Fuzz, ManySmallTraces) {
  const std::uint64_t seed = case_seed(0x7ACE0011);
  SCOPED_TRACE("reproduce: OPD_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  constexpr int kTraces = 400, kCases = 100;
  int accepted = 0;
  for (int i = 0; i < kTraces && !HasFailure(); ++i) {
    accepted += run(trace::serialize(random_trace(rng), "random"), rng(), kCases);
  }
  EXPECT_GT(accepted, kTraces * kCases / 50);
  EXPECT_LT(accepted, kTraces * kCases / 2);
}

/// Every prefix of a valid file is an error: each byte is needed.
TEST(Fuzz, EveryTruncation) {
  const auto good = trace::serialize(sample_trace(), "sample");
  std::size_t rejected = 0;
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(
        Trace::parse({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}, "cut"),
        TraceError)
        << size;
    ++rejected;
  }
  EXPECT_EQ(rejected, good.size());
  EXPECT_NO_THROW(Trace::parse(good, "whole"));
}

}  // namespace
}  // namespace opd::tb
