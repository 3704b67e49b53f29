#pragma once

#include "jobs/job_host.hpp"
#include "jobs/keeper_links.hpp"
#include "jobs/run_sessions.hpp"
#include "net/members/member_session.hpp"
#include "net/members/ticket_desk.hpp"

#include <troupe/error.hpp>

#include <memory>
#include <nlohmann/json.hpp>

/// What tools ask a node about its jobs, over the protocol of member_messages.hpp and with the role driver. Questions
/// with a ticket wait for a disk or a driver (see ticket_desk.hpp).
///
///   {"ask": "jobs"}: {"jobs": [JOB], "why_not": TEXT}, at once; the text says why the node hosts no drivers
///   {"ask": "job", "ticket": T, "do": WHAT, ...}, where WHAT is
///     "submit", with "job": JOB                  the job
///     "beat", with "from", "jobs"                what the keepers of jobs tell each other: see job_host::beat_for
///     "end", with "name", "at_once": BOOL        the job
///     "remove", with "name"                      the job, which has ended, and which nobody has any more
///     "status", with "name", "run"               {"job": JOB, "driver": WORD, "pid": N, "runs": [PATH], "run": PATH,
///                                                "absence": N, "absence_text": TEXT, "status": {...}}
///     "open", with "name", "run"                 {"session": N}, a connection to the driver of the run, or what
///                                                "status" says where it has none
///     "request", with "session", "line"          {"line": the driver's answer}
///     "events", with "session"                   {"lines": [...], "ended": BOOL}
///     "files", with "name", "run"                {"files": [{"path", "size", "id"}]}
///     "read", with "name", "run", "path", "offset", "limit"    {"data": BYTES}
///
/// "run" is the name of one of the job's runs; left out, it is the latest.
namespace troupe::runtime {

class job_service : public node_service {
 public:
  /// `keepers`: how to reach other nodes, as a driver.
  job_service(std::unique_ptr<job_host> jobs, const member_access& keepers);
  job_service(const job_service&) = delete;
  job_service& operator=(const job_service&) = delete;

  [[nodiscard]] nlohmann::json answer(const nlohmann::json& question) override;

  [[nodiscard]] job_host& jobs() noexcept { return *jobs_; }

 private:
  using json = nlohmann::json;

  [[nodiscard]] expected<json> carry_out(const json& question);
  [[nodiscard]] expected<json> submit(const json& question);
  [[nodiscard]] expected<json> status(const json& question);
  [[nodiscard]] expected<json> open_session(const json& question);

  std::unique_ptr<job_host> jobs_;
  keeper_links keepers_;
  run_sessions sessions_;
  /// Last: it ends before what it uses.
  ticket_desk desk_;
};

} // namespace troupe::runtime
