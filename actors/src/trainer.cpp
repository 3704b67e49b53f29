#include <troupe/actors/trainer.hpp>

#include "down.hpp"
#include "progress_meter.hpp"

#include <troupe/actors/backend_choice.hpp>
#include <troupe/actors/checkpoint_store.hpp>
#include <troupe/actors/collectives.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/actors/placement.hpp>
#include <troupe/actors/run_coordinator.hpp>
#include <troupe/actors/run_directory.hpp>
#include <troupe/collectives/summation_tree.hpp>
#include <troupe/serialization/checkpoint.hpp>
#include <troupe/serialization/checkpoint_directory.hpp>
#include <troupe/serialization/digest.hpp>

#include <caf/actor_system.hpp>
#include <caf/all.hpp>

#include <chrono>
#include <map>
#include <optional>
#include <set>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

using trainer_backend =
    trainer_actor::extend<caf::result<void>(worker_ready, worker_actor), caf::result<plan_accepted>(run_plan),
                          caf::result<next_generation>(regroup_report), caf::result<void>(metrics_batch),
                          caf::result<void>(worker_finished), caf::result<void>(worker_ended),
                          caf::result<void>(worker_output), caf::result<void>(checkpoint_outcome),
                          caf::result<void>(peer_down), caf::result<void>(deadline_reached)>;

/// How long survivors of a failure may take to report, and released workers to end.
constexpr auto grace_period = 2s;

/// How long a node may take to answer.
constexpr auto node_timeout = 10s;

/// How long survivors may take to report before somebody is told whom they wait for.
constexpr auto report_patience = 3s;

enum class deadline : std::uint32_t { start, grace, reports };

template <class... Ts>
struct overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
overloaded(Ts...) -> overloaded<Ts...>;

/// One node of the run, as the trainer sees it.
struct used_node {
  std::unique_ptr<connected_node> connection;
  node_offer offer;
  bool answered = false;
};

class trainer_state : public trainer_backend::base {
 public:
  trainer_state(caf::actor_config& cfg, std::string function, trainer_config config, trainer_services services)
      : trainer_backend::base(cfg),
        function_(std::move(function)),
        config_(std::move(config)),
        services_(std::move(services)) {}

  behavior_type make_behavior() override {
    return {
        [this](const fit_request&) { return fit(); },
        [this](const run_observer& observer) { observers_.push_back(observer); },
        [this](const stop_request& request) { stop(request); },
        [this](const checkpoint_request&) { act_on(&run_coordinator::on_checkpoint_request); },
        [this](const worker_ready& message, const worker_actor& worker) { return ready(message, worker); },
        [this](const run_plan& plan) { return agree(plan); },
        [this](const regroup_report& message) { return report(message); },
        [this](const metrics_batch& batch) { take_metrics(batch); },
        [this](const worker_finished& message) { finished(message); },
        [this](const worker_ended& message) { ended(message); },
        [this](const worker_output& output) { show(output); },
        [this](const checkpoint_outcome& outcome) { checkpointed(outcome); },
        [this](const peer_down& event) { node_is_gone(event.index); },
        [this](const deadline_reached& event) { reached(static_cast<deadline>(event.which)); },
    };
  }

  void on_exit() override {
    // Whoever holds a handle keeps this object: promises are not broken, nor files let go, by themselves.
    answer_plans([](plan_promise& x) { x.deliver(to_caf({errc::aborted, "the run is ending"})); });
    for (auto& [worker, promise] : std::exchange(reports_, {}))
      promise.deliver(to_caf({errc::aborted, "the run is ending"}));
    if (answer_.pending())
      answer_.deliver(to_caf({errc::aborted, "the trainer was ended before its run"}));
    directory_.reset();
    observers_.clear();
    nodes_.clear();
    workers_.clear();
    send_exit(collectives_, caf::exit_reason::user_shutdown);
    send_exit(store_, caf::exit_reason::user_shutdown);
  }

  const char* name() const override { return "troupe.trainer"; }

 private:
  using plan_promise = caf::typed_response_promise<plan_accepted>;

  // -- the way to the first step --------------------------------------------------------------------------------------

