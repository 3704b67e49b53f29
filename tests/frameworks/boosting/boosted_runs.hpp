#pragma once

#include "example_rows.hpp"
#include "scratch_runs.hpp"

#include <troupe/boosting/tables.hpp>
#include <troupe/inference/predictor.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {

inline constexpr std::uint64_t all_rows = 3000;
inline constexpr std::uint64_t other_rows = 500;

/// Runs of a program of boosting_run.hpp.
struct boosted_runs {
  explicit boosted_runs(std::string with) : program(std::move(with)) {}

  std::string program;
  scratch_runs here;
  std::map<std::string, std::string> environment = {};

  outcome run(const std::string& name, const std::string& workers, const std::string& parameters,
              const std::string& kill = "nobody", const std::string& rounds = "12", const std::string& nodes = "",
              std::uint64_t rows = all_rows) {
    return here.run(
        {program, here.path("runs").string(), name, workers, nodes, rounds, std::to_string(rows), parameters, kill},
        environment);
  }

  /// The checkpoint of a run that must complete.
  std::string trained(const std::string& name, const std::string& workers, const std::string& parameters,
                      const std::string& kill = "nobody", const std::string& rounds = "12",
                      const std::string& nodes = "", std::uint64_t rows = all_rows) {
    auto ran = run(name, workers, parameters, kill, rounds, nodes, rows);
    INFO(name << ": " << ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
    auto result = here.result(name);
    CHECK(result["steps"].get<int>() == std::stoi(rounds));
    return ran.out.substr(0, ran.out.find('\n'));
  }

  [[nodiscard]] std::string state(const std::string& name) const {
    return here.result(name)["state_sha256"].get<std::string>();
  }
};

inline std::vector<std::uint64_t> numbers(std::uint64_t count) {
  std::vector<std::uint64_t> result(count);
  std::iota(result.begin(), result.end(), 0);
  return result;
}

/// The first `count` rows that programs train on or evaluate.
inline boosting::feature_table example_table(std::uint64_t count, std::uint64_t seed) {
  boosting::settings how;
  how.features = {"x"};
  how.label = "y";
  return boosting::fetch_table(how, *example_rows(count, seed), numbers(count));
}

/// Checks that a run with categories, whose checkpoint `load` turns into a predictor, compares them by their texts.
template <class Load>
void check_categories(boosted_runs& with, const std::string& parameters, const std::string& metric, Load load) {
  // In this set oak has code 0. An unknown text equals a missing value.
  auto others = category_rows({"oak", "elm", "yew"}, 1);
  auto same = category_rows({"ash", "elm", "oak"}, 1);
  constexpr std::array<std::uint64_t, 3> all{0, 1, 2};
  for (const auto* how : {"categories", "one-hot"}) {
    INFO(how);
    auto checkpoint = with.trained(how, "2", parameters, how, "12", "", 20);
    // The evaluation set has other codes.
    CHECK(with.here.result(how)["metrics"][metric].template get<double>() < 0.01);
    auto model = load(checkpoint);
    auto known = value_or_throw(inference::predict_rows(*model, *same, all));
    CHECK(known[0] == doctest::Approx(1).epsilon(0.01));
    CHECK(known[1] == doctest::Approx(2).epsilon(0.01));
    CHECK(known[2] == doctest::Approx(3).epsilon(0.01));
    auto found = value_or_throw(inference::predict_rows(*model, *others, all));
    CHECK(found[0] == known[2]);
    CHECK(found[1] == known[1]);
  }
  // A resumed run restores what a preprocessor learned.
  (void)with.trained("halves", "2", parameters, "one-hot", "5", "", 20);
  (void)with.trained("halves", "2", parameters, "one-hot", "12", "", 20);
  CHECK(with.here.result("halves")["resumed_from_step"] == 5);
  CHECK(with.state("halves") == with.state("one-hot"));
}

/// Checks that a resumed run has the bits of an uninterrupted one.
inline void check_resuming(boosted_runs& with, const std::string& parameters) {
  (void)with.trained("whole", "2", parameters);
  (void)with.trained("halves", "2", parameters, "nobody", "5");
  (void)with.trained("halves", "2", parameters);
  CHECK(with.here.result("halves")["resumed_from_step"] == 5);
  CHECK(with.state("halves") == with.state("whole"));
  // On another number of workers it resumes as well, from the same model.
  (void)with.trained("halves", "3", parameters, "nobody", "14");
  CHECK(with.here.result("halves")["resumed_from_step"] == 12);
}

/// Checks that runs on three workers survive each kind of loss at each place, with the bits of an undisturbed run.
inline void check_losses(boosted_runs& with, const std::string& parameters) {
  (void)with.trained("whole", "3", parameters);
  // The others connect through rank 0.
  for (const auto* who : {"1 while making", "0 while reading", "1 while reading"}) {
    auto name = std::string{who};
    std::ranges::replace(name, ' ', '-');
    (void)with.trained(name, "3", parameters, who);
    auto result = with.here.result(name);
    CHECK(result["restarts"] == 1);
    CHECK(!result["failures"].empty());
    CHECK(with.state(name) == with.state("whole"));
  }
  // Slow rounds, so that the worker dies in the middle of one.
  (void)with.trained("long", "3", parameters, "nobody", "60", "", 20'000);
  for (const auto* who : {"0 while training", "2 while training", "1 frozen while training"}) {
    auto name = std::string{"lost-"} + who[0];
    (void)with.trained(name, "3", parameters, who, "60", "", 20'000);
    CHECK(with.here.result(name)["restarts"] == 1);
    CHECK(with.state(name) == with.state("long"));
  }
}

/// Checks that invalid runs fail with the reason. `nonsense` names an objective that does not exist.
inline void check_refusals(boosted_runs& with, const std::string& library, const std::string& plain,
                           const std::string& nonsense) {
  auto refused = [&](const outcome& ran, const std::string& text) {
    CHECK(ran.status == exit_status{1, {}});
    CHECK_MESSAGE(contains(ran.err, text), ran.err);
  };
  refused(with.run("objective", "2", nonsense), "nonsense");
  refused(with.run("data", "2", plain, "other data"), "rank 1 has other data than rank 0");
  refused(with.run("few", "2", plain, "nobody", "3", "", 1), "each of " + library + "'s workers needs at least one");
  refused(with.run("seed", "2", R"({"seed": 3})"), "run.seed");
}

/// A model's predictions for rows that it was not trained on.
inline std::vector<float> predicted(inference::predictor& model) {
  CHECK(model.outputs() == std::vector<std::string>{"prediction"});
  return value_or_throw(inference::predict_rows(model, *example_rows(other_rows, 9), numbers(other_rows)));
}

/// The mean squared error.
inline double squared_error(const std::vector<float>& predictions) {
  auto label = example_table(other_rows, 9).label;
  double result = 0;
  for (std::size_t i = 0; i < label.size(); ++i)
    result += std::pow(predictions[i] - label[i], 2) / static_cast<double>(label.size());
  return result;
}

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double result = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    result = std::max(result, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return result;
}

/// The mean over all numbers.
inline double mean_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double result = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    result += std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])) / static_cast<double>(a.size());
  return result;
}

} // namespace troupe::testing
