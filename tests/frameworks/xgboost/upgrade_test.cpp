#include "boosted_runs.hpp"
#include "library.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/xgboost.hpp>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::testing;

namespace {

const std::string plain = R"({"max_depth": 4, "eta": 0.3})";

struct runs : boosted_runs {
  runs() : boosted_runs{built("tests/bin/xgboost_run")} {}
};

struct installed_library {
  std::string path;
  std::string version;
};

/// The libraries of this host, an older one first.
std::vector<installed_library> libraries() {
  std::vector<installed_library> result;
  const auto* named = std::getenv("TROUPE_XGBOOST_LIBRARIES");
  auto paths = std::istringstream{named == nullptr ? "" : named};
  for (std::string path; std::getline(paths, path, ':');)
    result.push_back({path, value_or_throw(xgboost::library::open(path))->version().text()});
  return result;
}

void refused(const outcome& ran, const std::string& text) {
  CHECK(ran.status == exit_status{1, {}});
  CHECK_MESSAGE(contains(ran.err, text), ran.err);
}

} // namespace

TEST_CASE("a path that is no library is refused with its name") {
  runs with;
  auto nowhere = with.here.path("libxgboost.so").string();
  with.environment["TROUPE_XGBOOST"] = nowhere;
  refused(with.run("run", "2", plain),
          nowhere + " is not a file: it should be XGBoost's library, libxgboost.so (named by TROUPE_XGBOOST)");
}

TEST_CASE("a later version continues a run with a warning; an earlier one, and two at once, are refused") {
  auto all = libraries();
  if (all.size() < 2 || all[0].version == all[1].version) {
    MESSAGE("Only one version of XGBoost is installed");
    return;
  }
  const auto& older = all[0];
  const auto& newer = all[1];
  runs with;
  auto use = [&](const installed_library& which) { with.environment["TROUPE_XGBOOST"] = which.path; };

  use(older);
  (void)with.trained("upgraded", "2", plain, "nobody", "5");
  use(newer);
  auto upgraded = with.run("upgraded", "2", plain);
  CHECK(upgraded.status == exit_status{0, {}});
  CHECK_MESSAGE(contains(upgraded.err, "warning: XGBoost is not the one that wrote the checkpoint of step 5 (" +
                                           older.version + " then, " + newer.version + " now)"),
                upgraded.err);
  CHECK(with.here.result("upgraded")["steps"] == 12);
  // Workers that predict compare the library.
  auto checkpoint = value_or_throw(serialization::checkpoint::open(upgraded.out.substr(0, upgraded.out.find('\n'))));
  for (const auto& each : all)
    if (auto model = xgboost::load_predictor(checkpoint, each.path))
      CHECK((*model)->library() == "XGBoost " + each.version);
  CHECK(with.here.result("upgraded")["metrics"]["validation-rmse"].get<double>() < 3);
  use(older);
  refused(with.run("upgraded", "2", plain, "nobody", "14"), "XGBoost reads models of older versions only, and the "
                                                            "checkpoint's is of " +
                                                                newer.version);

  with.environment.clear();
  auto a = with.here.start_node({}, {{"TROUPE_XGBOOST", older.path}});
  auto b = with.here.start_node({}, {{"TROUPE_XGBOOST", newer.path}});
  refused(with.run("mixed", "2", plain, "nobody", "5", a.address + "," + b.address),
          "rank 1 has another XGBoost than rank 0 (" + newer.version + ", not " + older.version + ")");
  CHECK(with.run("mixed", "1", plain, "nobody", "5", a.address).status == exit_status{0, {}});
}