  caf::result<run_result> fit() {
    if (answer_.pending())
      return to_caf({errc::already_exists, "this trainer has a run under way: spawn another for another run"});
    answer_ = make_response_promise<run_result>();
    started_ = clock::now();
    result_.run = run_id{serialization::random_hex(16)};
    result_.name = config_.run.name;
    result_.exact = config_.run.reduction == reduction_mode::exact;
    if (auto prepared = prepare(); !prepared)
      conclude_run(run_status::failed, std::move(prepared.error()));
    return answer_;
  }

  /// The way up to the answers of the nodes. Nothing is written before they have been found good.
  expected<void> prepare() {
    if (auto valid = validate(config_); !valid)
      return valid;
    auto nodes = services_.connect_nodes(config_.cluster);
    if (!nodes)
      return fail(std::move(nodes.error()));
    for (auto& each : *nodes)
      nodes_.push_back({std::move(each), {}, false});
    watch_nodes();
    ask_for_offers();
    return {};
  }

  /// Takes the run's directory, and with it the state to begin with. A directory that is not ours to use stays as it
  /// is.
  expected<void> claim_directory() {
    auto directory = run_directory::open(config_.run);
    if (!directory)
      return fail(std::move(directory.error()));
    result_.path = directory->root().string();
    if (auto found = find_state(*directory); !found)
      return found;
    if (auto done = directory->rewind(step_id{result_.resumed_from_step}); !done)
      return done;
    if (auto done = directory->write_run(describe_run()); !done)
      return done;
    directory_ = std::move(*directory);
    return {};
  }

  nlohmann::json describe_run() const {
    return {{"run", result_.run.value},
            {"name", config_.run.name},
            {"function", function_},
            {"program", services_.program_path},
            {"build_id", services_.build_id},
            {"seed", config_.run.seed},
            {"shards", config_.scaling.shards},
            {"workers", config_.scaling.num_workers},
            {"resumed_from_step", result_.resumed_from_step},
            {"config", config_.config},
            {"options", config_.options}};
  }

  run_identity identity() const {
    return {services_.build_id, config_.run.seed, config_.scaling.shards, collectives::tree_version,
            config_.config.dump()};
  }

  /// The checkpoint to begin with, if any.
  expected<void> find_state(const run_directory& directory) {
    std::ignore = serialization::remove_abandoned(directory.checkpoints());
    auto latest = serialization::open_latest(directory.checkpoints());
    if (latest)
      return resume_from(*latest);
    if (latest.error().code != errc::not_found)
      return fail(latest.error().code,
                  latest.error().message +
                      "; remove the damaged checkpoints to begin anew, or choose another run name");
    if (config_.run.resume == resume_mode::must)
      return fail(errc::not_found, "resume is 'must', but " + directory.checkpoints().string() +
                                       " holds no checkpoint: check name and storage path, or use resume 'auto'");
    if (config_.load_checkpoint.empty())
      return {};
    auto other = serialization::checkpoint::open(config_.load_checkpoint);
    if (other)
      if (auto good = other->verify(); !good)
        return fail(std::move(good.error()));
    if (!other)
      return fail(std::move(other.error()));
    restore_from_ = std::filesystem::absolute(config_.load_checkpoint).string();
    notify(false, "begins with the state of " + restore_from_);
    return {};
  }

  expected<void> resume_from(const serialization::latest_checkpoint& latest) {
    for (const auto& each : latest.passed_over)
      notify(true, "a newer checkpoint was passed over: " + each);
    const auto& content = latest.found.content();
    if (auto same = compare_with_checkpoint(identity(), content); !same)
      return same;
    resumed_ = plan_of(content);
    restore_from_ = latest.found.directory().string();
    restore_step_ = true;
    result_.resumed_from_step = content.step.value;
    result_.steps = content.step.value;
    result_.latest_checkpoint = restore_from_;
    notify(false, "goes on from step " + std::to_string(content.step.value) + " (" + restore_from_ + ")");
    return {};
  }

  void spawn_helpers() {
    collectives_ = spawn_collectives(system());
    auto self = caf::actor_cast<caf::weak_actor_ptr>(ctrl());
    auto tell = [self](const checkpoint_outcome& outcome) {
      if (auto strong = self.lock())
        caf::anon_send(caf::actor_cast<trainer_backend>(strong), outcome);
    };
    store_ = spawn_checkpoint_store(system(),
                                    {result_.run, directory_->checkpoints(), config_.checkpoint.num_to_keep, tell});
  }

