#include <troupe/boosting/custom_metrics.hpp>

#include <troupe/boosting/exact_sum.hpp>
#include <troupe/error.hpp>

#include <exception>
#include <fmt/format.h>
#include <span>

namespace troupe::boosting {

void custom_metrics::add(const std::string& set, const scored_rows& rows) {
  for (const auto& [name, function] : functions_.metrics) {
    names_.push_back(fmt::format("{}-{}", set, name));
    std::vector<metric_term> terms(rows.rows);
    for (std::uint64_t row = 0; row < rows.rows; ++row)
      terms[row].weight = rows.weight(row);
    try {
      function(rows, terms);
    } catch (const std::exception& x) {
      failure_ = fmt::format("the custom metric '{}' failed: {}", name, x.what());
    }
    exact_sum sum;
    exact_sum weight;
    for (const auto& each : terms) {
      sum.add(each.sum);
      weight.add(each.weight);
    }
    for (auto words : {sum.words(), weight.words()})
      words_.insert(words_.end(), words.begin(), words.end());
  }
}

metric_map custom_metrics::of_these_rows() const {
  if (!failure_.empty())
    throw exception{errc::user_error, failure_};
  return quotients(words_);
}

metric_map custom_metrics::of_all_rows(train_context& ctx) const {
  auto words = words_;
  words.push_back(failure_.empty() ? 0 : 1);
  ctx.all_reduce(std::span{words});
  if (words.back() > 0)
    throw exception{errc::user_error, failure_};
  return quotients(words);
}

metric_map custom_metrics::quotients(std::span<const std::int64_t> words) const {
  metric_map result;
  auto next = [&words] {
    auto value = exact_sum::value_of(words.first<exact_sum::size>());
    words = words.subspan(exact_sum::size);
    return value;
  };
  for (const auto& name : names_) {
    auto sum = next();
    result[name] = sum / next();
  }
  return result;
}

void compute_gradients(const objective_function& objective, const scored_rows& rows, std::vector<float>& gradients,
                       std::vector<float>& hessians) {
  gradients.assign(rows.scores.size(), 0);
  hessians.assign(rows.scores.size(), 0);
  try {
    objective(rows, gradients, hessians);
  } catch (const std::exception& x) {
    throw exception{errc::user_error, fmt::format("the custom objective failed: {}", x.what())};
  }
}

} // namespace troupe::boosting
