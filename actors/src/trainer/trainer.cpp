#include "trainer/trainer_state.hpp"

#include "down.hpp"

#include <troupe/actors/error_conversion.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <caf/actor_system.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace troupe::actors {

namespace {

using clock = std::chrono::steady_clock;

/// How often events.jsonl is told where the run's time goes.
constexpr auto goodput_interval = std::chrono::minutes{1};

/// How often to check for silent nodes and hanging workers.
constexpr auto tick_interval = std::chrono::milliseconds{200};

/// "run.time_limit, 7200 s"
std::string limit_text(const trainer_config& config) {
  return fmt::format("run.time_limit, {:g} s", std::chrono::duration<double>(config.run.time_limit).count());
}

hang_settings hang_settings_of(const trainer_config& config) {
  if (config.failure.hang == hang_mode::replace)
    return {config.failure.report_after, config.failure.replace_after, config.run.collective_timeout};
  return {config.failure.report_after, {}, {}};
}

} // namespace

trainer_state::trainer_state(caf::actor_config& cfg, std::string function, trainer_config config,
                             trainer_services services)
    : orderly_end(cfg),
      function_(std::move(function)),
      config_(std::move(config)),
      services_(std::move(services)),
      wanted_workers_(config_.scaling.num_workers),
      authority_{serialization::random_hex(32), {}},
      hangs_(hang_settings_of(config_)) {}

trainer_state::behavior_type trainer_state::make_behavior() {
  return {
      [this](const fit_request&) { return fit(); },
      [this](const run_observer& observer) { audience_.add(observer); },
      [this](const stop_request& request) { return stop(request); },
      [this](const checkpoint_request&) { return grant(&run_coordinator::on_checkpoint_request, "save a checkpoint"); },
      [this](const resize_request& request) { return resize(request); },
      [this](const pause_request&) { return grant(&run_coordinator::on_pause, "pause"); },
      [this](const resume_request&) { return grant(&run_coordinator::on_resume, "resume"); },
      [this](const worker_ready& message, const worker_actor& worker) { return ready(message, worker); },
      [this](const run_plan& plan) { return agree(plan); },
      [this](const regroup_report& message) { return report(message); },
      [this](const caught_up& message) {
        if (is_of_run(message.run))
          act(coordinator_->on_caught_up(message));
      },
      [this](const metrics_batch& batch) { return take_metrics(batch); },
      [this](const worker_finished& message) { finished(message); },
      [this](const worker_ended& message) { ended(message); },
      [this](worker_output& output) { return show(std::move(output)); },
      [this](const node_beat& beat) { take_beat(beat); },
      [this](const node_leaving& message) { node_leaves(message); },
      [this](const node_drained& message) { node_drains(message); },
      [this](const node_resumed& message) { node_resumes(message); },
      [this](const run_superseded& message) {
        if (message.run == record_.run())
          on_superseded();
      },
      [this](const checkpoint_outcome& outcome) { checkpointed(outcome); },
      [this](const node_down& message) {
        if (!is_concluding())
          nodes_->on_down(message);
      },
      [this](node_dialled& message) {
        if (!is_concluding())
          nodes_->on_dialled(message);
      },
      [this](const nodes_found& answer) { take_nodes(answer); },
      [this](const file_notice& notice) { notify(notice.how, notice.text); },
      [this](const condition_question&) { return condition(); },
  };
}

void trainer_state::let_go() {
  hurry_.request_stop();
  // Handles keep this object alive, so fail promises and release files explicitly.
  workers_.fail_pending({errc::aborted, "the run is ending"});
  for (auto& [number, promise] : std::exchange(journal_.wishes, {}))
    promise.deliver(to_caf({errc::aborted, "the trainer was ended before its run"}));
  audience_.dismiss({errc::aborted, "the trainer was ended before its run"});
  nodes_.reset();
  workers_ = {};
  send_exit(actors_.collectives, caf::exit_reason::user_shutdown);
  // Whoever sees that the trainer has ended may take the run's directory.
  end_and_await(system(), actors_.files);
  monitor_.reset();
}

