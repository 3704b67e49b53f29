#include "trainer/trainer_state.hpp"

#include "trainer/begin_message.hpp"

#include <troupe/actors/decisions/plural.hpp>
#include <troupe/actors/decisions/program_chain.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/collectives/summation_tree.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace troupe::actors {

using clock = std::chrono::steady_clock;

namespace {

/// How long the survivors of a failure wait for reports before the user is notified.
constexpr auto report_patience = std::chrono::seconds{3};

time_use activity_in(const hold& x) {
  switch (x.why) {
  case hold::cause::pause:
    return time_use::paused;
  case hold::cause::too_few_workers:
    return time_use::awaiting_capacity;
  case hold::cause::unreachable:
    return time_use::awaiting_peers;
  }
  return time_use::training;
}

} // namespace

void trainer_state::fence(worker_id worker, const std::string& why) {
  if (auto node = workers_.node_of(worker))
    nodes_->kill(*node, worker, why);
}

begin_training trainer_state::begin_message_for(worker_id worker) const {
  auto message = begin_message(function_, record_.result().path, record_.run(), config_, state_);
  message.resume.run_time_us = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(record_.run_time(clock::now())).count());
  message.worker = worker;
  message.place.part_stream = nodes_->part_address_for(*workers_.node_of(worker));
  return message;
}

void trainer_state::begin_all_workers() {
  caf::anon_send(actors_.collectives, generation_now());
  for (const auto& place : layout_.places()) {
    auto message = begin_message_for(place.worker);
    message.place =
        layout_.place_of(place, coordinator_->generation(), coordinator_->attempt(), record_.restart_reason());
    message.place.part_stream = nodes_->part_address_for(place.node);
    workers_.begin(*this, place.worker, message);
  }
  leave_nodes_that_go_away();
  record_.note_exactness(coordinator_->exact_hosts());
  const auto& run = record_.result();
  if (record_.on_begin() == run_record::begin::first)
    publish(run_started{run.run, run.name, run.path, run.workers, run.resumed_from_step});
  if (coordinator_->attempt() > 1)
    add(record_.restarted_generation(coordinator_->generation(), coordinator_->attempt(), layout_.world_size()));
}

void trainer_state::leave_nodes_that_go_away() {
  for (auto node : std::exchange(std::get<trainer_phase::running>(phase_).leaving, {}))
    if (nodes_->roster()[node].state == node_state::open)
      nodes_->leave(node);
  for (auto node : nodes_->roster().in_state(node_state::leaving))
    act_on_leaving(node);
}

void trainer_state::begin_joiner_of(const begin_joiner& joiner) {
  auto message = begin_message_for(joiner.worker);
  // It gets its state from the members.
  message.resume.checkpoint.clear();
  message.place.attempt = coordinator_->attempt();
  // Preliminary values, until it gets a place.
  message.place.rank = rank_id{layout_.world_size()};
  message.place.world_size = layout_.world_size() + 1;
  message.place.local_world_size = 1;
  message.earlier_evaluations = joiner.evaluations;
  workers_.begin_joiner(*this, joiner.worker, message);
}

void trainer_state::add(generation_record record) {
  notify(severity::note,
         fmt::format("generation {} of {}: {}", record.generation, plural(record.workers, "worker"), record.reason));
  record_.add(record);
  for (const auto& place : layout_.places())
    record.members.push_back(record_[place.worker]);
  publish(record);
}

generation_started trainer_state::generation_now() const {
  return {record_.run(), coordinator_->generation(), layout_.world_size()};
}

void trainer_state::abort_workers(const error& reason) {
  workers_.abort_all(*this, {record_.run(), coordinator_->generation(), reason});
}

