#include "opd/trace/suggestion.hpp"

#include <algorithm>
#include <numeric>

namespace opd::trace {
namespace {

/// Insertions, deletions and replacements that turn one name into the other.
std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= from.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t replaced = diagonal + (from[i - 1] != to[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::string suggestion(std::string_view name, const std::vector<std::string_view>& known,
                       std::string_view otherwise) {
  constexpr std::size_t kLongestName = 64;
  if (name.size() > kLongestName) return std::string(otherwise);
  const auto nearest = std::min_element(known.begin(), known.end(), [&](auto left, auto right) {
    return edit_distance(name, left) < edit_distance(name, right);
  });
  if (edit_distance(name, *nearest) > std::max<std::size_t>(2, nearest->size() / 3))
    return std::string(otherwise);
  return "did you mean " + std::string(*nearest) + "?";
}

}  // namespace opd::trace
