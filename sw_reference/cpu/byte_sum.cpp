// Sum of bytes with one load, one SAD and one add per vector: memory bound, as a plain read should
// be.
#include "opd/reference/byte_sum.hpp"

#include "opd/reference/cpu.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace opd::ref {
namespace {

std::uint64_t sum_scalar(const std::byte* bytes, std::size_t count) {
  std::uint64_t sum = 0;
  for (std::size_t k = 0; k < count; ++k) sum += static_cast<std::uint64_t>(bytes[k]);
  return sum;
}

#if defined(__x86_64__)
std::uint64_t sum_sse2(const std::byte* bytes, std::size_t count) {
  __m128i sums[4] = {};  // four chains hide the latency of the addition
  const std::size_t blocks = count / 64;
  for (std::size_t block = 0; block < blocks; ++block) {
    for (std::size_t k = 0; k < 4; ++k) {
      const auto* address = reinterpret_cast<const __m128i*>(bytes + block * 64 + k * 16);
      sums[k] = _mm_add_epi64(sums[k], _mm_sad_epu8(_mm_loadu_si128(address), _mm_setzero_si128()));
    }
  }
  const __m128i sum =
      _mm_add_epi64(_mm_add_epi64(sums[0], sums[1]), _mm_add_epi64(sums[2], sums[3]));
  alignas(16) std::uint64_t lanes[2];
  _mm_store_si128(reinterpret_cast<__m128i*>(lanes), sum);
  return lanes[0] + lanes[1] + sum_scalar(bytes + blocks * 64, count % 64);
}

[[gnu::target("avx2")]] std::uint64_t sum_avx2(const std::byte* bytes, std::size_t count) {
  __m256i sums[4] = {};
  const std::size_t blocks = count / 128;
  for (std::size_t block = 0; block < blocks; ++block) {
    for (std::size_t k = 0; k < 4; ++k) {
      const auto* address = reinterpret_cast<const __m256i*>(bytes + block * 128 + k * 32);
      sums[k] = _mm256_add_epi64(
          sums[k], _mm256_sad_epu8(_mm256_loadu_si256(address), _mm256_setzero_si256()));
    }
  }
  const __m256i sum =
      _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
  alignas(32) std::uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3] + sum_scalar(bytes + blocks * 128, count % 128);
}

[[gnu::target("avx512bw")]] std::uint64_t sum_avx512(const std::byte* bytes, std::size_t count) {
  __m512i sums[4] = {};
  const std::size_t blocks = count / 256;
  for (std::size_t block = 0; block < blocks; ++block) {
    for (std::size_t k = 0; k < 4; ++k) {
      const auto* address = bytes + block * 256 + k * 64;
      sums[k] = _mm512_add_epi64(
          sums[k], _mm512_sad_epu8(_mm512_loadu_si512(address), _mm512_setzero_si512()));
    }
  }
  const __m512i sum =
      _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3]));
  alignas(64) std::uint64_t lanes[8];
  _mm512_store_si512(lanes, sum);
  std::uint64_t total = sum_scalar(bytes + blocks * 256, count % 256);
  for (const std::uint64_t lane : lanes) total += lane;
  return total;
}
#endif

}  // namespace

std::uint64_t byte_sum(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  switch (best_isa()) {
    case Isa::kAvx512:
      return sum_avx512(bytes.data(), bytes.size());
    case Isa::kAvx2:
      return sum_avx2(bytes.data(), bytes.size());
    case Isa::kBaseline:
      break;
  }
  return sum_sse2(bytes.data(), bytes.size());
#else
  return sum_scalar(bytes.data(), bytes.size());
#endif
}

}  // namespace opd::ref
