#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/control_client.hpp>
#include <troupe/runtime/found_run.hpp>
#include <troupe/runtime/members.hpp>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

namespace troupe::runtime {

/// A run for those who watch and steer it, wherever it is. Used by one thread.
class run_access {
 public:
  virtual ~run_access() = default;

  /// The name of its directory; of a job's run that of the job, too, or alone.
  [[nodiscard]] virtual std::string name() const = 0;

  /// The run's files. Of a run elsewhere a copy of its texts: what it was at the last `refresh`.
  [[nodiscard]] virtual const std::filesystem::path& directory() const noexcept = 0;

  /// Brings the copy up to date. Does nothing for a run of this machine.
  [[nodiscard]] virtual expected<void> refresh() = 0;

  /// As `runtime::find_driver`.
  [[nodiscard]] virtual std::variant<control_client, absent_driver> find_driver() = 0;

  /// The status of a run whose driver does not answer, as `runtime::stored_status`. After `find_driver`.
  [[nodiscard]] virtual nlohmann::ordered_json stored_status(absence why) = 0;

  /// Whether it has a driver, or gets another one by itself.
  [[nodiscard]] virtual bool has_driver() = 0;

  /// Whether it is a job's, which `end_job` can end.
  [[nodiscard]] virtual bool is_of_job() const noexcept = 0;

  /// Tells the node of the run's job to end the job, whether its driver has begun a run, is about to be started again,
  /// or does not answer; `at_once`: without a checkpoint. Does not wait for the end. Fails with `errc::not_found` for a
  /// run of this machine, which belongs to no job, and with what the node says.
  [[nodiscard]] virtual expected<void> end_job(bool at_once) = 0;
};

/// The run in a directory of this machine.
[[nodiscard]] std::unique_ptr<run_access> access_run(std::filesystem::path directory);

/// A run of a job of a cluster, JOB or JOB/RUN; without RUN the one that was begun last. Makes a directory for the copy
/// in the directory of temporary files, which ends with the result. Fails as `job_client::find` does, and with
/// `errc::not_found` where the job has no such run.
[[nodiscard]] expected<std::unique_ptr<run_access>> access_job(const std::vector<std::string>& entries,
                                                               const std::string& name, const member_access& how);

} // namespace troupe::runtime
