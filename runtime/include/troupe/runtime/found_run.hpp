#pragma once

#include <troupe/error.hpp>

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

/// Runs as their directories show them, without a word from their drivers.
namespace troupe::runtime {

/// The directory of a run: `given`, or the run of this name in `storage`. Fails with `errc::not_found`, saying where it
/// looked.
[[nodiscard]] expected<std::filesystem::path> find_run(const std::string& given, const std::filesystem::path& storage);

/// All runs directly in `storage`, the one that began last first; `storage` itself if it is a run's directory.
[[nodiscard]] expected<std::vector<std::filesystem::path>> list_runs(const std::filesystem::path& storage);

/// Why nobody answers for a run.
enum class absence {
  /// A run of this directory has ended, and its result is written.
  ended,
  /// Nobody has trained here yet: its driver may wait for nodes.
  not_begun,
  /// Its driver was killed, or its machine was.
  lost,
  /// Its driver is on another machine.
  elsewhere,
  /// Its driver lives and does not listen.
  deaf,
};

struct absent_driver {
  absence why = absence::not_begun;
  /// For people: what that is, and what to do about it.
  std::string text;
};

/// Judges a run whose driver does not answer; `refusal` says how that was noticed.
[[nodiscard]] absent_driver explain_absence(const std::filesystem::path& run, const std::string& refusal);

/// The status of a run whose driver does not answer, with the keys of docs/watching.md as far as the files tell.
[[nodiscard]] nlohmann::ordered_json stored_status(const std::filesystem::path& run, absence why);

/// The JSON objects in the last bytes of a file of lines, without a torn first or last one.
[[nodiscard]] std::vector<nlohmann::json> last_rows(const std::filesystem::path& path, std::size_t bytes);

} // namespace troupe::runtime
