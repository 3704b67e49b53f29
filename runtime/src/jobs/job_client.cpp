#include <troupe/runtime/jobs.hpp>

#include "jobs/job_messages.hpp"
#include "jobs/job_watch.hpp"
#include "net/members/member_questions.hpp"
#include "net/members/ticket_client.hpp"
#include "programs/program_offer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

/// How long a node may take to carry out what it was asked for.
constexpr auto patience = 60s;
constexpr std::size_t most_hosts = 3;

/// The jobs that one node knows, and whether it takes more.
struct node_jobs {
  std::vector<known_job> jobs;
  std::string why_not;
};

expected<node_jobs> ask_for_jobs(const std::string& address, const member_access& how) {
  TROUPE_TRY(const auto text, ask_node(address, {{"ask", "jobs"}}, how));
  node_jobs result;
  result.why_not = text.value("why_not", std::string{});
  for (const auto& each : text.value("jobs", nlohmann::json::array())) {
    TROUPE_TRY(auto job, parse_job(each));
    result.jobs.push_back(std::move(job));
  }
  return result;
}

void merge(std::map<std::string, known_job>& into, std::vector<known_job> jobs) {
  for (auto& job : jobs) {
    auto [known, is_new] = into.try_emplace(job.what.name, job);
    if (!is_new && supersedes(job, known->second))
      known->second = std::move(job);
  }
}

/// A cluster's nodes that answer, and what they know.
struct survey {
  /// Also those that were removed.
  std::map<std::string, known_job> jobs;
  std::map<std::string, std::string> why_not;
  std::vector<std::string> silent;
};

expected<survey> look_around(const std::vector<std::string>& entries, const member_access& how) {
  TROUPE_TRY(const auto members, list_members(entries, how));
  survey result;
  for (const auto& each : members) {
    const auto& address = each.what.address;
    auto known =
        each.is_silent ? expected<node_jobs>{fail(errc::unreachable, "it is silent")} : ask_for_jobs(address, how);
    if (!known) {
      result.silent.push_back(address);
      continue;
    }
    merge(result.jobs, std::move(known->jobs));
    result.why_not[address] = each.what.phase == member_phase::available ? known->why_not : "it is drained";
  }
  if (result.why_not.empty())
    return fail(errc::unreachable, fmt::format("none of the cluster's {} nodes answers", members.size()));
  return result;
}

/// The node that is named, or those that host fewest jobs first; those that host none are not among them.
expected<std::vector<std::string>> choose_hosts(const survey& found, const std::string& node) {
  std::vector<std::string> able;
  std::string reasons;
  for (const auto& [address, why_not] : found.why_not)
    if (why_not.empty())
      able.push_back(address);
    else
      reasons += fmt::format("\n  {}: {}", address, why_not);
  if (!node.empty()) {
    const auto named = std::ranges::find(able, node);
    if (named == able.end())
      return fail(errc::unsatisfiable,
                  fmt::format("the node {} {}", node,
                              found.why_not.contains(node) ? "hosts no drivers: " + found.why_not.at(node)
                                                           : "is no member of the cluster that answers"));
    std::rotate(able.begin(), named, named + 1);
  } else {
    const auto hosted = [&](const std::string& address) {
      return std::ranges::count_if(found.jobs,
                                   [&](const auto& x) { return !x.second.end && x.second.host == address; });
    };
    std::ranges::stable_sort(able, {}, hosted);
  }
  if (able.empty())
    return fail(errc::unsatisfiable, "no node of the cluster hosts drivers:" + reasons);
  able.resize(std::min(able.size(), most_hosts));
  return able;
}

/// The node that hosts a job.
class node_of_job {
 public:
  using json = job_client::json;

  node_of_job(known_job job, member_access how) : node_(job.host, std::move(how)), job_(std::move(job)) {}

  [[nodiscard]] const known_job& job() const noexcept { return job_; }
  [[nodiscard]] const member_access& access() const noexcept { return node_.access(); }

  expected<json> ask(const std::string& what, const json& more) {
    nlohmann::json question = more;
    question.update({{"ask", "job"}, {"do", what}});
    if (!question.contains("name"))
      question["name"] = job_.what.name;
    TROUPE_TRY(const auto answer, node_.ask(std::move(question), patience));
    return json(answer);
  }

 private:
  ticket_client node_;
  known_job job_;
};

expected<known_job> find_job(const std::vector<std::string>& entries, const std::string& name,
                             const member_access& how) {
  TROUPE_TRY(auto found, look_around(entries, how));
  std::erase_if(found.jobs, [](const auto& each) { return each.second.is_removed; });
  if (const auto job = found.jobs.find(name); job != found.jobs.end())
    return std::move(job->second);
  std::vector<std::string> names;
  for (const auto& [known, ignored] : found.jobs)
    names.push_back(known);
  auto text = fmt::format("the cluster has no job {}; it has {}", name,
                          names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  if (!found.silent.empty())
    text += fmt::format(" (not asked, because silent: {})", fmt::join(found.silent, ", "));
  return fail(errc::not_found, std::move(text));
}

} // namespace

