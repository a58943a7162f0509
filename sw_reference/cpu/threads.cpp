// The passes over memory on several threads: whole chunks of elements each, joined in order.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "opd/reference/byte_sum.hpp"
#include "opd/reference/cpu.hpp"

namespace opd::ref {
namespace {

constexpr std::size_t kAlignment = 64;             // bytes: chunks are whole cache lines
constexpr std::size_t kSmallestChunk = 256 << 10;  // bytes: less does not pay for a thread

void check_threads(unsigned threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw std::invalid_argument("threads: " + std::to_string(threads) + " must be 1.." +
                                std::to_string(kMaxThreads));
  }
}

/// Calls work(chunk, first byte, bytes) for each chunk, the first one on this thread. Returns when all
/// are done.
template <class Work>
void in_chunks(std::size_t bytes, std::size_t chunks, const Work& work) {
  const std::size_t lines = (bytes + kAlignment - 1) / kAlignment;
  const auto begin = [&](std::size_t chunk) {
    return std::min(bytes, (lines * chunk / chunks) * kAlignment);
  };
  std::vector<std::jthread> threads;
  for (std::size_t chunk = 1; chunk < chunks; ++chunk) {
    threads.emplace_back([&work, chunk, first = begin(chunk), end = begin(chunk + 1)] {
      work(chunk, first, end - first);
    });
  }
  work(0, 0, begin(1));
}

std::size_t chunks_of(std::size_t bytes, unsigned threads) {
  return std::clamp<std::size_t>(bytes / kSmallestChunk, 1, threads);
}

}  // namespace

TapSummary summarise_on_threads(Format format, std::span<const std::byte> elements,
                                unsigned threads, unsigned counter_width) {
  check_threads(threads);
  summarise(format, {}, counter_width);  // checks both
  const std::size_t chunks = chunks_of(elements.size(), threads);
  if (chunks == 1 || elements.size() % layout_of(format).bytes() != 0)
    return summarise(format, elements, counter_width);
  std::vector<TapSummary> parts(chunks);
  in_chunks(elements.size(), chunks, [&](std::size_t chunk, std::size_t first, std::size_t bytes) {
    TapSummary part = summarise(format, elements.subspan(first, bytes));
    if (part.first_nonfinite != kNoElement) {
      const std::uint64_t before = first / layout_of(format).bytes();
      part.first_nonfinite = clamp_index(before + part.first_nonfinite, 32);
    }
    parts[chunk] = clamp_summary(part, counter_width);
  });
  TapSummary summary;
  for (const TapSummary& part : parts) summary = combine(summary, part, counter_width);
  return summary;
}

std::uint64_t byte_sum_on_threads(std::span<const std::byte> bytes, unsigned threads) {
  check_threads(threads);
  std::vector<std::uint64_t> parts(chunks_of(bytes.size(), threads));
  in_chunks(bytes.size(), parts.size(),
            [&](std::size_t chunk, std::size_t first, std::size_t count) {
              parts[chunk] = byte_sum(bytes.subspan(first, count));
            });
  std::uint64_t sum = 0;
  for (const std::uint64_t part : parts) sum += part;
  return sum;
}

}  // namespace opd::ref
