// Vectorised summaries against the definition, and the definition against the oracle by value.
#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <string>

#include "opd/reference/byte_sum.hpp"
#include "opd/reference/cpu.hpp"
#include "oracle.hpp"

namespace opd {
namespace {

using ref::Isa;
using ref::summarise;
using ref::summarise_serial;

std::vector<Isa> isas() {
  std::vector<Isa> result{Isa::kBaseline};
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= ref::best_isa()) result.push_back(isa);
  }
  return result;
}

TEST(ReferenceSummarise, FastEqualsSerialEqualsOracle) {
  std::mt19937_64 rng(tb::case_seed(4));
  std::size_t compared = 0, expected = 0;
  for (const Format format : tb::kFormats) {
    const std::size_t size = tb::element_size(format);
    std::vector<std::size_t> counts(
        140);  // around one, two and four vectors of the narrowest elements
    std::iota(counts.begin(), counts.end(), std::size_t{0});
    for (const std::size_t vector : {16u, 32u, 64u}) {  // around the ends of blocks of 255 vectors
      for (const std::size_t blocks : {1u, 2u}) {
        const std::size_t end = 255 * blocks * vector / size;
        for (const std::size_t count : {end - 1, end, end + 1, end + vector / size})
          counts.push_back(count);
      }
    }
    for (const std::size_t count : counts) {
      for (unsigned content = 0; content < static_cast<unsigned>(tb::Content::kCount); ++content) {
        const std::size_t misalignment = rng() % 33;
        const std::vector<std::byte> bytes =
            tb::draw_elements(rng, format, static_cast<tb::Content>(content), count, misalignment);
        const std::span<const std::byte> elements = std::span(bytes).subspan(misalignment);
        const unsigned width = std::array<unsigned, 4>{2, 5, 9, 32}[rng() % 4];
        const TapSummary oracle = tb::oracle_summary(format, elements, {}, width);
        ASSERT_EQ(summarise_serial(format, elements, {}, width), oracle);
        for (const Isa isa : isas()) {
          ASSERT_EQ(summarise(format, elements, width, isa), oracle)
              << kFormatNames[static_cast<std::size_t>(format)] << " count " << count << " content "
              << content << " misalignment " << misalignment << " isa "
              << static_cast<unsigned>(isa);
          ++compared;
        }
      }
    }
    expected += counts.size() * static_cast<unsigned>(tb::Content::kCount) * isas().size();
  }
  EXPECT_EQ(compared, expected);
  EXPECT_GE(compared, 5u * 156 * 6);
}

