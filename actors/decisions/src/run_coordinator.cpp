#include <troupe/actors/decisions/run_coordinator.hpp>

#include <troupe/actors/decisions/plan_comparison.hpp>

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

/// Joiners that end before they have a place, one after the other, until no more are started: so many that are killed
/// from outside, or three that end by themselves.
constexpr std::uint32_t most_failed_joiners = 30;
constexpr std::uint32_t joiner_fault = 10;

/// Whether another worker may do what this one cannot: data may be damaged on the way, a GPU may be lost.
bool may_be_an_accident(const error& reason) {
  return reason.code == errc::user_error || reason.code == errc::device_error;
}

/// How long a joiner waits for others that were started, to be let in with them.
constexpr auto joiner_patience = std::chrono::milliseconds{500};

/// How often a joiner is given the state while the others train on, before they wait for it.
constexpr std::uint32_t most_stagings = 3;

/// How long the others stand at a boundary for a joiner that has said to be caught up: it has a step or two to apply.
constexpr auto follower_patience = std::chrono::seconds{2};

/// Attempts in a row that may end before any step was applied.
constexpr std::uint32_t most_fruitless_attempts = 5;

std::string name_of(const worker_place& place) {
  return "worker " + std::to_string(place.worker.value) + " (rank " + std::to_string(place.rank.value) + ")";
}

std::string workers(std::uint64_t n) {
  return std::to_string(n) + (n == 1 ? " worker" : " workers");
}

/// A failure that others follow from: anything but a collective that was cut off.
bool is_cause(const failure_record& x) {
  return x.reason.code != errc::aborted;
}

/// Whether somebody else has ended the process (SIGKILL, SIGTERM), or it never began: it is no fault of the program's.
/// What took more memory than there is would do so again.
bool was_killed(const worker_ended& x) {
  if (x.out_of_memory)
    return false;
  return x.exit_status == 128 + 9 || x.exit_status == 128 + 15 || x.exit_status == never_started;
}

void append(run_actions& to, run_actions more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

} // namespace

run_coordinator::run_coordinator(settings config)
    : config_(std::move(config)),
      wanted_(config_.workers.is_elastic() ? config_.workers.max : static_cast<std::uint32_t>(config_.places.size())),
      furthest_(config_.first_step),
      attempt_began_(config_.first_step),
      final_step_(config_.first_step) {
  on_started(config_.places);
}

run_coordinator::member* run_coordinator::find(worker_id worker) {
  auto i = members_.find(worker);
  return i == members_.end() ? nullptr : &i->second;
}

template <class Predicate>
bool run_coordinator::all(Predicate predicate) const {
  return std::ranges::all_of(members_, [&](const auto& entry) { return predicate(entry.second); });
}

template <class Predicate>
std::uint32_t run_coordinator::count(Predicate predicate) const {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(members_, [&](const auto& entry) { return predicate(entry.second); }));
}

bool run_coordinator::nobody_is_left() const {
  return all([](const member& x) { return !x.is_left(); });
}

/// Whoever never got a place is not waited for.
bool run_coordinator::all_have_ended() const {
  return all([](const member& x) { return x.ended || x.stands != standing::member; });
}

failure_record run_coordinator::record(const member& who, error reason) const {
  failure_record result;
  result.worker = who.place.worker;
  result.pid = who.pid;
  result.rank = who.place.rank;
  result.generation = generation_;
  result.step = who.applied;
  result.host = who.host;
  result.reason = std::move(reason);
  return result;
}

void run_coordinator::on_started(const std::vector<worker_place>& places, time now) {
  for (const auto& place : places) {
    member joiner;
    joiner.place = place;
    joiner.applied = joiner.came_after = attempt_began_;
    joiner.since = now;
    members_.emplace(place.worker, std::move(joiner));
  }
}

bool run_coordinator::expects(worker_id worker) const {
  auto i = members_.find(worker);
  return i != members_.end() && i->second.stands == standing::started && !i->second.ended && !i->second.finished;
}

bool run_coordinator::follows(worker_id worker) const {
  auto i = members_.find(worker);
  return i != members_.end() && i->second.is_coming() && i->second.stands == standing::following;
}

std::vector<worker_place> run_coordinator::occupied() const {
  std::vector<worker_place> result;
  for (const auto& [id, who] : members_)
    if (!who.ended)
      result.push_back(who.place);
  return result;
}

// -- the beginning ----------------------------------------------------------------------------------------------------

std::optional<error> run_coordinator::compare_with_first(const member& joiner) const {
  if (config_.compare_numerics == nullptr)
    return std::nullopt;
  auto reference = config_.resumed ? config_.resumed->numerics : std::string{};
  auto against = std::string{"the checkpoint"};
  if (reference.empty())
    for (const auto& [id, other] : members_)
      if (other.stands != standing::started && id != joiner.place.worker) {
        reference = other.numerics;
        against = name_of(other.place) + " on " + other.host;
        break;
      }
  if (reference.empty())
    return std::nullopt;
  auto differences = config_.compare_numerics(joiner.numerics, reference);
  if (differences.empty())
    return std::nullopt;
  return error{errc::mismatch,
               name_of(joiner.place) + " on " + joiner.host + " computes differently from " + against +
                   ", so that the result would depend on the host:" + join_lines(differences) +
                   "\nUse hosts of one kind, or set run.allow_mixed_hosts (the result is then marked as "
                   "not exact)"};
}