caf::result<run_result> trainer_state::fit() {
  if (audience_.awaits_result())
    return to_caf({errc::already_exists, "this trainer has a run under way: spawn another for another run"});
  const auto& answer = audience_.expect_result(make_response_promise<run_result>());
  record_ = {run_id{serialization::random_hex(16)}, config_.run, clock::now()};
  authority_.claim = {1, serialization::random_hex(8)};
  began_ms_ = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  layout_ = {config_.scaling, config_.run.transport};
  nodes_.emplace(*this, static_cast<node_events&>(*this), config_, services_, record_.run(), authority_.claim);
  nodes_->roster().resize_run(wanted_workers_);
  actors_.files = spawn_run_files(system(), {record_.run(), function_, config_, services_, authority_.secret,
                                             caf::actor_cast<caf::weak_actor_ptr>(ctrl()), hurry_.get_token()});
  phase_ = trainer_phase::looking{};
  auto possible = validate(config_);
  if (possible)
    possible = open_monitor();
  if (!possible) {
    conclude_run(run_status::failed, std::move(possible.error()));
    return answer;
  }
  reported_.goodput = clock::now();
  if (config_.cluster.discover.is_set() && services_.find_nodes)
    discovery_.emplace(*this,
                       [find = services_.find_nodes, source = config_.cluster.discover] { return find(source); });
  config_.cluster.is_embedded() ? gather() : look_for_run();
  tick();
  if (const auto limit = config_.run.time_limit; limit.count() > 0)
    after(limit, [this] { stop_in_time(); });
  return answer;
}

expected<void> trainer_state::open_monitor() {
  if (!services_.open_monitor)
    return {};
  auto tell = [self = caf::actor_cast<caf::weak_actor_ptr>(ctrl())](run_notice notice) {
    if (auto strong = self.lock())
      caf::anon_send(caf::actor_cast<trainer_interface>(strong),
                     file_notice{notice.warning ? severity::warning : severity::note, std::move(notice.text)});
  };
  TROUPE_TRY(monitor_, services_.open_monitor(config_, std::move(tell)));
  return {};
}

void trainer_state::pulse(clock::time_point now) {
  const auto goodput = record_.goodput().so_far(now);
  if (now - reported_.goodput >= goodput_interval && goodput.steps > 0 && !is_concluding()) {
    reported_.goodput = now;
    record_event(event_of(goodput));
  }
  if (monitor_)
    monitor_->on(run_pulse{record_.goodput().activity(), coordinator_ ? coordinator_->generation() : generation_id{},
                           coordinator_ ? coordinator_->attempt() : 1, layout_.world_size(), goodput});
}

void trainer_state::record_new_failures() {
  for (auto& each : reported_.failures.take(coordinator_->failures())) {
    record_event(event_of(each));
    if (monitor_)
      monitor_->on(run_event{std::move(each)});
  }
}

void trainer_state::record_event(nlohmann::ordered_json what) {
  if (actors_.files)
    anon_send(actors_.files, append_event{std::chrono::system_clock::now(), std::move(what)});
}

void trainer_state::announce(std::string& last, std::string text) {
  if (text != last)
    notify(severity::warning, text);
  last = std::move(text);
}

void trainer_state::take_beat(const node_beat& beat) {
  if (!is_of_run(beat.run))
    return;
  const auto now = clock::now();
  const auto node = nodes_->on_beat(current_sender(), now);
  if (!node)
    return;
  for (const auto& each : beat.workers) {
    coordinator_->on_applied(each.worker, each.committed);
    coordinator_->on_sign_of_life(each.worker, each.progress, now);
    if ((each.generation == coordinator_->generation() || coordinator_->follows(each.worker)) &&
        record_.knows(each.worker))
      hangs_.observe({each.worker, record_[each.worker].rank, each.progress, each.activity,
                      fmt::format("after step {}", each.committed)},
                     now);
  }
  if (beat.silent.empty() && !coordinator_->awaits_answers())
    return;
  act(coordinator_->on_workers_silent(*node, beat.silent, now));
}

void trainer_state::tick() {
  run_delayed(tick_interval, [this] { tick(); });
  const auto now = clock::now();
  pulse(now);
  if (is_concluding())
    return;
  // Before that, the set of nodes is unknown.
  if (!is<trainer_phase::looking>()) {
    nodes_->on_tick(now);
    if (discovery_)
      discovery_->on_tick(now);
  }
  place_first();
  decide_takeover();
  end_cuts(now);
  if (!coordinator_ || is_concluding())
    return;
  act(coordinator_->on_tick(now));
  // Workers in a regroup wait for the driver, so they do not hang.
  if (!is_concluding() && coordinator_->goes_on() && !coordinator_->held() && !coordinator_->awaits_answers())
    for (const auto& finding : hangs_.check())
      deal_with(finding);
}

void trainer_state::deal_with(const hang_finding& finding) {
  notify(severity::warning, finding.reason);
  ask_what_they_do(finding.at_fault);
  if (finding.what == hang_finding::action::regroup)
    return act(coordinator_->on_group_hang(finding.reason));
  if (finding.what == hang_finding::action::replace && finding.at_fault)
    act(coordinator_->on_hang(*finding.at_fault, finding.reason));
}

void trainer_state::ask_what_they_do(std::optional<worker_id> one) {
  workers_.ask_activity(*this, record_.run(), layout_.places(), one, [this](rank_id rank, const std::string& text) {
    notify(severity::warning, fmt::format("rank {}: {}", rank, text));
  });
}

