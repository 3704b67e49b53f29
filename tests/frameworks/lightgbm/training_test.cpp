#include "boosted_runs.hpp"
#include "booster.hpp"
#include "settings.hpp"

#include <troupe/lightgbm.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <filesystem>
#include <fstream>

using namespace troupe;
using namespace troupe::testing;

namespace {

const std::string plain = R"({"num_leaves": 15, "learning_rate": 0.3})";
const std::string drawn = R"({"num_leaves": 15, "learning_rate": 0.3, "bagging_fraction": 0.7, "bagging_freq": 1,
                             "feature_fraction": 0.8})";

struct runs : boosted_runs {
  runs() : boosted_runs{built("tests/bin/lightgbm_run")} {}
};

std::vector<float> predicted(const std::string& checkpoint) {
  auto stored = value_or_throw(serialization::checkpoint::open(checkpoint));
  return testing::predicted(*value_or_throw(lightgbm::load_predictor(stored)));
}

/// The same model by LightGBM alone, in this thread, with its own cuts and without interruption.
std::vector<float> predicted_alone(std::uint64_t rounds) {
  auto functions = value_or_throw(lightgbm::library::open(value_or_throw(lightgbm::find_library())));
  auto rows = example_table(all_rows, 7);
  auto how = lightgbm::parameter_text(nlohmann::json::parse(plain), 1, 1);
  auto training = lightgbm::binned_set{functions, rows.features, all_rows, how};
  training.set("label", rows.label);
  auto model = lightgbm::booster{functions, training, how, [&](int result) { functions->check(result); }};
  for (std::uint64_t round = 0; round < rounds; ++round)
    model.update();
  auto found = model.predict(example_table(other_rows, 9).features, other_rows, false);
  return {found.values.begin(), found.values.end()};
}

} // namespace

TEST_CASE("one worker yields LightGBM's own bits; two and four, also over two nodes, agree with it up to rounding") {
  runs with;
  // Up to the first checkpoint; after that a new booster adds to sums that were rounded differently.
  CHECK(predicted(with.trained("short", "1", plain, "nobody", "5")) == predicted_alone(5));
  auto alone = predicted_alone(12);
  auto one = predicted(with.trained("one", "1", plain));
  CHECK(largest_difference(one, alone) < 1e-4);
  auto metrics = with.here.result("one")["metrics"];
  CHECK(metrics["validation-l2"].get<double>() == doctest::Approx(squared_error(one)).epsilon(1e-5));
  // The same cuts and histograms, except for the order of their double sums: the same splits unless two gains are equal
  // up to that.
  CHECK(largest_difference(predicted(with.trained("two", "2", plain)), alone) < 1e-4);
  auto a = with.here.start_node();
  auto b = with.here.start_node();
  CHECK(largest_difference(predicted(with.trained("four", "4", plain, "nobody", "12", a.address + "," + b.address)),
                           alone) < 1e-4);
  // Every round's metrics of all ranks exist.
  CHECK(read_lines(with.here.run_directory("two") / "metrics.jsonl").size() == 2 * 12);
}

TEST_CASE("a run resumed on the same number of workers has the bits of an uninterrupted one") {
  runs with;
  check_resuming(with, drawn);
}

TEST_CASE("a run survives a killed or frozen worker from its last checkpoint, with the same bits") {
  runs with;
  check_losses(with, drawn);
}

TEST_CASE("errors of LightGBM and different data end the run with the reason") {
  runs with;
  check_refusals(with, "LightGBM", plain, R"({"objective": "nonsense"})");
}

TEST_CASE("categories are the training set's, by their texts, in evaluation sets and in predictions") {
  runs with;
  check_categories(with, R"({"num_leaves": 4, "learning_rate": 1, "min_data_in_leaf": 1, "min_data_in_bin": 1})",
                   "validation-l2", [](const std::string& checkpoint) {
                     return value_or_throw(
                         lightgbm::load_predictor(value_or_throw(serialization::checkpoint::open(checkpoint))));
                   });
}

TEST_CASE("a run goes on with another library with a warning, and hosts with different libraries are refused") {
  runs with;
  // The same functions; bytes after the sections only change the file.
  auto other = with.here.path("other.so").string();
  std::filesystem::copy_file(value_or_throw(lightgbm::find_library()), other);
  (void)with.trained("run", "1", plain, "nobody", "5");
  {
    auto out = std::ofstream{other, std::ios::binary | std::ios::app};
    out << "more";
  }
  with.environment["TROUPE_LIGHTGBM"] = other;
  auto resumed = with.run("run", "1", plain, "nobody", "7");
  CHECK(resumed.status == exit_status{0, {}});
  CHECK_MESSAGE(contains(resumed.err, "warning: LightGBM is not the one that wrote the checkpoint of step 5"),
                resumed.err);
  // The checkpoint is the new library's now, so that the next start has nothing to report.
  auto again = with.run("run", "1", plain, "nobody", "9");
  CHECK(again.status == exit_status{0, {}});
  CHECK_MESSAGE(!contains(again.err, "warning: LightGBM"), again.err);
  with.environment.clear();
  auto a = with.here.start_node();
  auto b = with.here.start_node({}, {{"TROUPE_LIGHTGBM", other}});
  auto mixed = with.run("mixed", "2", plain, "nobody", "5", a.address + "," + b.address);
  CHECK(mixed.status == exit_status{1, {}});
  CHECK_MESSAGE(contains(mixed.err, "rank 1 has another LightGBM than rank 0"), mixed.err);
  auto first = with.run("mixed", "1", plain, "nobody", "5", a.address);
  CHECK(first.status == exit_status{0, {}});
}

