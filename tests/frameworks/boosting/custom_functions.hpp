#pragma once

#include "boosting_run.hpp"

#include <troupe/boosting.hpp>
#include <troupe/data/batch.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::testing {

/// The gradients of the squared error.
inline void squared_error(const boosting::scored_rows& rows, std::span<float> gradients, std::span<float> hessians) {
  for (std::uint64_t row = 0; row < rows.rows; ++row) {
    gradients[row] = (rows.scores[row] - rows.labels[row]) * rows.weight(row);
    hessians[row] = rows.weight(row);
  }
}

/// Those of the softmax over classes, as XGBoost computes them.
inline void softmax(const boosting::scored_rows& rows, std::span<float> gradients, std::span<float> hessians) {
  for (std::uint64_t row = 0; row < rows.rows; ++row) {
    auto scores = rows.scores.subspan(row * rows.outputs, rows.outputs);
    auto most = *std::ranges::max_element(scores);
    double sum = 0;
    for (auto score : scores)
      sum += std::exp(score - most);
    for (std::uint64_t output = 0; output < rows.outputs; ++output) {
      auto p = static_cast<float>(std::exp(scores[output] - most) / sum);
      auto is_label = static_cast<float>(output) == rows.labels[row];
      gradients[row * rows.outputs + output] = p - (is_label ? 1.0f : 0.0f);
      hessians[row * rows.outputs + output] = std::max(2 * p * (1 - p), 1e-16f);
    }
  }
}

inline void mean_squared_error(const boosting::scored_rows& rows, std::span<boosting::metric_term> terms) {
  for (std::uint64_t row = 0; row < rows.rows; ++row) {
    auto error = static_cast<double>(rows.scores[row]) - static_cast<double>(rows.labels[row]);
    terms[row].sum = error * error * terms[row].weight;
  }
}

/// Fails on rank 0 of three, which has fewer rows of the evaluation set than the others.
inline void failing_metric(const boosting::scored_rows& rows, std::span<boosting::metric_term>) {
  if (rows.rows == 166)
    throw std::runtime_error{"166 rows are too few"};
}

inline void failing_objective(const boosting::scored_rows&, std::span<float>, std::span<float>) {
  throw std::runtime_error{"no gradient today"};
}

/// In the first attempt the seventh call kills rank 1's process, and never returns on the other ranks: as in a library
/// that does not notice the loss.
struct loss_in_objective {
  static inline bool is_first_attempt = false;
  static inline bool dies = false;

  static boosting::training_sets sets(train_context& ctx) {
    is_first_attempt = ctx.attempt() == 1;
    dies = ctx.rank() == 1;
    return make_sets(ctx);
  }

  static void objective(const boosting::scored_rows& rows, std::span<float> gradients, std::span<float> hessians) {
    static int calls = 0;
    if (++calls == 7 && is_first_attempt) {
      if (dies)
        std::raise(SIGKILL);
      std::this_thread::sleep_for(std::chrono::hours{1});
    }
    squared_error(rows, gradients, hessians);
  }
};

/// A third column of weights, from 1 to 3.
inline boosting::training_sets weighted_sets(train_context& ctx) {
  auto weighted = [](const data::data_set_ptr& set) {
    std::vector<std::uint64_t> all(set->size());
    std::iota(all.begin(), all.end(), 0);
    data::batch rows;
    value_or_throw(set->fetch(all, rows));
    auto column = [&rows](const char* name) {
      auto values = rows.values<float>(name);
      return std::vector<float>(values.begin(), values.end());
    };
    std::vector<float> w(all.size());
    for (std::size_t i = 0; i < w.size(); ++i)
      w[i] = static_cast<float>(1 + i % 3);
    return value_or_throw(
        data::make_table({data::make_column("x", column("x"), {4}), data::make_column("y", column("y")),
                          data::make_column("w", std::move(w))}));
  };
  auto sets = make_sets(ctx);
  return {weighted(sets.training), {{"validation", weighted(sets.evaluations.front().second)}}};
}

/// A training function that the last of a program's arguments selects: "squared error by hand".
struct custom_run {
  std::string selected;
  /// The training function's.
  std::string name;
  boosting::make_training_sets make;
  boosting::custom_functions custom = {};
};

inline std::vector<custom_run> custom_runs() {
  const auto mse = std::map<std::string, boosting::metric_function>{{"mse", mean_squared_error}};
  const auto few = std::map<std::string, boosting::metric_function>{{"few", failing_metric}};
  std::vector<custom_run> result;
  result.push_back({"weighted", "weighted", weighted_sets});
  result.push_back({"squared error by hand", "squared", make_sets, {squared_error}});
  result.push_back({"weighted squared error by hand", "weighted-squared", weighted_sets, {squared_error}});
  result.push_back({"three classes by hand", "softmax", make_sets, {softmax}});
  result.push_back({"metric", "metric", make_sets, {{}, mse}});
  result.push_back({"weighted metric", "weighted-metric", weighted_sets, {{}, mse}});
  result.push_back({"failing metric", "failing-metric", make_sets, {{}, few}});
  result.push_back({"loss in the objective", "lossy", loss_in_objective::sets, {loss_in_objective::objective}});
  result.push_back({"failing objective", "failing-objective", make_sets, {failing_objective}});
  return result;
}

/// As `run_boosting`, with the function that the last argument selects, "train" by default.
template <class Config>
int run_custom(int argc, char** argv, Config config,
               function (*make)(std::string, boosting::make_training_sets, boosting::custom_functions),
               trainer (*make_trainer)(const app&, const function&, const Config&)) {
  auto selected = std::string{argc > 8 ? argv[8] : ""};
  auto train = make("train", boosting::make_training_sets{make_sets}, {});
  std::vector<function> functions{train};
  for (const auto& each : custom_runs()) {
    functions.push_back(make(each.name, each.make, each.custom));
    if (each.selected == selected)
      train = functions.back();
  }
  auto program = app{argc, argv, functions};
  if (selected.starts_with("weighted"))
    config.weight = "w";
  return run_boosting(argc, argv, config, [&](const auto& all) { return make_trainer(program, train, all); });
}

} // namespace troupe::testing