void trainer_state::form(const form_generation& next) {
  if (auto laid_out = lay_out(next.places); !laid_out)
    return conclude_run(run_status::failed, std::move(laid_out.error()));
  // Send this before any worker gets its place. The coordinator may be ahead of `next` by now.
  const auto started = generation_started{record_.run(), next.record.generation, layout_.world_size()};
  caf::anon_send(actors_.collectives, started);
  caf::anon_send(actors_.store, started);
  for (auto& [worker, place] : layout_.member_places(next)) {
    place.place.part_stream = nodes_->part_address_for(*workers_.node_of(worker));
    record_.set_rank(worker, place.place.rank);
    workers_.reports().answer(worker, next_generation{place});
  }
  for (auto worker : next.released) {
    workers_.reports().answer(worker, next_generation{released{}});
    workers_.release(*this, worker, record_.run());
  }
  hangs_.clear();
  record_.goodput().formed(next.record.generation, clock::now());
  add(next.record);
}

void trainer_state::stage(const stage_joiners& group) {
  for (auto [rank, worker] : group.to_answer) {
    const auto node = group.command.joiner_nodes[rank.value - group.sources];
    const auto place = layout_.place_of(group, rank, nodes_->roster()[node].offer.address);
    workers_.reports().answer(worker, next_generation{place});
  }
}

void trainer_state::set_plan(const run_plan& plan) {
  record_.on_plan(plan, clock::now());
  record_.set_programs(go_on_with(record_.result().programs,
                                  describe_program(services_.build_id, config_.config.dump(), metadata_.numerics),
                                  state_.step));
  metadata_ = {record_.run(),
               config_.run.seed,
               config_.scaling.shards,
               plan.batch_samples,
               collectives::tree_version,
               services_.build_id,
               config_.config.dump(),
               plan.data_fingerprint,
               metadata_.numerics,
               earlier_programs_json(record_.result().programs)};
}

void trainer_state::accept(const run_plan& plan, generation_id generation) {
  set_plan(plan);
  // Parts reach the store by another way: it must know the metadata before any worker goes on. If the group is lost
  // meanwhile, the plans are sent again.
  request(actors_.store, caf::infinite, metadata_)
      .then(
          [this, generation] {
            if (generation == coordinator_->generation())
              workers_.plans().answer_all_of(generation, plan_accepted{generation});
          },
          [this, generation](const caf::error& reason) {
            if (generation == coordinator_->generation())
              workers_.plans().answer_all_of(generation, fail(from_caf(reason)));
          });
}

void trainer_state::end_waits_of(generation_id generation) {
  const auto next = generation_started{record_.run(), generation_id{generation.value + 1}, 0};
  anon_send(actors_.collectives, next);
  anon_send(actors_.store, next);
}

void trainer_state::act(actors::run_actions actions) {
  if (is_concluding())
    return;
  record_new_failures();
  if (!keeps_journal())
    return carry_out(actions);
  auto& gate = journal_.gate;
  gate.add(std::move(actions), coordinator_->change_since(gate.latest()));
  write_journal();
  carry_out_what_is_kept();
}

void trainer_state::carry_out_what_is_kept() {
  while (auto actions = journal_.gate.next())
    carry_out(*actions);
  answer_wishes();
}

void trainer_state::carry_out(const actors::run_actions& actions) {
  for (const auto& action : actions) {
    // An earlier action may have concluded the run.
    if (is_concluding())
      return;
    std::visit([&](const auto& what) { carry_out(what, action.why); }, action.what);
  }
}

void trainer_state::carry_out(const begin_all& x, const std::string&) {
  if (x.attempt == coordinator_->attempt())
    begin_all_workers();
}

void trainer_state::carry_out(const begin_joiner& x, const std::string&) {
  begin_joiner_of(x);
}

void trainer_state::carry_out(const accept_plans& x, const std::string&) {
  accept(x.plan, x.generation);
}

void trainer_state::carry_out(const accept_plan_of& x, const std::string&) {
  workers_.plans().answer(x.worker, plan_accepted{coordinator_->generation()});
}

void trainer_state::carry_out(const refuse_plans& x, const std::string&) {
  x.worker ? workers_.plans().refuse(*x.worker, x.reason) : workers_.plans().refuse_all(x.reason);
}

void trainer_state::carry_out(const refuse_report& x, const std::string&) {
  workers_.reports().refuse(x.worker, x.reason);
}

void trainer_state::carry_out(const send_command& x, const std::string&) {
  workers_.command_all(*this, x.command);
}

