#pragma once
// Yardstick of the bandwidth measurements: what a plain read of a buffer costs on this machine.
#include <cstddef>
#include <cstdint>
#include <span>

namespace opd::ref {

/// Sum of all bytes modulo 2^64, one thread, one pass, the same instruction sets as `summarise`.
/// Empty: 0.
std::uint64_t byte_sum(std::span<const std::byte> bytes);

}  // namespace opd::ref