caf::result<void> trainer_state::ready(const worker_ready& message, const worker_actor& worker) {
  if (message.run != record_.run() || !coordinator_ || !record_.knows(message.worker))
    return to_caf(
        {errc::stale_generation, fmt::format("this is the driver of run {}, not of {}", record_.run(), message.run)});
  if (!coordinator_->expects(message.worker) && !coordinator_->has_joined(message.worker))
    return to_caf({errc::stale_generation,
                   fmt::format("worker {} has been given up: the run goes on without it", message.worker)});
  workers_.on_joined(message.worker, worker);
  record_.on_joined(message);
  if (metadata_.numerics.empty())
    metadata_.numerics = message.numerics;
  act(coordinator_->on_ready(message));
  return caf::unit;
}

caf::result<next_generation> trainer_state::report(const regroup_report& message) {
  if (!is_of_run(message.run))
    return to_caf({errc::aborted, "the run is ending"});
  auto promise = make_response_promise<next_generation>();
  if (workers_.reports().add(message.worker, message, promise))
    act(coordinator_->on_report(message, clock::now()));
  return promise;
}

caf::result<plan_accepted> trainer_state::agree(const run_plan& plan) {
  if (plan.run != record_.run() || !coordinator_ || coordinator_->over())
    return to_caf({errc::stale_generation, "this run has ended"});
  auto promise = make_response_promise<plan_accepted>();
  if (!workers_.plans().add(plan.worker, plan, promise))
    return promise;
  auto is_joiner = plan.generation == generation_id{};
  if (!is_joiner && plan.generation != coordinator_->generation())
    workers_.plans().refuse(plan.worker, {errc::stale_generation, "this generation is over"});
  // A plan after a failure would stay unanswered, and its worker would wait out the grace period.
  else if (!coordinator_->training() && !(is_joiner && coordinator_->goes_on()))
    workers_.plans().refuse(plan.worker, {errc::aborted, "the run is ending"});
  else
    act(coordinator_->on_plan(plan, clock::now()));
  return promise;
}

caf::result<void> trainer_state::take_metrics(const metrics_batch& batch) {
  if (batch.run != record_.run() || !coordinator_ || !record_.knows(batch.worker) ||
      !coordinator_->has_joined(batch.worker) || !workers_.take(batch))
    return caf::unit;
  auto answer = hand_to_files(append_metrics{batch, record_[batch.worker].pid});
  if (batch.dropped > 0)
    notify(severity::warning, fmt::format("rank {} reported faster than could be taken in: {} reports are lost",
                                          batch.rank, batch.dropped));
  for (const auto& pause : batch.pauses)
    record_event(event_of(pause, batch.rank));
  warn_not_finite(batch);
  if (monitor_)
    monitor_->on(batch);
  coordinator_->on_applied(batch.worker, batch.applied);
  auto progress = record_.on_metrics(batch, coordinator_->generation(), clock::now());
  for (auto step : batch.skipped)
    skipped(step);
  if (progress)
    publish(*progress);
  return answer;
}

void trainer_state::warn_not_finite(const metrics_batch& batch) {
  for (const auto& each : batch.not_finite)
    record_event(event_of(each, batch.rank));
  // Once is enough for people.
  for (const auto& each : batch.not_finite)
    if (reported_.not_finite.insert(each.metric).second)
      notify(severity::warning,
             fmt::format("{} is {} in step {} on rank {}{}; {}", each.metric, each.value, each.step, batch.rank,
                         each.shard ? fmt::format(", from shard {}", *each.shard) : std::string{},
                         config_.failure.not_finite == not_finite_mode::end_run
                             ? "the run ends before that step is applied (failure.not_finite)"
                             : "training goes on (failure.not_finite can have the run end instead)"));
}

template <class Message>
caf::result<void> trainer_state::hand_to_files(Message message) {
  auto promise = make_response_promise<void>();
  request(actors_.files, caf::infinite, std::move(message))
      .then([promise]() mutable { promise.deliver(); },
            // The run is over.
            [promise](const caf::error&) mutable { promise.deliver(); });
  return promise;
}

void trainer_state::finished(const worker_finished& message) {
  // A worker that finished before the others lost a member stays in the earlier generation.
  if (coordinator_ && message.run == record_.run() && message.generation <= coordinator_->generation())
    act(coordinator_->on_finished(message));
}