run_actions run_coordinator::on_ready(const worker_ready& message) {
  auto* who = find(message.worker);
  if (who == nullptr || who->stands != standing::started || who->ended || who->finished ||
      (phase_ != phase::starting && !goes_on()))
    return {};
  who->host = message.host;
  who->pid = message.pid;
  who->numerics = message.numerics;
  auto wrong = std::optional<error>{};
  auto why = std::string{"a worker runs another build"};
  if (message.build_id != config_.build_id)
    wrong = error{errc::program_mismatch, name_of(who->place) + " on " + who->host + " runs build " + message.build_id +
                                              ", the driver is build " + config_.build_id +
                                              ": install the same build on all hosts"};
  else if (auto difference = compare_with_first(*who)) {
    why = "numerics fingerprints differ";
    if (config_.allow_mixed_hosts)
      exact_hosts_ = false;
    else
      wrong = std::move(difference);
  }
  if (wrong && phase_ == phase::starting)
    return fail_run(record(*who, std::move(*wrong)), why);
  if (wrong) {
    auto actions = run_actions{{fence_worker{who->place.worker, wrong->message}, why}};
    append(actions, lose_joiner(*who, record(*who, std::move(*wrong)), false));
    return with_replacement(std::move(actions));
  }
  who->stands = standing::ready;
  if (phase_ != phase::starting) {
    // What it is compared with is not known before the others have agreed, who may be held for want of workers.
    if (accepted_.empty())
      return form_when_all_have_reported();
    who->stands = standing::preparing;
    return {{begin_joiner{who->place.worker}, name_of(who->place) + " has joined"}};
  }
  if (!all([](const member& x) { return x.stands == standing::ready || x.ended; }))
    return {};
  phase_ = phase::training;
  joined_too_late_ = false;
  for (auto& [id, each] : members_)
    if (!each.ended) {
      each.stands = standing::member;
      each.has_place = true;
    }
  run_actions actions{{begin_all{}, "all " + std::to_string(members_.size()) + " workers are ready"}};
  if (stop_sent_)
    actions.push_back({send_command{{config_.run, ++commands_, stop_command{}}}, "a stop was asked for"});
  // What came while they started: another size, capacity, a pause.
  append(actions, on_resize(wanted_));
  if (paused_)
    append(actions, ask_for_regroup("the run is paused"));
  return actions;
}

std::optional<error> run_coordinator::find_difference() const {
  const auto& first = std::ranges::find_if(members_, [](const auto& x) { return x.second.is_left(); })->second;
  for (const auto& [id, other] : members_)
    if (other.is_left())
      if (auto wrong =
              compare_plans(*first.plan, "on " + name_of(first.place), *other.plan, "on " + name_of(other.place)))
        return wrong;
  return std::nullopt;
}

run_actions run_coordinator::on_plan(const run_plan& message) {
  auto* who = find(message.worker);
  if (who == nullptr || who->ended || who->finished || !goes_on())
    return {};
  if (who->stands != standing::member)
    return on_plan_of_joiner(*who, message);
  if (phase_ != phase::training)
    return {};
  who->plan = message;
  if (!all([](const member& x) { return x.plan.has_value() || !x.is_left(); }))
    return {};
  auto wrong = find_difference();
  if (!wrong && config_.resumed)
    wrong = compare_with_checkpoint(message, *config_.resumed);
  if (!wrong)
    return accept(message);
  plans_refused_ = true;
  auto actions = run_actions{{refuse_plans{*wrong, std::nullopt}, "the plans differ"}};
  append(actions, fail_run(record(*who, std::move(*wrong)), "the plans differ"));
  return actions;
}

/// A training function may have several loops, each with a plan.
run_actions run_coordinator::accept(const run_plan& plan) {
  for (auto& [id, each] : members_)
    each.plan.reset();
  // One that was accepted before is said again by those whose answers were lost.
  const auto is_next_loop = !accepted_.empty() && plan.loop >= accepted_.size();
  if (plan.loop < accepted_.size())
    accepted_.resize(plan.loop);
  accepted_.push_back(plan);
  run_actions actions{{accept_plans{plan}, "all workers have the same plan"}};
  for (auto& [id, each] : members_)
    if (has_own_loop() && each.is_coming()) {
      each.finished = each.let_go = true;
      actions.push_back({fence_worker{id, "nobody can join a loop of the training function's own"},
                         "the training function has a loop of its own"});
    } else if (each.stands == standing::ready && each.is_coming()) {
      each.stands = standing::preparing;
      actions.push_back({begin_joiner{id}, name_of(each.place) + " has joined"});
    } else if (is_next_loop && each.is_coming() && each.stands == standing::waiting) {
      // It waits at a loop that is behind the others now. Who is still on its way there is told when it asks.
      append(actions, wait_for_place(each, each.since));
    } else if (is_next_loop && each.is_coming() && each.stands == standing::following) {
      // Nobody follows the others from one loop into the next: it is told when it reports.
      each.caught_up = false;
      append(actions, give_up_staging(each));
    }
  return with_replacement(std::move(actions));
}

run_actions run_coordinator::on_plan_of_joiner(member& who, const run_plan& message) {
  if (message.loop < accepted_.size())
    if (auto wrong = compare_plans(accepted_[message.loop], "in this run", message, "on " + name_of(who.place))) {
      run_actions actions{{refuse_plans{*wrong, who.place.worker}, "a joiner has another plan"}};
      append(actions, lose_joiner(who, record(who, std::move(*wrong)), false));
      actions.push_back({release_one{who.place.worker}, "it has another plan"});
      return with_replacement(std::move(actions));
    }
  who.loop = message.loop;
  return {{accept_plan_of{who.place.worker}, name_of(who.place) + " has the plan of the others"}};
}

run_actions run_coordinator::on_start_timeout(time now) {
  auto is_missing = [](const member& x) { return x.stands == standing::started && !x.ended; };
  auto missing = std::string{};
  const member* first = nullptr;
  for (const auto& [id, who] : members_)
    if (is_missing(who)) {
      missing += (missing.empty() ? "" : ", ") + name_of(who.place);
      first = first == nullptr ? &who : first;
    }
  if (first == nullptr || phase_ != phase::starting)
    return {};
  auto what = record(*first, {errc::timed_out, missing + " did not join in time after the start of the process: see "
                                                         "the worker's output, or raise run.start_timeout"});
  const auto why = missing + " did not join in time";
  // A process that was frozen, or its host, is no sign that another would not join. One that hangs would do so again.
  if (!std::exchange(joined_too_late_, true) && within_budget(now))
    return restart(std::move(what), why);
  return fail_run(std::move(what), why);
}

// -- who is lost ------------------------------------------------------------------------------------------------------

