#include <troupe/actors/run_coordinator.hpp>

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

std::string name_of(const worker_place& place) {
  return "worker " + std::to_string(place.worker.value) + " (rank " + std::to_string(place.rank.value) + ")";
}

std::string join_lines(const std::vector<std::string>& lines) {
  auto result = std::string{};
  for (const auto& line : lines)
    result += "\n  " + line;
  return result;
}

/// Appends "name: a here, b there" where the two differ.
template <class T>
void compare(std::vector<std::string>& out, const std::string& what, const T& left, const std::string& left_name,
             const T& right, const std::string& right_name) {
  if (left == right)
    return;
  auto text = [](const T& x) {
    if constexpr (std::is_integral_v<T>)
      return std::to_string(x);
    else
      return x;
  };
  out.push_back(what + ": " + text(left) + " " + left_name + ", " + text(right) + " " + right_name);
}

/// A failure that others follow from: anything but a collective that was cut off.
bool is_cause(const failure_record& x) {
  return x.reason.code != errc::aborted;
}

} // namespace

run_coordinator::run_coordinator(settings config) : config_(std::move(config)) {
  for (const auto& place : config_.places)
    members_.emplace(place.worker, member{place, {}, {}, false, false, false, {}, std::nullopt, std::nullopt});
}

run_coordinator::member* run_coordinator::find(worker_id worker) {
  auto i = members_.find(worker);
  return i == members_.end() ? nullptr : &i->second;
}

template <class Predicate>
bool run_coordinator::all(Predicate predicate) const {
  return std::ranges::all_of(members_, [&](const auto& entry) { return predicate(entry.second); });
}

failure_record run_coordinator::record(const member& who, error reason) const {
  failure_record result;
  result.worker = who.place.worker;
  result.rank = who.place.rank;
  result.step = who.applied;
  result.host = who.host;
  result.reason = std::move(reason);
  return result;
}

std::optional<error> run_coordinator::compare_with_first(const member& newcomer) const {
  if (config_.compare_numerics == nullptr)
    return std::nullopt;
  auto reference = config_.resumed ? config_.resumed->numerics : std::string{};
  auto against = std::string{"the checkpoint"};
  if (reference.empty())
    for (const auto& [id, other] : members_)
      if (other.ready && id != newcomer.place.worker) {
        reference = other.numerics;
        against = name_of(other.place) + " on " + other.host;
        break;
      }
  if (reference.empty())
    return std::nullopt;
  auto differences = config_.compare_numerics(newcomer.numerics, reference);
  if (differences.empty())
    return std::nullopt;
  return error{errc::mismatch,
               name_of(newcomer.place) + " on " + newcomer.host + " computes differently from " + against +
                   ", so that the result would depend on the host:" + join_lines(differences) +
                   "\nUse hosts of one kind, or set run.allow_mixed_hosts (the result is then marked as "
                   "not exact)"};
}

run_actions run_coordinator::on_ready(const worker_ready& message) {
  auto* who = find(message.worker);
  if (who == nullptr || who->ready || phase_ != phase::starting)
    return {};
  who->ready = true;
  who->host = message.host;
  who->numerics = message.numerics;
  if (message.build_id != config_.build_id)
    return fail_run(
        record(*who, {errc::program_mismatch, name_of(who->place) + " on " + who->host + " runs build " +
                                                  message.build_id + ", the driver is build " + config_.build_id +
                                                  ": install the same build on all hosts"}),
        "a worker runs another build");
  if (auto difference = compare_with_first(*who)) {
    if (!config_.allow_mixed_hosts)
      return fail_run(record(*who, std::move(*difference)), "numerics fingerprints differ");
    exact_hosts_ = false;
  }
  if (!all([](const member& x) { return x.ready; }))
    return {};
  phase_ = phase::training;
  return {{begin_all{}, "all " + std::to_string(members_.size()) + " workers are ready"}};
}

std::optional<error> run_coordinator::compare_plans() const {
  const auto& first = std::ranges::find_if(members_, [](const auto& x) { return x.second.is_left(); })->second;
  for (const auto& [id, other] : members_) {
    if (!other.is_left())
      continue;
    std::vector<std::string> differences;
    auto here = "on " + name_of(first.place);
    auto there = "on " + name_of(other.place);
    compare(differences, "steps", first.plan->steps, here, other.plan->steps, there);
    compare(differences, "batch size", first.plan->batch_samples, here, other.plan->batch_samples, there);
    compare(differences, "samples in the data set", first.plan->data_samples, here, other.plan->data_samples, there);
    compare(differences, "data fingerprint", first.plan->data_fingerprint, here, other.plan->data_fingerprint, there);
    compare(differences, "tracked tensors", first.plan->tensors, here, other.plan->tensors, there);
    if (!differences.empty())
      return error{errc::mismatch,
                   "the workers disagree about the run:" + join_lines(differences) +
                       "\nGive all hosts the same data and the training function the same configuration"};
  }
  return std::nullopt;
}