  void watch_nodes() {
    auto self = caf::actor_cast<caf::weak_actor_ptr>(ctrl());
    for (std::uint32_t i = 0; i < nodes_.size(); ++i)
      when_down(nodes_[i].connection->handle(), [self, i] {
        if (auto strong = self.lock())
          caf::anon_send(caf::actor_cast<trainer_backend>(strong), peer_down{i, {}});
      });
  }

  /// A node did not do what it was asked for while the run was being started.
  void start_failed(std::uint32_t node, const caf::error& reason) {
    auto ours = from_caf(reason);
    conclude_run(run_status::failed, {ours.code, "node " + nodes_[node].connection->address() + ": " + ours.message});
  }

  void ask_for_offers() {
    for (std::uint32_t i = 0; i < nodes_.size(); ++i)
      request(nodes_[i].connection->handle(), node_timeout, offer_request{result_.run})
          .then(
              [this, i](node_offer& offer) {
                nodes_[i].offer = std::move(offer);
                if (all_answered(i))
                  place();
              },
              [this, i](const caf::error& reason) { start_failed(i, reason); });
  }

  /// Notes an answer; whether it was the last that was waited for.
  bool all_answered(std::uint32_t node) {
    nodes_[node].answered = true;
    return std::ranges::all_of(nodes_, [](const used_node& x) { return x.answered || x.connection == nullptr; }) &&
           !concluding_;
  }

  void place() {
    std::vector<node_offer> offers;
    for (auto& node : nodes_) {
      node.answered = false;
      offers.push_back(node.offer);
    }
    auto decision = place_workers(config_.scaling, offers);
    if (!decision)
      return conclude_run(run_status::failed, std::move(decision.error()));
    if (!decision->warning.empty())
      notify(true, decision->warning);
    warn_of_uneven_shards();
    places_ = std::move(decision->places);
    auto choice = choose_backend(config_.run.backend, places_);
    if (!choice)
      return conclude_run(run_status::failed, std::move(choice.error()));
    backend_ = choice->backend;
    if (backend_ != backend_kind::self)
      notify(false, "gradients go over " + choice->reason);
    if (auto trusted = check_data_plane(); !trusted)
      return conclude_run(run_status::failed, std::move(trusted.error()));
    if (auto claimed = claim_directory(); !claimed)
      return conclude_run(run_status::failed, std::move(claimed.error()));
    spawn_helpers();
    coordinator_.emplace(run_coordinator::settings{result_.run, services_.build_id, places_,
                                                   config_.run.allow_mixed_hosts, resumed_, services_.compare_numerics,
                                                   config_.failure});
    for (const auto& place : places_)
      result_.workers.push_back(
          {place.worker, place.rank, nodes_[place.node].offer.host, nodes_[place.node].connection->address(), 0});
    open_program();
  }

  void warn_of_uneven_shards() {
    auto n = config_.scaling.num_workers;
    auto v = config_.scaling.shards;
    auto most = (v + n - 1) / n;
    auto efficiency = static_cast<double>(v) / (static_cast<double>(n) * most);
    if (efficiency < 0.85)
      notify(true, std::to_string(n) + " workers share " + std::to_string(v) + " shards unevenly: they run at " +
                       std::to_string(static_cast<int>(efficiency * 100)) +
                       " % of what they could (a multiple of the number of workers, such as 24 or 64, suits better)");
  }

  /// What Gloo sends is clear text.
  expected<void> check_data_plane() const {
    auto used = used_nodes();
    if (used.size() < 2 || config_.cluster.trusted_network || services_.is_loopback == nullptr)
      return {};
    for (auto i : used)
      if (!services_.is_loopback(nodes_[i].offer.address))
        return fail(errc::invalid_argument,
                    "gradients travel between hosts in clear text, and " + nodes_[i].offer.address +
                        " is not this machine: if the network is private or a tunnel, say so with "
                        "cluster.trusted_network (--trusted-network)");
    return {};
  }

  std::set<std::uint32_t> used_nodes() const {
    std::set<std::uint32_t> result;
    for (const auto& place : places_)
      result.insert(place.node);
    return result;
  }

  void open_program() {
    auto secret = serialization::random_hex(32);
    auto self = caf::actor_cast<run_control>(caf::actor_cast<trainer_backend>(ctrl()));
    waiting_nodes_ = used_nodes();
    for (auto i : used_nodes())
      request(nodes_[i].connection->handle(), node_timeout,
              open_run{result_.run, result_.name, services_.program_path, services_.build_id, secret}, self,
              collectives_, store_)
          .then(
              [this, i](const run_opened&) {
                waiting_nodes_.erase(i);
                if (waiting_nodes_.empty() && !concluding_)
                  start_workers_on_all();
              },
              [this, i](const caf::error& reason) { start_failed(i, reason); });
  }

