#pragma once
// Yardstick of the bandwidth measurements: what a plain read of a buffer costs on this machine.
#include <cstddef>
#include <cstdint>
#include <span>

namespace opd::ref {

/// Sum of all bytes modulo 2^64, one thread, one pass, the same instruction sets as `summarise`.
/// Empty: 0.
std::uint64_t byte_sum(std::span<const std::byte> bytes);

/// The same on threads, in the chunks of `summarise_on_threads`. Errors: as there.
std::uint64_t byte_sum_on_threads(std::span<const std::byte> bytes, unsigned threads);

}  // namespace opd::ref
