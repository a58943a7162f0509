#pragma once
// Element types of safetensors, in the library's own order: it lays tensors out by falling position
// here.
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace opd::trace {

inline constexpr std::array<std::pair<std::string_view, unsigned>, 15> kDtypes = {{
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E5M2", 1},
    {"F8_E4M3", 1},
    {"I16", 2},
    {"U16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F32", 4},
    {"F64", 8},
    {"I64", 8},
    {"U64", 8},
}};

/// Position of the dtype in kDtypes; kDtypes.size() when it is unknown.
constexpr std::size_t dtype_position(std::string_view dtype) {
  std::size_t position = 0;
  while (position < kDtypes.size() && kDtypes[position].first != dtype) ++position;
  return position;
}

}  // namespace opd::trace
