#include "jobs/job_host.hpp"

#include "driver/job_variable.hpp"
#include "process/own_environment.hpp"

#include <troupe/runtime/found_run.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <system_error>
#include <tuple>
#include <utility>

namespace troupe::runtime {

namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

/// How long a node that was started again waits for what other keepers know of its jobs.
constexpr auto word_of_keepers = 5s;
/// Between two looks at jobs of silent hosts.
constexpr auto longest_sleep = 500ms;
/// For twice as long as orphaned workers live by default (`failure.driver_grace`), a job that has moved waits for
/// resources.
constexpr std::chrono::milliseconds orphans_patience = 2min;

std::uint64_t milliseconds_now() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

/// A driver exits with 0 whether its run is complete or was stopped: the result of its last run says which.
job_end with_result(job_end end, const std::vector<fs::path>& runs) {
  if (end.outcome != job_outcome::completed || runs.empty())
    return end;
  const auto status = stored_status(runs.back(), absence::ended);
  if (status.value("state", std::string{}) != "stopped")
    return end;
  end.outcome = job_outcome::stopped;
  end.reason = fmt::format("its run was stopped after step {}", status.value("step", std::uint64_t{0}));
  return end;
}

} // namespace

expected<std::unique_ptr<job_host>> job_host::make(job_settings how) {
  auto result = std::unique_ptr<job_host>{new job_host{std::move(how)}};
  auto code = std::error_code{};
  if (result->how_.why_not.empty() && fs::exists(result->how_.state, code))
    TROUPE_TRY(result->open());
  result->worker_ = std::jthread{[raw = result.get()](const std::stop_token& stop) { raw->work(stop); }};
  return result;
}

job_host::~job_host() {
  worker_ = {};
  // Its callbacks take the lock.
  supervisor_.reset();
}

expected<void> job_host::open() {
  if (directory_)
    return {};
  TROUPE_TRY(auto directory, job_directory::open(how_.state));
  TROUPE_TRY(auto supervisor, process_supervisor::make({[this](pid_t pid, output_stream, std::string_view line) {
                                                          std::shared_ptr<line_log> log;
                                                          {
                                                            const auto lock = std::lock_guard{mutex_};
                                                            if (const auto whose = drivers_.find(pid);
                                                                whose != drivers_.end())
                                                              log = jobs_.at(whose->second).log;
                                                          }
                                                          if (log)
                                                            log->add(line);
                                                        },
                                                        [this](const exit_report& report) { on_exit(report); }}));
  std::vector<std::string> problems;
  auto known = directory.load(problems);
  for (const auto& each : problems)
    say("warning: " + each);
  directory_.emplace(std::move(directory));
  supervisor_.emplace(std::move(supervisor));
  for (auto& job : known) {
    auto& added = add(std::move(job));
    if (!added.job.end && is_here(added.job))
      added.driver = awaited_driver{clock::now() + word_of_keepers, others_of(added.job)};
    if (added.job.is_removed)
      set_files_aside(added.job.what.name);
  }
  is_garbage_ = true;
  return {};
}

job_host::entry& job_host::add(known_job job) {
  const auto name = job.what.name;
  entry made{std::move(job), driver_restarts{}, no_driver{},
             std::make_shared<line_log>(directory_->of(name) / "driver.log"),
             job_watch{how_.address, how_.watch, clock::now()}};
  return jobs_.insert_or_assign(name, std::move(made)).first->second;
}

std::set<std::string> job_host::others_of(const known_job& job) const {
  auto result = std::set<std::string>{job.what.keepers.begin(), job.what.keepers.end()};
  result.erase(how_.address);
  return result;
}

std::vector<known_job> job_host::jobs() const {
  const auto lock = std::lock_guard{mutex_};
  std::vector<known_job> result;
  for (const auto& [name, each] : jobs_)
    result.push_back(each.job);
  return result;
}

