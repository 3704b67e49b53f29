#pragma once

#include "jobs/driver_restarts.hpp"
#include "jobs/job_directory.hpp"
#include "jobs/job_news.hpp"
#include "jobs/job_programs.hpp"
#include "jobs/job_watch.hpp"

#include <troupe/error.hpp>
#include <troupe/runtime/jobs.hpp>
#include <troupe/runtime/process.hpp>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <sys/types.h>
#include <thread>
#include <variant>
#include <vector>

namespace troupe::runtime {

/// How a node hosts drivers.
struct job_settings {
  /// Where the jobs are kept. Made with the first job.
  std::filesystem::path state;
  job_programs programs;
  /// Of the node, for its drivers.
  std::string address;
  bool insecure = false;
  std::filesystem::path keys;
  /// When this node takes a job over whose host is silent.
  job_watch::settings watch;
  /// Why the node hosts none; empty if it does.
  std::string why_not;
  std::function<void(const std::string&)> log;
};

/// The jobs of a node, and their drivers: starts them, keeps what they write, and starts them again when they die.
/// Thread-safe; a call may wait for the disk. Drivers end with this object, and their jobs go on with the next one that
/// has the same state.
class job_host {
 public:
  /// What a job's driver does.
  struct no_driver {};
  struct starting_driver {
    /// Its job was told to end: it is killed as soon as its process is known, before it has begun anything.
    bool is_to_end = false;
  };
  struct running_driver {
    pid_t pid = 0;
    /// What its end means, where that is not what it seems.
    struct nothing_else {};
    /// It was killed because somebody asked for it.
    struct told_to_end {};
    /// It was told to stop because the job moves to the node at this address; its own: it goes on here later.
    struct moves {
      std::string to;
    };
    /// Another node has the job.
    struct superseded {};
    std::variant<nothing_else, told_to_end, moves, superseded> meaning = nothing_else{};
  };
  /// Before its first start here, while the other keepers may know better: another may have the job by now.
  struct awaited_driver {
    std::chrono::steady_clock::time_point until;
    std::set<std::string> unasked;
  };
  struct dead_driver {
    /// It is started again then.
    std::chrono::steady_clock::time_point until;
  };
  using driver_state = std::variant<no_driver, awaited_driver, starting_driver, running_driver, dead_driver>;

  struct hosted_job {
    known_job job;
    driver_state driver;
    /// The directory of its files, and those of its runs, the latest last.
    std::filesystem::path directory;
    std::vector<std::filesystem::path> runs;
  };

  /// Starts the drivers of jobs that have not ended. Fails where the state cannot be used.
  [[nodiscard]] static expected<std::unique_ptr<job_host>> make(job_settings how);
  job_host(const job_host&) = delete;
  job_host& operator=(const job_host&) = delete;
  ~job_host();

  [[nodiscard]] const std::string& why_not() const noexcept { return how_.why_not; }

  /// Also those that were removed, as long as other keepers may not know.
  [[nodiscard]] std::vector<known_job> jobs() const;

  /// Fails with `errc::not_found`, also for one that was removed.
  [[nodiscard]] expected<hosted_job> find(const std::string& name) const;

  /// Durable when it returns; its driver is started behind it. A job of this name that has ended goes on. Its term is
  /// at least `term`. Fails with `errc::already_exists` for one that has not ended, with `errc::unsatisfiable` where
  /// the node hosts none, and with what is wrong with its program.
  [[nodiscard]] expected<known_job> submit(const job_record& what, std::uint64_t term);

  /// Waits until another keeper has the job, for at most `patience`. False if none has; true for a job without any.
  [[nodiscard]] bool await_keeper(const std::string& name, std::chrono::milliseconds patience);

  /// Has the driver end, with a checkpoint, or kills it. A job without a living driver ends at once.
  [[nodiscard]] expected<known_job> end(const std::string& name, bool at_once);

  /// Removes a job that has ended, with its files; they are gone soon after it returns. Fails with `errc::busy` for one
  /// that has not ended, with `errc::not_found`, and with `errc::io_error`.
  [[nodiscard]] expected<known_job> remove(const std::string& name);

  /// Moves what can move to other keepers, each job after a checkpoint. If the node ends, stops the rest likewise; they
  /// go on when it is started again. Returns at once.
  void hand_over(bool node_ends);

  /// Whether drivers run here, or a job has been handed over to a node that does not know it yet.
  [[nodiscard]] bool is_busy() const;

  /// The other keepers of its jobs, apart from those that all have heard of a job's end.
  [[nodiscard]] std::set<std::string> other_keepers() const;

  /// What to tell the keeper at this address: {"from": ADDRESS, "jobs": [{"job": JOB, "host_silent_ms": N}]}.
  [[nodiscard]] nlohmann::json beat_for(const std::string& address) const;

  /// Takes what a keeper tells. Returns what to tell it. May wait for the disk.
  nlohmann::json take_beat(const nlohmann::json& beat);

  /// The keeper at this address has taken what `beat_for` returned.
  void on_told(const std::string& address, const nlohmann::json& beat);

  void say(const std::string& line) const;

 private:
  struct entry {
    known_job job;
    driver_restarts restarts;
    driver_state driver;
    std::shared_ptr<line_log> log;
    job_watch watch;
    job_news news = {};
    /// The node that the job was handed over to and that has not said yet that it has it.
    std::string untold = {};
  };

  explicit job_host(job_settings how) : how_(std::move(how)) {}

  [[nodiscard]] expected<void> open();
  void work(const std::stop_token& stop);
  /// The rest is called with the lock.
  void look(entry& x);
  void wake();
  void move(entry& x, const std::string& to);
  [[nodiscard]] std::set<std::string> others_of(const known_job& job) const;
  [[nodiscard]] static bool is_news_for(const entry& x, const std::string& keeper);
  entry& add(known_job job);
  void learn(const std::string& from, const known_job& job, std::chrono::milliseconds host_silent_for);
  void adopt(entry& x, const known_job& job);
  void set_files_aside(const std::string& name);
  /// Whether no keeper needs to hear any more that it was removed.
  [[nodiscard]] bool is_done_with(const entry& x) const;
  /// The files of a job that this node may have to start.
  void keep_program(const known_job& job) const;
  [[nodiscard]] bool is_here(const known_job& job) const { return job.host == how_.address; }
  void start(entry& x);
  [[nodiscard]] expected<process_spec> specification_of(const known_job& known, const program_file& program) const;
  void on_started(const std::string& name, const expected<pid_t>& pid);
  void on_exit(const exit_report& how);
  void conclude(entry& x, job_end end);
  void save(const entry& x) const;

  const job_settings how_;
  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  bool is_news_ = false;
  /// Something was set aside that is to be removed.
  bool is_garbage_ = false;
  /// The node ends: no driver is started any more.
  bool is_leaving_ = false;
  /// A keeper has said something.
  std::condition_variable told_;
  /// Nothing before the first job.
  std::optional<job_directory> directory_;
  std::map<std::string, entry> jobs_;
  std::map<pid_t, std::string> drivers_;
  std::optional<process_supervisor> supervisor_;
  std::jthread worker_;
};

} // namespace troupe::runtime
