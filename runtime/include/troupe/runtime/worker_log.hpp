#pragma once

#include <troupe/collectives/unique_fd.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

/// Reads a worker's log, `worker-N.log` with the older `worker-N.log.1`, as it grows and is begun anew.
class worker_log {
 public:
  using line_sink = std::function<void(const std::string& line)>;

  explicit worker_log(std::filesystem::path path) : path_(std::move(path)) {}

  /// Leaves out all but the last `count` lines of what is there. Before the first `read`.
  void skip_to_last(std::uint64_t count);
  /// The lines since the last call; the first time all. A line without an end waits for it.
  void read(const line_sink& sink);
  /// The line without an end, if there is one.
  void flush(const line_sink& sink);

 private:
  void open_first();
  void drain(const line_sink& sink);

  std::filesystem::path path_;
  /// What is being read; behind it come newer files.
  collectives::unique_fd file_;
  bool has_begun_ = false;
  std::string rest_;
};

/// The log of a worker, and the rank that it had last.
struct known_log {
  std::uint32_t worker = 0;
  /// Nothing in runs of older versions.
  std::optional<std::uint32_t> rank;

  auto operator<=>(const known_log&) const = default;
};

/// The logs in a run's directory, by worker.
[[nodiscard]] std::vector<known_log> list_logs(const std::filesystem::path& run);

/// "logs/worker-3.log" in a run's directory.
[[nodiscard]] std::filesystem::path log_path(const std::filesystem::path& run, std::uint32_t worker);

} // namespace troupe::runtime