expected<job_host::hosted_job> job_host::find(const std::string& name) const {
  const auto lock = std::lock_guard{mutex_};
  const auto found = jobs_.find(name);
  if (found == jobs_.end() || found->second.job.is_removed)
    return fail(errc::not_found, fmt::format("the node {} has no job {}", how_.address, name));
  return hosted_job{found->second.job, found->second.driver, directory_->of(name), directory_->runs_of(name)};
}

expected<known_job> job_host::submit(const job_record& what, std::uint64_t term) {
  if (!how_.why_not.empty())
    return fail(errc::unsatisfiable, fmt::format("the node {} hosts no drivers: {}", how_.address, how_.why_not));
  TROUPE_TRY(validate(what));
  if (const auto startable = how_.programs.check(what); !startable)
    return fail(startable.error().code, fmt::format("{} (on the node {})", startable.error().message, how_.address));
  const auto lock = std::lock_guard{mutex_};
  if (is_leaving_)
    return fail(errc::unsatisfiable, fmt::format("the node {} ends", how_.address));
  TROUPE_TRY(open());
  const auto known = jobs_.find(what.name);
  if (known != jobs_.end() && !known->second.job.end)
    return fail(errc::already_exists, fmt::format("job {} runs already, on {}", what.name, how_.address));
  known_job made{what, std::max(known != jobs_.end() ? known->second.job.term + 1 : 1, term), how_.address, {}};
  TROUPE_TRY(directory_->save(made));
  add(made).driver = dead_driver{clock::now()};
  keep_program(made);
  say(fmt::format("has job {}, of {}", what.name, what.submitter.empty() ? "somebody" : what.submitter));
  wake();
  return made;
}

bool job_host::await_keeper(const std::string& name, std::chrono::milliseconds patience) {
  auto lock = std::unique_lock{mutex_};
  return told_.wait_for(lock, patience, [&] {
    const auto found = jobs_.find(name);
    return found == jobs_.end() || others_of(found->second.job).empty() ||
           !found->second.watch.successor(found->second.job, clock::now()).empty();
  });
}

expected<known_job> job_host::end(const std::string& name, bool at_once) {
  const auto lock = std::lock_guard{mutex_};
  const auto found = jobs_.find(name);
  if (found == jobs_.end())
    return fail(errc::not_found, fmt::format("the node {} has no job {}", how_.address, name));
  auto& x = found->second;
  if (x.job.end)
    return x.job;
  if (!is_here(x.job))
    return fail(errc::superseded, fmt::format("job {} is on {} now", name, x.job.host));
  if (auto* running = std::get_if<running_driver>(&x.driver)) {
    // A second SIGTERM would end the driver without a checkpoint.
    if (at_once || !std::holds_alternative<running_driver::told_to_end>(running->meaning))
      supervisor_->kill(running->pid, at_once ? SIGKILL : SIGTERM);
    running->meaning = running_driver::told_to_end{};
  } else if (auto* starting = std::get_if<starting_driver>(&x.driver)) {
    starting->is_to_end = true;
  } else {
    conclude(x, {job_outcome::stopped, 0, "it was stopped while it had no driver", 0});
  }
  return x.job;
}

expected<known_job> job_host::remove(const std::string& name) {
  const auto lock = std::lock_guard{mutex_};
  const auto found = jobs_.find(name);
  if (found == jobs_.end() || found->second.job.is_removed)
    return fail(errc::not_found, fmt::format("the node {} has no job {}", how_.address, name));
  auto& x = found->second;
  if (!x.job.end || !std::holds_alternative<no_driver>(x.driver))
    return fail(errc::busy, fmt::format("job {} has not ended: `troupe stop {}` ends it", name, name));
  auto removed = x.job;
  removed.is_removed = true;
  // The other keepers hear of it for as long as of an end.
  removed.end->at = milliseconds_now();
  TROUPE_TRY(directory_->save(removed));
  x.job = removed;
  x.news.begin();
  say(fmt::format("job {} was removed", name));
  set_files_aside(name);
  wake();
  return removed;
}

