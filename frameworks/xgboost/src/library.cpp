#include "library.hpp"

#include <troupe/inference/optional_library.hpp>
#include <troupe/xgboost.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fmt/format.h>

namespace troupe::xgboost {

namespace fs = std::filesystem;

namespace {

const inference::optional_library xgboost_library{"XGBoost", "libxgboost.so", "xgboost-cpu", "xgboost/lib",
                                                  "TROUPE_XGBOOST"};

} // namespace

std::string library_version::text() const {
  return fmt::format("{}.{}.{}", major, minor, patch);
}

library_version parse_version(const std::string& text) {
  library_version result;
  (void)std::sscanf(text.c_str(), "%d.%d.%d", &result.major, &result.minor, &result.patch);
  return result;
}

expected<void> check_model_version(const std::string& earlier, const std::string& now) {
  auto wrote = parse_version(earlier);
  auto reads = parse_version(now);
  wrote.patch = reads.patch = 0;
  if (reads < wrote)
    return fail(errc::mismatch,
                fmt::format("XGBoost reads models of older versions only, and the checkpoint's is of {}, while {} is "
                            "installed",
                            earlier, now));
  return {};
}

tracker_kind tracker_of(const library_version& version) noexcept {
  if (version >= library_version{2, 1, 0})
    return tracker_kind::librarys;
  return version.major == 1 && version.minor == 7 ? tracker_kind::troupes : tracker_kind::none;
}

expected<fs::path> find_library(const fs::path& asked) {
  return inference::find_library(xgboost_library, asked);
}

expected<library_ptr> library::open(const fs::path& path) {
  TROUPE_TRY(auto* handle, inference::open_library(xgboost_library, path));
  auto result = std::make_shared<library>();
  auto& all = result->functions_;
  auto symbols = inference::library_symbols{handle};
#define TROUPE_LOAD(name) symbols.load(all.name, #name)
  TROUPE_LOAD(XGBGetLastError);
  TROUPE_LOAD(XGBoostVersion);
  TROUPE_LOAD(XGBRegisterLogCallback);
  TROUPE_LOAD(XGDMatrixCreateFromDense);
  TROUPE_LOAD(XGDMatrixSetInfoFromInterface);
  TROUPE_LOAD(XGDMatrixFree);
  TROUPE_LOAD(XGBoosterCreate);
  TROUPE_LOAD(XGBoosterFree);
  TROUPE_LOAD(XGBoosterSetParam);
  TROUPE_LOAD(XGBoosterUpdateOneIter);
  TROUPE_LOAD(XGBoosterEvalOneIter);
  TROUPE_LOAD(XGBoosterPredictFromDMatrix);
  TROUPE_LOAD(XGBoosterSaveModelToBuffer);
  TROUPE_LOAD(XGBoosterLoadModelFromBuffer);
  TROUPE_LOAD(XGCommunicatorInit);
  TROUPE_LOAD(XGCommunicatorFinalize);
  TROUPE_LOAD(XGCommunicatorGetRank);
  TROUPE_LOAD(XGCommunicatorGetWorldSize);
#undef TROUPE_LOAD
  TROUPE_TRY(symbols.check(path, "XGBoost 1.7 or later"));
  all.XGBoostVersion(&result->version_.major, &result->version_.minor, &result->version_.patch);
  auto& more = result->optional_;
  auto later = inference::library_symbols{handle};
#define TROUPE_LOAD(name) later.load(more.name, #name)
  TROUPE_LOAD(XGBoosterBoostOneIter);
  TROUPE_LOAD(XGBoosterTrainOneIter);
  TROUPE_LOAD(XGTrackerCreate);
  TROUPE_LOAD(XGTrackerWorkerArgs);
  TROUPE_LOAD(XGTrackerRun);
  TROUPE_LOAD(XGTrackerFree);
#undef TROUPE_LOAD
  if (result->version_ >= library_version{2, 1, 0})
    TROUPE_TRY(later.check(path, "XGBoost with its own tracker"));
  return result;
}

void library::check(int result) const {
  if (result == 0)
    return;
  // The first line is the message; a stack trace follows.
  auto text = std::string{functions_.XGBGetLastError()};
  throw library_error{fmt::format("XGBoost: {}", text.substr(0, text.find("\nStack trace")))};
}

} // namespace troupe::xgboost
