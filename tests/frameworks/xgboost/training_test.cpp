#include "boosted_runs.hpp"
#include "booster.hpp"
#include "settings.hpp"

#include <troupe/boosting/stored_model.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/xgboost.hpp>

using namespace troupe;
using namespace troupe::testing;

namespace {

const std::string plain = R"({"max_depth": 4, "eta": 0.3})";
const std::string drawn = R"({"max_depth": 4, "eta": 0.3, "subsample": 0.7, "colsample_bytree": 0.8})";

struct runs : boosted_runs {
  runs() : boosted_runs{built("tests/bin/xgboost_run")} {}
};

std::vector<float> predicted(const std::string& checkpoint) {
  auto stored = value_or_throw(serialization::checkpoint::open(checkpoint));
  return testing::predicted(*value_or_throw(xgboost::load_predictor(stored)));
}

/// Predictions of a model trained by XGBoost alone in this thread.
std::vector<float> predicted_alone(const boosting::feature_table& rows, const boosting::feature_table& others,
                                   const std::string& parameters) {
  auto functions = value_or_throw(xgboost::library::open(value_or_throw(xgboost::find_library())));
  auto training = xgboost::matrix{functions, rows.features, rows.rows, 1};
  training.set("label", rows.label);
  void* handles[] = {training.handle()};
  auto model = xgboost::booster{functions, handles};
  model.set("tree_method", "hist");
  model.set("nthread", "1");
  auto named = nlohmann::json::parse(parameters);
  for (const auto& [name, value] : named.items())
    model.set(name, xgboost::parameter_text(value));
  for (std::uint64_t round = 0; round < 12; ++round)
    model.update(round, training);
  auto found = model.predict(xgboost::matrix{functions, others.features, others.rows, 1});
  return {found.values.begin(), found.values.end()};
}

} // namespace

TEST_CASE("one worker yields XGBoost's own bits; two and four, also over two nodes, agree with it up to rounding") {
  runs with;
  auto alone = predicted_alone(example_table(all_rows, 7), example_table(other_rows, 9), plain);
  auto one = predicted(with.trained("one", "1", plain));
  CHECK(one == alone);
  auto metrics = with.here.result("one")["metrics"];
  CHECK(metrics["validation-rmse"].get<double>() == doctest::Approx(std::sqrt(squared_error(one))).epsilon(1e-5));
  // The same cuts (fewer values than bins) and histograms, except for the order of their double sums: the same splits
  // unless two gains are equal up to that, and leaves that differ by f32 rounding.
  CHECK(largest_difference(predicted(with.trained("two", "2", plain)), alone) < 1e-4);
  auto a = with.here.start_node();
  auto b = with.here.start_node();
  CHECK(largest_difference(predicted(with.trained("four", "4", plain, "nobody", "12", a.address + "," + b.address)),
                           alone) < 1e-4);
  // Every round's metrics of all ranks exist.
  auto lines = read_lines(with.here.run_directory("two") / "metrics.jsonl");
  CHECK(lines.size() == 2 * 12);
}

/// Classes, and features that rarely repeat, so that the cuts come from sketches, which depend on the distribution of
/// rows. One worker still has XGBoost's own bits. Two are, on average over all predictions, less than half as far from
/// it as a model of one worker's rows alone, and within 0.03 (0.021 was measured).
void check_classes(const std::string& name, int classes, const std::string& parameters) {
  runs with;
  INFO(name);
  boosting::settings how;
  how.features = {"x"};
  how.label = "y";
  auto table = [&](std::uint64_t count, std::uint64_t seed) {
    return boosting::fetch_table(how, *class_rows(count, seed, classes), numbers(count));
  };
  auto rows = table(all_rows, 7);
  auto others = table(other_rows, 9);
  auto alone = predicted_alone(rows, others, parameters);
  auto stored = [&](const std::string& workers) {
    auto checkpoint = with.trained(workers, workers, parameters, name);
    auto model = value_or_throw(xgboost::load_predictor(value_or_throw(serialization::checkpoint::open(checkpoint))));
    CHECK(model->outputs().size() == (classes == 2 ? 1u : 3u));
    return value_or_throw(inference::predict_rows(*model, *class_rows(other_rows, 9, classes), numbers(other_rows)));
  };
  CHECK(stored("1") == alone);
  auto half = predicted_alone(table(all_rows / 2, 7), others, parameters);
  auto of_two = mean_difference(stored("2"), alone);
  CHECK(of_two < 0.03);
  CHECK(of_two < mean_difference(half, alone) / 2);
}

TEST_CASE("one worker learns two classes of rarely repeating features as XGBoost does, and two workers nearly so") {
  check_classes("two classes", 2, R"({"objective": "binary:logistic", "max_depth": 4, "eta": 0.3})");
}

TEST_CASE("and three classes") {
  check_classes("three classes", 3, R"({"objective": "multi:softprob", "num_class": 3, "max_depth": 4, "eta": 0.3})");
}

TEST_CASE("categories are the training set's, by their texts, in evaluation sets and in predictions") {
  runs with;
  check_categories(
      with, R"({"max_depth": 3, "eta": 1, "lambda": 0})", "validation-rmse", [](const std::string& checkpoint) {
        return value_or_throw(xgboost::load_predictor(value_or_throw(serialization::checkpoint::open(checkpoint))));
      });
}

TEST_CASE("a run resumed on the same number of workers has the bits of an uninterrupted one") {
  runs with;
  check_resuming(with, drawn);
}

TEST_CASE("a run survives a killed or frozen worker from its last checkpoint, with the same bits") {
  runs with;
  check_losses(with, drawn);
}

TEST_CASE("errors of XGBoost and different data end the run with the reason") {
  runs with;
  check_refusals(with, "XGBoost", plain, R"({"objective": "reg:nonsense"})");
}

TEST_CASE("a model is exported as XGBoost's own file, and never overwrites a file") {
  runs with;
  auto checkpoint = with.trained("model", "1", plain, "nobody", "3");
  auto stored = value_or_throw(serialization::checkpoint::open(checkpoint));
  CHECK(xgboost::feature_names(stored) == std::vector<std::string>{"x"});
  // What another library reports about it.
  auto other = boosting::tree_library{"LightGBM", "lightgbm"};
  CHECK(boosting::feature_names(other, stored).error().code == errc::not_found);
  CHECK(contains(boosting::load_predictor(other, stored, {}).error().message, "no tensor 'lightgbm/model'"));
  auto file = with.here.path("model.json");
  value_or_throw(xgboost::export_model(stored, file));
  auto content = nlohmann::json::parse(read_file(file));
  CHECK(content["learner"]["gradient_booster"]["model"]["trees"].size() == 3);
  CHECK(xgboost::export_model(stored, file).error().code == errc::already_exists);
  CHECK(xgboost::export_model(stored, with.here.path("model.bin")).error().code == errc::invalid_argument);
}