void job_host::set_files_aside(const std::string& name) {
  if (const auto done = directory_->set_aside(name); !done)
    say(fmt::format("warning: job {} was removed, but not all of its files: {}", name, done.error().message));
  is_garbage_ = true;
}

void job_host::hand_over(bool node_ends) {
  const auto lock = std::lock_guard{mutex_};
  is_leaving_ = is_leaving_ || node_ends;
  for (auto& [name, x] : jobs_) {
    if (x.job.end || !is_here(x.job))
      continue;
    const auto other = x.watch.successor(x.job, clock::now());
    const auto& to = other.empty() ? how_.address : other;
    if (to == how_.address && !node_ends)
      continue;
    auto* running = std::get_if<running_driver>(&x.driver);
    if (running == nullptr) {
      move(x, to);
      continue;
    }
    // Who waits for the end of a drain asks again and again, and a second signal ends a driver without a checkpoint.
    if (std::holds_alternative<running_driver::nothing_else>(running->meaning)) {
      say(fmt::format("stops job {}, after a checkpoint", name));
      supervisor_->kill(running->pid, SIGTERM);
    } else if (!std::holds_alternative<running_driver::moves>(running->meaning)) {
      continue;
    }
    running->meaning = running_driver::moves{to};
  }
}

bool job_host::is_busy() const {
  const auto lock = std::lock_guard{mutex_};
  return std::ranges::any_of(jobs_, [](const auto& each) {
    return !each.second.untold.empty() || std::holds_alternative<running_driver>(each.second.driver) ||
           std::holds_alternative<starting_driver>(each.second.driver);
  });
}

void job_host::move(entry& x, const std::string& to) {
  x.driver = no_driver{};
  if (to == how_.address)
    return say(fmt::format("job {} goes on when this node is started again", x.job.what.name));
  say(fmt::format("job {} is on {} from now on", x.job.what.name, to));
  ++x.job.term;
  x.job.host = to;
  x.untold = to;
  x.watch.begin(clock::now());
  save(x);
}

void job_host::work(const std::stop_token& stop) {
  auto lock = std::unique_lock{mutex_};
  while (!stop.stop_requested()) {
    if (std::exchange(is_garbage_, false)) {
      lock.unlock();
      for (const auto& problem : directory_->sweep())
        say("warning: " + problem);
      lock.lock();
    }
    std::erase_if(jobs_, [this](const auto& each) {
      const auto is_done = is_done_with(each.second);
      if (is_done)
        directory_->forget(each.first);
      return is_done;
    });
    auto next = clock::now() + longest_sleep;
    for (auto& [name, x] : jobs_) {
      if (is_leaving_)
        break;
      look(x);
      if (const auto* dead = std::get_if<dead_driver>(&x.driver)) {
        if (dead->until <= clock::now())
          start(x);
        else
          next = std::min(next, dead->until);
      }
    }
    is_news_ = false;
    std::ignore = wake_.wait_until(lock, stop, next, [&] { return is_news_; });
  }
}

expected<process_spec> job_host::specification_of(const known_job& known, const program_file& program) const {
  const auto& job = known.what;
  process_spec result;
  result.program_fd = program.fd();
  result.program = program.identity().path;
  result.argv = job.arguments;
  result.argv.front() = program.identity().path;
  result.directory = job.directory.empty() ? directory_->of(job.name).string() : job.directory.string();
  auto code = std::error_code{};
  if (!fs::is_directory(result.directory, code))
    return fail(errc::not_found,
                fmt::format("there is no directory {} on the node {}", result.directory, how_.address));
  // The driver has a working directory of its own.
  const auto keys = how_.keys.empty() ? how_.keys : fs::absolute(how_.keys, code);
  // On other nodes the workers of a lost host's driver live on for a while, with what they have leased.
  const auto wait = known.term == 1 ? job.wait_for_resources : std::max(job.wait_for_resources, orphans_patience);
  auto variables = job.environment;
  variables[job_variable] = to_text(job_context{job.name,
                                                {how_.address},
                                                how_.insecure,
                                                keys,
                                                job.mirror,
                                                job.time_limit,
                                                wait,
                                                directory_->list_of_runs(job.name)});
  result.env = environment_with(variables);
  return result;
}