  void start_workers_on_all() {
    delayed_send(caf::actor_cast<trainer_backend>(ctrl()), config_.run.start_timeout,
                 deadline_reached{static_cast<std::uint32_t>(deadline::start)});
    for (auto i : used_nodes()) {
      start_workers message{result_.run, config_.arguments, {}};
      for (const auto& place : places_)
        if (place.node == i)
          message.workers.push_back({place.worker, environment_of(place)});
      request(nodes_[i].connection->handle(), node_timeout, std::move(message))
          .then([](const workers_started&) {}, [this, i](const caf::error& reason) { start_failed(i, reason); });
    }
  }

  std::map<std::string, std::string> environment_of(const worker_place& place) const {
    return {{"RANK", std::to_string(place.rank.value)},
            {"WORLD_SIZE", std::to_string(places_.size())},
            {"LOCAL_RANK", std::to_string(place.local_rank)},
            {"LOCAL_WORLD_SIZE", std::to_string(place.local_world_size)},
            {"GROUP_RANK", std::to_string(node_rank_of(place))}};
  }

  /// The place of a worker's node among the nodes that are used.
  std::uint32_t node_rank_of(const worker_place& place) const {
    auto used = used_nodes();
    return static_cast<std::uint32_t>(std::distance(used.begin(), used.find(place.node)));
  }

  caf::result<void> ready(const worker_ready& message, const worker_actor& worker) {
    if (message.run != result_.run || !coordinator_ || message.worker.value >= result_.workers.size())
      return to_caf(
          {errc::stale_generation, "this is the driver of run " + result_.run.value + ", not of " + message.run.value});
    workers_[message.worker] = worker;
    auto& info = result_.workers[message.worker.value];
    info.pid = message.pid;
    info.host = message.host;
    if (numerics_.empty())
      numerics_ = message.numerics;
    act(coordinator_->on_ready(message));
    return caf::unit;
  }

  void begin_all_workers() {
    caf::anon_send(collectives_, generation_of(places_));
    begin_training message;
    message.run = result_.run;
    message.generation = generation_;
    message.world_size = static_cast<std::uint32_t>(places_.size());
    message.ownership = ownership();
    message.backend = backend_;
    message.nodes = nodes_of_ranks();
    message.function = function_;
    message.run_name = config_.run.name;
    message.run_directory = result_.path;
    message.seed = config_.run.seed;
    message.shards = config_.scaling.shards;
    message.configuration = config_.config.dump();
    message.options = config_.options.dump();
    message.steps = config_.run.steps;
    message.restore_from = restore_from_;
    message.restore_step = restore_step_;
    message.checkpoint_every_steps = config_.checkpoint.every_steps;
    message.fast_reduction = config_.run.reduction == reduction_mode::fast;
    message.keep_ledger = config_.run.keep_ledger;
    message.check_every_step = config_.run.check_every_step;
    message.collective_timeout_ms = static_cast<std::uint64_t>(config_.run.collective_timeout.count());
    for (const auto& place : places_) {
      message.worker = place.worker;
      message.rank = place.rank;
      message.local_rank = place.local_rank;
      message.local_world_size = place.local_world_size;
      message.node_rank = node_rank_of(place);
      message.data_address = data_address_of(place);
      anon_send(workers_[place.worker], message);
    }
    result_.exact = result_.exact && coordinator_->exact_hosts();
    meter_.begin(result_.run, started_, result_.resumed_from_step);
    publish(run_started{result_.run, result_.name, result_.path, result_.workers, result_.resumed_from_step});
  }

  generation_started generation_of(const std::vector<worker_place>& places) const {
    return {result_.run, generation_, static_cast<std::uint32_t>(places.size())};
  }

  std::vector<shard_range> ownership() const {
    return collectives::even_ownership(config_.scaling.shards, static_cast<std::uint32_t>(places_.size()));
  }

  std::vector<std::uint32_t> nodes_of_ranks() const {
    std::vector<std::uint32_t> result;
    for (const auto& place : places_)
      result.push_back(place.node);
    return result;
  }

