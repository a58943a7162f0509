#pragma once
// Names that a mistyped one may stand for.
#include <string>
#include <string_view>
#include <vector>

namespace opd::trace {

/// "did you mean NAME?" when a known name is near, else `otherwise`. `known` is not empty.
[[nodiscard]] std::string suggestion(std::string_view name,
                                     const std::vector<std::string_view>& known,
                                     std::string_view otherwise);

}  // namespace opd::trace
