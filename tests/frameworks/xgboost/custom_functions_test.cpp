#include "boosted_runs.hpp"

#include <troupe/boosting/exact_sum.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/xgboost.hpp>

#include <cstdint>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::testing;

namespace {

/// The library's own default with a custom objective.
const std::string plain = R"({"max_depth": 4, "eta": 0.3, "base_score": 0.5})";

struct runs : boosted_runs {
  runs() : boosted_runs{built("tests/bin/xgboost_run")} {}
};

inference::predictor_ptr model_of(const std::string& checkpoint) {
  return value_or_throw(xgboost::load_predictor(value_or_throw(serialization::checkpoint::open(checkpoint))));
}

/// The mean squared error of a model for the evaluation set, from predictions, with one rounding at the end.
double exact_error(const std::string& checkpoint, bool with_weights) {
  auto predictions = predicted(*model_of(checkpoint));
  auto labels = example_table(other_rows, 9).label;
  boosting::exact_sum sum;
  boosting::exact_sum weights;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    auto error = static_cast<double>(predictions[i]) - static_cast<double>(labels[i]);
    auto weight = with_weights ? 1.0 + static_cast<double>(i % 3) : 1.0;
    sum.add(error * error * weight);
    weights.add(weight);
  }
  return boosting::exact_sum::value_of(sum.words()) / boosting::exact_sum::value_of(weights.words());
}

} // namespace

TEST_CASE("a squared error written by hand yields the model of reg:squarederror, bit for bit") {
  for (const auto* workers : {"1", "2", "3"}) {
    INFO(workers << " workers");
    runs with;
    auto own = with.trained("own", workers, plain, "squared error by hand");
    auto built_in = with.trained("built-in", workers, plain);
    CHECK(predicted(*model_of(own)) == predicted(*model_of(built_in)));
    CHECK(with.state("own") == with.state("built-in"));
  }
  // With weights, and without a base score.
  runs with;
  auto own = with.trained("own", "2", R"({"max_depth": 3})", "weighted squared error by hand");
  CHECK(predicted(*model_of(own)) ==
        predicted(*model_of(with.trained("built-in", "2", R"({"max_depth": 3, "base_score": 0.5})", "weighted"))));
}

TEST_CASE("a softmax written by hand yields the model of multi:softprob, up to rounding") {
  runs with;
  auto parameters = R"({"objective": "multi:softprob", "num_class": 3, "max_depth": 4, "eta": 0.3, "base_score": 0.5})";
  auto probabilities = [&](const std::string& name) {
    auto model = model_of(with.trained(std::to_string(name.size()), "2", parameters, name));
    return value_or_throw(inference::predict_rows(*model, *class_rows(other_rows, 9, 3), numbers(other_rows)));
  };
  CHECK(mean_difference(probabilities("three classes by hand"), probabilities("three classes")) < 1e-4);
}

TEST_CASE("a run with a custom objective resumes with the same bits") {
  runs with;
  (void)with.trained("whole", "2", plain, "squared error by hand");
  (void)with.trained("halves", "2", plain, "squared error by hand", "5");
  (void)with.trained("halves", "2", plain, "squared error by hand");
  CHECK(with.here.result("halves")["resumed_from_step"] == 5);
  CHECK(with.state("halves") == with.state("whole"));
}

TEST_CASE("a custom metric is the exact value for the model's predictions on any number of workers") {
  runs with;
  for (const auto* workers : {"1", "2", "3"})
    for (const auto* selected : {"metric", "weighted metric"}) {
      INFO(selected << " on " << workers);
      auto name = std::string{selected[0]} + workers;
      auto checkpoint = with.trained(name, workers, plain, selected);
      auto metrics = with.here.result(name)["metrics"];
      auto found = metrics["validation-mse"].get<double>();
      CHECK(found == exact_error(checkpoint, selected[0] == 'w'));
      CHECK(metrics["validation-rmse"].get<double>() == doctest::Approx(std::sqrt(found)).epsilon(1e-5));
      CHECK(metrics["train-rmse"].get<double>() ==
            doctest::Approx(std::sqrt(metrics["train-mse"].get<double>())).epsilon(1e-5));
    }
}

TEST_CASE("workers whose library does not notice a loss end, and the run goes on from its last checkpoint") {
  runs with;
  (void)with.trained("whole", "3", plain, "squared error by hand");
  (void)with.trained("lossy", "3", plain, "loss in the objective");
  CHECK(with.here.result("lossy")["restarts"] == 1);
  CHECK(with.state("lossy") == with.state("whole"));
}

TEST_CASE("a custom function that throws ends the run with its reason, also if it throws on one rank alone") {
  runs with;
  auto refused = [&](const std::string& selected, const std::string& text) {
    auto ran = with.run(selected.substr(8), "3", plain, selected);
    CHECK(ran.status == exit_status{1, {}});
    CHECK_MESSAGE(contains(ran.err, text), ran.err);
  };
  refused("failing objective", "the custom objective failed: no gradient today");
  refused("failing metric", "the custom metric 'few' failed: 166 rows are too few");
}
