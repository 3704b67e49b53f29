#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// The files of a run and of a job that tools read from afar: its texts, and no checkpoint. Blocks for the disk.
namespace troupe::runtime {

struct job_file {
  /// In the run's directory, as "logs/worker-0.log"; "driver.log" and "driver.log.1" are the job's.
  std::string path;
  std::uint64_t size = 0;
  /// Another file of this name has another one.
  std::uint64_t id = 0;

  bool operator==(const job_file&) const = default;
};

/// The most bytes of one `read_job_file`.
inline constexpr std::size_t most_file_bytes = std::size_t{1} << 20;

/// `run` may be empty: there is none yet.
[[nodiscard]] std::vector<job_file> list_job_files(const std::filesystem::path& job, const std::filesystem::path& run);

/// At most `limit` bytes from `offset` on. Fails with `errc::not_found` for a file that `list_job_files` does not
/// name, and one that is not there any more.
[[nodiscard]] expected<std::string> read_job_file(const std::filesystem::path& job, const std::filesystem::path& run,
                                                  const std::string& path, std::uint64_t offset, std::size_t limit);

} // namespace troupe::runtime
