#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/run_story.hpp>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

/// Runs as pages show them. All members may be called from any thread; who asks within half
/// a second of another gets the same answer. Reads only while somebody asks.
class run_shelf {
 public:
  /// Those in a storage directory, which need not exist yet.
  explicit run_shelf(std::filesystem::path storage) : storage_(std::move(storage)) {}

  /// All runs, the one that began last first, at most 200: `runs` with the keys of a status and `goodput`; or `error`.
  [[nodiscard]] nlohmann::ordered_json overview();

  /// The story of the run of this name, with its `status`. Fails with `errc::not_found`.
  [[nodiscard]] expected<nlohmann::ordered_json> story(const std::string& name);

  /// The last lines of a worker's log.
  [[nodiscard]] expected<std::string> log(const std::string& name, std::uint32_t worker);

  /// Has the run's driver do `what`: "stop", "stop-now", "pause", "resume" or "checkpoint". Returns its status.
  [[nodiscard]] expected<nlohmann::ordered_json> steer(const std::string& name, const std::string& what);

 private:
  using clock = std::chrono::steady_clock;

  struct told_run {
    explicit told_run(const std::filesystem::path& run) : reader(run) {}

    std::mutex mutex;
    story_reader reader;
    nlohmann::ordered_json story;
    clock::time_point read_at{};
    /// Guarded by the shelf's mutex.
    clock::time_point asked_at{};
  };

  /// The directories of the runs, the one that began last first.
  [[nodiscard]] expected<std::vector<std::filesystem::path>> list() const;
  /// The directory of a run that is listed under this name: no other path can be reached.
  [[nodiscard]] expected<std::filesystem::path> find(const std::string& name) const;
  [[nodiscard]] std::shared_ptr<told_run> reader_of(const std::filesystem::path& run);
  [[nodiscard]] nlohmann::ordered_json line_of(const std::filesystem::path& run);

  std::filesystem::path storage_;
  std::mutex mutex_;
  std::map<std::filesystem::path, std::shared_ptr<told_run>> readers_;
  std::mutex overview_mutex_;
  nlohmann::ordered_json overview_;
  clock::time_point overview_at_{};
  /// Lines of runs that have ended, by the time of their result.
  std::map<std::filesystem::path, std::pair<std::filesystem::file_time_type, nlohmann::ordered_json>> ended_;
};

} // namespace troupe::runtime
