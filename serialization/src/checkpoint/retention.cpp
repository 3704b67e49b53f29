#include <troupe/serialization/checkpoint/retention.hpp>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>

namespace troupe::serialization {

namespace {

std::optional<double> score_of(const retention_candidate& x, const retention_policy& policy) {
  const auto metric = x.metrics.find(policy.score_attribute);
  if (policy.score_attribute.empty() || metric == x.metrics.end() || std::isnan(metric->second))
    return std::nullopt;
  return metric->second;
}

} // namespace

std::vector<step_id> rank_by_score(std::span<const retention_candidate> candidates, const retention_policy& policy) {
  struct scored_step {
    step_id step;
    double score = 0;
  };
  auto scored = std::vector<scored_step>{};
  for (const auto& each : candidates)
    if (auto score = score_of(each, policy))
      scored.push_back({each.step, *score});
  std::ranges::sort(scored, [&policy](const scored_step& a, const scored_step& b) {
    if (a.score != b.score)
      return policy.score_order == score_mode::max ? a.score > b.score : a.score < b.score;
    return a.step > b.step;
  });
  auto result = std::vector<step_id>{};
  for (const auto& each : scored)
    result.push_back(each.step);
  return result;
}

std::vector<retention_decision> decide_retention(std::span<const retention_candidate> candidates,
                                                 const retention_policy& policy) {
  auto sorted = std::vector<const retention_candidate*>{};
  for (const auto& each : candidates)
    sorted.push_back(&each);
  std::ranges::sort(sorted, {}, &retention_candidate::step);
  auto best = rank_by_score(candidates, policy);
  best.resize(std::min(best.size(), policy.num_best_to_keep));
  const auto best_of =
      policy.num_best_to_keep == 1 ? "the best" : fmt::format("one of the {} best", policy.num_best_to_keep);
  const auto recent = fmt::format("the {} latest", policy.num_to_keep);
  auto result = std::vector<retention_decision>{};
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    auto step = sorted[i]->step;
    if (i + 1 == sorted.size())
      result.push_back({step, true, "the latest"});
    else if (i + policy.num_to_keep >= sorted.size())
      result.push_back({step, true, "one of " + recent});
    else if (std::ranges::find(best, step) != best.end())
      result.push_back(
          {step, true,
           fmt::format("{} by {}: {:.6g}", best_of, policy.score_attribute, *score_of(*sorted[i], policy))});
    else
      result.push_back({step, false, "older than " + recent});
  }
  return result;
}

} // namespace troupe::serialization