void trainer_state::carry_out(const stage_joiners& x, const std::string& why) {
  notify(severity::note, why + ": it gets the state while the others train on");
  stage(x);
}

void trainer_state::carry_out(const skip_loop& x, const std::string&) {
  workers_.reports().answer(x.worker, next_generation{loop_completed{x.evaluations}});
}

void trainer_state::carry_out(const end_staging& x, const std::string&) {
  anon_send(actors_.collectives, exchange_ended{record_.run(), x.generation, x.number});
}

void trainer_state::carry_out(const abort_generation& x, const std::string& why) {
  notify(severity::warning, why + "; the others go on");
  workers_.abort_all(*this, {record_.run(), x.generation, x.reason});
  end_waits_of(x.generation);
  after_in_generation(report_patience, [this] { complain_about_reports(); });
}

void trainer_state::carry_out(const hold& x, const std::string& why) {
  notify(severity::warning, why);
  record_.goodput().enter(activity_in(x), clock::now());
  if (x.why == hold::cause::too_few_workers)
    after_in_generation(config_.scaling.wait_for_workers, [this] { act(coordinator_->on_hold_timeout()); });
}

void trainer_state::carry_out(const form_generation& x, const std::string&) {
  form(x);
}

void trainer_state::carry_out(const start_more& x, const std::string&) {
  // The coordinator may decide this twice before the first decision is carried out.
  start_additional(std::min(x.count, coordinator_->missing()));
}

void trainer_state::carry_out(const fence_worker& x, const std::string&) {
  fence(x.worker, x.reason);
}

void trainer_state::carry_out(const give_up_node& x, const std::string&) {
  nodes_->give_up(x.node);
  // The node ends its workers when it answers, and does not report their ends.
  workers_.on_node_gone(x.node);
}

void trainer_state::carry_out(const avoid_node& x, const std::string&) {
  auto& health = nodes_->roster()[x.node].health;
  health.note_cut(clock::now());
  notify(severity::warning,
         fmt::format("the workers on node {} and the others cannot reach each other over the data network (a "
                     "firewall, or a broken link?): the run goes on without them, and the node gets no workers "
                     "for {} s",
                     nodes_->name_of(x.node), health.pause().count()));
}

void trainer_state::carry_out(const restart_run&, const std::string& why) {
  restart(why);
}

void trainer_state::carry_out(const release_one& x, const std::string&) {
  workers_.release(*this, x.worker, record_.run());
}

void trainer_state::carry_out(const actors::save_state& x, const std::string& why) {
  notify(severity::note, why);
  workers_.reports().answer(x.worker, next_generation{save_and_leave{x.reason, x.step}});
}

void trainer_state::carry_out(const abort_all& x, const std::string& why) {
  notify(severity::warning, why);
  abort_workers(x.reason);
  workers_.plans().refuse_all(x.reason);
  end_waits_of(coordinator_->generation());
}

void trainer_state::carry_out(const release_all&, const std::string&) {
  workers_.fail_pending({errc::aborted, "the run is over"});
  workers_.release_all(*this, record_.run());
  after(grace_period, [this] { act(coordinator_->on_grace_timeout()); });
}

void trainer_state::carry_out(const warn&, const std::string& why) {
  notify(severity::warning, why);
}

void trainer_state::carry_out(const conclude& x, const std::string&) {
  if (x.status == run_status::stopped && coordinator_->state_sha256().empty()) {
    const auto& saved = record_.result().latest_checkpoint;
    notify(severity::warning, saved.empty()
                                  ? "stopped without a checkpoint: the same run begins anew when it is started again"
                                  : "stopped: the same run goes on from " + saved + " when it is started again");
  }
  conclude_run(x.status, x.reason);
}

void trainer_state::complain_about_reports() {
  auto awaited = coordinator_->awaited_reports();
  if (awaited.empty())
    return;
  notify(severity::warning,
         "the others wait for " + awaited +
             ": slow, or stopped? (kill -USR1 makes a worker say what it does; killing it lets the others go on)");
  after_in_generation(report_patience, [this] { complain_about_reports(); });
}

} // namespace troupe::actors