expected<known_job> remove_job(const std::vector<std::string>& entries, const std::string& name,
                               const member_access& how) {
  TROUPE_TRY(auto job, find_job(entries, name, how));
  // Its host first, which knows best; the keepers tell each other.
  auto nodes = job.what.keepers;
  std::erase(nodes, job.host);
  nodes.insert(nodes.begin(), job.host);
  auto why = error{};
  for (const auto& address : nodes) {
    auto asked = job;
    asked.host = address;
    const auto removed = node_of_job{std::move(asked), how}.ask("remove", {});
    if (removed)
      return job;
    if (removed.error().code == errc::busy)
      return fail(removed.error());
    if (why.code == errc::none)
      why = removed.error();
  }
  return fail(std::move(why));
}

expected<job_list> list_jobs(const std::vector<std::string>& entries, const member_access& how) {
  TROUPE_TRY(auto found, look_around(entries, how));
  job_list result;
  for (auto& [name, job] : found.jobs)
    if (!job.is_removed)
      result.jobs.push_back(std::move(job));
  result.silent = std::move(found.silent);
  return result;
}

class job_client::impl : public node_of_job {
 public:
  using node_of_job::node_of_job;
};

namespace {

expected<std::vector<program_file>> open_files(const std::vector<std::filesystem::path>& paths) {
  std::vector<program_file> result;
  for (const auto& each : paths) {
    TROUPE_TRY(auto file, program_file::open(each.string()));
    result.push_back(std::move(file));
  }
  return result;
}

/// What came of sending all files to a node; with `declined`, the node is to have them.
expected<program_offer> send_files(const std::string& address, const std::vector<program_file>& files,
                                   const member_access& how) {
  program_offer result{program_offer::outcome::had, 0};
  for (const auto& each : files) {
    TROUPE_TRY(const auto offered, offer_program(address, each, how));
    if (offered.what == program_offer::outcome::declined)
      return offered;
    if (offered.what == program_offer::outcome::sent)
      result.what = offered.what;
    result.bytes += offered.bytes;
  }
  return result;
}

/// Sends the files to the job's keepers. Those that do not take them keep it no more, unless its host declines, too.
expected<std::vector<std::string>> provide(job_record& job, const std::vector<program_file>& files,
                                           const member_access& how) {
  std::vector<std::string> notes;
  std::vector<std::string> keepers;
  for (const auto& address : job.keepers) {
    const auto is_host = address == job.keepers.front();
    const auto offered = send_files(address, files, how);
    if (is_host && !offered)
      return fail(offered.error().code, fmt::format("the node {}: {}", address, offered.error().message));
    if (is_host && offered->what == program_offer::outcome::declined) {
      job.files.clear();
      return notes;
    }
    if (!offered || offered->what == program_offer::outcome::declined) {
      notes.push_back(fmt::format("the node {} does not keep the job: {}", address,
                                  offered ? "it lacks the program, and takes none" : offered.error().message));
      continue;
    }
    keepers.push_back(address);
    if (offered->what == program_offer::outcome::sent)
      notes.push_back(fmt::format("sent {} to the node {} ({:.1f} MB)", files.front().identity().path, address,
                                  static_cast<double>(offered->bytes) / 1e6));
  }
  job.keepers = std::move(keepers);
  return notes;
}

} // namespace

expected<submitted_job> submit_job(const std::vector<std::string>& entries, submission what, const member_access& how) {
  auto& job = what.job;
  TROUPE_TRY(const auto files, open_files(what.files));
  for (const auto& each : files)
    job.files.push_back({std::filesystem::path{each.identity().path}.filename().string(), each.identity().build_id});
  TROUPE_TRY(validate(job));
  TROUPE_TRY(const auto found, look_around(entries, how));
  if (const auto known = found.jobs.find(job.name); known != found.jobs.end() && !known->second.end)
    return fail(errc::already_exists, fmt::format("job {} runs already, on {}: choose another name, or stop it first",
                                                  job.name, known->second.host));
  const auto earlier = found.jobs.find(job.name);
  const auto term = earlier == found.jobs.end() ? 1 : earlier->second.term + 1;
  auto wanted = what.node;
  // Where it has been, its runs are.
  if (wanted.empty() && earlier != found.jobs.end() && !earlier->second.is_removed &&
      found.why_not.contains(earlier->second.host))
    wanted = earlier->second.host;
  TROUPE_TRY(job.keepers, choose_hosts(found, wanted));
  if (!can_move(job))
    job.keepers.resize(1);
  auto notes = std::vector<std::string>{};
  if (!files.empty()) {
    TROUPE_TRY(notes, provide(job, files, how));
  }
  known_job asked{job, term, job.keepers.front(), {}};
  auto host = node_of_job{asked, how};
  TROUPE_TRY(const auto answer, host.ask("submit", {{"job", describe(asked)}}));
  TROUPE_TRY(auto taken, parse_job(answer));
  return submitted_job{std::move(taken), answer.value("is_kept", true), std::move(notes)};
}

expected<job_client> job_client::find(const std::vector<std::string>& entries, const std::string& name,
                                      const member_access& how) {
  TROUPE_TRY(auto job, find_job(entries, name, how));
  return job_client{std::make_unique<impl>(std::move(job), how)};
}

job_client::job_client(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
job_client::job_client(job_client&&) noexcept = default;
job_client& job_client::operator=(job_client&&) noexcept = default;
job_client::~job_client() = default;

const known_job& job_client::job() const noexcept {
  return impl_->job();
}

expected<job_client::json> job_client::ask(const std::string& what, const json& question) {
  return impl_->ask(what, question);
}

job_client job_client::again() const {
  return job_client{std::make_unique<impl>(impl_->job(), impl_->access())};
}

} // namespace troupe::runtime
