#pragma once

#include <troupe/error.hpp>

#include <compare>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

/// The used part of XGBoost's C interface, from a library opened at run time. The declarations are those of `c_api.h`
/// in 1.7 and later; one file serves all versions.
namespace troupe::xgboost {

/// An error reported by XGBoost, or by a user's function that it depends on.
class library_error : public exception {
 public:
  explicit library_error(std::string text) : exception{errc::user_error, std::move(text)} {}
};

struct library_version {
  int major = 0;
  int minor = 0;
  int patch = 0;

  auto operator<=>(const library_version&) const = default;
  /// "1.7.4"
  [[nodiscard]] std::string text() const;
};

/// Parses "1.7.4"; missing numbers are 0.
[[nodiscard]] library_version parse_version(const std::string& text);

/// XGBoost reads the models of older versions only. Fails with `errc::mismatch` if a library of version `now` cannot
/// add trees to a model that `earlier` wrote.
[[nodiscard]] expected<void> check_model_version(const std::string& earlier, const std::string& now);

/// How the workers of a version connect.
enum class tracker_kind : std::uint8_t {
  /// Only one worker is supported.
  none,
  /// 1.7: by `rabit_tracker`, which is Troupe's.
  troupes,
  /// 2.1 and later: by the tracker of the library's C interface.
  librarys,
};

[[nodiscard]] tracker_kind tracker_of(const library_version& version) noexcept;

struct library_functions {
  const char* (*XGBGetLastError)();
  void (*XGBoostVersion)(int* major, int* minor, int* patch);
  int (*XGBRegisterLogCallback)(void (*print)(const char* line));
  int (*XGDMatrixCreateFromDense)(const char* data, const char* config, void** out);
  int (*XGDMatrixSetInfoFromInterface)(void* set, const char* field, const char* data);
  int (*XGDMatrixFree)(void* set);
  int (*XGBoosterCreate)(void* const* cached, std::uint64_t count, void** out);
  int (*XGBoosterFree)(void* booster);
  int (*XGBoosterSetParam)(void* booster, const char* name, const char* value);
  int (*XGBoosterUpdateOneIter)(void* booster, int round, void* training);
  int (*XGBoosterEvalOneIter)(void* booster, int round, void** sets, const char** names, std::uint64_t count,
                              const char** out);
  int (*XGBoosterPredictFromDMatrix)(void* booster, void* rows, const char* config, const std::uint64_t** shape,
                                     std::uint64_t* dimensions, const float** values);
  int (*XGBoosterSaveModelToBuffer)(void* booster, const char* config, std::uint64_t* size, const char** bytes);
  int (*XGBoosterLoadModelFromBuffer)(void* booster, const void* bytes, std::uint64_t size);
  int (*XGCommunicatorInit)(const char* config);
  int (*XGCommunicatorFinalize)();
  int (*XGCommunicatorGetRank)();
  int (*XGCommunicatorGetWorldSize)();
};

/// Functions that not every version has; null where it does not.
struct optional_functions {
  /// Deprecated since 2.1. Gradients and hessians row after row.
  int (*XGBoosterBoostOneIter)(void* booster, void* training, float* gradients, float* hessians, std::uint64_t count);
  // Since 2.1.
  /// Gradients and hessians as arrays in JSON.
  int (*XGBoosterTrainOneIter)(void* booster, void* training, int round, const char* gradients, const char* hessians);
  int (*XGTrackerCreate)(const char* config, void** out);
  int (*XGTrackerWorkerArgs)(void* tracker, const char** out);
  int (*XGTrackerRun)(void* tracker, const char* config);
  int (*XGTrackerFree)(void* tracker);
};

/// An opened library. It is never closed, because its threads may still be running.
class library {
 public:
  /// Fails with `errc::unsatisfiable` if the library cannot be opened or lacks a function.
  [[nodiscard]] static expected<std::shared_ptr<const library>> open(const std::filesystem::path& path);

  [[nodiscard]] const library_functions& functions() const noexcept { return functions_; }
  [[nodiscard]] const optional_functions& optional() const noexcept { return optional_; }
  [[nodiscard]] const library_version& version() const noexcept { return version_; }

  /// Throws XGBoost's last error as `library_error`, unless `result` is 0.
  void check(int result) const;

 private:
  library_functions functions_{};
  optional_functions optional_{};
  library_version version_;
};

using library_ptr = std::shared_ptr<const library>;

} // namespace troupe::xgboost
