#include "library.hpp"

#include <troupe/inference/optional_library.hpp>
#include <troupe/lightgbm.hpp>

#include <fmt/format.h>
#include <string>

namespace troupe::lightgbm {

namespace fs = std::filesystem;

namespace {

const inference::optional_library lightgbm_library{"LightGBM", "lib_lightgbm.so", "lightgbm", "lightgbm/lib",
                                                   "TROUPE_LIGHTGBM"};

} // namespace

expected<fs::path> find_library(const fs::path& asked) {
  return inference::find_library(lightgbm_library, asked);
}

expected<library_ptr> library::open(const fs::path& path) {
  TROUPE_TRY(auto* handle, inference::open_library(lightgbm_library, path));
  auto result = std::make_shared<library>();
  auto& all = result->functions_;
  auto symbols = inference::library_symbols{handle};
#define TROUPE_LOAD(name) symbols.load(all.name, #name)
  TROUPE_LOAD(LGBM_GetLastError);
  TROUPE_LOAD(LGBM_DatasetCreateFromMat);
  TROUPE_LOAD(LGBM_DatasetSetField);
  TROUPE_LOAD(LGBM_DatasetFree);
  TROUPE_LOAD(LGBM_BoosterCreate);
  TROUPE_LOAD(LGBM_BoosterLoadModelFromString);
  TROUPE_LOAD(LGBM_BoosterFree);
  TROUPE_LOAD(LGBM_BoosterMerge);
  TROUPE_LOAD(LGBM_BoosterAddValidData);
  TROUPE_LOAD(LGBM_BoosterUpdateOneIter);
  TROUPE_LOAD(LGBM_BoosterUpdateOneIterCustom);
  TROUPE_LOAD(LGBM_BoosterGetNumPredict);
  TROUPE_LOAD(LGBM_BoosterGetPredict);
  TROUPE_LOAD(LGBM_BoosterGetEvalCounts);
  TROUPE_LOAD(LGBM_BoosterGetEvalNames);
  TROUPE_LOAD(LGBM_BoosterGetEval);
  TROUPE_LOAD(LGBM_BoosterGetNumFeature);
  TROUPE_LOAD(LGBM_BoosterSaveModelToString);
  TROUPE_LOAD(LGBM_BoosterCalcNumPredict);
  TROUPE_LOAD(LGBM_BoosterPredictForMat);
  TROUPE_LOAD(LGBM_NetworkInitWithFunctions);
  TROUPE_LOAD(LGBM_NetworkFree);
#undef TROUPE_LOAD
  TROUPE_TRY(symbols.check(path, "LightGBM 4"));
  return result;
}

void library::check(int result) const {
  if (result != 0)
    throw exception{errc::user_error, fmt::format("LightGBM: {}", functions_.LGBM_GetLastError())};
}

} // namespace troupe::lightgbm
