#include "rabit_links.hpp"

#include <algorithm>

namespace troupe::xgboost {

rabit_links links_of(std::int32_t rank, std::int32_t world_size) {
  rabit_links result;
  if (rank > 0)
    result.tree.push_back(result.parent = (rank - 1) / 2);
  for (auto child : {2 * rank + 1, 2 * rank + 2})
    if (child < world_size)
      result.tree.push_back(child);
  result.all = result.tree;
  if (world_size > 1) {
    result.previous = (rank + world_size - 1) % world_size;
    result.next = (rank + 1) % world_size;
    result.all.insert(result.all.end(), {result.previous, result.next});
  }
  std::ranges::sort(result.all);
  auto twice = std::ranges::unique(result.all);
  result.all.erase(twice.begin(), twice.end());
  return result;
}

} // namespace troupe::xgboost