void job_host::start(entry& x) {
  const auto name = x.job.what.name;
  auto opened = how_.programs.open(x.job.what, directory_->of(name));
  if (!opened)
    return conclude(x, {job_outcome::failed, 1, opened.error().message, 0});
  // Stays open until the process executes it.
  const auto program = std::make_shared<const program_file>(std::move(*opened));
  auto what = specification_of(x.job, *program);
  if (!what)
    return conclude(x, {job_outcome::failed, 1, what.error().message, 0});
  x.driver = starting_driver{};
  supervisor_->start_soon(std::move(*what),
                          [this, name, program](const expected<pid_t>& pid) { on_started(name, pid); });
}

void job_host::on_started(const std::string& name, const expected<pid_t>& pid) {
  const auto lock = std::lock_guard{mutex_};
  auto& x = jobs_.at(name);
  if (!pid)
    return conclude(x, {job_outcome::failed, 1, "its driver cannot be started: " + pid.error().message, 0});
  const auto* starting = std::get_if<starting_driver>(&x.driver);
  const auto is_to_end = starting != nullptr && starting->is_to_end;
  drivers_[*pid] = name;
  x.driver = running_driver{*pid};
  x.restarts.on_start(clock::now());
  say(fmt::format("has started the driver of job {} (process {})", name, *pid));
  // Meanwhile another node may have the job, or it may have ended.
  if (x.job.end || !is_here(x.job)) {
    std::get<running_driver>(x.driver).meaning = running_driver::superseded{};
    supervisor_->kill(*pid, SIGKILL);
  } else if (is_to_end) {
    std::get<running_driver>(x.driver).meaning = running_driver::told_to_end{};
    supervisor_->kill(*pid, SIGKILL);
  }
}

void job_host::on_exit(const exit_report& how) {
  const auto lock = std::lock_guard{mutex_};
  const auto whose = drivers_.extract(how.pid);
  if (!whose)
    return;
  auto& x = jobs_.at(whose.mapped());
  const auto meaning = std::get<running_driver>(x.driver).meaning;
  if (std::holds_alternative<running_driver::superseded>(meaning)) {
    x.driver = no_driver{};
    return;
  }
  auto next = x.restarts.on_exit(how, std::holds_alternative<running_driver::told_to_end>(meaning), clock::now());
  auto* end = std::get_if<job_end>(&next);
  if (const auto* moves = std::get_if<running_driver::moves>(&meaning);
      moves != nullptr && (end == nullptr || end->outcome == job_outcome::stopped))
    return move(x, moves->to);
  if (end != nullptr)
    return conclude(x, with_result(std::move(*end), directory_->runs_of(x.job.what.name)));
  const auto again = std::get<driver_restarts::start_again>(next).at;
  say(fmt::format("the driver of job {} was {}: it is started again in {:.1f} s", x.job.what.name, how.describe(),
                  std::chrono::duration<double>(again - clock::now()).count()));
  x.driver = dead_driver{again};
  wake();
}

void job_host::conclude(entry& x, job_end end) {
  end.at = milliseconds_now();
  say(fmt::format("job {} has ended: {}{}", x.job.what.name, to_string(end.outcome),
                  end.reason.empty() ? "" : ", " + end.reason));
  x.driver = no_driver{};
  x.job.end = std::move(end);
  x.news.begin();
  save(x);
  keep_program(x.job);
}

void job_host::save(const entry& x) const {
  if (const auto saved = directory_->save(x.job); !saved)
    say(fmt::format("warning: job {} is not on disk as it is: {}", x.job.what.name, saved.error().message));
}

void job_host::wake() {
  is_news_ = true;
  wake_.notify_all();
}

void job_host::say(const std::string& line) const {
  if (how_.log)
    how_.log(line);
}

} // namespace troupe::runtime
