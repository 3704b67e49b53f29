#pragma once

#include "programs/program_finder.hpp"

#include <troupe/error.hpp>
#include <troupe/runtime/jobs.hpp>
#include <troupe/runtime/program.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

namespace troupe::runtime {

/// The programs of a node's jobs. Files that came with a job are in DIRECTORY/program, where DIRECTORY is the job's,
/// for as long as the job lasts: the node's cache may drop them meanwhile. It blocks for the disk. Thread-safe, but for
/// one job's directory.
class job_programs {
 public:
  explicit job_programs(std::shared_ptr<const program_finder> finder) : finder_(std::move(finder)) {}

  /// Whether this node could start the job's driver now. Fails as `open` does; changes nothing.
  [[nodiscard]] expected<void> check(const job_record& job) const;

  /// Takes the job's files out of the node's cache, unless it came without any or they are there. Fails with
  /// `errc::not_found` if the cache lacks one.
  [[nodiscard]] expected<void> keep(const job_record& job, const std::filesystem::path& directory) const;

  /// The program of a job's driver: of the build that came with the job, or the node's own where none came. Fails as
  /// `keep` and as `program_finder` do.
  [[nodiscard]] expected<program_file> open(const job_record& job, const std::filesystem::path& directory) const;

  /// The job has ended.
  static void drop(const std::filesystem::path& directory);

 private:
  /// Where the node itself has the build that the job came with, files that belong to it are beside it.
  [[nodiscard]] expected<program_file> find_own(const job_record& job) const;

  std::shared_ptr<const program_finder> finder_;
};

} // namespace troupe::runtime