/// Whether this failure, which happens now, is one too many.
bool run_coordinator::within_budget(time now) {
  // The loss behind a report that came first is the same failure.
  if (!std::exchange(found_by_workers_, false))
    recent_.push_back(now);
  while (!recent_.empty() && now - recent_.front() > config_.failure.window)
    recent_.pop_front();
  return recent_.size() <= config_.failure.max_failures;
}

void run_coordinator::note_progress(step_id step) {
  furthest_ = std::max(furthest_, step);
}

run_actions run_coordinator::on_ended(const worker_ended& message, time now) {
  auto* who = find(message.worker);
  if (who == nullptr || who->ended || phase_ == phase::over)
    return {};
  who->ended = true;
  who->killed = was_killed(message);
  if (phase_ == phase::releasing || (phase_ == phase::failing && who->finished)) {
    if (!all_have_ended())
      return {};
    return phase_ == phase::failing
               ? conclude_failure("all workers have ended")
               : conclude_run(stopped_ ? run_status::stopped : run_status::completed, {}, "all workers have ended");
  }
  // What becomes of it is of no interest any more, but it has made capacity.
  if (who->let_go)
    return replace_missing();
  auto during =
      who->stands == standing::started ? "before it had joined" : "after step " + std::to_string(who->applied.value);
  auto what = record(*who, {errc::worker_lost, name_of(who->place) + (who->host.empty() ? "" : " on " + who->host) +
                                                   " ended " + during + ": " + message.description});
  what.last_lines = message.last_lines;
  if (!message.last_lines.empty())
    what.reason.message += "; its last lines:" + join_lines(message.last_lines);
  auto why = name_of(who->place) + " ended: " + message.description;
  // What ends by itself before it has joined would do so again.
  if (phase_ == phase::starting)
    return was_killed(message) && within_budget(now) ? restart(std::move(what), why) : fail_run(std::move(what), why);
  if (who->stands != standing::member && goes_on())
    return with_replacement(lose_joiner(*who, std::move(what), was_killed(message)));
  return with_replacement(lose(*who, std::move(what), why, now));
}

run_actions run_coordinator::on_node_lost(std::uint32_t node, const std::string& why, time now) {
  if (phase_ == phase::over)
    return {};
  run_actions actions;
  const auto attempt = attempt_;
  std::vector<failure_record> records;
  for (auto& [id, who] : members_) {
    if (who.place.node != node || who.ended)
      continue;
    // All are gone at once: nobody is to be asked to go on who is gone, too.
    who.ended = who.killed = true;
    if (!who.let_go && !(phase_ == phase::failing && who.finished))
      records.push_back(record(who, {errc::node_lost, why + ", and with it " + name_of(who.place)}));
  }
  for (auto& what : records) {
    auto* who = find(what.worker);
    if (phase_ == phase::releasing)
      continue;
    // The first has decided for all.
    if (phase_ == phase::over || attempt_ != attempt || who == nullptr)
      failures_.push_back(std::move(what));
    else if (phase_ == phase::starting)
      append(actions, within_budget(now) ? restart(std::move(what), why) : fail_run(std::move(what), why));
    else if (who->stands != standing::member && goes_on())
      append(actions, lose_joiner(*who, std::move(what), true));
    else
      append(actions, lose(*who, std::move(what), why, now));
  }
  append(actions, replace_missing());
  if (phase_ == phase::releasing && all_have_ended())
    append(actions, conclude_run(stopped_ ? run_status::stopped : run_status::completed, {}, "all workers have ended"));
  return actions;
}

