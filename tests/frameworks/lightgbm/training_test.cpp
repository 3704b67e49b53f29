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
  runs() : boosted_runs{TROUPE_LIGHTGBM_RUN} {}
};

std::vector<float> predicted(const std::string& checkpoint) {
  auto stored = value_or_throw(serialization::checkpoint::open(checkpoint));
  return testing::predicted(*value_or_throw(lightgbm::load_predictor(stored)));
}

/// The same model by LightGBM alone, in this thread: with cuts of its own, in one go.
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

TEST_CASE("one worker gives LightGBM's own bits; two and four, over two nodes too, agree with it up to rounding") {
  runs with;
  // Up to the first checkpoint; from there on a new booster adds to sums that were rounded otherwise.
  CHECK(predicted(with.trained("short", "1", plain, "nobody", "5")) == predicted_alone(5));
  auto alone = predicted_alone(12);
  auto one = predicted(with.trained("one", "1", plain));
  CHECK(largest_difference(one, alone) < 1e-4);
  auto metrics = with.here.result("one")["metrics"];
  CHECK(metrics["validation-l2"].get<double>() == doctest::Approx(squared_error(one)).epsilon(1e-5));
  // The same cuts, and the same histograms but for the order of their double sums: the same splits unless two gains are
  // equal up to that.
  CHECK(largest_difference(predicted(with.trained("two", "2", plain)), alone) < 1e-4);
  auto a = with.here.start_node();
  auto b = with.here.start_node();
  CHECK(largest_difference(predicted(with.trained("four", "4", plain, "nobody", "12", a.address + "," + b.address)),
                           alone) < 1e-4);
  // Every round's metrics are there, of all ranks.
  CHECK(read_lines(with.here.run_directory("two") / "metrics.jsonl").size() == 2 * 12);
}

TEST_CASE("a run that goes on, on as many workers, has the bits of one that was not interrupted") {
  runs with;
  (void)with.trained("whole", "2", drawn);
  (void)with.trained("halves", "2", drawn, "nobody", "5");
  (void)with.trained("halves", "2", drawn);
  CHECK(with.here.result("halves")["resumed_from_step"] == 5);
  CHECK(with.state("halves") == with.state("whole"));
  // On others it goes on, too, with the model as it is.
  (void)with.trained("halves", "3", drawn, "nobody", "14");
  CHECK(with.here.result("halves")["resumed_from_step"] == 12);
}

TEST_CASE("a killed or frozen worker is survived from the last round kept, with the same bits") {
  runs with;
  check_losses(with, drawn);
}

TEST_CASE("what LightGBM refuses, and other data, ends the run with the reason") {
  runs with;
  check_refusals(with, "LightGBM", plain, R"({"objective": "nonsense"})");
}

TEST_CASE("categories are those of the training set, by their texts, in evaluation sets and in predictions") {
  runs with;
  check_categories(with, R"({"num_leaves": 4, "learning_rate": 1, "min_data_in_leaf": 1, "min_data_in_bin": 1})",
                   "validation-l2", [](const std::string& checkpoint) {
                     return value_or_throw(
                         lightgbm::load_predictor(value_or_throw(serialization::checkpoint::open(checkpoint))));
                   });
}

TEST_CASE("another library than the other hosts', or than the run was begun with, is refused") {
  runs with;
  // The same functions; what is behind the sections changes nothing but the file.
  auto other = with.here.path("other.so").string();
  std::filesystem::copy_file(value_or_throw(lightgbm::find_library()), other);
  (void)with.trained("run", "1", plain, "nobody", "5");
  {
    auto out = std::ofstream{other, std::ios::binary | std::ios::app};
    out << "more";
  }
  with.environment["TROUPE_LIGHTGBM"] = other;
  auto resumed = with.run("run", "1", plain, "nobody", "7");
  CHECK(resumed.status == exit_status{1, {}});
  CHECK_MESSAGE(contains(resumed.err, "LightGBM's library is another one than it was begun with"), resumed.err);
  with.environment.clear();
  auto a = with.here.start_node();
  auto b = with.here.start_node({}, {{"TROUPE_LIGHTGBM", other}});
  auto mixed = with.run("mixed", "2", plain, "nobody", "5", a.address + "," + b.address);
  CHECK(mixed.status == exit_status{1, {}});
  CHECK_MESSAGE(contains(mixed.err, "rank 1 has another LightGBM than rank 0"), mixed.err);
  auto first = with.run("mixed", "1", plain, "nobody", "5", a.address);
  CHECK(first.status == exit_status{0, {}});
}

TEST_CASE("a model is exported as LightGBM's own text, and never over another") {
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
