#include <built.hpp>
#include <processes.hpp>

#include <troupe/data/csv.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Runs of data_tabular_run over one table.
struct runs {
  scratch_directory scratch;

  runs() { write_file(file(), table(400)); }

  [[nodiscard]] std::string file() const { return (scratch.path() / "table.csv").string(); }

  /// Two sizes, an age that is sometimes missing, a kind, and a label that follows from them with some noise.
  static std::string table(int rows) {
    static constexpr const char* kinds[] = {"oak", "\"elm, old\"", "ash", "", "yew"};
    std::string result = "width,height,age,kind,label\n";
    for (std::uint64_t state = 7; rows > 0; --rows) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      auto width = static_cast<double>(state >> 40u & 1023u) / 8;
      auto height = static_cast<double>(state >> 50u & 255u);
      auto age = static_cast<double>(state >> 30u & 127u);
      auto kind = (state >> 58u) % 5;
      auto label = width / 64 + age / 64 + (kind == 1 ? 1 : 0) + ((state >> 20u & 15u) == 0 ? 2 : 0) > 2.2;
      result += std::to_string(width) + "," + std::to_string(height) + "," +
                ((state >> 25u & 15u) == 0 ? "NA" : std::to_string(age)) + "," + kinds[kind] + "," +
                (label ? "1" : "0") + "\n";
    }
    return result;
  }

  struct outcome {
    exit_status status;
    nlohmann::json result;
    std::string err;
  };

  [[nodiscard]] outcome run(const std::string& name, const std::string& workers,
                            const std::string& epoch_end = "run_on", const std::string& kill = "nobody",
                            const std::string& steps = "40") const {
    auto process = child_process{
        {{built("tests/bin/data_tabular_run"), file(), workers, scratch.path().string(), name, epoch_end, kill, steps},
         {{"TROUPE_KEYS", (scratch.path() / "keys").string()}}},
        scratch.path() / ("output-" + name + steps)};
    auto status = process.wait();
    auto text = read_file(scratch.path() / name / "result.json");
    return {status, nlohmann::json::parse(text, nullptr, false), process.err()};
  }

  /// The state's digest and the last evaluation's result, for a run that must complete.
  [[nodiscard]] std::pair<std::string, std::string> trained(const std::string& name, const std::string& workers,
                                                            const std::string& epoch_end = "run_on",
                                                            const std::string& kill = "nobody",
                                                            const std::string& steps = "40") const {
    auto [status, result, err] = run(name, workers, epoch_end, kill, steps);
    INFO(name << ": " << err);
    REQUIRE(status == exit_status{0, {}});
    CHECK(result["failures"].size() == (kill == "nobody" ? 0 : 1));
    // JSON keeps all bits of a double.
    return {result["state_sha256"].get<std::string>(),
            result["metrics"]["validation_loss"].dump() + " " + result["metrics"]["validation_accuracy"].dump()};
  }
};

} // namespace

TEST_CASE(
    "preprocessors, batches and evaluations have the same bits on any number of workers, also when one is killed") {
  runs here;
  auto one = here.trained("one", "1");
  CHECK(one.first.size() == 64);
  CHECK(std::stod(one.second.substr(one.second.find(' '))) > 0.7);
  for (const auto* workers : {"2", "3", "4", "8"})
    CHECK(here.trained(std::string{"on-"} + workers, workers) == one);
  for (const auto* place : {"step", "evaluation"})
    CHECK(here.trained(std::string{"killed-in-"} + place, "3", "run_on", place) == one);
}

TEST_CASE("killing a worker while preprocessors are fitted does not change the result") {
  runs here;
  CHECK(here.trained("killed", "3", "run_on", "fit").first == here.trained("whole", "1").first);
}

// Long enough for a replacement to join, which receives the results of the others' fit.
TEST_CASE("a joining replacement has learned what the others have") {
  runs here;
  CHECK(here.trained("replaced", "2", "run_on", "step", "800") ==
        here.trained("whole", "1", "run_on", "nobody", "800"));
}

TEST_CASE("dropped and repeated samples are the same on any number of workers, and change the run's identity") {
  runs here;
  auto plain = here.trained("plain", "2");
  for (const auto* end : {"drop", "repeat"}) {
    auto one = here.trained(std::string{end} + "-1", "1", end);
    CHECK(here.trained(std::string{end} + "-3", "3", end) == one);
    CHECK(one.first != plain.first);
  }
}

TEST_CASE("a resumed run has what was learned, and predictions read it from the checkpoint") {
  runs here;
  auto whole = here.trained("whole", "2");
  (void)here.trained("halves", "3", "run_on", "nobody", "20");
  CHECK(here.trained("halves", "1") == whole);

  auto result = nlohmann::json::parse(read_file(here.scratch.path() / "halves" / "result.json"));
  auto stored = value_or_throw(serialization::checkpoint::open(result["latest_checkpoint"].get<std::string>()));
  auto inputs = value_or_throw(data::load_preprocessor(stored, "inputs"));
  auto options = data::csv_options{};
  options.columns = {{"sizes", data::csv_type::f32, {"width", "height"}, {}},
                     {"age", data::csv_type::f32, {}, {}},
                     {"kind", data::csv_type::categorical, {}, {}}};
  // This file's codes differ from those of the training file; its texts are the same except for a new one.
  auto table = value_or_throw(data::make_table(value_or_throw(
      data::parse_csv("width,height,age,kind\n10,20,30,yew\n10,20,30,\"elm, old\"\n10,20,30,fig\n", "new", options))));
  data::batch samples;
  value_or_throw(table->fetch(std::vector<std::uint64_t>{0, 1, 2}, samples));
  value_or_throw(inputs->transform(samples));
  auto rows = samples.values<float>("inputs");
  REQUIRE(rows.size() == 3 * (2 + 1 + 5));
  for (std::size_t i = 0; i < 3; ++i) {
    auto hot = std::vector<float>(rows.begin() + static_cast<std::ptrdiff_t>(8 * i + 3),
                                  rows.begin() + static_cast<std::ptrdiff_t>(8 * i + 8));
    // "" is missing, not a category: ash, elm, oak, yew, unknown.
    auto expected = std::vector<float>(5);
    expected[i == 0 ? 3 : i == 1 ? 1 : 4] = 1;
    CHECK(hot == expected);
  }
}

TEST_CASE("bad data ends a run before its first step, with the place") {
  runs here;
  auto text = read_file(here.file());
  write_file(here.file(), text + "1,2,3,oak\n");
  auto ragged = here.run("ragged", "2");
  CHECK(ragged.status == exit_status{1, {}});
  CHECK_MESSAGE(ragged.err.find("table.csv:402: 4 fields, expected 5 as in the first row") != std::string::npos,
                ragged.err);
  write_file(here.file(), text.substr(0, text.find('\n', 600) + 1));
  auto small = here.run("small", "2");
  CHECK(small.status == exit_status{1, {}});
  CHECK_MESSAGE(small.err.find("is smaller than a batch of 48") != std::string::npos, small.err);
}