std::optional<error> run_coordinator::compare_with_checkpoint(const run_plan& plan) const {
  if (!config_.resumed)
    return std::nullopt;
  const auto& old = *config_.resumed;
  std::vector<std::string> differences;
  auto here = std::string{"now"};
  auto there = std::string{"in the checkpoint"};
  compare(differences, "batch size", plan.batch_samples, here, old.batch_samples, there);
  compare(differences, "data fingerprint", plan.data_fingerprint, here, old.data_fingerprint, there);
  compare(differences, "tracked tensors", plan.tensors, here, old.tensors, there);
  if (differences.empty())
    return std::nullopt;
  return error{errc::mismatch,
               "this run cannot go on from its checkpoint, because its result would be that of no single "
               "program and data:" +
                   join_lines(differences) +
                   "\nUse what the run was begun with, choose another run name, or begin a new run from "
                   "the checkpoint's state (load_checkpoint, --from)"};
}

run_actions run_coordinator::on_plan(const run_plan& message) {
  auto* who = find(message.worker);
  if (who == nullptr || phase_ != phase::training)
    return {};
  who->plan = message;
  if (!all([](const member& x) { return x.plan.has_value() || !x.is_left(); }))
    return {};
  auto wrong = compare_plans();
  if (!wrong)
    wrong = compare_with_checkpoint(message);
  if (!wrong) {
    // A training function may have several loops, each with a plan.
    for (auto& [id, each] : members_)
      each.plan.reset();
    return {{accept_plans{message}, "all workers have the same plan"}};
  }
  plans_refused_ = true;
  auto actions = run_actions{{refuse_plans{*wrong}, "the plans differ"}};
  auto rest = fail_run(record(*who, std::move(*wrong)), "the plans differ");
  actions.insert(actions.end(), rest.begin(), rest.end());
  return actions;
}

run_actions run_coordinator::on_finished(const worker_finished& message) {
  auto* who = find(message.worker);
  if (who == nullptr || who->finished || phase_ == phase::over)
    return {};
  who->finished = true;
  who->applied = message.step;
  if (message.reason.code != errc::none) {
    auto what = record(*who, message.reason);
    // Every worker is told of it, and ends with what it was told.
    what.consequence = plans_refused_ && message.reason.code == errc::mismatch;
    return fail_run(std::move(what), name_of(who->place) + " failed: " + message.reason.message);
  }
  if (phase_ == phase::failing)
    return all([](const member& x) { return x.finished || x.ended; }) ? conclude_failure("all workers have reported")
                                                                      : run_actions{};
  stopped_ = stopped_ || message.stopped;
  if (!end_known_) {
    end_known_ = true;
    state_sha256_ = message.state_sha256;
    final_step_ = message.step;
  } else if (state_sha256_ != message.state_sha256 || final_step_ != message.step) {
    return fail_run(
        record(*who, {errc::mismatch, name_of(who->place) + " ends at step " + std::to_string(message.step.value) +
                                          " with state " + message.state_sha256 + ", others at step " +
                                          std::to_string(final_step_.value) + " with state " + state_sha256_ +
                                          ": the training function computes differently on different ranks "
                                          "(uninitialised memory, rank-dependent code, untracked state)"}),
        "replicas differ at the end");
  }
  if (all([](const member& x) { return !x.is_left(); }))
    return all_finished();
  return phase_ == phase::regrouping ? form_when_all_have_reported() : run_actions{};
}

run_actions run_coordinator::all_finished() {
  if (phase_ == phase::failing)
    return conclude_failure("all workers have reported");
  phase_ = phase::releasing;
  return {{release_all{}, "all workers have returned from the training function"}};
}

run_actions run_coordinator::on_ended(const worker_ended& message, time now) {
  auto* who = find(message.worker);
  if (who == nullptr || who->ended || phase_ == phase::over)
    return {};
  who->ended = true;
  if (phase_ == phase::releasing || (phase_ == phase::failing && who->finished)) {
    if (!all([](const member& x) { return x.ended; }))
      return {};
    return phase_ == phase::failing
               ? conclude_failure("all workers have ended")
               : conclude_run(stopped_ ? run_status::stopped : run_status::completed, {}, "all workers have ended");
  }
  auto during = who->ready ? "after step " + std::to_string(who->applied.value) : "before it had joined";
  auto what = record(*who, {errc::worker_lost, name_of(who->place) + (who->host.empty() ? "" : " on " + who->host) +
                                                   " ended " + during + ": " + message.description});
  what.last_lines = message.last_lines;
  if (!message.last_lines.empty())
    what.reason.message += "; its last lines:" + join_lines(message.last_lines);
  return lose(std::move(what), name_of(who->place) + " ended: " + message.description, now);
}