  std::string data_address_of(const worker_place& place) const {
    return used_nodes().size() > 1 ? nodes_[place.node].offer.address : "127.0.0.1";
  }

  // -- when members are lost ------------------------------------------------------------------------------------------

  caf::result<next_generation> report(const regroup_report& message) {
    if (message.run != result_.run || !coordinator_ || coordinator_->over() || !coordinator_->goes_on())
      return to_caf({errc::aborted, "the run is ending"});
    if (message.generation != generation_)
      return to_caf({errc::stale_generation, "generation " + std::to_string(message.generation.value) +
                                                 " is over; the last is " + std::to_string(generation_.value)});
    auto promise = make_response_promise<next_generation>();
    reports_.insert_or_assign(message.worker, promise);
    act(coordinator_->on_report(message, clock::now()));
    return promise;
  }

  void abort_workers(const error& reason) {
    tell_workers(abort_training{result_.run, generation_, reason});
    answer_plans([&](plan_promise& promise) { promise.deliver(to_caf(reason)); });
  }

  void form(const form_generation& next) {
    ++generation_.value;
    places_ = next.places;
    // Everybody that is left could use what was chosen before, except where a host or all others are gone.
    auto choice = choose_backend(config_.run.backend, places_);
    if (!choice)
      choice = choose_backend(backend_mode::automatic, places_);
    backend_ = choice->backend;
    // Before any worker hears of it.
    caf::anon_send(collectives_, generation_of(places_));
    next_generation message;
    message.generation = generation_;
    message.world_size = static_cast<std::uint32_t>(places_.size());
    message.ownership = ownership();
    message.backend = backend_;
    message.nodes = nodes_of_ranks();
    message.settled = next.decision.settled;
    message.commands_agreed = next.decision.commands_agreed;
    message.evaluations = next.decision.evaluations;
    message.evaluations_differ = next.decision.evaluations_differ;
    for (const auto& place : places_)
      if (place.worker == next.decision.evaluation_source)
        message.evaluation_source = place.rank;
    auto reports = std::exchange(reports_, {});
    for (const auto& place : places_) {
      message.rank = place.rank;
      message.local_rank = place.local_rank;
      message.local_world_size = place.local_world_size;
      message.node_rank = node_rank_of(place);
      message.data_address = data_address_of(place);
      reports.at(place.worker).deliver(message);
    }
    notify(true, "generation " + std::to_string(generation_.value) + " of " + std::to_string(places_.size()) +
                     (places_.size() == 1 ? " worker: " : " workers: ") + next.decision.reason);
  }

  // -- while it runs --------------------------------------------------------------------------------------------------

  caf::result<plan_accepted> agree(const run_plan& plan) {
    if (plan.run != result_.run || plan.generation != generation_ || !coordinator_ || coordinator_->over())
      return to_caf({errc::stale_generation, "this run has ended"});
    // Nobody would answer a plan that comes after a failure, and its worker would wait for the end of the grace period.
    if (!coordinator_->training())
      return to_caf({errc::aborted, "the run is ending"});
    auto promise = make_response_promise<plan_accepted>();
    plans_.push_back(promise);
    act(coordinator_->on_plan(plan));
    return promise;
  }

  void accept(const run_plan& plan) {
    meter_.set_plan(plan, clock::now());
    facts_ = {result_.run,           config_.run.seed,          config_.scaling.shards,
              plan.batch_samples,    collectives::tree_version, services_.build_id,
              config_.config.dump(), plan.data_fingerprint,     numerics_};
    // A part takes another way than these: the store must know them before any worker goes on.
    request(store_, node_timeout, facts_)
        .then([this] { answer_plans([this](plan_promise& x) { x.deliver(plan_accepted{generation_}); }); },
              [this](const caf::error& reason) { answer_plans([&](plan_promise& x) { x.deliver(reason); }); });
  }

  /// Whoever waits for a checkpoint that a lost worker will not complete is let go. An exit message would overtake the
  /// parts that have come, and with them a checkpoint that is complete: it is sent when something that came after them
  /// is answered.
  void end_store_after_its_parts() {
    auto end = [this] { send_exit(store_, caf::exit_reason::user_shutdown); };
    request(store_, node_timeout, facts_).then(end, [end](const caf::error&) { end(); });
  }