void trainer_state::ended(const worker_ended& message) {
  if (message.run != record_.run() || !coordinator_)
    return;
  const auto node = workers_.node_of(message.worker);
  workers_.on_ended(message.worker);
  hangs_.remove(message.worker);
  const auto holders =
      std::ranges::count_if(layout_.places(), [this](const auto& x) { return workers_.living().contains(x.worker); });
  anon_send(actors_.collectives, worker_gone{record_.run(), message.worker, static_cast<std::uint32_t>(holders)});
  const auto failures = coordinator_->failures().size();
  const auto actions = coordinator_->on_ended(message);
  // Note the death first: it decides where the replacement is placed.
  if (node && coordinator_->failures().size() > failures)
    note_death_on(*node);
  act(actions);
  place_again();
}

void trainer_state::note_death_on(std::uint32_t node) {
  auto& health = nodes_->roster()[node].health;
  health.note_death(clock::now());
  if (health.pause().count() > 0 && nodes_->roster().size() > 1)
    notify(severity::warning,
           fmt::format("{} workers in a row have died on node {}: for {} s it gets no others as long as other "
                       "nodes have free CPUs",
                       health.deaths(), nodes_->name_of(node), health.pause().count()));
}

caf::result<void> trainer_state::show(worker_output output) {
  if (output.run != record_.run() || !record_.knows(output.worker) || !workers_.take(output))
    return caf::unit;
  auto rank = record_[output.worker].rank;
  return hand_to_files(append_output{std::move(output), rank});
}

void trainer_state::checkpointed(const checkpoint_outcome& outcome) {
  record_.on_checkpoint(outcome);
  if (outcome.reason.code == errc::none)
    return publish(checkpoint_saved{record_.run(), outcome.step, outcome.path, outcome.size_bytes, outcome.seconds});
  publish(checkpoint_failed{record_.run(), outcome.step, outcome.reason});
  notify(severity::warning,
         fmt::format("the checkpoint of step {} failed, training goes on and the older ones stand: {}", outcome.step,
                     outcome.reason.message));
}

void trainer_state::skipped(step_id step) {
  // Notify the user only once: a slow device stays slow.
  if (record_.on_skipped_checkpoint() == 1)
    notify(severity::warning,
           fmt::format("the checkpoint of step {} is skipped, because the one before is still being written; so "
                       "are later ones that come too soon (checkpoints: fewer, or a higher max_in_flight)",
                       step));
  publish(checkpoint_skipped{record_.run(), step});
}

void trainer_state::stop_in_time() {
  if (coordinator_ && coordinator_->asked() == run_course::request::stop)
    return;
  is_out_of_time_ = true;
  notify(severity::warning, fmt::format("the run's time is over ({}): stopping after this step", limit_text(config_)));
  begin_stop({false});
}

void trainer_state::tell_if_nothing_was_left() {
  const auto& run = record_.result();
  if (run.status != run_status::completed || !state_.is_own() || run.steps > state_.step.value)
    return;
  notify(severity::warning,
         fmt::format("nothing was left to do: the run in {} {} step {}. Begin anew with resume_mode::restart "
                     "(--resume restart){} another name (run.name, --name){}",
                     run.path, state_.is_finished ? "was finished by a decision of its own in" : "has done",
                     state_.step, state_.is_finished ? ", or choose" : ", choose",
                     state_.is_finished ? "" : ", or set more steps (run.steps, --steps)"));
}

void trainer_state::conclude_run(run_status status, error reason) {
  if (is_concluding())
    return;
  if (is_out_of_time_ && status == run_status::stopped)
    reason = {errc::timed_out, fmt::format("its time was over ({}): the same run goes on when it is started again",
                                           limit_text(config_))};
  phase_ = trainer_phase::concluding{};
  answer_wishes();
  workers_.fail_pending({errc::aborted, "the run is ending"});
  record_.conclude(status, std::move(reason));
  record_.goodput().enter(time_use::ending, clock::now());
  if (coordinator_) {
    record_new_failures();
    record_.note_exactness(coordinator_->exact_hosts());
    record_.set_final_state(coordinator_->failures(), coordinator_->state_sha256(), coordinator_->final_step());
    tell_if_nothing_was_left();
  }
  nodes_->end_run([this] {
    request(actors_.files, caf::infinite, finish_run{record_.finish(clock::now())})
        .then(
            [this](finished_run& x) {
              if (x.write_error.code != errc::none)
                x.result.fail({x.write_error.code, "the result could not be written: " + x.write_error.message});
              deliver(x.result);
            },
            [this](const caf::error&) { deliver(record_.result()); });
  });
}

void trainer_state::deliver(const run_result& result) {
  if (auto progress = record_.latest_progress())
    publish(*progress);
  audience_.deliver(result);
  end_and_quit();
}

trainer_actor spawn_trainer(caf::actor_system& system, std::string function, trainer_config config,
                            trainer_services services) {
  return caf::actor_cast<trainer_actor>(
      system.spawn<trainer_state, caf::detached>(std::move(function), std::move(config), std::move(services)));
}

} // namespace troupe::actors