TEST(ReferenceSummarise, EveryPatternInEveryLane) {
  std::size_t compared = 0;
  for (const Format format : {Format::kFp16, Format::kBf16, Format::kE4m3, Format::kE5m2}) {
    const std::size_t size = tb::element_size(format);
    const std::size_t lanes = 32 / size;
    const std::uint32_t patterns = 1u << (8 * size);
    for (std::size_t lane = 0; lane < lanes; lane += size == 1 ? 1 : 5) {
      for (std::uint32_t bits = 0; bits < patterns; ++bits) {
        std::vector<std::byte> bytes(32);  // one vector, zero but for one lane
        std::memcpy(bytes.data() + lane * size, &bits, size);
        const TapSummary oracle = tb::oracle_summary(format, bytes, {}, 32);
        for (const Isa isa : isas()) {
          ASSERT_EQ(summarise(format, bytes, 32, isa), oracle)
              << std::hex << bits << " lane " << lane;
        }
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 2u * 4 * 65536 + 2u * 32 * 256);
}

TEST(ReferenceSummarise, LongOutputsCountInFull) {
  for (const Format format : tb::kFormats) {
    const std::size_t count = (std::size_t{8} << 20) / tb::element_size(format);
    std::vector<std::byte> zeros(count * tb::element_size(format));
    for (const Isa isa : isas()) {
      const TapSummary summary = summarise(format, zeros, 32, isa);
      EXPECT_EQ(summary.zero_count, count);
      EXPECT_EQ(summary.element_count, count);
      EXPECT_EQ(summary.first_nonfinite, kNoElement);
    }
    std::fill(zeros.begin(), zeros.end(), std::byte{0xFF});  // a NaN in every format
    for (const Isa isa : isas()) {
      const TapSummary summary = summarise(format, zeros, 32, isa);
      EXPECT_EQ(summary.nonfinite_count, count);
      EXPECT_EQ(summary.first_nonfinite, 0u);
      EXPECT_EQ(summary.max_mag, 0u);
    }
  }
}

TEST(ReferenceSummarise, SerialHonoursTheMask) {
  std::mt19937_64 rng(tb::case_seed(5));
  std::size_t compared = 0;
  for (const Format format : tb::kFormats) {
    for (int k = 0; k < 200; ++k) {
      const std::size_t count = rng() % 100;
      const std::vector<std::byte> bytes =
          tb::draw_elements(rng, format, tb::Content::kRandom, count, 0);
      std::vector<std::uint8_t> enabled(count);
      for (std::uint8_t& lane : enabled) lane = static_cast<std::uint8_t>(rng() % 3);
      ASSERT_EQ(summarise_serial(format, bytes, enabled, 6),
                tb::oracle_summary(format, bytes, enabled, 6));
      ++compared;
    }
  }
  EXPECT_EQ(compared, 1000u);
}

TEST(ReferenceSummarise, ThreadsDoNotChangeTheResult) {
  std::mt19937_64 rng(tb::case_seed(7));
  std::size_t compared = 0;
  for (const Format format : tb::kFormats) {
    const std::size_t size = tb::element_size(format);
    for (const std::size_t bytes :
         {size, std::size_t{256} << 10, (std::size_t{1} << 20) + 9 * size, std::size_t{3} << 19}) {
      // Ordinary elements; the first that is not finite stands in another chunk each time.
      std::vector<std::byte> elements(bytes, std::byte{0x11});
      const std::size_t bad = rng() % (bytes / size) * size;
      std::fill_n(elements.begin() + static_cast<std::ptrdiff_t>(bad), size, std::byte{0xFF});
      for (const unsigned width : {9u, 32u}) {
        const TapSummary whole = summarise(format, elements, width);
        for (const unsigned threads : {1u, 2u, 3u, 5u}) {
          ASSERT_EQ(ref::summarise_on_threads(format, elements, threads, width), whole)
              << kFormatNames[static_cast<std::size_t>(format)] << " bytes " << bytes << " threads "
              << threads << " width " << width;
          ASSERT_EQ(ref::byte_sum_on_threads(elements, threads), ref::byte_sum(elements));
          ++compared;
        }
      }
    }
  }
  EXPECT_EQ(compared, 5u * 4 * 2 * 4);
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(ReferenceSummarise, BadArgumentsAreNamed) {
  const std::vector<std::byte> bytes(6);
  EXPECT_EQ(error_of([&] { summarise(Format::kFp32, bytes); }),
            "elements: 6 bytes must be a multiple of the element size 4");
  EXPECT_EQ(error_of([&] { summarise_serial(static_cast<Format>(5), bytes); }),
            "format: 5 is unknown, must be 0..4");
  EXPECT_EQ(error_of([&] { summarise(Format::kFp16, bytes, 1); }),
            "counter_width: 1 must be 2..32");
  EXPECT_EQ(error_of([&] { summarise(Format::kFp16, bytes, 33); }),
            "counter_width: 33 must be 2..32");
  EXPECT_EQ(error_of([&] { ref::summarise_on_threads(Format::kFp16, bytes, 0); }),
            "threads: 0 must be 1..1024");
  const std::vector<std::byte> odd((std::size_t{1} << 20) + 1);
  EXPECT_EQ(error_of([&] { ref::summarise_on_threads(Format::kFp16, odd, 2); }),
            "elements: 1048577 bytes must be a multiple of the element size 2");
  EXPECT_EQ(error_of([&] { ref::byte_sum_on_threads(bytes, 1025); }),
            "threads: 1025 must be 1..1024");
  const std::vector<std::uint8_t> enabled(2);
  EXPECT_EQ(error_of([&] { summarise_serial(Format::kFp16, bytes, enabled); }),
            "enabled: 2 entries, must be empty or 3");
}

TEST(ReferenceByteSum, SumsEveryByte) {
  std::mt19937_64 rng(tb::case_seed(6));
  std::size_t compared = 0;
  for (std::size_t count = 0; count < 600; ++count) {
    std::vector<std::byte> bytes(count + 1);
    std::uint64_t sum = 0;
    for (std::size_t k = 1; k <= count; ++k) {
      bytes[k] = std::byte{static_cast<unsigned char>(rng() >> 56)};
      sum += static_cast<std::uint64_t>(bytes[k]);
    }
    ASSERT_EQ(ref::byte_sum(std::span(bytes).subspan(1)), sum);
    ++compared;
  }
  EXPECT_EQ(compared, 600u);
}

}  // namespace
}  // namespace opd
