#include "jobs/job_service.hpp"

#include "jobs/job_files.hpp"
#include "jobs/job_messages.hpp"
#include "net/members/member_messages.hpp"

#include <troupe/runtime/found_run.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace troupe::runtime {

namespace {

using json = nlohmann::json;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

/// Some of which may wait for drivers.
constexpr std::size_t threads = 8;
/// How long whoever submits a job waits until another node has it.
constexpr auto keeper_patience = 3s;

struct driver_words {
  json& to;

  void operator()(const job_host::no_driver& /*x*/) const { to["driver"] = "none"; }
  void operator()(const job_host::awaited_driver& /*x*/) const { to["driver"] = "starting"; }
  void operator()(const job_host::starting_driver& /*x*/) const { to["driver"] = "starting"; }
  void operator()(const job_host::running_driver& x) const {
    to["driver"] = "running";
    to["pid"] = x.pid;
  }
  void operator()(const job_host::dead_driver& /*x*/) const { to["driver"] = "dead"; }
};

expected<fs::path> choose_run(const std::vector<fs::path>& runs, const std::string& name) {
  if (name.empty())
    return runs.empty() ? fs::path{} : runs.back();
  const auto found = std::ranges::find(runs, name, [](const fs::path& x) { return x.filename().string(); });
  if (found == runs.end())
    return fail(errc::not_found, fmt::format("the job has no run {}", name));
  return *found;
}

/// What is said of a run whose driver does not answer. The node starts the driver of a job again, and a job may end
/// without a result of its run. `run` is empty where the driver has begun none.
json describe_absence(const job_host::hosted_job& job, const fs::path& run, absent_driver absent) {
  auto status = run.empty() ? nlohmann::ordered_json{{"name", job.job.what.name}, {"state", "starting"}}
                            : stored_status(run, absent.why);
  const auto& end = job.job.end;
  const auto run_has_ended = absent.why == absence::ended;
  if (end && (!run_has_ended || end->outcome == job_outcome::failed)) {
    status["state"] = to_string(end->outcome);
    status["exit_code"] = end->exit_code;
    status["cause"] = end->reason;
    absent = {absence::ended, fmt::format("the job has ended: {}{}", to_string(end->outcome),
                                          end->reason.empty() ? "" : ", " + end->reason)};
  } else if (!end && (run_has_ended || absent.why == absence::lost)) {
    status["state"] = run_has_ended ? "starting" : "driver lost";
    absent = {absence::not_begun, run_has_ended
                                      ? "its last run has ended, and the job's driver begins the next, or ends"
                                      : "the job's driver has died, and is started again"};
  }
  return {{"absence", static_cast<unsigned>(absent.why)}, {"absence_text", absent.text}, {"status", status}};
}

absent_driver not_begun() {
  return {absence::not_begun, "the job's driver has not begun a run yet"};
}

std::variant<control_client, absent_driver> find_driver_of(const fs::path& run) {
  if (run.empty())
    return not_begun();
  return find_driver(run);
}

} // namespace

job_service::job_service(std::unique_ptr<job_host> jobs, const member_access& keepers)
    : jobs_(std::move(jobs)),
      keepers_(*jobs_, keepers),
      desk_(threads, "a job", [this](const json& question) { return carry_out(question); }) {}

json job_service::answer(const json& question) {
  if (question.value("ask", std::string{}) == "job")
    return desk_.answer(question);
  auto result = json{{"jobs", json::array()}, {"why_not", jobs_->why_not()}};
  for (const auto& each : jobs_->jobs())
    result["jobs"].push_back(describe(each));
  return result;
}

expected<json> job_service::carry_out(const json& question) {
  const auto what = text_in(question, "do");
  if (what == "submit")
    return submit(question);
  if (what == "end") {
    TROUPE_TRY(const auto job, jobs_->end(text_in(question, "name"), question.value("at_once", false)));
    return describe(job);
  }
  if (what == "remove") {
    TROUPE_TRY(const auto job, jobs_->remove(text_in(question, "name")));
    return describe(job);
  }
  if (what == "beat")
    return jobs_->take_beat(question);
  if (what == "status")
    return status(question);
  if (what == "open")
    return open_session(question);
  if (what == "request") {
    TROUPE_TRY(auto line, sessions_.request(number_in(question, "session"), text_in(question, "line")));
    return json{{"line", std::move(line)}};
  }
  if (what == "events") {
    TROUPE_TRY(auto news, sessions_.events(number_in(question, "session")));
    return json{{"lines", std::move(news.lines)}, {"ended", news.has_ended}};
  }
  TROUPE_TRY(const auto job, jobs_->find(text_in(question, "name")));
  TROUPE_TRY(const auto run, choose_run(job.runs, question.value("run", std::string{})));
  if (what == "files") {
    auto result = json{{"files", json::array()}};
    for (const auto& each : list_job_files(job.directory, run))
      result["files"].push_back({{"path", each.path}, {"size", each.size}, {"id", each.id}});
    return result;
  }
  if (what == "read") {
    TROUPE_TRY(const auto bytes, read_job_file(job.directory, run, text_in(question, "path"),
                                               number_in(question, "offset"), number_in(question, "limit")));
    return json{{"data", as_data(bytes)}};
  }
  return fail(errc::unsupported_version, fmt::format("this node cannot '{}' a job", what));
}

expected<json> job_service::submit(const json& question) {
  TROUPE_TRY(const auto asked, parse_job(question.at("job")));
  TROUPE_TRY(const auto job, jobs_->submit(asked.what, asked.term));
  auto result = describe(job);
  result["is_kept"] = jobs_->await_keeper(job.what.name, keeper_patience);
  return result;
}

expected<json> job_service::status(const json& question) {
  TROUPE_TRY(const auto job, jobs_->find(text_in(question, "name")));
  TROUPE_TRY(const auto run, choose_run(job.runs, question.value("run", std::string{})));
  auto result = json{{"job", describe(job.job)}, {"directory", job.directory.string()}, {"runs", json::array()}};
  std::visit(driver_words{result}, job.driver);
  for (const auto& each : job.runs)
    result["runs"].push_back(each.string());
  if (!run.empty())
    result["run"] = run.string();
  auto found = find_driver_of(run);
  if (auto* driver = std::get_if<control_client>(&found)) {
    if (auto status = driver->ask(actors::status_question{})) {
      result["status"] = *status;
      return result;
    } else {
      found = explain_absence(run, status.error().message);
    }
  }
  result.update(describe_absence(job, run, std::get<absent_driver>(std::move(found))));
  return result;
}

expected<json> job_service::open_session(const json& question) {
  TROUPE_TRY(const auto job, jobs_->find(text_in(question, "name")));
  TROUPE_TRY(const auto run, choose_run(job.runs, question.value("run", std::string{})));
  if (run.empty())
    return describe_absence(job, run, not_begun());
  auto opened = sessions_.open(run);
  if (auto* absent = std::get_if<absent_driver>(&opened))
    return describe_absence(job, run, std::move(*absent));
  return json{{"session", std::get<std::uint64_t>(opened)}};
}

} // namespace troupe::runtime
