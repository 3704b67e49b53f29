#include "library.hpp"

#include <troupe/lightgbm.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fstream>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace troupe::lightgbm {

namespace fs = std::filesystem;

namespace {

constexpr const char* library_name = "lib_lightgbm.so";

/// Adds DIRECTORY/python3.11/PACKAGES/lightgbm/lib/lib_lightgbm.so for each Python version, the newest first.
void add_package(std::vector<fs::path>& places, const fs::path& directory, const char* packages) {
  std::vector<fs::path> found;
  std::error_code why;
  for (const auto& each : fs::directory_iterator{directory, why})
    if (each.path().filename().string().starts_with("python3"))
      found.push_back(each.path() / packages / "lightgbm" / "lib" / library_name);
  std::ranges::sort(found, std::greater{});
  places.insert(places.end(), found.begin(), found.end());
}

std::vector<fs::path> usual_places() {
  std::vector<fs::path> result;
  for (const auto* directory : {"/usr/local/lib", "/usr/lib", "/usr/lib/x86_64-linux-gnu"})
    result.push_back(fs::path{directory} / library_name);
  if (const auto* environment = std::getenv("VIRTUAL_ENV"))
    add_package(result, fs::path{environment} / "lib", "site-packages");
  if (const auto* home = std::getenv("HOME"))
    add_package(result, fs::path{home} / ".local" / "lib", "site-packages");
  add_package(result, "/usr/local/lib", "dist-packages");
  add_package(result, "/usr/local/lib", "site-packages");
  add_package(result, "/usr/lib", "dist-packages");
  return result;
}

} // namespace

expected<fs::path> find_library(const fs::path& asked) {
  const auto* named = std::getenv("TROUPE_LIGHTGBM");
  auto wanted = !asked.empty() ? asked : fs::path{named == nullptr ? "" : named};
  std::error_code why;
  if (!wanted.empty()) {
    if (fs::is_regular_file(wanted, why))
      return wanted;
    return fail(errc::unsatisfiable,
                fmt::format("{} is not a file: it should be LightGBM's library, {}{}", wanted.string(), library_name,
                            asked.empty() ? " (named by TROUPE_LIGHTGBM)" : ""));
  }
  auto places = usual_places();
  for (const auto& each : places)
    if (fs::is_regular_file(each, why))
      return each;
  return fail(errc::unsatisfiable,
              fmt::format("LightGBM's library {} is in none of {} usual places: install it (pip install lightgbm), or "
                          "name the file in TROUPE_LIGHTGBM",
                          library_name, places.size()));
}

expected<library_ptr> library::open(const fs::path& path) {
  auto* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return fail(errc::unsatisfiable, fmt::format("LightGBM's library cannot be opened: {}", ::dlerror()));
  auto result = std::make_shared<library>();
  auto& all = result->functions_;
  const char* missing = nullptr;
  auto load = [&]<class Function>(Function& target, const char* name) {
    target = reinterpret_cast<Function>(::dlsym(handle, name));
    if (target == nullptr)
      missing = name;
  };
#define TROUPE_LOAD(name) load(all.name, #name)
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
  if (missing != nullptr)
    return fail(errc::unsatisfiable,
                fmt::format("{} has no function {}: LightGBM 4 is required", path.string(), missing));
  return result;
}

expected<std::string> describe_library(const fs::path& path) {
  auto in = std::ifstream{path, std::ios::binary};
  serialization::xxh3_stream hash;
  std::vector<char> block(1 << 20);
  std::uint64_t size_bytes = 0;
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())) || in.gcount() > 0) {
    auto read = std::as_bytes(std::span{block}).first(static_cast<std::size_t>(in.gcount()));
    hash.update(read);
    size_bytes += read.size();
  }
  if (!in.eof())
    return fail(errc::unsatisfiable, fmt::format("LightGBM's library {} cannot be read", path.string()));
  return fmt::format("{} bytes, XXH3 {:016x}", size_bytes, hash.digest());
}

void library::check(int result) const {
  if (result != 0)
    throw exception{errc::user_error, fmt::format("LightGBM: {}", functions_.LGBM_GetLastError())};
}

} // namespace troupe::lightgbm