/// A member is gone. The others go on without it, if there are any and the budget allows it.
run_actions run_coordinator::lose(member& who, failure_record what, const std::string& why, time now) {
  if (!goes_on())
    return fail_run(std::move(what), why);
  // What it has finished, it has told: the others need no more of it.
  if (who.finished && config_.failure.max_failures > 0) {
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
  if (nobody_is_left() && !end_known_)
    return restart(std::move(what), why);
  auto reason = what.reason;
  failures_.push_back(std::move(what));
  // Who finished has told the result of all.
  if (nobody_is_left())
    return all_finished();
  return regroup(why, reason);
}

/// One that had no place yet: the others do not miss it.
run_actions run_coordinator::lose_joiner(member& who, failure_record what, bool from_outside) {
  who.finished = who.let_go = true;
  failures_.push_back(std::move(what));
  auto actions = give_up_staging(who);
  if (who.stands == standing::following)
    append(actions, form_when_all_have_reported());
  failed_joiners_ += from_outside ? 1 : joiner_fault;
  if (failed_joiners_ >= most_failed_joiners)
    actions.push_back({warn{}, workers(from_outside ? failed_joiners_ : failed_joiners_ / joiner_fault) +
                                   " in a row ended before they had joined, so that no more are started until there "
                                   "is new capacity or another size is asked for; the last one: " +
                                   failures_.back().reason.message});
  return actions;
}

run_actions run_coordinator::with_replacement(run_actions actions) {
  append(actions, replace_missing());
  return actions;
}

run_actions run_coordinator::replace_missing() {
  // Into a loop of the training function's own nobody can be let: those that are there at the next attempt are in it.
  if (!goes_on() || end_known_ || stop_sent_ || has_own_loop() || !config_.failure.replace_lost ||
      failed_joiners_ >= most_failed_joiners)
    return {};
  auto there = count([](const member& x) { return (x.is_left() || x.is_coming()) && !x.leaving; });
  if (there >= wanted_)
    return {};
  return {{start_more{wanted_ - there}, std::to_string(wanted_ - there) + " of " + workers(wanted_) + " are missing"}};
}

/// Nobody who has the state is left.
run_actions run_coordinator::restart(std::optional<failure_record> what, const std::string& why) {
  for (const auto& [id, who] : members_)
    note_progress(who.applied);
  // Who is killed from outside is no sign that the next attempt would end so, too.
  auto one_ended_by_itself = count([](const member& x) { return x.ended && !x.killed; }) > 0;
  fruitless_attempts_ = furthest_ > attempt_began_ || !one_ended_by_itself ? 0 : fruitless_attempts_ + 1;
  if (what && fruitless_attempts_ >= most_fruitless_attempts)
    return fail_run(std::move(*what), "nobody is left, as in the " + std::to_string(fruitless_attempts_ - 1) +
                                          " attempts before, in which no step was done: " + why);
  if (what)
    failures_.push_back(std::move(*what));
  phase_ = phase::starting;
  ++attempt_;
  ++generation_.value;
  members_.clear();
  accepted_.clear();
  commands_ = drain_ = 0;
  regroup_asked_ = aborted_ = held_ = found_by_workers_ = false;
  followers_awaited_.reset();
  failed_joiners_ = 0;
  cause_ = why;
  return {{restart_run{}, why}};
}

void run_coordinator::on_restarted(const std::vector<worker_place>& places, std::optional<resumed_plan> resumed,
                                   step_id first_step) {
  if (resumed)
    config_.resumed = std::move(resumed);
  attempt_began_ = first_step;
  // What was reached once is reached again: it is measured from here.
  furthest_ = first_step;
  on_started(places);
}

run_actions run_coordinator::fail_once(member& who, const worker_finished& message, time now) {
  auto what = record(who, message.reason);
  auto why = name_of(who.place) + " failed: " + message.reason.message;
  auto before = failed_after_.find(message.step);
  if (before != failed_after_.end()) {
    // It is no accident: the same step, on another worker or in another try.
    earlier_cause_ = before->second;
    return fail_run(std::move(what), why);
  }
  failed_after_.emplace(message.step, failures_.size());
  // Before the first step there is nothing to lose, and a second try would say the same.
  if (message.step <= attempt_began_ || !within_budget(now))
    return fail_run(std::move(what), why);
  if (nobody_is_left() && !end_known_)
    return restart(std::move(what), why);
  auto reason = what.reason;
  failures_.push_back(std::move(what));
  who.let_go = true;
  run_actions actions{{release_one{who.place.worker}, why}};
  if (nobody_is_left()) {
    append(actions, all_finished());
    return actions;
  }
  append(actions, regroup(why, reason));
  return with_replacement(std::move(actions));
}

// -- the next generation ----------------------------------------------------------------------------------------------

run_actions run_coordinator::regroup(const std::string& why, const error& reason) {
  if (phase_ != phase::regrouping)
    cause_ = why;
  phase_ = phase::regrouping;
  keep_who_is_needed();
  run_actions actions;
  // If all have reported, nobody is left in this generation who had to hear of its end.
  auto is_awaited = !all([](const member& x) { return x.report.has_value() || !x.is_left(); });
  if (is_awaited && !std::exchange(aborted_, true)) {
    for (auto& [id, who] : members_)
      who.plan.reset();
    actions.push_back({abort_generation{{errc::aborted, reason.message}}, why});
  }
  append(actions, form_when_all_have_reported());
  return actions;
}

/// Has all come to the next boundary between steps, and report there.
run_actions run_coordinator::ask_for_regroup(const std::string& why) {
  if (phase_ != phase::training || stop_sent_ || end_known_ || std::exchange(regroup_asked_, true))
    return {};
  cause_ = why;
  return {{send_command{{config_.run, ++commands_, regroup_command{generation_}}}, why}};
}

/// Whether a joiner gets the state inside its first generation, while the others wait. It is so where that takes no
/// time, or where the others wait anyway, or are about to go; and where nothing else has helped.
bool run_coordinator::takes_state_in_generation(const member& who) const {
  if (accepted_.empty() || accepted_.back().state_bytes <= config_.failure.background_transfer_above_bytes)
    return true;
  auto staying = count([](const member& x) { return x.is_left() && !x.leaving; });
  auto too_few = config_.workers.is_elastic() && staying < std::min(config_.workers.min, wanted_);
  return who.stagings >= most_stagings || held_ || too_few ||
         count([](const member& x) { return x.is_left() && x.leaving; }) > 0;
}

std::string run_coordinator::describe_joining(const std::vector<member*>& joiners) {
  auto result = std::string{};
  for (const auto* each : joiners)
    result += (result.empty() ? "" : ", ") + name_of(each->place);
  return result + (joiners.size() == 1 ? " joins" : " join");
}

/// Joiners that ask for a place get it at the next boundary, once they have the state; for those that will be there
/// in a moment they wait.
run_actions run_coordinator::let_joiners_in(time now) {
  auto others_come = false;
  auto waits_long = false;
  auto without_staging = false;
  std::vector<member*> waiting;
  for (auto& [id, who] : members_) {
    if (!who.is_coming() || who.stands == standing::following)
      continue;
    if (who.stands != standing::waiting) {
      others_come = true;
      continue;
    }
    waits_long = waits_long || now - who.since > joiner_patience;
    without_staging = without_staging || takes_state_in_generation(who);
    waiting.push_back(&who);
  }
  if (waiting.empty() || (others_come && !waits_long))
    return {};
  const auto names = describe_joining(waiting);
  return without_staging ? ask_for_regroup(names) : stage(waiting, names);
}

/// Has the others give them the state while they train on. One group at a time.
run_actions run_coordinator::stage(const std::vector<member*>& joiners, const std::string& names) {
  if (phase_ != phase::training || regroup_asked_ || stop_sent_ || end_known_ ||
      count([](const member& x) { return x.is_coming() && x.stands == standing::following; }) > 0)
    return {};
  staging_ = {++commands_,
              count([](const member& x) { return x.is_left(); }),
              static_cast<std::uint32_t>(joiners.size()),
              false,
              {}};
  std::set<std::uint32_t> nodes;
  for (const auto& [id, who] : members_)
    if (who.is_left())
      nodes.insert(who.place.node);
  auto rank = rank_id{staging_.sources};
  for (auto* who : joiners) {
    nodes.insert(who->place.node);
    who->stands = standing::following;
    who->caught_up = false;
    who->report.reset();
    ++who->stagings;
    staging_.told.emplace(rank, who->place.worker);
    ++rank.value;
  }
  staging_.across_nodes = nodes.size() > 1;
  auto command = control_command{config_.run, staging_.number,
                                 stage_command{generation_, staging_.joiners, staging_.across_nodes,
                                               static_cast<std::uint32_t>(accepted_.size() - 1)}};
  return {{send_command{command}, names + ": the state is on its way"}, {staging_, names}};
}

/// The others of its group find it broken, and report again.
run_actions run_coordinator::give_up_staging(const member& lost) {
  if (lost.stands != standing::following)
    return {};
  return {{end_staging{staging_.number}, name_of(lost.place) + " is gone"}};
}

run_actions run_coordinator::on_caught_up(const caught_up& message) {
  auto* who = find(message.worker);
  if (who == nullptr || !who->is_coming() || who->stands != standing::following || message.staging != staging_.number ||
      message.generation != generation_ || who->loop + 1 != accepted_.size() || !goes_on())
    return {};
  who->caught_up = true;
  who->applied = std::max(who->applied, message.step);
  std::vector<member*> all_caught_up;
  for (auto& [id, each] : members_) {
    if (!each.is_coming() || each.stands != standing::following)
      continue;
    if (!each.caught_up)
      return {};
    all_caught_up.push_back(&each);
  }
  return ask_for_regroup(describe_joining(all_caught_up));
}

/// It has come to the boundary at which the others stand, or will in a moment, and is one of them from here; or its
/// group has broken.
run_actions run_coordinator::on_report_of_follower(member& who, const regroup_report& report, time now) {
  if (report.staging != staging_.number) {
    // It was told before, and asks again.
    auto again = staging_;
    std::erase_if(again.told, [&](const auto& each) { return each.second != who.place.worker; });
    return {{std::move(again), name_of(who.place) + " asks again"}};
  }
  who.caught_up = false;
  who.report = report;
  auto is_there = report.has_state && report.generation == generation_ && who.loop + 1 == accepted_.size() &&
                  (phase_ == phase::regrouping || regroup_asked_);
  if (is_there) {
    who.stands = standing::member;
    who.applied = std::max(who.applied, report.committed);
    failed_joiners_ = 0;
    phase_ = phase::regrouping;
    return form_when_all_have_reported();
  }
  // Who still forms the group need not go on with it.
  auto actions = give_up_staging(who);
  append(actions, wait_for_place(who, now));
  return actions;
}

/// A joiner without the state has reported.
run_actions run_coordinator::wait_for_place(member& who, time now) {
  // Also where it says again how far it has followed others who have gone on.
  who.report->has_state = who.report->between_steps = false;
  if (who.loop + 1 < accepted_.size()) {
    who.stands = standing::preparing;
    who.report.reset();
    auto actions = run_actions{{skip_loop{who.place.worker, accepted_[who.loop + 1].evaluations},
                                name_of(who.place) + " has come to a loop that is behind the others"}};
    append(actions, form_when_all_have_reported());
    return actions;
  }
  who.stands = standing::waiting;
  who.since = now;
  return phase_ == phase::regrouping ? form_when_all_have_reported() : let_joiners_in(now);
}

/// Nobody stands still for long for one that is slower than it has said.
run_actions run_coordinator::stop_waiting_for_followers(time now) {
  if (phase_ != phase::regrouping || !followers_awaited_)
    return {};
  if (*followers_awaited_ == time{})
    followers_awaited_ = now;
  if (now - *followers_awaited_ <= follower_patience)
    return {};
  for (auto& [id, who] : members_)
    who.caught_up = false;
  return form_when_all_have_reported();
}

run_actions run_coordinator::on_tick(time now) {
  run_actions actions;
  if (!goes_on())
    return actions;
  const auto& failure = config_.failure;
  for (auto& [id, who] : members_) {
    if (!who.is_coming())
      continue;
    // What a joiner does before its first loop is user code, too: it may take as long as that.
    if (who.stands == standing::preparing && who.since != time{} && failure.hang == hang_mode::replace &&
        now - who.since > failure.replace_after) {
      auto what = record(who, {errc::timed_out, name_of(who.place) + " did not come to its first loop in time: what "
                                                                     "does the training function do before it? (It may "
                                                                     "take failure.replace_after, or longer where it "
                                                                     "calls heartbeat())"});
      actions.push_back({fence_worker{id, "it did not come to its first loop in time"}, what.reason.message});
      append(actions, lose_joiner(who, std::move(what), false));
    } else if (who.stands == standing::started && now - who.since > config_.start_timeout) {
      auto what = record(who, {errc::timed_out, name_of(who.place) + " did not join in time after the start of the "
                                                                     "process: see the worker's output, or raise "
                                                                     "run.start_timeout"});
      actions.push_back({fence_worker{id, "it did not join in time"}, what.reason.message});
      append(actions, lose_joiner(who, std::move(what), false));
    }
  }
  if (!actions.empty())
    append(actions, replace_missing());
  append(actions, stop_waiting_for_followers(now));
  append(actions, let_joiners_in(now));
  return actions;
}

run_actions run_coordinator::on_report(const regroup_report& report, time now) {
  auto* who = find(report.worker);
  if (who == nullptr || who->ended || who->finished)
    return {{refuse_report{report.worker,
                           {errc::stale_generation, "this worker has been given up, and the others go "
                                                    "on without it"}},
             "it was given up"}};
  if (!goes_on())
    return {{refuse_report{report.worker, {errc::aborted, "the run is ending"}}, "the run is ending"}};
  if (who->stands == standing::following)
    return on_report_of_follower(*who, report, now);
  if (who->stands == standing::preparing || who->stands == standing::waiting) {
    who->report = report;
    return wait_for_place(*who, now);
  }
  if (report.generation != generation_)
    return {{refuse_report{report.worker,
                           {errc::stale_generation, "generation " + std::to_string(report.generation.value) +
                                                        " is over; the last is " + std::to_string(generation_.value)}},
             "its generation is over"}};
  who->report = report;
  who->applied = std::max(who->applied, report.committed);
  note_progress(report.committed);
  if (phase_ == phase::regrouping)
    return form_when_all_have_reported();
  if (report.between_steps && regroup_asked_ && report.reason.code == errc::none) {
    phase_ = phase::regrouping;
    return form_when_all_have_reported();
  }
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

/// Whether the next generation has to wait although all have reported.
bool run_coordinator::is_held() {
  if (stop_sent_ || end_known_)
    return false;
  // Before the first plan is agreed on, nobody comes further than to be ready.
  auto is_here = [&](const member& x) {
    return x.stands == standing::waiting || (x.stands == standing::ready && accepted_.empty());
  };
  auto there = count([&](const member& x) { return !x.leaving && (x.is_left() || (x.is_coming() && is_here(x))); });
  // Who is to go, all of them, does not wait for others.
  return paused_ || (config_.workers.is_elastic() && there > 0 && there < std::min(config_.workers.min, wanted_));
}

run_actions run_coordinator::form_when_all_have_reported() {
  if (phase_ != phase::regrouping)
    return {};
  std::vector<member*> left;
  std::vector<regroup_report> reports;
  auto let_in = true;
  for (auto& [id, who] : members_) {
    if (!who.is_left())
      continue;
    if (!who.report)
      return {};
    left.push_back(&who);
    if (!who.report->has_state)
      continue;
    reports.push_back(*who.report);
    let_in = let_in && who.report->between_steps;
  }
  // They are lost with their node, all at once: what that means is decided with the last of them.
  if (left.empty())
    return {};
  // Joiners that are about to come to this boundary are waited for, a moment.
  if (let_in && std::ranges::any_of(members_, [](const auto& x) {
        return x.second.is_coming() && x.second.stands == standing::following && x.second.caught_up;
      })) {
    if (!followers_awaited_)
      followers_awaited_ = time{};
    return {};
  }
  // Who had the state has finished, and joiners that did not get it any more are not needed.
  if (reports.empty() && end_known_) {
    for (auto* who : left)
      who->finished = who->let_go = true;
    return all_finished();
  }
  // Whose loss that was is told already.
  if (reports.empty())
    return restart(std::nullopt, "nobody is left who has the state: " + cause_);
  auto decision = decide_regroup(reports);
  if (!decision)
    return fail_run(record(*left.front(), decision.error()), "the reports contradict each other");
  if (is_held()) {
    if (std::exchange(held_, true))
      return {};
    if (paused_)
      return {{hold{false}, "the run is paused after step " + std::to_string(decision->commit_point.value)}};
    return {{hold{true}, "the run waits after step " + std::to_string(decision->commit_point.value) +
                             ": it needs at least " + workers(config_.workers.min) + ", and has " +
                             std::to_string(left.size()) + ". Start more caf-nodes, or ask for another size"}};
  }
  auto is_coming_in = [this](const auto& x) {
    return x.second.is_coming() && x.second.stands == standing::waiting && takes_state_in_generation(x.second);
  };
  auto is_saved = drain_ > 0 && decision->commands_agreed >= drain_;
  if (let_in && is_saved && !end_known_ && std::ranges::all_of(left, &member::leaving) &&
      std::ranges::none_of(members_, is_coming_in))
    return let_all_go(left);
  // Who has no state can only be let in where nobody is in the middle of anything.
  std::vector<member*> next;
  form_generation result;
  auto stays = [](const member* x) { return x->report->has_state && !x->leaving; };
  auto let_go = let_in && std::ranges::any_of(left, stays);
  for (auto* who : left) {
    if (!who->report->has_state && !let_in) {
      who->stands = standing::waiting;
    } else if (who->leaving && let_go) {
      who->finished = who->let_go = true;
      result.released.push_back(who->place.worker);
    } else {
      next.push_back(who);
    }
  }
  if (let_in)
    for (auto& [id, who] : members_)
      if (who.is_coming() && who.stands == standing::waiting && !who.leaving && takes_state_in_generation(who)) {
        next.push_back(&who);
        failed_joiners_ = 0;
      }
  auto& about = result.record;
  for (const auto& report : reports) {
    about.interrupted_step = about.interrupted_step || report.in_step;
    if (report.in_step && report.committed == decision->commit_point)
      about.steps_redone = 1;
  }
  for (auto* who : next)
    if (!who->has_place || !who->report->has_state)
      who->came_after = decision->commit_point;
  result.compared = choose_compared(next, decision->commit_point);
  result.places = give_places(next);
  for (auto* who : next) {
    if (!who->report->has_state)
      result.joiners.push_back(who->place.worker);
    who->stands = standing::member;
    who->has_place = true;
    who->applied = std::max(who->applied, decision->commit_point);
    who->report.reset();
  }
  ++generation_.value;
  about.run = config_.run;
  about.generation = generation_;
  about.attempt = attempt_;
  about.workers = static_cast<std::uint32_t>(next.size());
  about.commit_point = decision->commit_point;
  about.reason = cause_;
  auto why = decision->reason;
  result.decision = std::move(*decision);
  phase_ = phase::training;
  found_by_workers_ = regroup_asked_ = aborted_ = held_ = false;
  followers_awaited_.reset();
  drain_ = 0;
  auto actions = run_actions{{std::move(result), std::move(why)}};
  // What could not be done this time is done at the next boundary.
  if (std::ranges::any_of(members_, is_coming_in))
    append(actions, ask_for_regroup("joiners wait"));
  else if (let_go == false && count([](const member& x) { return x.is_left() && x.leaving; }) > 0)
    append(actions, count([](const member& x) { return x.is_left() && !x.leaving; }) > 0
                        ? ask_for_regroup("workers leave")
                    : count([](const member& x) { return x.is_coming(); }) == 0 ? ask_all_to_leave()
                                                                                : run_actions{});
  return actions;
}

/// All go, and nobody is there to take over: the run stands in its checkpoint until there is capacity for it.
run_actions run_coordinator::let_all_go(const std::vector<member*>& left) {
  run_actions actions;
  for (auto* who : left) {
    actions.push_back({refuse_report{who->place.worker, {errc::aborted, "this worker's node goes away"}}, cause_});
    actions.push_back({release_one{who->place.worker}, cause_});
  }
  append(actions, restart(std::nullopt, cause_));
  return actions;
}

/// Gives ranks, such that the workers of a node keep neighbouring ones and who was before another stays before it.
/// All others are the same as that one: they have been compared before, and slice by slice since.
std::vector<worker_id> run_coordinator::choose_compared(const std::vector<member*>& all, step_id commit_point) {
  auto is_new = [&](const member* x) { return x->came_after >= commit_point; };
  std::vector<worker_id> result;
  for (const auto* each : all)
    if (is_new(each))
      result.push_back(each->place.worker);
  if (result.empty())
    return result;
  auto before = std::ranges::find_if_not(all, is_new);
  if (before != all.end())
    result.push_back((*before)->place.worker);
  return result;
}

std::vector<worker_place> run_coordinator::give_places(std::vector<member*> who) {
  auto is_new = [](const member* x) { return !x->has_place; };
  std::map<std::uint32_t, std::uint32_t> first_rank;
  for (const auto* each : who)
    if (!is_new(each)) {
      auto [i, added] = first_rank.emplace(each->place.node, each->place.rank.value);
      i->second = std::min(i->second, each->place.rank.value);
    }
  auto key = [&](const member* x) {
    auto found = first_rank.find(x->place.node);
    auto node_first = found == first_rank.end() ? ~std::uint32_t{0} : found->second;
    return std::tuple{node_first, x->place.node, is_new(x), is_new(x) ? x->place.worker.value : x->place.rank.value};
  };
  std::ranges::sort(who, [&](const member* a, const member* b) { return key(a) < key(b); });
  std::map<std::uint32_t, std::uint32_t> on_node;
  for (std::uint32_t rank = 0; rank < who.size(); ++rank) {
    who[rank]->place.rank = rank_id{rank};
    who[rank]->place.local_rank = on_node[who[rank]->place.node]++;
  }
  std::vector<worker_place> result;
  for (auto* each : who) {
    each->place.local_world_size = on_node[each->place.node];
    result.push_back(each->place);
  }
  return result;
}

// -- who comes and goes -----------------------------------------------------------------------------------------------

run_actions run_coordinator::on_capacity() {
  failed_joiners_ = 0;
  return replace_missing();
}

run_actions run_coordinator::on_node_leaving(std::uint32_t node, bool capacity_elsewhere) {
  auto is_there = [node](const member& x) { return x.place.node == node && (x.is_left() || x.is_coming()); };
  if (!goes_on() || count(is_there) == 0)
    return {};
  if (has_own_loop())
    return {{warn{}, "a node is going away, and the training function has a loop of its own, which nobody leaves: with "
                     "the node its workers are lost, and the run starts again from its latest checkpoint"}};
  run_actions actions;
  for (auto& [id, who] : members_) {
    if (!is_there(who))
      continue;
    who.leaving = who.goes_with_node = true;
    // One without a place is not waited for.
    if (who.is_coming()) {
      who.finished = who.let_go = true;
      actions.push_back({fence_worker{id, "its node is going away"}, "its node is going away"});
      append(actions, give_up_staging(who));
    }
  }
  // Who was to go because fewer are wanted stays instead.
  keep_who_is_needed();
  auto others = count([](const member& x) { return x.is_left() && !x.leaving; });
  if (capacity_elsewhere && config_.failure.replace_lost) {
    // They go when their replacements are there, or when the time for that is over.
    actions.push_back({warn{}, "a node is going away: its workers are replaced"});
    append(actions, replace_missing());
  } else {
    // With the last one goes the run, for now.
    append(actions, others > 0 ? ask_for_regroup("workers leave with their node") : ask_all_to_leave());
  }
  // One that was waited for may have been among them.
  append(actions, form_when_all_have_reported());
  return actions;
}

/// All are to go, at a boundary that is behind a checkpoint: at one whose barrier has agreed on both commands.
run_actions run_coordinator::ask_all_to_leave() {
  auto actions = ask_for_regroup("the run's last node goes away");
  if (!actions.empty()) {
    append(actions, on_checkpoint_request());
    drain_ = commands_;
  }
  return actions;
}

/// After a loss, some of those are needed that were to go because fewer are wanted.
void run_coordinator::keep_who_is_needed() {
  auto staying = count([](const member& x) { return x.is_left() && !x.leaving; });
  for (auto& [id, who] : members_)
    if (who.is_left() && who.leaving && !who.goes_with_node && staying < wanted_) {
      who.leaving = false;
      ++staying;
    }
}

run_actions run_coordinator::on_drain_timeout() {
  auto leaving = count([](const member& x) { return x.is_left() && x.leaving; });
  auto staying = count([](const member& x) { return x.is_left() && !x.leaving; });
  if (leaving == 0)
    return {};
  return staying > 0 ? ask_for_regroup("workers leave with their node") : ask_all_to_leave();
}

run_actions run_coordinator::on_resize(std::uint32_t workers_wanted) {
  if ((!goes_on() && phase_ != phase::starting) || workers_wanted == 0)
    return {};
  if (goes_on() && has_own_loop())
    return {{warn{},
             "the training function has a loop of its own, into which nobody can be let: stop the run, and go on "
             "with another number of workers"}};
  wanted_ = workers_wanted;
  failed_joiners_ = 0;
  if (phase_ == phase::starting)
    return {};
  // Who was to go may stay after all, unless its node goes; else the last ranks go first.
  keep_who_is_needed();
  std::vector<member*> left;
  for (auto& [id, who] : members_)
    if (who.is_left() && !who.leaving)
      left.push_back(&who);
  std::ranges::sort(left, {}, [](const member* x) { return x->place.rank; });
  for (auto i = std::size_t{wanted_}; i < left.size(); ++i)
    left[i]->leaving = true;
  // Who is on the way is let go before anybody who is there.
  run_actions actions;
  auto there = left.size();
  for (auto& [id, who] : members_)
    if (who.is_coming() && ++there > wanted_) {
      who.finished = who.let_go = true;
      actions.push_back({fence_worker{id, "it is not needed any more"}, "fewer workers are wanted"});
      append(actions, give_up_staging(who));
    }
  if (left.size() <= wanted_) {
    append(actions, replace_missing());
    // Fewer may be enough.
    append(actions, form_when_all_have_reported());
    return actions;
  }
  append(actions,
         phase_ == phase::regrouping ? form_when_all_have_reported() : ask_for_regroup("fewer workers are wanted"));
  return actions;
}

run_actions run_coordinator::on_pause() {
  if ((!goes_on() && phase_ != phase::starting) || stop_sent_ || end_known_)
    return {};
  if (goes_on() && has_own_loop())
    return {
        {warn{}, "the training function has a loop of its own, which cannot be paused: stop the run, and resume it"}};
  paused_ = true;
  return ask_for_regroup("the run is paused");
}

run_actions run_coordinator::on_resume() {
  if (!std::exchange(paused_, false))
    return {};
  held_ = false;
  cause_ = "the run was paused";
  return form_when_all_have_reported();
}

run_actions run_coordinator::on_hold_timeout() {
  if (!held() || paused_)
    return {};
  auto first = std::ranges::find_if(members_, [](const auto& x) { return x.second.is_left(); });
  if (first == members_.end())
    return {};
  return fail_run(record(first->second, {errc::timed_out, "there were fewer than " + workers(config_.workers.min) +
                                                              " for longer than scaling.wait_for_workers: start more "
                                                              "caf-nodes and run it again, it goes on from its latest "
                                                              "checkpoint"}),
                  "too few workers for too long");
}

// -- the end ----------------------------------------------------------------------------------------------------------

run_actions run_coordinator::on_finished(const worker_finished& message, time now) {
  auto* who = find(message.worker);
  if (who == nullptr || who->finished || who->ended || phase_ == phase::over)
    return {};
  if (who->stands != standing::member) {
    if (!goes_on())
      return {};
    auto actions = lose_joiner(*who, record(*who, message.reason), false);
    actions.push_back({release_one{message.worker}, "it has failed before it had joined"});
    return with_replacement(std::move(actions));
  }
  who->finished = true;
  who->applied = std::max(who->applied, message.step);
  note_progress(message.step);
  if (message.needs_restart && goes_on()) {
    auto what = record(*who, message.reason);
    what.consequence = phase_ == phase::regrouping;
    if (phase_ != phase::regrouping && !within_budget(now))
      return fail_run(std::move(what), name_of(who->place) + " has lost its group, too often");
    return restart(std::move(what), cause_.empty() ? name_of(who->place) + " has lost its group" : cause_);
  }
  if (may_be_an_accident(message.reason) && goes_on() && config_.failure.max_failures > 0)
    return fail_once(*who, message, now);
  if (message.reason.code != errc::none) {
    auto what = record(*who, message.reason);
    // Every worker is told of it, and ends with what it was told.
    what.consequence = plans_refused_ && message.reason.code == errc::mismatch;
    return fail_run(std::move(what), name_of(who->place) + " failed: " + message.reason.message);
  }
  if (phase_ == phase::failing)
    return nobody_is_left() ? conclude_failure("all workers have reported") : run_actions{};
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
  if (nobody_is_left())
    return all_finished();
  return form_when_all_have_reported();
}

run_actions run_coordinator::all_finished() {
  if (phase_ == phase::failing)
    return conclude_failure("all workers have reported");
  phase_ = phase::releasing;
  if (all_have_ended())
    return conclude_run(stopped_ ? run_status::stopped : run_status::completed, {}, "all workers have ended");
  return {{release_all{}, "all workers have returned from the training function"}};
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
    return conclude_run(run_status::stopped,
                        {errc::stopped, attempt_ == 1 ? "stopped on request before the first step"
                                                      : "stopped on request while it was being started again"},
                        "a stop was asked for before training began");
  if (stop_sent_)
    return {};
  stop_sent_ = true;
  run_actions actions{{send_command{{config_.run, ++commands_, stop_command{}}}, "a stop was asked for"}};
  // Who is held has to do one more step to stop after.
  append(actions, form_when_all_have_reported());
  return actions;
}

run_actions run_coordinator::on_checkpoint_request() {
  if (!goes_on() || stop_sent_)
    return {};
  if (has_own_loop())
    return {
        {warn{}, "the training function has a loop of its own, and takes its checkpoints itself: with its reports"}};
  return {{send_command{{config_.run, ++commands_, checkpoint_command{}}}, "a checkpoint was asked for"}};
}

run_actions run_coordinator::on_grace_timeout() {
  if (phase_ == phase::failing)
    return conclude_failure("the grace period is over");
  if (phase_ == phase::releasing)
    return conclude_run(stopped_ ? run_status::stopped : run_status::completed, {},
                        "workers did not end within the grace period");
  return {};
}

run_actions run_coordinator::on_group_hang(const std::string& why, time now) {
  // Who waits for the others to report, or for a joiner, waits for the driver.
  if (phase_ != phase::training)
    return {};
  auto who = std::ranges::find_if(members_, [](const auto& x) { return x.second.is_left(); });
  if (who == members_.end())
    return {};
  auto reason = error{errc::timed_out, why};
  // A connection may have died without a word. What stands where it stood before is the program's doing.
  auto again = std::exchange(stood_after_, furthest_) == furthest_;
  if (again || !within_budget(now))
    return fail_run(record(who->second, std::move(reason)), again ? "no rank moves, as in the generation before" : why);
  failures_.push_back(record(who->second, reason));
  return regroup(why, reason);
}

void run_coordinator::on_sign_of_life(worker_id worker, std::uint64_t progress, time now) {
  auto* who = find(worker);
  if (who != nullptr && who->stands == standing::preparing && std::exchange(who->progress, progress) != progress)
    who->since = now;
}

void run_coordinator::on_applied(worker_id worker, step_id step) {
  if (auto* who = find(worker)) {
    who->applied = std::max(who->applied, step);
    note_progress(step);
  }
}

run_actions run_coordinator::fail_run(failure_record what, const std::string& why) {
  if (phase_ == phase::over)
    return {};
  auto reason = what.reason;
  auto first = phase_ != phase::failing;
  if (first)
    fatal_ = earlier_cause_.value_or(failures_.size());
  failures_.push_back(std::move(what));
  auto waiting = phase_ == phase::starting;
  phase_ = phase::failing;
  if (waiting || nobody_is_left())
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
