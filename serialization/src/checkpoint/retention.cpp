#include <troupe/serialization/checkpoint/retention.hpp>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>

namespace troupe::serialization {

namespace {

struct scored_step {
  step_id step;
  double score = 0;
};

std::optional<scored_step> find_best(std::span<const retention_candidate* const> sorted,
                                     const retention_policy& policy) {
  auto best = std::optional<scored_step>{};
  if (policy.score_attribute.empty())
    return best;
  for (const auto* each : sorted) {
    auto metric = each->metrics.find(policy.score_attribute);
    if (metric == each->metrics.end() || std::isnan(metric->second))
      continue;
    auto score = metric->second;
    if (!best || (policy.score_order == score_mode::max ? score >= best->score : score <= best->score))
      best = scored_step{each->step, score};
  }
  return best;
}

} // namespace

std::vector<retention_decision> decide_retention(std::span<const retention_candidate> candidates,
                                                 const retention_policy& policy) {
  auto sorted = std::vector<const retention_candidate*>{};
  for (const auto& each : candidates)
    sorted.push_back(&each);
  std::ranges::sort(sorted, {}, &retention_candidate::step);
  const auto best = find_best(sorted, policy);
  const auto recent = fmt::format("the {} latest", policy.num_to_keep);
  auto result = std::vector<retention_decision>{};
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    auto step = sorted[i]->step;
    if (i + 1 == sorted.size())
      result.push_back({step, true, "the latest"});
    else if (i + policy.num_to_keep >= sorted.size())
      result.push_back({step, true, "one of " + recent});
    else if (best && best->step == step)
      result.push_back({step, true, fmt::format("the best by {}: {:.6g}", policy.score_attribute, best->score)});
    else
      result.push_back({step, false, "older than " + recent});
  }
  return result;
}

} // namespace troupe::serialization