  template <class Deliver>
  void answer_plans(Deliver deliver) {
    for (auto& each : std::exchange(plans_, {}))
      deliver(each);
  }

  void take_metrics(const metrics_batch& batch) {
    if (batch.run != result_.run || batch.worker.value >= result_.workers.size() || !directory_)
      return;
    auto now = clock::now();
    directory_->append(batch, result_.workers[batch.worker.value].pid);
    if (batch.dropped > 0)
      notify(true, "rank " + std::to_string(batch.rank.value) + " reported faster than could be taken in: " +
                       std::to_string(batch.dropped) + " reports are lost");
    if (coordinator_)
      coordinator_->on_applied(batch.worker, batch.applied);
    if (result_.seconds_to_first_step == 0 && batch.applied.value > result_.resumed_from_step)
      result_.seconds_to_first_step = std::chrono::duration<double>(now - started_).count();
    if (batch.rank.value != 0)
      return;
    if (auto event = meter_.add(batch, now))
      publish(*event);
  }

  void finished(const worker_finished& message) {
    // One that finished before the others lost a member has no later generation.
    if (message.run == result_.run && message.generation <= generation_ && coordinator_)
      act(coordinator_->on_finished(message));
  }

  void ended(const worker_ended& message) {
    if (message.run == result_.run && coordinator_)
      act(coordinator_->on_ended(message, clock::now()));
  }

  void node_is_gone(std::uint32_t index) {
    if (concluding_)
      return;
    auto address = nodes_[index].connection->address();
    if (!coordinator_)
      return conclude_run(run_status::failed, {errc::node_lost, "the connection to node " + address + " is gone"});
    act(coordinator_->on_node_lost(index, address, clock::now()));
  }

  void show(const worker_output& output) {
    if (output.run != result_.run || output.worker.value >= result_.workers.size() || !directory_)
      return;
    directory_->append_output(output);
    if (services_.show_output)
      for (const auto& line : output.lines)
        services_.show_output(result_.workers[output.worker.value].rank, line);
  }

  void checkpointed(const checkpoint_outcome& outcome) {
    if (outcome.reason.code != errc::none)
      return notify(true, "the checkpoint of step " + std::to_string(outcome.step.value) +
                              " failed, training goes on and the older ones stand: " + outcome.reason.message);
    result_.latest_checkpoint = outcome.path;
    publish(checkpoint_saved{result_.run, outcome.step, outcome.path});
  }

  void stop(const stop_request& request) {
    if (!answer_.pending() || concluding_)
      return;
    if (!coordinator_)
      return conclude_run(run_status::stopped, {errc::stopped, "stopped on request before the first step"});
    act(coordinator_->on_stop(request));
  }

  void reached(deadline which) {
    if (concluding_ || !coordinator_)
      return;
    if (which == deadline::reports)
      return complain_about_reports();
    act(which == deadline::start ? coordinator_->on_start_timeout() : coordinator_->on_grace_timeout());
  }

  void await_reports() {
    delayed_send(caf::actor_cast<trainer_backend>(ctrl()), report_patience,
                 deadline_reached{static_cast<std::uint32_t>(deadline::reports)});
  }

  /// Nobody is given up for it: user code may take its time before it comes to a call that tells it.
  void complain_about_reports() {
    auto awaited = coordinator_->awaited_reports();
    if (awaited.empty())
      return;
    notify(true,
           "the others wait for " + awaited +
               ": slow, or stopped? (kill -USR1 makes a worker say what it does; killing it lets the others go on)");
    await_reports();
  }

  void act_on(run_actions (run_coordinator::*decide)()) {
    if (coordinator_ && !concluding_)
      act(((*coordinator_).*decide)());
  }

