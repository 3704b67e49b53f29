#include "scratch_runs.hpp"

#include <troupe/data/data_set.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/interchange/npy.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr std::uint64_t all_rows = 100'000;

/// A trained model, and predictions with it.
struct predictions {
  scratch_runs here;
  std::string model;

  predictions() { train(5); }

  /// Trains the model up to this step, from where it is.
  void train(int steps) {
    auto trained = here.run(
        {built("tests/bin/inference_run"), "train", here.path("runs").string(), "model", std::to_string(steps)});
    INFO(trained.err);
    REQUIRE(trained.status == exit_status{0, {}});
    model = trained.out.substr(0, trained.out.find('\n'));
  }

  [[nodiscard]] outcome run(const std::string& name, const std::string& output, const std::string& workers,
                            const std::string& nodes = "", const std::string& kill = "nobody",
                            std::uint64_t rows = all_rows) {
    return here.run({built("tests/bin/inference_run"), "predict", here.path("runs").string(), name, model,
                     here.path(output).string(), std::to_string(rows), workers, nodes, kill});
  }

  /// The bytes of the output of a run that must complete.
  [[nodiscard]] std::string predicted(const std::string& name, const std::string& output, const std::string& workers,
                                      const std::string& nodes = "", const std::string& kill = "nobody",
                                      std::uint64_t rows = all_rows) {
    auto ran = run(name, output, workers, nodes, kill, rows);
    INFO(name << ": " << ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
    CHECK(ran.out == std::to_string(rows) + " rows, " + std::to_string(rows) + " told\n");
    return read_file(here.path(output));
  }

  /// The expected predictions, computed here: x of row i as the test program generates it.
  [[nodiscard]] std::vector<float> expected_values(std::uint64_t rows) const {
    auto stored = value_or_throw(serialization::checkpoint::open(model));
    std::vector<float> weights(3);
    value_or_throw(stored.read_tensor("weights", std::as_writable_bytes(std::span{weights})));
    std::vector<float> x(2 * rows);
    for (std::uint64_t i = 0; i < rows; ++i) {
      x[2 * i] = static_cast<float>(i % 4099);
      x[2 * i + 1] = static_cast<float>(i * 37 % 8191) / 64;
    }
    auto scaler = value_or_throw(data::load_preprocessor(stored, "inputs"));
    data::batch all;
    std::vector<std::uint64_t> numbers(rows);
    for (std::uint64_t i = 0; i < rows; ++i)
      numbers[i] = i;
    auto table = value_or_throw(data::make_table({data::make_column("x", std::move(x), {2})}));
    value_or_throw(table->fetch(numbers, all));
    value_or_throw(scaler->transform(all));
    auto scaled = all.values<float>("x");
    std::vector<float> result(rows);
    for (std::uint64_t i = 0; i < rows; ++i)
      result[i] = weights[0] * scaled[2 * i] + weights[1] * scaled[2 * i + 1] + weights[2];
    return result;
  }
};

} // namespace