/// Whether this failure, which happens now, is one too many.
bool run_coordinator::within_budget(time now) {
  // The loss behind a report that came first is the same failure.
  if (!std::exchange(found_by_workers_, false))
    recent_.push_back(now);
  while (now - recent_.front() > config_.failure.window)
    recent_.pop_front();
  return recent_.size() <= config_.failure.max_failures;
}

/// A worker is gone. The others go on without it, if there are any and the budget allows it.
run_actions run_coordinator::lose(failure_record what, const std::string& why, time now) {
  if (!goes_on())
    return fail_run(std::move(what), why);
  // What it has finished, it has told: the others need no more of it.
  if (find(what.worker)->finished && config_.failure.max_failures > 0) {
    failures_.push_back(std::move(what));
    return {};
  }
  if (!within_budget(now)) {
    what.reason.message =
        "this is failure number " + std::to_string(recent_.size()) + " within " +
        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(config_.failure.window).count()) +
        " s, more than failure.max_failures (" + std::to_string(config_.failure.max_failures) +
        ") allows: " + what.reason.message;
    return fail_run(std::move(what), why);
  }
  if (all([](const member& x) { return !x.is_left(); }) && !end_known_)
    return fail_run(std::move(what), "no worker is left: " + why);
  auto reason = what.reason;
  failures_.push_back(std::move(what));
  // Who finished has told the result of all.
  if (all([](const member& x) { return !x.is_left(); }))
    return all_finished();
  return regroup(why, reason);
}

run_actions run_coordinator::regroup(const std::string& why, const error& reason) {
  if (phase_ == phase::regrouping)
    return form_when_all_have_reported();
  phase_ = phase::regrouping;
  for (auto& [id, who] : members_)
    who.plan.reset();
  auto actions = run_actions{{abort_generation{{errc::aborted, reason.message}}, why}};
  auto rest = form_when_all_have_reported();
  actions.insert(actions.end(), rest.begin(), rest.end());
  return actions;
}

run_actions run_coordinator::on_report(const regroup_report& report, time now) {
  auto* who = find(report.worker);
  if (who == nullptr || !who->is_left() || !goes_on())
    return {};
  who->report = report;
  who->applied = std::max(who->applied, report.passed);
  if (phase_ == phase::regrouping)
    return form_when_all_have_reported();
  // Its node may still tell that a peer has ended. If all live, a connection has failed, and they form anew: that
  // counts as a failure, too.
  if (!within_budget(now))
    return fail_run(record(*who, report.reason), name_of(who->place) + " has lost its group, too often");
  found_by_workers_ = true;
  return regroup(name_of(who->place) + " has lost its group", report.reason);
}

std::string run_coordinator::awaited_reports() const {
  auto result = std::string{};
  if (phase_ == phase::regrouping)
    for (const auto& [id, who] : members_)
      if (who.is_left() && !who.report)
        result += (result.empty() ? "" : ", ") + name_of(who.place) + (who.host.empty() ? "" : " on " + who.host);
  return result;
}

run_actions run_coordinator::form_when_all_have_reported() {
  std::vector<regroup_report> reports;
  std::vector<worker_place> places;
  std::map<std::uint32_t, std::uint32_t> on_node;
  for (const auto& [id, who] : members_) {
    if (!who.is_left())
      continue;
    if (!who.report)
      return {};
    reports.push_back(*who.report);
    places.push_back(who.place);
  }
  auto decision = decide_regroup(reports);
  if (!decision)
    return fail_run(record(members_.begin()->second, decision.error()), "the reports contradict each other");
  // Who was before another stays before it, so that the workers of a node keep neighbouring ranks.
  std::ranges::sort(places, {}, &worker_place::rank);
  for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
    places[rank].rank = rank_id{rank};
    places[rank].local_rank = on_node[places[rank].node]++;
  }
  for (auto& place : places)
    place.local_world_size = on_node[place.node];
  for (const auto& place : places) {
    auto& who = members_.at(place.worker);
    who.place = place;
    who.report.reset();
  }
  phase_ = phase::training;
  found_by_workers_ = false;
  auto why = decision->reason;
  return {{form_generation{std::move(places), std::move(*decision)}, std::move(why)}};
}

