#include "scratch_runs.hpp"

#include <troupe/lightgbm.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::testing;

namespace {

/// The numbers of a CSV file of one column, behind its header.
std::vector<double> numbers_of(const std::string& text) {
  auto in = std::istringstream{text};
  std::vector<double> result;
  std::string line;
  CHECK(static_cast<bool>(std::getline(in, line)));
  CHECK(line == "prediction");
  while (std::getline(in, line))
    result.push_back(std::stod(line));
  return result;
}

} // namespace

TEST_CASE("trees and predict use LightGBM: one worker and three agree up to rounding") {
  scratch_runs here;
  auto storage = here.path("runs").string();
  auto ran = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--storage", storage});
    auto result = here.run(std::move(arguments));
    INFO(result.err);
    REQUIRE(result.status == exit_status{0, {}});
  };
  ran({built("bin/trees"), "--library", "lightgbm", "--rounds", "15", "--workers", "1", "--name", "one", "--export",
       here.path("model.txt").string()});
  auto table = here.path("runs/one.csv").string();
  ran({built("bin/trees"), "--library", "lightgbm", "--rounds", "15", "--workers", "3", "--name", "three", "--file",
       table, "--lightgbm-library", value_or_throw(lightgbm::find_library()).string()});
  auto metric = [&](const char* name) { return here.result(name)["metrics"]["validation-l2"].get<double>(); };
  CHECK(metric("three") == doctest::Approx(metric("one")).epsilon(1e-4));
  CHECK(read_file(here.path("model.txt")).starts_with("tree\n"));

  auto predict = [&](const std::string& model, const std::string& workers) {
    auto name = model + "-on-" + workers;
    auto output = here.path(name + ".csv");
    ran({predict_program(), "--checkpoint", here.run_directory(model).string(), "--file", table, "--output",
         output.string(), "--name", name, "--workers", workers, "--block", "500"});
    return read_file(output);
  };
  auto one = predict("one", "1");
  CHECK(predict("one", "3") == one);
  auto first = numbers_of(one);
  auto second = numbers_of(predict("three", "2"));
  REQUIRE(first.size() == 2000);
  REQUIRE(second.size() == first.size());
  double most = 0;
  for (std::size_t i = 0; i < first.size(); ++i)
    most = std::max(most, std::abs(first[i] - second[i]) / first[i]);
  CHECK(most < 1e-4);

  auto without = here.run({predict_program(), "--checkpoint", here.run_directory("one").string(), "--file", table,
                           "--output", here.path("none.csv").string(), "--lightgbm-library", here.path("none").string(),
                           "--storage", storage});
  CHECK(without.status == exit_status{1, {}});
  CHECK_MESSAGE(contains(without.err, "is not a file: it should be LightGBM's library"), without.err);
  CHECK(!std::filesystem::exists(here.path("none.csv")));
}
