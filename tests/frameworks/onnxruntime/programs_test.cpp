#include "onnx_file.hpp"
#include "scratch_runs.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::testing;

namespace {

std::string table(int rows) {
  std::string result = "p,q,r\n";
  for (int i = 0; i < rows; ++i)
    result += std::to_string(i % 7) + ',' + std::to_string(i % 5) + ".5," + std::to_string(-i % 3) + '\n';
  return result;
}

} // namespace

TEST_CASE("predict --onnx writes the same bytes with one worker and three, and says what is wrong") {
  scratch_runs here;
  std::ofstream{here.path("model.onnx"), std::ios::binary} << onnx::linear_model();
  std::ofstream{here.path("rows.csv")} << table(3000);
  auto run = [&](const std::string& output, const std::string& workers, const std::string& model = "model.onnx",
                 const std::string& rows = "rows.csv") {
    return here.run({predict_program(), "--onnx", here.path(model).string(), "--file", here.path(rows).string(),
                     "--output", here.path(output).string(), "--storage", here.path("runs").string(), "--workers",
                     workers, "--block", "500"});
  };
  for (const std::string workers : {"1", "3"}) {
    auto done = run("on-" + workers + ".csv", workers);
    INFO(done.err);
    REQUIRE(done.status == exit_status{0, {}});
  }
  auto one = read_file(here.path("on-1.csv"));
  CHECK(one == read_file(here.path("on-3.csv")));
  CHECK(one.starts_with("scores_0,scores_1,probability_0,probability_1\n"));
  // The first row is 0, 0.5, 0.
  CHECK(one.find("\n1.25,-0.25,") == one.find('\n'));

  std::ofstream{here.path("narrow.csv")} << "p,q\n1,2\n";
  auto narrow = run("narrow-out.csv", "1", "model.onnx", "narrow.csv");
  CHECK(narrow.status == exit_status{1, {}});
  CHECK_MESSAGE(narrow.err.find("a row of the data has 2 numbers in its 2 columns") != std::string::npos, narrow.err);
  std::ofstream{here.path("text.onnx")} << "this is no model";
  auto damaged = run("damaged.csv", "1", "text.onnx");
  CHECK(damaged.status == exit_status{1, {}});
  CHECK_MESSAGE(damaged.err.find("ONNX Runtime: ") != std::string::npos, damaged.err);
  auto missing = run("missing.csv", "1", "none.onnx");
  CHECK(missing.status == exit_status{1, {}});
  CHECK_MESSAGE(missing.err.find("none.onnx does not exist") != std::string::npos, missing.err);
  auto both = here.run({predict_program(), "--onnx", "a", "--checkpoint", "b", "--file", "c", "--output", "d.csv"});
  CHECK(both.status == exit_status{2, {}});
}