run_actions run_coordinator::on_node_lost(std::uint32_t node, const std::string& address, time now) {
  if (phase_ == phase::over)
    return {};
  run_actions actions;
  for (auto& [id, who] : members_) {
    if (who.place.node != node || who.ended)
      continue;
    who.ended = true;
    if (phase_ == phase::releasing)
      continue;
    auto more = lose(
        record(who, {errc::node_lost, "the connection to node " + address + " is gone, and with it " +
                                          name_of(who.place) + ": look at that host and at its caf-node's output"}),
        "node " + address + " is lost", now);
    actions.insert(actions.end(), more.begin(), more.end());
    if (phase_ == phase::over)
      return actions;
  }
  if (phase_ == phase::releasing && all([](const member& x) { return x.ended; }))
    return conclude_run(stopped_ ? run_status::stopped : run_status::completed, {}, "all workers have ended");
  return actions;
}

run_actions run_coordinator::on_stop(const stop_request& message) {
  if (phase_ == phase::over || phase_ == phase::releasing)
    return {};
  // Nobody turns a failure into a success by stopping it.
  if (phase_ == phase::failing)
    return message.immediately ? conclude_failure("an immediate stop was asked for") : run_actions{};
  if (message.immediately)
    return conclude_run(run_status::stopped, {errc::stopped, "stopped at once on request"},
                        "an immediate stop was asked for");
  if (phase_ == phase::starting)
    return conclude_run(run_status::stopped, {errc::stopped, "stopped on request before the first step"},
                        "a stop was asked for before training began");
  if (stop_sent_)
    return {};
  stop_sent_ = true;
  return {{send_command{{config_.run, ++commands_, command_kind::stop}}, "a stop was asked for"}};
}

run_actions run_coordinator::on_checkpoint_request() {
  if (!goes_on() || stop_sent_)
    return {};
  return {{send_command{{config_.run, ++commands_, command_kind::checkpoint}}, "a checkpoint was asked for"}};
}

run_actions run_coordinator::on_start_timeout() {
  if (phase_ != phase::starting)
    return {};
  auto missing = std::string{};
  const member* first = nullptr;
  for (const auto& [id, who] : members_)
    if (!who.ready) {
      missing += (missing.empty() ? "" : ", ") + name_of(who.place);
      if (first == nullptr)
        first = &who;
    }
  if (first == nullptr)
    return {};
  return fail_run(
      record(*first, {errc::timed_out, missing + " did not join in time after the start of the process: see the "
                                                 "worker's output, or raise run.start_timeout"}),
      "workers did not join in time");
}

run_actions run_coordinator::on_grace_timeout() {
  if (phase_ == phase::failing)
    return conclude_failure("the grace period is over");
  if (phase_ == phase::releasing)
    return conclude_run(stopped_ ? run_status::stopped : run_status::completed, {},
                        "workers did not end within the grace period");
  return {};
}

void run_coordinator::on_applied(worker_id worker, step_id step) {
  if (auto* who = find(worker))
    who->applied = std::max(who->applied, step);
}

run_actions run_coordinator::fail_run(failure_record what, const std::string& why) {
  if (phase_ == phase::over)
    return {};
  auto reason = what.reason;
  auto first = phase_ != phase::failing;
  if (first)
    fatal_ = failures_.size();
  failures_.push_back(std::move(what));
  auto waiting = phase_ == phase::starting;
  phase_ = phase::failing;
  if (waiting || all([](const member& x) { return x.finished || x.ended; }))
    return conclude_failure(why);
  if (!first)
    return {};
  return {{abort_all{{errc::aborted, "the run is ending: " + reason.message}}, why}};
}

run_actions run_coordinator::conclude_failure(const std::string& why) {
  // The first that is no consequence by its nature is the cause; a cut-off collective may be told before the death
  // behind it.
  // What the run has survived stands before. If there are only consequences, they are those of the last loss: of a
  // training function with a loop of its own, which does not survive one.
  auto begin = failures_.begin() + static_cast<std::ptrdiff_t>(fatal_);
  auto cause = std::find_if(begin, failures_.end(), is_cause);
  if (cause == failures_.end() && begin != failures_.begin())
    --begin;
  if (cause == failures_.end())
    cause = begin;
  std::rotate(begin, cause, cause + 1);
  for (auto each = begin + 1; each != failures_.end(); ++each)
    each->consequence = each->consequence || !is_cause(*each);
  return conclude_run(run_status::failed, begin->reason, why);
}

run_actions run_coordinator::conclude_run(run_status status, error reason, std::string why) {
  phase_ = phase::over;
  return {{conclude{status, std::move(reason)}, std::move(why)}};
}

} // namespace troupe::actors
