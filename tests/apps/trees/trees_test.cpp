#include "scratch_runs.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::testing;

namespace {

/// A program of apps/ in a scratch_runs.
struct programs {
  scratch_runs here;

  [[nodiscard]] outcome run(const std::string& program, std::vector<std::string> arguments,
                            std::map<std::string, std::string> environment = {}) {
    arguments.insert(arguments.begin(), program);
    arguments.insert(arguments.end(), {"--storage", here.path("runs").string()});
    return here.run(std::move(arguments), std::move(environment));
  }

  void refused(const outcome& ran, int code, const std::string& text) const {
    CHECK(ran.status == exit_status{code, {}});
    CHECK_MESSAGE(contains(ran.err, text), ran.err);
    CHECK(!std::filesystem::exists(here.path("runs") / "trees"));
  }
};

} // namespace

TEST_CASE("what only one library of trees has is refused with the other, before anything is trained") {
  programs with;
  with.refused(with.run(TROUPE_TREES, {"--library", "catboost"}), 2, "catboost");
  with.refused(with.run(TROUPE_TREES, {"--lightgbm-library", "lib_lightgbm.so"}), 2,
               "--lightgbm-library goes with --library lightgbm alone");
  with.refused(with.run(TROUPE_TREES, {"--export", "model.txt"}), 2, "XGBoost's models are .ubj or .json");
  with.refused(with.run(TROUPE_TREES, {"--library", "lightgbm", "--export", "model.json"}), 2,
               "LightGBM's models are text");
}

TEST_CASE("where LightGBM's library is not found, trees says what was looked for, and what to do") {
  programs with;
  auto nowhere = with.here.path("lib_lightgbm.so").string();
  with.refused(with.run(TROUPE_TREES, {"--library", "lightgbm"}, {{"TROUPE_LIGHTGBM", nowhere}}), 1,
               nowhere +
                   " is not a file: it should be LightGBM's library, lib_lightgbm.so (named by TROUPE_LIGHTGBM); or "
                   "give --lightgbm-library PATH");
  with.refused(with.run(TROUPE_TREES, {"--library", "lightgbm", "--lightgbm-library", nowhere}), 1,
               nowhere + " is not a file");
}

#ifdef TROUPE_WITH_XGBOOST
TEST_CASE("predict wants no library of LightGBM's for a model of XGBoost's") {
  programs with;
  auto trained = with.run(TROUPE_TREES, {"--rounds", "2", "--workers", "1"});
  INFO(trained.err);
  REQUIRE(trained.status == exit_status{0, {}});
  auto model = with.here.run_directory("trees").string();
  auto predicted =
      with.run(TROUPE_PREDICT, {"--checkpoint", model, "--file", with.here.path("runs/trees.csv").string(), "--output",
                                with.here.path("out.csv").string(), "--lightgbm-library", "lib_lightgbm.so"});
  CHECK(predicted.status == exit_status{1, {}});
  CHECK_MESSAGE(contains(predicted.err, "holds no model of LightGBM's: leave the option out"), predicted.err);
}
#else
TEST_CASE("built without XGBoost, trees says so, and what it has instead") {
  programs with;
  with.refused(with.run(TROUPE_TREES, {}), 1, "built without XGBoost: install libxgboost-dev");
  with.refused(with.run(TROUPE_TREES, {"--library", "xgboost"}), 1, "take --library lightgbm");
}
#endif

#ifdef TROUPE_GPT
TEST_CASE("predict refuses a checkpoint of gpt's with what writes text") {
  programs with;
  auto trained = with.run(TROUPE_GPT, {"--text", with.here.text().string(), "--steps", "1", "--workers", "1", "--quiet",
                                       "--layers", "1", "--heads", "1", "--embedding", "8", "--block-size", "8"});
  INFO(trained.err);
  REQUIRE(trained.status == exit_status{0, {}});
  auto model = with.here.run_directory("gpt").string();
  auto predicted = with.run(TROUPE_PREDICT, {"--checkpoint", model, "--file", with.here.text().string(), "--output",
                                             with.here.path("out.csv").string()});
  CHECK(predicted.status == exit_status{1, {}});
  CHECK_MESSAGE(contains(predicted.err, "is a checkpoint of gpt's, which writes text: gpt --sample-from"),
                predicted.err);
}
#endif
