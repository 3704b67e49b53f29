#include <troupe/actors/decisions/accepted_plans.hpp>

#include <troupe/actors/decisions/plan_comparison.hpp>

namespace troupe::actors {

bool accepted_plans::add(const run_plan& plan) {
  const auto is_next_loop = !plans_.empty() && plan.loop >= plans_.size();
  if (plan.loop < plans_.size())
    plans_.resize(plan.loop);
  plans_.push_back(plan);
  return is_next_loop;
}

const run_plan* accepted_plans::of_loop(std::uint32_t loop) const {
  return loop < plans_.size() ? &plans_[loop] : nullptr;
}

std::optional<error> find_plan_difference(const worker_table& workers) {
  const worker_record* first = nullptr;
  for (const auto& [id, who] : workers) {
    if (!who.is_active())
      continue;
    if (first == nullptr)
      first = &who;
    else if (auto wrong = compare_plans(*first->as<standing::active>()->plan, "on " + name_of(first->place),
                                        *who.as<standing::active>()->plan, "on " + name_of(who.place)))
      return wrong;
  }
  return std::nullopt;
}

} // namespace troupe::actors
