#include "decisions/reload_choice.hpp"

#include <algorithm>

namespace troupe::serving {

std::optional<serialization::checkpoint_entry> choose_checkpoint(std::span<const serialization::checkpoint_entry> all,
                                                                 const std::optional<step_id>& served,
                                                                 const std::set<std::filesystem::path>& refused,
                                                                 reload_reach reach) {
  for (auto each = all.rbegin(); each != all.rend(); ++each) {
    if (refused.contains(each->path))
      continue;
    if (served && (each->step == *served || (reach == reload_reach::newer && each->step < *served)))
      return std::nullopt;
    return *each;
  }
  return std::nullopt;
}

bool refused_checkpoints::add(const std::filesystem::path& path, outlook reason, time_point now) {
  const auto [found, is_new] = entries_.try_emplace(path);
  auto& own = found->second;
  own.delay = std::clamp<std::chrono::seconds>(own.delay * 2, std::chrono::seconds{1}, std::chrono::minutes{5});
  own.again = reason == outlook::hopeless ? time_point::max() : now + own.delay;
  return is_new;
}

std::set<std::filesystem::path> refused_checkpoints::at(time_point now) const {
  std::set<std::filesystem::path> result;
  for (const auto& [path, each] : entries_)
    if (now < each.again)
      result.insert(path);
  return result;
}

void refused_checkpoints::keep(std::span<const serialization::checkpoint_entry> all) {
  std::erase_if(entries_, [&](const auto& each) {
    return std::ranges::find(all, each.first, &serialization::checkpoint_entry::path) == all.end();
  });
}

void refused_checkpoints::retry() noexcept {
  for (auto& [path, each] : entries_)
    each = {};
}

} // namespace troupe::serving