TEST_CASE("a library that knows only an older format of the model is refused") {
  runs with;
  // A library of the future: the only difference is the format that it writes.
  auto bytes = read_file(value_or_throw(lightgbm::find_library()));
  const auto format = std::string{"\0v4\0", 4};
  auto at = bytes.find(format);
  if (at == std::string::npos || bytes.find(format, at + 1) != std::string::npos) {
    MESSAGE("This LightGBM does not contain its format in the expected way");
    return;
  }
  bytes[at + 2] = '5';
  auto later = with.here.path("later.so").string();
  std::ofstream{later, std::ios::binary} << bytes;
  with.environment["TROUPE_LIGHTGBM"] = later;
  (void)with.trained("run", "2", plain, "nobody", "5");
  with.environment.clear();
  auto resumed = with.run("run", "2", plain, "nobody", "7");
  CHECK(resumed.status == exit_status{1, {}});
  CHECK_MESSAGE(contains(resumed.err, "this run cannot resume from its checkpoint with another LightGBM"), resumed.err);
  CHECK_MESSAGE(contains(resumed.err, "the model has format v5, and this LightGBM knows formats up to v4"),
                resumed.err);
}

TEST_CASE("a squared error written by hand yields LightGBM's regression up to rounding, on 1 and 2 workers") {
  const std::string from_zero = R"({"num_leaves": 15, "learning_rate": 0.3, "boost_from_average": false})";
  for (const auto* workers : {"1", "2"}) {
    INFO(workers << " workers");
    runs with;
    auto own = with.trained("own", workers, plain, "squared error by hand");
    CHECK(largest_difference(predicted(own), predicted(with.trained("built-in", workers, from_zero))) < 1e-4);
    auto weighted = with.trained("weighted", workers, plain, "weighted squared error by hand");
    CHECK(largest_difference(predicted(weighted),
                             predicted(with.trained("built-in-weighted", workers, from_zero, "weighted"))) < 1e-4);
  }
  runs with;
  auto refused = with.run("both", "1", R"({"objective": "l2"})", "squared error by hand");
  CHECK_MESSAGE(contains(refused.err, "'objective' cannot be set with a custom objective"), refused.err);
}

TEST_CASE("a softmax written by hand learns three classes as LightGBM's does") {
  runs with;
  auto scores = [&](const std::string& name, const std::string& parameters) {
    auto checkpoint = with.trained(std::to_string(name.size()), "2", parameters, name);
    auto model = value_or_throw(lightgbm::load_predictor(value_or_throw(serialization::checkpoint::open(checkpoint))));
    return value_or_throw(inference::predict_rows(*model, *class_rows(other_rows, 9, 3), numbers(other_rows)));
  };
  auto own = scores("three classes by hand", R"({"num_class": 3, "num_leaves": 15, "learning_rate": 0.3})");
  auto built_in = scores("three classes", R"({"objective": "multiclass", "num_class": 3, "num_leaves": 15,
                                              "learning_rate": 0.3})");
  std::uint64_t same = 0;
  for (std::size_t row = 0; row < other_rows; ++row) {
    auto most = [row](const std::vector<float>& all) {
      auto first = all.begin() + static_cast<std::ptrdiff_t>(3 * row);
      return std::max_element(first, first + 3) - first;
    };
    same += most(own) == most(built_in) ? 1 : 0;
  }
  CHECK(same > other_rows * 95 / 100);
}

TEST_CASE("a custom metric is LightGBM's own, the same on every worker") {
  runs with;
  for (const auto* selected : {"metric", "weighted metric"}) {
    auto name = std::string{selected, 1};
    (void)with.trained(name, "2", plain, selected);
    auto metrics = with.here.result(name)["metrics"];
    CHECK(metrics["validation-mse"].get<double>() ==
          doctest::Approx(metrics["validation-l2"].get<double>()).epsilon(1e-5));
  }
  auto failed = with.run("failing", "3", plain, "failing objective");
  CHECK(failed.status == exit_status{1, {}});
  CHECK_MESSAGE(contains(failed.err, "the custom objective failed: no gradient today"), failed.err);
}

TEST_CASE("a model is exported as LightGBM's own text, and never overwrites a file") {
  runs with;
  auto checkpoint = with.trained("model", "1", plain, "nobody", "3");
  auto stored = value_or_throw(serialization::checkpoint::open(checkpoint));
  CHECK(lightgbm::feature_names(stored) == std::vector<std::string>{"x"});
  auto file = with.here.path("model.txt");
  value_or_throw(lightgbm::export_model(stored, file));
  auto text = read_file(file);
  CHECK(text.starts_with("tree\n"));
  CHECK(contains(text, "\nTree=2\n"));
  CHECK(!contains(text, "\nTree=3\n"));
  CHECK(lightgbm::export_model(stored, file).error().code == errc::already_exists);
}
