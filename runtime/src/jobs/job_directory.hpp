#pragma once

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>
#include <troupe/runtime/jobs.hpp>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// The jobs of a node on disk. Blocks for the disk.
///
///   DIRECTORY/.lock          held by the node
///   DIRECTORY/NAME~N/        files of a job that was removed
///   DIRECTORY/NAME/          a job: the working directory of its driver
///     job.json               the job
///     runs.jsonl             {"run": PATH} for each run that its drivers have begun, in order
///     driver.log             what its drivers wrote, with the older driver.log.1
class job_directory {
 public:
  /// Makes the directory, with no right for others. Fails with `errc::busy` where another process has it, and with
  /// `errc::io_error`.
  [[nodiscard]] static expected<job_directory> open(const std::filesystem::path& path);

  /// The jobs that can be read; `problems` gets a line for each other.
  [[nodiscard]] std::vector<known_job> load(std::vector<std::string>& problems) const;

  /// Durable when it returns.
  [[nodiscard]] expected<void> save(const known_job& job) const;

  /// Sets a job's files aside, but for `job.json`; returns at once. Fails with `errc::io_error`; what was set aside
  /// until then stays so.
  [[nodiscard]] expected<void> set_aside(const std::string& job) const;

  /// The job is unknown from now on.
  void forget(const std::string& job) const;

  /// Removes all that was set aside, which takes time. Returns a line for what could not be removed.
  [[nodiscard]] std::vector<std::string> sweep() const;

  [[nodiscard]] std::filesystem::path of(const std::string& job) const { return path_ / job; }
  [[nodiscard]] std::filesystem::path list_of_runs(const std::string& job) const { return of(job) / "runs.jsonl"; }

  /// The directories of the runs that its drivers have begun, each once, the latest last.
  [[nodiscard]] std::vector<std::filesystem::path> runs_of(const std::string& job) const;

 private:
  job_directory(std::filesystem::path path, collectives::unique_fd lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}

  std::filesystem::path path_;
  collectives::unique_fd lock_;
};

/// Appends lines to a file, which is begun anew at a size; the one before is kept as `PATH.1`. What cannot be written
/// is dropped. Used by one thread at a time.
class line_log {
 public:
  static constexpr std::size_t most_bytes = std::size_t{16} << 20;

  explicit line_log(std::filesystem::path path) : path_(std::move(path)) {}

  void add(std::string_view line);

 private:
  void open();

  std::filesystem::path path_;
  collectives::unique_fd file_;
  std::size_t size_ = 0;
};

} // namespace troupe::runtime