TEST_CASE("each of 100,000 rows has exactly one prediction, in order, on any workers, also when one is killed") {
  predictions with;
  auto one = with.predicted("one", "one.npy", "1");

  auto array = value_or_throw(serialization::read_npy(with.here.path("one.npy")));
  REQUIRE(array.spec.shape == std::vector<std::uint64_t>{all_rows, 2});
  REQUIRE(array.spec.type == dtype::f32);
  std::vector<float> found(2 * all_rows);
  std::memcpy(found.data(), array.bytes.data(), array.bytes.size());
  auto wanted = with.expected_values(all_rows);
  std::uint64_t wrong = 0;
  std::uint64_t roots = 0;
  for (std::uint64_t i = 0; i < all_rows; ++i) {
    wrong += std::abs(found[2 * i] - wanted[i]) > 1e-5f ? 1 : 0;
    auto root = std::sqrt(found[2 * i]);
    wrong += std::isnan(root) ? (std::isnan(found[2 * i + 1]) ? 0 : 1) : (found[2 * i + 1] == root ? 0 : 1);
    roots += std::isnan(root) ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(roots > 0);
  CHECK(roots < all_rows);

  auto a = with.here.start_node();
  auto b = with.here.start_node();
  auto nodes = a.address + "," + b.address;
  CHECK(with.predicted("three", "three.npy", "3", nodes) == one);
  CHECK(with.predicted("killed", "killed.npy", "3", nodes, "one") == one);
  auto result = with.here.result("killed");
  CHECK(result["failures"].size() == 1);
  CHECK(with.here.result("three")["failures"].empty());
  CHECK(with.predicted("all-killed", "all-killed.npy", "2", nodes, "all") == one);
  CHECK(with.here.result("all-killed")["restarts"].get<int>() + with.here.result("all-killed")["failures"].size() >= 2);
}

TEST_CASE("predictions are written as CSV that keeps every bit, and written again by a completed run") {
  predictions with;
  constexpr std::uint64_t rows = 5000;
  auto text = with.predicted("table", "table.csv", "2", "", "nobody", rows);
  CHECK(text.starts_with("value,\"its \"\"root\"\", if any\"\n"));
  (void)with.predicted("array", "array.npy", "1", "", "nobody", rows);
  auto array = value_or_throw(serialization::read_npy(with.here.path("array.npy")));
  auto in = std::istringstream{text};
  std::string line;
  std::getline(in, line);
  std::uint64_t read = 0;
  std::uint64_t wrong = 0;
  for (; std::getline(in, line); ++read) {
    float pair[2];
    std::memcpy(pair, array.bytes.data() + read * sizeof pair, sizeof pair);
    auto comma = line.find(',');
    REQUIRE(comma != std::string::npos);
    wrong += std::strtof(line.c_str(), nullptr) == pair[0] ? 0 : 1;
    auto second = std::strtof(line.c_str() + comma + 1, nullptr);
    wrong += second == pair[1] || (std::isnan(second) && std::isnan(pair[1])) ? 0 : 1;
  }
  CHECK(read == rows);
  CHECK(wrong == 0);

  auto again = with.run("table", "again.csv", "3", "", "nobody", rows);
  INFO(again.err);
  CHECK(again.status == exit_status{0, {}});
  CHECK(read_file(with.here.path("again.csv")) == text);
}

TEST_CASE(
    "a model that was trained further predicts anew under a name that is taken, and the old predictions are kept") {
  constexpr std::uint64_t rows = 5000;
  predictions with;
  const auto first_model = with.model;
  const auto before = with.predicted("run", "before.npy", "1", "", "nobody", rows);
  const auto old = with.here.result("run");
  with.train(8);
  REQUIRE(with.model != first_model);

  const auto after = with.predicted("run", "after.npy", "2", "", "nobody", rows);
  CHECK(after != before);
  CHECK(after == with.predicted("another", "another.npy", "1", "", "nobody", rows));
  const auto now = with.here.result("run");
  CHECK(now["resumed_from_step"] == 0);
  CHECK(now["state_sha256"] != old["state_sha256"]);
  CHECK(with.here.result("run.1")["state_sha256"] == old["state_sha256"]);
  CHECK(stored_state(with.here.run_directory("run.1") / "checkpoints" /
                     std::filesystem::path{old["latest_checkpoint"].get<std::string>()}.filename()) ==
        old["state_sha256"]);

  // The same model again has nothing to do, and what was predicted with the first goes on as its own run.
  CHECK(with.run("run", "same.npy", "1", "", "nobody", rows).status == exit_status{0, {}});
  CHECK(read_file(with.here.path("same.npy")) == after);
  CHECK(!std::filesystem::exists(with.here.run_directory("run.2")));
  with.model = first_model;
  CHECK(with.run("run.1", "old.npy", "1", "", "nobody", rows).status == exit_status{0, {}});
  CHECK(read_file(with.here.path("old.npy")) == before);

  // What is no prediction is left alone.
  const auto trained = with.here.result("model");
  const auto refused = with.run("model", "none.npy", "1", "", "nobody", rows);
  INFO(refused.err);
  CHECK(refused.status == exit_status{1, {}});
  CHECK(with.here.result("model") == trained);
  CHECK(!std::filesystem::exists(with.here.run_directory("model.1")));
  CHECK(!std::filesystem::exists(with.here.path("none.npy")));
}

TEST_CASE("what cannot be predicted is refused with what to do, and nothing is overwritten") {
  predictions with;
  auto refused = [&](const outcome& ran, const std::string& text) {
    CHECK(ran.status == exit_status{1, {}});
    CHECK_MESSAGE(contains(ran.err, text), ran.err);
  };
  refused(with.run("a", "out.parquet", "1"), "give a name that ends in .npy or .csv");
  write_file(with.here.path("there.csv"), "mine");
  refused(with.run("b", "there.csv", "1"), "already exists: choose another name");
  CHECK(read_file(with.here.path("there.csv")) == "mine");

  // Other rows under the name of a run that was started or completed.
  (void)with.predicted("c", "c.npy", "1", "", "nobody", 100);
  refused(with.run("c", "d.npy", "1", "", "nobody", 101), "rows");
  CHECK(!std::filesystem::exists(with.here.path("d.npy")));

  auto model = with.model;
  with.model = with.here.path("nowhere").string();
  refused(with.run("e", "e.npy", "1"), "nowhere");
  with.model = model;
}

TEST_CASE("workers whose predictors compute with different versions of a library are refused, and the versions named") {
  predictions with;
  const auto refused = with.run("versions", "versions.npy", "2", "", "versions", 1000);
  INFO(refused.err);
  CHECK(refused.status == exit_status{1, {}});
  CHECK(refused.err.find("predicted by arithmetic 1.0") != std::string::npos);
  CHECK(refused.err.find("predicted by arithmetic 1.1") != std::string::npos);
  CHECK(with.run("alone", "alone.npy", "1", "", "versions", 1000).status == exit_status{0, {}});
}
