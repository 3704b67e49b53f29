#include "decisions/reload_choice.hpp"

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

} // namespace troupe::serving
