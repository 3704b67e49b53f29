// What the nodes that keep a job tell each other, and what follows from it.

#include "jobs/job_host.hpp"
#include "jobs/job_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

namespace troupe::runtime {

namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
using nlohmann::json;

} // namespace

std::set<std::string> job_host::other_keepers() const {
  const auto lock = std::lock_guard{mutex_};
  std::set<std::string> result;
  for (const auto& [name, x] : jobs_)
    for (const auto& each : others_of(x.job))
      if (is_news_for(x, each))
        result.insert(each);
  return result;
}

bool job_host::is_news_for(const entry& x, const std::string& keeper) {
  return x.news.is_for(keeper, x.job, std::chrono::system_clock::now());
}

bool job_host::is_done_with(const entry& x) const {
  return x.job.is_removed && std::holds_alternative<no_driver>(x.driver) &&
         std::ranges::none_of(others_of(x.job), [&](const auto& each) { return is_news_for(x, each); });
}

json job_host::beat_for(const std::string& address) const {
  const auto lock = std::lock_guard{mutex_};
  json result{{"from", how_.address}, {"jobs", json::array()}};
  for (const auto& [name, x] : jobs_)
    if (others_of(x.job).contains(address) && is_news_for(x, address))
      result["jobs"].push_back(
          {{"job", describe(x.job)}, {"host_silent_ms", x.watch.host_silent_for(clock::now()).count()}});
  return result;
}

json job_host::take_beat(const json& beat) {
  const auto from = beat.at("from").get<std::string>();
  {
    const auto lock = std::lock_guard{mutex_};
    for (const auto& each : beat.at("jobs"))
      if (const auto job = parse_job(each.at("job")); job && others_of(*job).size() < job->what.keepers.size())
        learn(from, *job, std::chrono::milliseconds{each.at("host_silent_ms").get<std::uint32_t>()});
  }
  return beat_for(from);
}

void job_host::on_told(const std::string& address, const json& beat) {
  const auto lock = std::lock_guard{mutex_};
  for (const auto& each : beat.at("jobs"))
    if (const auto job = parse_job(each.at("job"))) {
      const auto found = jobs_.find(job->what.name);
      if (found != jobs_.end() && found->second.job == *job)
        found->second.news.on_told(address);
    }
}

void job_host::learn(const std::string& from, const known_job& job, std::chrono::milliseconds host_silent_for) {
  auto known = jobs_.find(job.what.name);
  if (known == jobs_.end()) {
    // What has ended need not be kept here any more.
    if (job.end)
      return;
    if (const auto opened = open(); !opened)
      return say(fmt::format("cannot keep job {} of {}: {}", job.what.name, from, opened.error().message));
    known = jobs_.find(job.what.name);
  }
  if (known == jobs_.end()) {
    save(add(job));
    keep_program(job);
    say(fmt::format("keeps job {}, which is on {}, and takes it over if that host is lost", job.what.name, job.host));
    known = jobs_.find(job.what.name);
  }
  auto& x = known->second;
  if (from == x.untold && job.term >= x.job.term)
    x.untold.clear();
  if (supersedes(job, x.job))
    adopt(x, job);
  if (x.job.term == job.term && x.job.host == job.host)
    x.watch.hear(from, from == job.host ? 0ms : host_silent_for, clock::now());
  if (auto* awaited = std::get_if<awaited_driver>(&x.driver))
    awaited->unasked.erase(from);
  x.news.on_word(from, job, x.job);
  told_.notify_all();
  wake();
}

void job_host::adopt(entry& x, const known_job& job) {
  if (is_here(x.job) && !is_here(job))
    say(fmt::format("job {} is on {} now: this node gives it up", job.what.name, job.host));
  x.job = job;
  x.news.begin();
  x.watch.begin(clock::now());
  save(x);
  keep_program(job);
  if (job.is_removed) {
    say(fmt::format("job {} was removed, says another node", job.what.name));
    set_files_aside(job.what.name);
  }
  if (!job.end && is_here(job)) {
    if (std::holds_alternative<no_driver>(x.driver))
      x.driver = dead_driver{clock::now()};
    return;
  }
  if (auto* running = std::get_if<running_driver>(&x.driver)) {
    running->meaning = running_driver::superseded{};
    supervisor_->kill(running->pid, SIGKILL);
  } else if (!std::holds_alternative<starting_driver>(x.driver)) {
    x.driver = no_driver{};
  }
}

void job_host::keep_program(const known_job& job) const {
  const auto directory = directory_->of(job.what.name);
  if (job.end)
    return job_programs::drop(directory);
  if (const auto kept = how_.programs.keep(job.what, directory); !kept)
    say(fmt::format("warning: {}", kept.error().message));
}

void job_host::look(entry& x) {
  const auto now = clock::now();
  if (const auto* awaited = std::get_if<awaited_driver>(&x.driver);
      awaited != nullptr && (awaited->unasked.empty() || awaited->until <= now))
    x.driver = dead_driver{now};
  if (!x.watch.takes_over(x.job, now))
    return;
  say(fmt::format("nobody has heard {} for {:.1f} s: takes job {} over", x.job.host,
                  std::chrono::duration<double>(x.watch.host_silent_for(now)).count(), x.job.what.name));
  ++x.job.term;
  x.job.host = how_.address;
  x.driver = dead_driver{now};
  save(x);
}

} // namespace troupe::runtime
