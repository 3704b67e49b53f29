#pragma once

#include "jobs/job_host.hpp"
#include "jobs/keeper_links.hpp"
#include "jobs/run_sessions.hpp"

#include <troupe/error.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

/// What tools ask a node about its jobs, over the protocol of member_messages.hpp and with the role driver. What waits
/// for a disk or a driver is done behind the protocol's thread: such a question has a ticket, a text that the client
/// makes up, and is asked again until the answer is another than {"pending": true}.
///
///   {"ask": "jobs"}: {"jobs": [JOB], "why_not": TEXT}, at once; the text says why the node hosts no drivers
///   {"ask": "job", "ticket": T, "do": WHAT, ...}, where WHAT is
///     "submit", with "job": JOB                  the job
///     "beat", with "from", "jobs"                what the keepers of jobs tell each other: see job_host::beat_for
///     "end", with "name", "at_once": BOOL        the job
///     "status", with "name", "run"               {"job": JOB, "driver": WORD, "pid": N, "runs": [PATH], "run": PATH,
///                                                "absence": N, "absence_text": TEXT, "status": {...}}
///     "open", with "name", "run"                 {"session": N}, a connection to the driver of the run, or what
///                                                "status" says where it has none
///     "request", with "session", "line"          {"line": the driver's answer}
///     "events", with "session"                   {"lines": [...], "ended": BOOL}
///     "files", with "name", "run"                {"files": [{"path", "size", "id"}]}
///     "read", with "name", "run", "path", "offset", "limit"    {"data": base64}
///
/// "run" is the name of one of the job's runs; left out, it is the latest.
namespace troupe::runtime {

class job_service {
 public:
  /// `keepers`: how to reach other nodes, as a driver.
  job_service(std::unique_ptr<job_host> jobs, const member_access& keepers);
  job_service(const job_service&) = delete;
  job_service& operator=(const job_service&) = delete;
  ~job_service();

  /// Never waits. The question has passed the check of roles.
  [[nodiscard]] nlohmann::json answer(const nlohmann::json& question);

  [[nodiscard]] job_host& jobs() noexcept { return *jobs_; }

 private:
  using json = nlohmann::json;
  using clock = std::chrono::steady_clock;

  struct order {
    std::string ticket;
    json question;
  };
  struct done {
    json answer;
    clock::time_point at;
  };

  [[nodiscard]] json answer_ticket(const json& question);
  void work(const std::stop_token& stop);
  [[nodiscard]] expected<json> carry_out(const json& question);
  [[nodiscard]] expected<json> submit(const json& question);
  [[nodiscard]] expected<json> status(const json& question);
  [[nodiscard]] expected<json> open_session(const json& question);

  std::unique_ptr<job_host> jobs_;
  keeper_links keepers_;
  run_sessions sessions_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<order> orders_;
  /// Tickets whose orders wait or are carried out have no answer.
  std::map<std::string, std::optional<done>> tickets_;
  std::vector<std::jthread> threads_;
};

} // namespace troupe::runtime
