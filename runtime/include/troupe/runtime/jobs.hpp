#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/members.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

/// Jobs: programs that a node of a cluster runs as drivers, for whoever has submitted them. A job outlives the terminal
/// that it was submitted from, and its driver is started again when it dies.
namespace troupe::runtime {

/// A file that came with a job: its name, and its `program_identity::build_id`.
struct sent_file {
  std::string name;
  std::string build_id;

  bool operator==(const sent_file&) const = default;
};

/// What was submitted.
struct job_record {
  /// Its runs have this name where the program gives none. As for a run: letters, digits, '.', '_' and '-'.
  std::string name;
  /// The program and its arguments. A node that was started with `--program-dir` looks there for the program, by its
  /// file name.
  std::vector<std::string> arguments;
  /// The program and files that it needs beside it, as `submit_job` has sent them to the node; empty: the node has the
  /// program.
  std::vector<sent_file> files = {};
  /// Added to the node's environment.
  std::map<std::string, std::string> environment = {};
  /// On the node; empty: a directory of the job's own, which then contains its runs, too.
  std::filesystem::path directory = {};
  /// Of runs that name none: see `mirror_config::to`.
  std::string mirror = {};
  /// `directory` is on a file system of all nodes.
  bool is_shared = false;
  /// Of runs that have none: see `run_config::time_limit`. 0: none.
  std::chrono::milliseconds time_limit{0};
  /// Of runs that have none: see `scaling_config::wait_for_resources`.
  std::chrono::milliseconds wait_for_resources{0};
  /// The addresses of the nodes that may host its driver. The first was given the job.
  std::vector<std::string> keepers = {};
  /// USER@HOST, for people.
  std::string submitter = {};
  /// Milliseconds since 1970.
  std::uint64_t submitted = 0;

  bool operator==(const job_record&) const = default;
};

enum class job_outcome : std::uint8_t { completed = 1, stopped = 2, failed = 3 };

/// "completed", "stopped", "failed".
[[nodiscard]] std::string_view to_string(job_outcome outcome) noexcept;

/// How a job ended.
struct job_end {
  job_outcome outcome = job_outcome::failed;
  /// Of its driver; 128 + N for signal N.
  int exit_code = 0;
  /// For people; empty if it completed.
  std::string reason = {};
  /// Milliseconds since 1970.
  std::uint64_t at = 0;

  bool operator==(const job_end&) const = default;
};

/// A job as its nodes know it.
struct known_job {
  job_record what;
  /// Grows with each node that takes the job over.
  std::uint64_t term = 1;
  /// The address of the node that has its driver.
  std::string host;
  /// Nothing while it runs.
  std::optional<job_end> end = {};
  /// It had ended, and was removed: no node has its files any more. `end->at` is when.
  bool is_removed = false;

  bool operator==(const known_job&) const = default;
};

/// Whether another node can go on with it: where it has a mirror, or its directory is shared.
[[nodiscard]] bool can_move(const job_record& job) noexcept;

/// Rejects with `errc::invalid_argument` what no node takes: a name that is none, no program, texts that are too long.
[[nodiscard]] expected<void> validate(const job_record& job);

/// The jobs of a cluster, by name. Nodes that do not answer are left out, and named in `silent`.
struct job_list {
  std::vector<known_job> jobs;
  std::vector<std::string> silent;
};

[[nodiscard]] expected<job_list> list_jobs(const std::vector<std::string>& entries, const member_access& how);

/// Removes a job that has ended from all nodes that keep it, with the files in their directories of it; not those in
/// `job_record::directory`, nor its mirror. A node that does not answer now removes it when it does. Fails with
/// `errc::busy` for a job that has not ended, and with `errc::not_found`. Returns the job.
[[nodiscard]] expected<known_job> remove_job(const std::vector<std::string>& entries, const std::string& name,
                                             const member_access& how);

struct submitted_job {
  known_job job;
  /// False if no other node has it yet, of those that are to keep it.
  bool is_kept = true;
  /// What was sent, and which nodes do not keep the job because they did not take its program. For people.
  std::vector<std::string> notes = {};
};

/// How a job is submitted.
struct submission {
  job_record job;
  /// The address of the node that runs it; empty: one that hosts fewest.
  std::string node = {};
  /// The program on this host, and the files that it needs beside it, to be sent to nodes that lack them and take
  /// programs. A node that takes none has the program. May be empty.
  std::vector<std::filesystem::path> files = {};
};

/// Has a node run a job. Up to two others keep a job that can move, and take it over when that host is lost. Fails with
/// `errc::already_exists` for the name of a job that has not ended, and with what the nodes say where none takes it.
/// Returns the job.
[[nodiscard]] expected<submitted_job> submit_job(const std::vector<std::string>& entries, submission what,
                                                 const member_access& how);

/// Questions about one job, for the node that hosts it. Used by one thread. Each blocks, for no longer than a minute.
class job_client {
 public:
  using json = nlohmann::ordered_json;

  /// Finds the job in a cluster. Fails with `errc::not_found`, naming the jobs that there are.
  [[nodiscard]] static expected<job_client> find(const std::vector<std::string>& entries, const std::string& name,
                                                 const member_access& how);

  job_client(job_client&&) noexcept;
  job_client& operator=(job_client&&) noexcept;
  ~job_client();

  [[nodiscard]] const known_job& job() const noexcept;

  /// The answer of the job's host to {"do": what, ...} (see job_service.hpp). Fails with its refusal; after a failure
  /// it connects anew.
  [[nodiscard]] expected<json> ask(const std::string& what, const json& question = json::object());

  /// Another connection to the same host.
  [[nodiscard]] job_client again() const;

 private:
  class impl;
  explicit job_client(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::runtime
