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
    CHECK(!std::filesystem::exists(here.path("runs") / "latest"));
  }
};

} // namespace

TEST_CASE("options that only one library of trees has are rejected with the other, before any training") {
  programs with;
  with.refused(with.run(built("bin/trees"), {"--library", "catboost"}), 2, "catboost");
  with.refused(with.run(built("bin/trees"), {"--lightgbm-library", "lib_lightgbm.so"}), 2,
               "--lightgbm-library requires --library lightgbm");
  with.refused(with.run(built("bin/trees"), {"--export", "model.txt"}), 2, "XGBoost's models are .ubj or .json");
  with.refused(with.run(built("bin/trees"), {"--library", "lightgbm", "--export", "model.json"}), 2,
               "LightGBM's models are text");
}

TEST_CASE("without LightGBM's library, trees reports where it looked and what to do") {
  programs with;
  auto nowhere = with.here.path("lib_lightgbm.so").string();
  with.refused(with.run(built("bin/trees"), {"--library", "lightgbm"}, {{"TROUPE_LIGHTGBM", nowhere}}), 1,
               nowhere +
                   " is not a file: it should be LightGBM's library, lib_lightgbm.so (named by TROUPE_LIGHTGBM); or "
                   "use --lightgbm-library PATH");
  with.refused(with.run(built("bin/trees"), {"--library", "lightgbm", "--lightgbm-library", nowhere}), 1,
               nowhere + " is not a file");
}

#ifdef TROUPE_WITH_XGBOOST
TEST_CASE("predict needs no LightGBM library for an XGBoost model") {
  programs with;
  auto trained = with.run(built("bin/trees"), {"--rounds", "2", "--workers", "1"});
  INFO(trained.err);
  REQUIRE(trained.status == exit_status{0, {}});
  auto model = with.here.run_directory("latest").string();
  auto predicted = with.run(predict_program(),
                            {"--checkpoint", model, "--file", with.here.path("runs/trees.csv").string(), "--output",
                             with.here.path("out.csv").string(), "--lightgbm-library", "lib_lightgbm.so"});
  CHECK(predicted.status == exit_status{1, {}});
  CHECK_MESSAGE(contains(predicted.err, "does not contain a LightGBM model: omit the option"), predicted.err);
}
#else
TEST_CASE("without XGBoost's library, trees reports where it looked and what to do") {
  programs with;
  with.refused(with.run(built("bin/trees"), {"--library", "xgboost"}), 1,
               "XGBoost's library libxgboost.so is in none of");
}
#endif

#ifdef TROUPE_WITH_GPT
TEST_CASE("predict rejects a checkpoint of gpt and names the program for it") {
  programs with;
  auto trained =
      with.run(built("bin/gpt"), {"--text", with.here.text().string(), "--steps", "1", "--workers", "1", "--quiet",
                                  "--layers", "1", "--heads", "1", "--embedding", "8", "--block-size", "8"});
  INFO(trained.err);
  REQUIRE(trained.status == exit_status{0, {}});
  auto model = with.here.run_directory("latest").string();
  auto predicted = with.run(predict_program(), {"--checkpoint", model, "--file", with.here.text().string(), "--output",
                                                with.here.path("out.csv").string()});
  CHECK(predicted.status == exit_status{1, {}});
  CHECK_MESSAGE(contains(predicted.err, "is a checkpoint of gpt, which generates text: use gpt --sample-from"),
                predicted.err);
}
#endif
