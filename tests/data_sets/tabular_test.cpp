#include <built.hpp>
#include <processes.hpp>

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

using namespace troupe::testing;

namespace {

/// Runs of the program tabular.
struct tabular_runs {
  scratch_directory scratch;

  [[nodiscard]] std::string file(const std::string& name) const { return (scratch.path() / name).string(); }

  [[nodiscard]] child_process start(const std::string& name, std::vector<std::string> more) const {
    std::vector<std::string> argv{built("bin/tabular"), "--storage", file("runs"), "--name", name};
    argv.insert(argv.end(), more.begin(), more.end());
    return {{std::move(argv), {{"TROUPE_KEYS", file("keys")}}}, scratch.path() / ("output-" + name)};
  }

  struct outcome {
    exit_status status;
    std::string out;
    std::string err;
  };

  [[nodiscard]] outcome run(const std::string& name, std::vector<std::string> more) const {
    auto process = start(name, std::move(more));
    auto status = process.wait();
    return {status, process.out(), process.err()};
  }

  /// Three numbers and a class that follows from the last two, in another table format.
  static std::string table(int rows, unsigned seed, const std::string& delimiter) {
    std::string result;
    for (std::uint64_t state = seed; rows > 0; --rows) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      auto a = static_cast<int>(state >> 40u & 255u);
      auto b = static_cast<int>(state >> 50u & 255u);
      result += "7" + delimiter + std::to_string(a) + delimiter + std::to_string(b) + delimiter +
                (a > b ? "more" : "less") + "\n";
    }
    return result;
  }
};

} // namespace

TEST_CASE(
    "tabular reads tables without a header, behind other lines, with another delimiter, and validates on another") {
  tabular_runs here;
  write_file(here.file("training.csv"), "made,by,hand\n" + here.table(300, 1, ";"));
  write_file(here.file("validation.csv"), "made,by,hand\n" + here.table(80, 2, ";"));
  const std::vector<std::string> form{"--file",
                                      here.file("training.csv"),
                                      "--validation",
                                      here.file("validation.csv"),
                                      "--delimiter",
                                      ";",
                                      "--skip-lines",
                                      "1",
                                      "--no-header",
                                      "--inputs",
                                      "0-2",
                                      "--label",
                                      "3",
                                      "--steps",
                                      "100"};
  auto ran = here.run("table", form);
  INFO(ran.out << ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
  CHECK((ran.out.find("accuracy 0.9") != std::string::npos || ran.out.find("accuracy 1.0") != std::string::npos));
  auto again = here.run("table", form);
  CHECK(again.status == exit_status{0, {}});
  CHECK(again.out == ran.out);

  write_file(here.file("validation.csv"), "made,by,hand\n" + here.table(80, 2, ";") + "7;1;2;equal\n");
  auto refused = here.run("unknown", form);
  CHECK(refused.status == exit_status{1, {}});
  CHECK_MESSAGE(refused.err.find("equal") != std::string::npos, refused.err);
}
