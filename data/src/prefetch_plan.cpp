#include "prefetch_plan.hpp"

#include <algorithm>
#include <utility>

namespace troupe::data {

void prefetch_plan::asked(shard_of_step which) {
  if (which.step != last_.step)
    owned_ = std::exchange(current_, {});
  else if (!current_.empty() && which.shard <= current_.back())
    // The step is repeated, perhaps with other shards, because the group has changed.
    current_.clear();
  last_ = which;
  current_.push_back(which.shard);
  // A shard from another worker: the ownership is not known any more.
  if (!std::ranges::binary_search(owned_, which.shard))
    owned_.clear();
}

std::vector<shard_of_step> prefetch_plan::next(std::size_t count) const {
  std::vector<shard_of_step> result;
  if (last_.step == 0)
    return result;
  if (owned_.empty()) {
    // A worker's shards are contiguous, so the next one is likely.
    for (auto v = last_.shard + 1; v < shards_ && result.size() < count; ++v)
      result.push_back({last_.step, v});
    return result;
  }
  auto place = static_cast<std::size_t>(std::ranges::upper_bound(owned_, last_.shard) - owned_.begin());
  for (auto step = last_.step; result.size() < count && (last_step_ == 0 || step <= last_step_); ++step) {
    for (; place < owned_.size() && result.size() < count; ++place)
      result.push_back({step, owned_[place]});
    place = 0;
  }
  return result;
}

} // namespace troupe::data