  /// Does what the coordinator has decided.
  void act(const run_actions& actions) {
    auto grace_before = grace_running_;
    for (const auto& action : actions)
      std::visit(overloaded{
                     [&](const begin_all&) { begin_all_workers(); },
                     [&](const accept_plans& x) { accept(x.plan); },
                     [&](const refuse_plans& x) {
                       answer_plans([&](plan_promise& promise) { promise.deliver(to_caf(x.reason)); });
                     },
                     [&](const send_command& x) { tell_workers(x.command); },
                     [&](const abort_generation& x) {
                       notify(true, action.why + "; the others go on");
                       abort_workers(x.reason);
                       // Who waits for an address or a checkpoint is let go, too: all have to report.
                       auto next = generation_started{result_.run, generation_id{generation_.value + 1}, 0};
                       anon_send(collectives_, next);
                       anon_send(store_, next);
                       await_reports();
                     },
                     [&](const form_generation& x) { form(x); },
                     [&](const abort_all& x) {
                       notify(true, action.why);
                       abort_workers(x.reason);
                       for (auto& [worker, promise] : std::exchange(reports_, {}))
                         promise.deliver(to_caf(x.reason));
                       send_exit(collectives_, caf::exit_reason::user_shutdown);
                       end_store_after_its_parts();
                     },
                     [&](const release_all&) { tell_workers(release_worker{result_.run}); },
                     [&](const conclude& x) { conclude_run(x.status, x.reason); },
                 },
                 action.what);
    grace_running_ = grace_running_ || coordinator_->in_grace();
    if (grace_running_ && !grace_before)
      delayed_send(caf::actor_cast<trainer_backend>(ctrl()), grace_period,
                   deadline_reached{static_cast<std::uint32_t>(deadline::grace)});
  }

  template <class Message>
  void tell_workers(const Message& message) {
    for (const auto& [id, worker] : workers_)
      caf::anon_send(worker, message);
  }

  // -- the end --------------------------------------------------------------------------------------------------------

  void conclude_run(run_status status, error reason) {
    if (std::exchange(concluding_, true))
      return;
    result_.status = status;
    result_.reason = std::move(reason);
    answer_plans([](plan_promise& x) { x.deliver(to_caf({errc::aborted, "the run is ending"})); });
    for (auto& [worker, promise] : std::exchange(reports_, {}))
      promise.deliver(to_caf({errc::aborted, "the run is ending"}));
    if (coordinator_) {
      result_.failures = coordinator_->failures();
      result_.state_sha256 = status == run_status::failed ? std::string{} : coordinator_->state_sha256();
      result_.steps = std::max({result_.steps, meter_.latest().step, coordinator_->final_step().value});
    }
    result_.metrics = meter_.latest().metrics;
    ending_nodes_ = nodes_.size();
    if (ending_nodes_ == 0)
      return deliver();
    for (auto& node : nodes_) {
      auto done = [this] {
        if (--ending_nodes_ == 0)
          deliver();
      };
      request(node.connection->handle(), grace_period, end_run{result_.run}).then(done, [done](const caf::error&) {
        done();
      });
    }
  }

  void deliver() {
    result_.seconds_total = std::chrono::duration<double>(clock::now() - started_).count();
    if (directory_)
      if (auto written = directory_->write_result(result_); !written)
        notify(true, "the result could not be written: " + written.error().message);
    if (meter_.latest().step > 0)
      publish(meter_.latest());
    directory_.reset();
    answer_.deliver(result_);
    quit();
  }

  void notify(bool warning, std::string text) { publish(run_notice{result_.run, warning, std::move(text)}); }

  template <class Event>
  void publish(const Event& event) {
    for (const auto& observer : observers_)
      send(observer, event);
  }

  std::string function_;
  trainer_config config_;
  trainer_services services_;
  std::vector<run_observer> observers_;
  caf::typed_response_promise<run_result> answer_;
  run_result result_;
  clock::time_point started_;
  std::optional<run_directory> directory_;
  std::optional<resumed_plan> resumed_;
  std::string restore_from_;
  bool restore_step_ = false;
  std::vector<used_node> nodes_;
  std::set<std::uint32_t> waiting_nodes_;
  std::vector<worker_place> places_;
  backend_kind backend_ = backend_kind::self;
  std::optional<run_coordinator> coordinator_;
  collectives_actor collectives_;
  checkpoint_store store_;
  checkpoint_facts facts_;
  generation_id generation_{1};
  std::map<worker_id, worker_actor> workers_;
  std::string numerics_;
  std::vector<plan_promise> plans_;
  std::map<worker_id, caf::typed_response_promise<next_generation>> reports_;
  progress_meter meter_;
  bool grace_running_ = false;
  bool concluding_ = false;
  std::size_t ending_nodes_ = 0;
};

} // namespace

trainer_actor spawn_trainer(caf::actor_system& system, std::string function, trainer_config config,
                            trainer_services services) {
  return caf::actor_cast<trainer_actor>(
      system.spawn<trainer_state, caf::detached>(std::move(function), std::move(config), std::move(services)));
}

} // namespace troupe::actors
