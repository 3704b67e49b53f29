#include <troupe/data/data_set.hpp>
#include <troupe/inference/table_predictor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <built.hpp>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <processes.hpp>

#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Trains the example learn_table on a table, and opens what it has learned.
struct learned_table {
  scratch_directory scratch;

  [[nodiscard]] serialization::checkpoint learn(const std::string& table) const {
    write_file(scratch.path() / "table.csv", table);
    auto process = child_process{{{"/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", scratch.path().string(),
                                   built("bin/examples/learn_table"), "table.csv", "y", "1"},
                                  {{"TROUPE_KEYS", (scratch.path() / "keys").string()}}},
                                 scratch.path() / "output"};
    const auto status = process.wait();
    INFO(process.err());
    REQUIRE(status == exit_status{0, {}});
    return value_or_throw(serialization::open_latest(scratch.path() / "runs" / "latest" / "checkpoints")).found;
  }
};

std::vector<float> predict(inference::predictor& model, std::vector<data::column> columns) {
  const auto rows = value_or_throw(data::make_table(std::move(columns)));
  std::vector<std::uint64_t> all;
  for (std::uint64_t i = 0; i < rows->size(); ++i)
    all.push_back(i);
  return value_or_throw(inference::predict_rows(model, *rows, all));
}

TEST_CASE("what was learned from a table predicts amounts in the table's unit, for rows without a label") {
  const learned_table table;
  std::string text = "x,kind,y\n";
  for (auto i = 0; i < 400; ++i)
    text +=
        fmt::format("{},{},{}\n", i % 40, i % 3 == 0 ? "a" : "b", 100'000 + 2000 * (i % 40) + (i % 3 == 0 ? 500 : 0));
  const auto model = value_or_throw(inference::load_table_predictor(table.learn(text)));
  CHECK(model->outputs() == std::vector<std::string>{"label"});
  const auto kinds = std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"a", "b"});
  const auto found = predict(*model, {data::make_column("x", std::vector<float>{0, 20, 39}),
                                      data::make_column("kind", std::vector<std::int64_t>{1, 1, 0}, {}, kinds)});
  REQUIRE(found.size() == 3);
  CHECK(found[0] == doctest::Approx(100'000).epsilon(0.03));
  CHECK(found[1] == doctest::Approx(140'000).epsilon(0.03));
  CHECK(found[2] == doctest::Approx(178'500).epsilon(0.03));
}

TEST_CASE("what was learned from a table predicts the probabilities of its classes, by their names") {
  const learned_table table;
  std::string text = "x,y\n";
  for (auto i = 0; i < 300; ++i)
    text += fmt::format("{},{}\n", i % 50, i % 50 < 25 ? "low" : "high");
  const auto source = table.learn(text);
  const auto model = value_or_throw(inference::load_table_predictor(source));
  CHECK(model->outputs() == std::vector<std::string>{"high", "low"});
  const auto found = predict(*model, {data::make_column("x", std::vector<float>{2, 48})});
  REQUIRE(found.size() == 4);
  CHECK(found[0] + found[1] == doctest::Approx(1));
  CHECK(found[1] > 0.9f);
  CHECK(found[2] > 0.9f);
  const auto absent = inference::load_table_predictor(source, "inputs", "another");
  REQUIRE(!absent);
  CHECK(absent.error().code == errc::not_found);
  CHECK(inference::load_table_predictor(source, "another").error().code == errc::not_found);
}

} // namespace
