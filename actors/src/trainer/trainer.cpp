#include <troupe/actors/trainer.hpp>

#include "down.hpp"
#include "trainer/starting_state.hpp"
#include <troupe/actors/decisions/group_layout.hpp>
#include <troupe/actors/decisions/node_roster.hpp>
#include <troupe/actors/decisions/progress_meter.hpp>

#include <troupe/actors/checkpoint_store.hpp>
#include <troupe/actors/collectives.hpp>
#include <troupe/actors/decisions/hang.hpp>
#include <troupe/actors/decisions/heartbeat_monitor.hpp>
#include <troupe/actors/decisions/placement.hpp>
#include <troupe/actors/decisions/run_coordinator.hpp>
#include <troupe/actors/decisions/transport_choice.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/actors/run_directory.hpp>
#include <troupe/collectives/summation_tree.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <caf/actor_system.hpp>
#include <caf/all.hpp>

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <set>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

using trainer_interface = trainer_actor::extend<
    caf::result<void>(worker_ready, worker_actor), caf::result<plan_accepted>(run_plan),
    caf::result<next_generation>(regroup_report), caf::result<void>(caught_up), caf::result<void>(metrics_batch),
    caf::result<void>(worker_finished), caf::result<void>(worker_ended), caf::result<void>(worker_output),
    caf::result<void>(node_beat), caf::result<void>(node_leaving), caf::result<void>(checkpoint_outcome),
    caf::result<void>(peer_down), caf::result<void>(deadline_reached)>;

/// How long survivors of a failure may take to report, and released workers to end.
constexpr auto grace_period = 2s;

/// How long a node may take to answer.
constexpr auto node_timeout = 10s;

/// How long survivors may take to report before somebody is told whom they wait for.
constexpr auto report_patience = 3s;

/// How long a worker may take to say what it does.
constexpr auto answer_patience = 1s;

/// How often nodes and standing workers are looked after.
constexpr auto tick_interval = 200ms;

/// How often a node that is not there is tried again.
constexpr auto dial_interval = 1s;

enum class deadline : std::uint32_t { start, grace, reports, tick, dialled, drain, hold, capacity };

template <class... Ts>
struct overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
overloaded(Ts...) -> overloaded<Ts...>;

/// The way to one node, if there is one.
struct node_link {
  std::unique_ptr<connected_node> connection = nullptr;
  /// Tells it from those before.
  std::uint64_t number = 0;
};

/// What a thread that dials brings back.
struct dial_result {
  std::mutex mutex;
  std::map<std::uint32_t, expected<std::unique_ptr<connected_node>>> found;
};

class trainer_state : public trainer_interface::base {
 public:
  trainer_state(caf::actor_config& cfg, std::string function, trainer_config config, trainer_services services)
      : trainer_interface::base(cfg),
        function_(std::move(function)),
        config_(std::move(config)),
        services_(std::move(services)) {}

  behavior_type make_behavior() override {
    return {
        [this](const fit_request&) { return fit(); },
        [this](const run_observer& observer) { observers_.push_back(observer); },
        [this](const stop_request& request) { stop(request); },
        [this](const checkpoint_request&) { return grant(&run_coordinator::on_checkpoint_request); },
        [this](const resize_request& request) { return resize(request); },
        [this](const pause_request&) { return grant(&run_coordinator::on_pause); },
        [this](const resume_request&) { return grant(&run_coordinator::on_resume); },
        [this](const worker_ready& message, const worker_actor& worker) { return ready(message, worker); },
        [this](const run_plan& plan) { return agree(plan); },
        [this](const regroup_report& message) { return report(message); },
        [this](const caught_up& message) {
          if (message.run == result_.run && coordinator_ && !concluding_)
            act(coordinator_->on_caught_up(message));
        },
        [this](const metrics_batch& batch) { take_metrics(batch); },
        [this](const worker_finished& message) { finished(message); },
        [this](const worker_ended& message) { ended(message); },
        [this](const worker_output& output) { show(output); },
        [this](const node_beat& beat) { take_beat(beat); },
        [this](const node_leaving& message) { node_leaves(message); },
        [this](const checkpoint_outcome& outcome) { checkpointed(outcome); },
        [this](const peer_down& event) { node_is_gone(event.index, event.connection); },
        [this](const deadline_reached& event) { reached(static_cast<deadline>(event.which), event.occasion); },
    };
  }

  void on_exit() override {
    // Whoever holds a handle keeps this object: promises are not broken, nor files let go, by themselves.
    fail_pending({errc::aborted, "the run is ending"});
    if (answer_.pending())
      answer_.deliver(to_caf({errc::aborted, "the trainer was ended before its run"}));
    directory_.reset();
    // Before the store, which removes what was not finished.
    parts_.reset();
    observers_.clear();
    links_.clear();
    workers_.clear();
    send_exit(collectives_, caf::exit_reason::user_shutdown);
    send_exit(store_, caf::exit_reason::user_shutdown);
  }

  const char* name() const override { return "troupe.trainer"; }

 private:
  using plan_promise = caf::typed_response_promise<plan_accepted>;
  using report_promise = caf::typed_response_promise<next_generation>;

  void remind_me(deadline which, std::chrono::milliseconds after) {
    delayed_send(caf::actor_cast<trainer_interface>(ctrl()), after,
                 deadline_reached{static_cast<std::uint32_t>(which), occasion_of(which)});
  }

  /// What a deadline is for: one of an earlier attempt or wait says nothing about this one.
  [[nodiscard]] std::uint64_t occasion_of(deadline which) const {
    if (!coordinator_)
      return 0;
    if (which == deadline::hold || which == deadline::reports)
      return coordinator_->generation().value;
    return which == deadline::start || which == deadline::capacity ? coordinator_->attempt() : 0;
  }

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
    monitor_.emplace(config_.failure.heartbeat_timeout);
    if (replaces_who_stands())
      standing_.emplace(
          hang_settings{config_.failure.report_after, config_.failure.replace_after, config_.run.collective_timeout});
    else
      standing_.emplace(hang_settings{config_.failure.report_after, {}, {}});
    auto addresses = config_.cluster.nodes;
    if (addresses.empty())
      addresses.emplace_back();
    roster_.emplace(
        node_roster::settings{config_.scaling, [this](const auto& x) { return is_private(x); }, dial_interval});
    links_.resize(addresses.size());
    for (auto& address : addresses)
      roster_->add(std::move(address));
    for (std::uint32_t i = 0; i < links_.size(); ++i) {
      auto connection = services_.connect_node(config_.cluster, node(i).address);
      // A range of workers takes what is there.
      if (!connection && (!config_.scaling.num_workers.is_elastic() || config_.cluster.nodes.empty()))
        return fail(std::move(connection.error()));
      if (connection)
        take_in(i, std::move(*connection));
      else
        notify(true, "begins without a node: " + connection.error().message);
    }
    remind_me(deadline::tick, tick_interval);
    place_when_all_have_answered();
    return {};
  }

  run_identity identity() const {
    return {services_.build_id, config_.run.seed, config_.scaling.shards, collectives::tree_version,
            config_.config.dump()};
  }

  nlohmann::json describe_run() const {
    return {{"run", result_.run.value},
            {"name", config_.run.name},
            {"function", function_},
            {"program", services_.program_path},
            {"build_id", services_.build_id},
            {"seed", config_.run.seed},
            {"shards", config_.scaling.shards},
            {"workers", to_string(config_.scaling.num_workers)},
            {"resumed_from_step", result_.resumed_from_step},
            {"config", config_.config},
            {"options", config_.options}};
  }

  /// Takes the run's directory, and with it the state to begin with. A directory that is not ours to use stays as it
  /// is.
  expected<void> claim_directory() {
    auto directory = run_directory::open(config_.run);
    if (!directory)
      return fail(std::move(directory.error()));
    result_.path = directory->root().string();
    if (auto found = begin_with_state_of(*directory); !found)
      return found;
    result_.resumed_from_step = state_.step.value;
    if (auto done = directory->write_run(describe_run()); !done)
      return done;
    directory_ = std::move(*directory);
    return {};
  }

  expected<void> begin_with_state_of(run_directory& directory) {
    auto found = find_starting_state(directory, config_, identity());
    if (!found)
      return fail(std::move(found.error()));
    state_ = std::move(*found);
    for (const auto& each : state_.passed_over)
      notify(true, "a newer checkpoint was passed over: " + each);
    if (state_.restore_step)
      notify(false, "goes on from step " + std::to_string(state_.step.value) + " (" + state_.restore_from + ")");
    else if (!state_.restore_from.empty())
      notify(false, "begins with the state of " + state_.restore_from);
    result_.steps = state_.step.value;
    result_.latest_checkpoint = state_.restore_step ? state_.restore_from : std::string{};
    return directory.rewind(state_.step);
  }

  void spawn_helpers() {
    collectives_ = spawn_collectives(system());
    auto self = caf::actor_cast<caf::weak_actor_ptr>(ctrl());
    auto tell = [self](const checkpoint_outcome& outcome) {
      if (auto strong = self.lock())
        caf::anon_send(caf::actor_cast<trainer_interface>(strong), outcome);
    };
    store_ =
        spawn_checkpoint_store(system(), {result_.run, directory_->checkpoints(), config_.checkpoint.num_to_keep, tell,
                                          config_.checkpoint.score_attribute, config_.checkpoint.score_order});
    receive_parts();
  }

  /// Workers on this machine see what the driver sees.
  void receive_parts() {
    auto wanted = config_.checkpoint.sync == checkpoint_sync::stream ||
                  (config_.checkpoint.sync == checkpoint_sync::automatic && !config_.cluster.nodes.empty());
    if (!wanted || !services_.receive_parts)
      return;
    auto opened = services_.receive_parts(result_.run, secret_, directory_->checkpoints());
    if (opened)
      parts_ = std::move(*opened);
    else
      notify(true, "checkpoints need a storage path that all hosts share: " + opened.error().message);
  }

  std::string part_stream_for(worker_id worker) const {
    return parts_ ? parts_->address_towards(node(where_.at(worker)).offer.address) : std::string{};
  }

  // -- nodes ----------------------------------------------------------------------------------------------------------

  /// A node can be reached: asks what it has.
  void take_in(std::uint32_t index, std::unique_ptr<connected_node> connection) {
    auto& link = links_[index];
    link = {std::move(connection), ++connections_};
    node(index).offer = {};
    auto self = caf::actor_cast<caf::weak_actor_ptr>(ctrl());
    when_down(link.connection->handle(), [self, index, number = connections_] {
      if (auto strong = self.lock())
        caf::anon_send(caf::actor_cast<trainer_interface>(strong), peer_down{index, {}, number});
    });
    ask_for_offer(index);
  }

  void ask_for_offer(std::uint32_t index) {
    node(index).state = node_state::asked;
    request(links_[index].connection->handle(), node_timeout, offer_request{result_.run})
        .then(
            [this, index](node_offer& offer) {
              node(index).offer = std::move(offer);
              node(index).state = node_state::offered;
              if (coordinator_)
                open_on(index);
              else
                place_when_all_have_answered();
            },
            [this, index](const caf::error& reason) { node_failed(index, reason); });
  }

  /// A node did not do what it was asked for.
  void node_failed(std::uint32_t index, const caf::error& reason) {
    auto ours = from_caf(reason);
    auto text = "node " + name_of(index) + ": " + ours.message;
    // One that did not answer may do so later.
    auto is_late = ours.code == errc::timed_out;
    if (!begun_ && (is_used(index) || (!coordinator_ && !(is_late && config_.scaling.num_workers.is_elastic()))))
      return conclude_run(run_status::failed, {ours.code, text});
    if (node(index).state == node_state::away)
      return;
    node(index).state = is_late ? node_state::away : node_state::refused;
    node(index).tried = clock::now();
    notify(true, text + (is_late ? "; it is asked again" : "; it gets no workers"));
  }

  [[nodiscard]] bool is_used(std::uint32_t index) const {
    return std::ranges::any_of(layout_.places(), [&](const worker_place& x) { return x.node == index; });
  }

  [[nodiscard]] std::string name_of(std::uint32_t index) const {
    const auto& connection = links_[index].connection;
    return connection ? connection->address() : node(index).address;
  }

  /// Has the node open the program; from then on it can take workers.
  void open_on(std::uint32_t index) {
    node(index).state = node_state::opening;
    auto self = caf::actor_cast<run_control>(caf::actor_cast<trainer_interface>(ctrl()));
    auto timeout = static_cast<std::uint64_t>(config_.failure.heartbeat_timeout.count());
    request(links_[index].connection->handle(), node_timeout,
            open_run{result_.run, result_.name, services_.program_path, services_.build_id, secret_, timeout}, self,
            collectives_, store_)
        .then([this, index](const run_opened&) { opened(index); },
              [this, index](const caf::error& reason) { node_failed(index, reason); });
  }

  void opened(std::uint32_t index) {
    if (concluding_ || node(index).state != node_state::opening)
      return;
    node(index).state = node_state::open;
    node(index).fenced = false;
    monitor_->add(index, clock::now());
    if (begun_) {
      notify(false, "node " + name_of(index) + " has joined");
      return has_capacity();
    }
    auto waits = [this](const worker_place& x) { return node(x.node).state != node_state::open; };
    if (std::ranges::none_of(layout_.places(), waits)) {
      begun_ = true;
      start(layout_.places());
    }
  }

  void has_capacity() {
    if (awaiting_room_)
      place_again();
    else
      act_on(&run_coordinator::on_capacity);
  }

  /// Connects in a thread of its own: that may take seconds.
  void dial(std::uint32_t index) {
    node(index).dialling = true;
    node(index).tried = clock::now();
    auto self = caf::actor_cast<caf::weak_actor_ptr>(ctrl());
    system().spawn<caf::detached>([self, index, address = node(index).address, connect = services_.connect_node,
                                   cluster = config_.cluster, into = dialled_] {
      auto connection = connect(cluster, address);
      {
        auto lock = std::lock_guard{into->mutex};
        into->found.insert_or_assign(index, std::move(connection));
      }
      if (auto strong = self.lock())
        caf::anon_send(caf::actor_cast<trainer_interface>(strong),
                       deadline_reached{static_cast<std::uint32_t>(deadline::dialled), 0});
    });
  }

  void take_in_who_was_dialled() {
    std::map<std::uint32_t, expected<std::unique_ptr<connected_node>>> found;
    {
      auto lock = std::lock_guard{dialled_->mutex};
      found.swap(dialled_->found);
    }
    for (auto& [index, connection] : found) {
      node(index).dialling = false;
      if (connection)
        take_in(index, std::move(*connection));
    }
  }

  void tick() {
    if (concluding_)
      return;
    remind_me(deadline::tick, tick_interval);
    auto now = clock::now();
    for (const auto& [index, silent_for] : monitor_->silent(now)) {
      node(index).fenced = true;
      lose_node(index, "node " + name_of(index) + " has said nothing for " +
                           std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(silent_for).count()) +
                           " ms: it is frozen, or the network is cut");
    }
    for (auto i : roster_->to_try(now))
      if (links_[i].connection)
        ask_for_offer(i);
      else if (!node(i).address.empty())
        dial(i);
    if (!coordinator_)
      place_when_all_have_answered();
    else
      look_after_workers(now);
  }

  void look_after_workers(clock::time_point now) {
    act(coordinator_->on_tick(now));
    // Whoever waits in a regroup waits for the driver, and is not to blame.
    if (!concluding_ && coordinator_->goes_on() && !coordinator_->held())
      for (const auto& finding : standing_->check())
        deal_with(finding);
  }

  [[nodiscard]] bool replaces_who_stands() const { return config_.failure.hang == hang_mode::replace; }

  void deal_with(const hang_finding& finding) {
    notify(true, finding.reason);
    ask_what_they_do(finding.at_fault);
    if (finding.what == hang_finding::action::regroup)
      return act(coordinator_->on_group_hang(finding.reason, clock::now()));
    // Once one has returned, nobody else could do the rest.
    if (!coordinator_->somebody_has_finished() && finding.what == hang_finding::action::replace && finding.at_fault)
      fence(*finding.at_fault, finding.reason);
  }

  /// One worker, or all where nobody is at fault: their calls, and whom these wait for.
  void ask_what_they_do(std::optional<worker_id> one) {
    for (const auto& place : layout_.places())
      if (auto found = workers_.find(place.worker); found != workers_.end() && (!one || *one == place.worker))
        request(found->second, answer_patience, activity_question{result_.run})
            .then([this, rank = place.rank](
                      const activity_answer& x) { notify(true, "rank " + std::to_string(rank.value) + ": " + x.text); },
                  // Then there is less to be told.
                  [](const caf::error&) {});
  }

  void fence(worker_id worker, const std::string& why) {
    if (auto index = node_of(worker); index && links_[*index].connection)
      anon_send(links_[*index].connection->handle(), kill_worker{result_.run, worker, why});
  }

  [[nodiscard]] known_node& node(std::uint32_t index) { return (*roster_)[index]; }
  [[nodiscard]] const known_node& node(std::uint32_t index) const { return (*roster_)[index]; }

  [[nodiscard]] std::optional<std::uint32_t> node_of(worker_id worker) const {
    auto i = where_.find(worker);
    return i == where_.end() ? std::nullopt : std::optional{i->second};
  }

  [[nodiscard]] std::optional<std::uint32_t> sending_node() {
    for (std::uint32_t i = 0; i < links_.size(); ++i)
      if (links_[i].connection && caf::actor_cast<caf::actor_addr>(current_sender()) ==
                                      caf::actor_cast<caf::actor_addr>(links_[i].connection->handle()))
        return i;
    return std::nullopt;
  }

  void take_beat(const node_beat& beat) {
    auto index = sending_node();
    if (!index || beat.run != result_.run || !coordinator_ || concluding_)
      return;
    auto now = clock::now();
    if (std::exchange(node(*index).fenced, false))
      return readmit(*index);
    monitor_->heard(*index, now);
    for (const auto& each : beat.workers) {
      coordinator_->on_applied(each.worker, each.committed);
      coordinator_->on_sign_of_life(each.worker, each.progress, now);
      auto counts = each.generation == coordinator_->generation() || coordinator_->follows(each.worker);
      if (counts && each.worker.value < result_.workers.size())
        standing_->observe({each.worker, result_.workers[each.worker.value].rank, each.progress, each.activity,
                            "after step " + std::to_string(each.committed.value)},
                           now);
    }
  }

  /// A node that was given up speaks again: what it has of this run is of no use any more, but there is capacity.
  void readmit(std::uint32_t index) {
    notify(true, "node " + name_of(index) + " answers again: its workers end, and it takes new ones");
    node(index).state = node_state::asked;
    request(links_[index].connection->handle(), node_timeout, end_run{result_.run})
        .then([this, index] { ask_for_offer(index); },
              [this, index](const caf::error& reason) { node_failed(index, reason); });
  }

  void node_is_gone(std::uint32_t index, std::uint64_t connection) {
    if (concluding_ || links_[index].number != connection)
      return;
    auto text = "the connection to node " + name_of(index) + " is gone";
    if (!begun_ && (is_used(index) || (!coordinator_ && !config_.scaling.num_workers.is_elastic())))
      return conclude_run(run_status::failed, {errc::node_lost, text});
    node(index).fenced = false;
    node(index).tried = clock::now();
    auto was_leaving = node(index).state == node_state::leaving;
    lose_node(index, text + (was_leaving ? "" : ": look at that host and at its caf-node's output"));
    links_[index].connection.reset();
  }

  void lose_node(std::uint32_t index, const std::string& why) {
    monitor_->remove(index);
    node(index).state = node_state::away;
    if (coordinator_)
      act(coordinator_->on_node_lost(index, why, clock::now()));
  }

  void node_leaves(const node_leaving& message) {
    auto index = sending_node();
    if (!index || message.run != result_.run || !coordinator_ || concluding_)
      return;
    notify(true, "node " + name_of(*index) + " is going away in " + std::to_string(message.grace_ms / 1000) + " s");
    remind_me(deadline::drain, std::chrono::milliseconds{message.grace_ms / 2});
    // Its workers are placed: the run begins with them, and moves on from there.
    if (!begun_) {
      node(*index).leaves_soon = true;
      return;
    }
    node(*index).state = node_state::leaving;
    leave_node(*index);
  }

  void leave_node(std::uint32_t index) {
    act(coordinator_->on_node_leaving(index, !place_more(config_.scaling, capacities(), 1).empty()));
  }

  /// What Gloo sends is clear text.
  [[nodiscard]] bool is_private(const std::string& address) const {
    return config_.cluster.trusted_network || services_.is_loopback == nullptr || services_.is_loopback(address);
  }

  [[nodiscard]] std::vector<node_capacity> capacities() const {
    return roster_->capacities(coordinator_ ? coordinator_->occupied() : std::vector<worker_place>{});
  }

  // -- who starts where -----------------------------------------------------------------------------------------------

  void place_when_all_have_answered() {
    if (concluding_ || coordinator_ || roster_->awaits_answers())
      return;
    auto decision = roster_->place(node_state::offered, next_worker());
    auto all_are_there = roster_->in_state(node_state::away).empty();
    auto waited = clock::now() - started_;
    if (!decision) {
      if (!config_.scaling.num_workers.is_elastic() || all_are_there || waited > config_.scaling.wait_for_workers)
        return conclude_run(run_status::failed, std::move(decision.error()));
      if (!std::exchange(told_to_wait_, true))
        notify(true, "waits for nodes: " + decision.error().message);
      return;
    }
    // There may be capacity for more in a moment.
    if (decision->places.size() < config_.scaling.num_workers.max && waited < config_.scaling.scale_up_wait &&
        !all_are_there)
      return;
    if (!decision->warning.empty())
      notify(true, decision->warning);
    begin_with(std::move(decision->places));
  }

  [[nodiscard]] worker_id next_worker() const { return worker_id{static_cast<std::uint32_t>(result_.workers.size())}; }

  void begin_with(std::vector<worker_place> places) {
    if (auto fit = lay_out(std::move(places)); !fit)
      return conclude_run(run_status::failed, std::move(fit.error()));
    warn_of_uneven_shards();
    if (auto trusted = roster_->check_data_plane(layout_.places()); !trusted)
      return conclude_run(run_status::failed, std::move(trusted.error()));
    if (auto claimed = claim_directory(); !claimed)
      return conclude_run(run_status::failed, std::move(claimed.error()));
    spawn_helpers();
    coordinator_.emplace(
        run_coordinator::settings{result_.run, services_.build_id, layout_.places(), config_.run.allow_mixed_hosts,
                                  state_.resumed, services_.compare_numerics, config_.failure,
                                  config_.scaling.num_workers, state_.step, config_.run.start_timeout});
    for (auto i : roster_->in_state(node_state::offered))
      open_on(i);
  }

  /// Who is where from now on, and what carries the gradients between them.
  expected<void> lay_out(std::vector<worker_place> places) {
    auto choice = choose_transport(config_.run.transport, places);
    // Everybody that is left could use what was chosen before, except where a host or all others are gone.
    if (!choice && begun_)
      choice = choose_transport(transport_mode::automatic, places);
    if (!choice)
      return fail(std::move(choice.error()));
    if (choice->transport != transport_kind::self && choice->transport != transport_)
      notify(false,
             (config_.scaling.use_gpu ? "what lies in host memory goes over " : "gradients go over ") + choice->reason);
    transport_ = choice->transport;
    layout_ = {std::move(places), roster_->data_addresses(), config_.scaling.shards, transport_};
    return {};
  }

  void warn_of_uneven_shards() {
    auto n = layout_.world_size();
    auto v = config_.scaling.shards;
    auto most = (v + n - 1) / n;
    auto efficiency = static_cast<double>(v) / (static_cast<double>(n) * most);
    if (efficiency < 0.85)
      notify(true, std::to_string(n) + " workers share " + std::to_string(v) + " shards unevenly: they run at " +
                       std::to_string(static_cast<int>(efficiency * 100)) +
                       " % of what they could (a multiple of the number of workers, such as 24 or 64, suits better)");
  }

  /// Starts the processes of these workers; the coordinator knows of them.
  void start(const std::vector<worker_place>& places) {
    remind_me(deadline::start, config_.run.start_timeout);
    auto layout = group_layout{places, roster_->data_addresses(), config_.scaling.shards, transport_};
    std::map<std::uint32_t, start_workers> messages;
    for (const auto& place : places) {
      auto& message = messages[place.node];
      message.run = result_.run;
      message.arguments = config_.arguments;
      message.workers.push_back(
          {place.worker, layout.environment_of(place), resources_of_worker(config_.scaling).gpus});
      result_.workers.resize(std::max<std::size_t>(result_.workers.size(), place.worker.value + 1));
      result_.workers[place.worker.value] = {place.worker, place.rank, node(place.node).offer.host, name_of(place.node),
                                             0};
      where_[place.worker] = place.node;
      living_.insert(place.worker);
    }
    for (auto& [node, message] : messages) {
      auto workers = message.workers;
      request(links_[node].connection->handle(), node_timeout, std::move(message))
          .then([](const workers_started&) {},
                [this, node = node, workers](const caf::error& reason) { not_started(node, workers, reason); });
    }
  }

  void not_started(std::uint32_t node, const std::vector<worker_launch>& workers, const caf::error& reason) {
    if (coordinator_->attempt() == 1 && coordinator_->starting())
      return node_failed_to_start(node, reason);
    for (const auto& each : workers)
      ended({result_.run, each.worker, never_started, "it could not be started: " + from_caf(reason).message, {}});
  }

  void node_failed_to_start(std::uint32_t node, const caf::error& reason) {
    auto ours = from_caf(reason);
    conclude_run(run_status::failed, {ours.code, "node " + name_of(node) + ": " + ours.message});
  }

  /// As many of `count` as there is capacity for.
  void start_additional(std::uint32_t count) {
    auto nodes = place_more(config_.scaling, capacities(), count);
    std::vector<worker_place> places;
    for (auto node : nodes) {
      auto id = static_cast<std::uint32_t>(result_.workers.size() + places.size());
      places.push_back(
          {worker_id{id}, rank_id{layout_.world_size() + static_cast<std::uint32_t>(places.size())}, node, 0, 1});
    }
    if (places.empty())
      return;
    coordinator_->on_started(places, clock::now());
    start(places);
  }

  // -- nobody is left -------------------------------------------------------------------------------------------------

  /// Begins again from the latest checkpoint, once nothing of the attempt before can add to it.
  void restart(const std::string& why) {
    notify(true, why + ": the run starts again from its latest checkpoint");
    ++result_.restarts;
    restart_why_ = why;
    restart_began_ = clock::now();
    furthest_ = std::max(furthest_, coordinator_->furthest());
    fail_pending({errc::aborted, "the run starts again from a checkpoint"});
    workers_.clear();
    for (auto worker : living_)
      fence(worker, "the run starts again from a checkpoint");
    commands_.clear();
    standing_->clear();
    auto next = generation_started{result_.run, coordinator_->generation(), 0};
    anon_send(collectives_, next);
    auto attempt = coordinator_->attempt();
    request(store_, caf::infinite, next)
        .then([this, attempt] { begin_again(attempt); }, [this, attempt](const caf::error&) { begin_again(attempt); });
  }

  void begin_again(std::uint32_t attempt) {
    if (concluding_ || attempt != coordinator_->attempt())
      return;
    if (auto found = begin_with_state_of(*directory_); !found)
      return conclude_run(run_status::failed, std::move(found.error()));
    awaiting_room_ = true;
    told_to_wait_ = false;
    remind_me(deadline::capacity, config_.scaling.wait_for_workers);
    place_again();
  }

  /// Until a process has ended, its GPU is not free for another.
  [[nodiscard]] bool awaits_gpus() const {
    auto holds_one = [this](worker_id x) { return node(where_.at(x)).state == node_state::open; };
    return resources_of_worker(config_.scaling).gpus > 0 && std::ranges::any_of(living_, holds_one);
  }

  void place_again() {
    if (awaits_gpus())
      return;
    auto decision = roster_->place(node_state::open, next_worker());
    if (!decision) {
      if (!std::exchange(told_to_wait_, true))
        notify(true, "waits for nodes: " + decision.error().message);
      return;
    }
    awaiting_room_ = false;
    if (auto fit = lay_out(std::move(decision->places)); !fit)
      return conclude_run(run_status::failed, std::move(fit.error()));
    if (auto trusted = roster_->check_data_plane(layout_.places()); !trusted)
      return conclude_run(run_status::failed, std::move(trusted.error()));
    coordinator_->on_restarted(layout_.places(), state_.resumed, state_.step);
    start(layout_.places());
  }

  // -- workers begin --------------------------------------------------------------------------------------------------

  caf::result<void> ready(const worker_ready& message, const worker_actor& worker) {
    if (message.run != result_.run || !coordinator_ || message.worker.value >= result_.workers.size())
      return to_caf(
          {errc::stale_generation, "this is the driver of run " + result_.run.value + ", not of " + message.run.value});
    if (!coordinator_->expects(message.worker))
      return to_caf({errc::stale_generation, "worker " + std::to_string(message.worker.value) +
                                                 " has been given up: the run goes on without it"});
    workers_[message.worker] = worker;
    auto& info = result_.workers[message.worker.value];
    info.pid = message.pid;
    info.host = message.host;
    if (numerics_.empty())
      numerics_ = message.numerics;
    act(coordinator_->on_ready(message));
    return caf::unit;
  }

  begin_training begin_message() const {
    begin_training message;
    message.run = result_.run;
    message.settings.function = function_;
    message.settings.name = config_.run.name;
    message.settings.directory = result_.path;
    message.settings.seed = config_.run.seed;
    message.settings.shards = config_.scaling.shards;
    message.settings.configuration = config_.config.dump();
    message.settings.options = config_.options.dump();
    message.settings.steps = config_.run.steps;
    message.resume.checkpoint = state_.restore_from;
    message.resume.restore_step = state_.restore_step;
    // A run's own state has to be whole.
    if (!state_.restore_step)
      message.resume.load = config_.load;
    message.resume.step = state_.step;
    message.checkpoints.every_steps = config_.checkpoint.every_steps;
    message.checkpoints.max_in_flight = config_.checkpoint.max_in_flight;
    message.checkpoints.sync = config_.checkpoint.sync;
    message.checkpoints.reuse_unchanged = config_.checkpoint.reuse_unchanged;
    message.settings.fast_reduction = config_.run.reduction == reduction_mode::fast;
    message.settings.keep_ledger = config_.run.keep_ledger;
    message.settings.check_every_step = config_.run.check_every_step;
    message.settings.verify_determinism = config_.run.verify_determinism;
    message.settings.collective_timeout_ms = static_cast<std::uint64_t>(config_.run.collective_timeout.count());
    message.settings.driver_ends_waits = replaces_who_stands();
    message.device.gpus = resources_of_worker(config_.scaling).gpus;
    message.device.gradients = config_.run.transport == transport_mode::automatic ? gpu_gradients::automatic
                               : config_.run.transport == transport_mode::nccl    ? gpu_gradients::by_nccl
                                                                                  : gpu_gradients::by_host;
    return message;
  }

  group_place place_of(const worker_place& who, const std::string& reason) const {
    auto place = layout_.place_of(who);
    place.generation = coordinator_->generation();
    place.attempt = coordinator_->attempt();
    place.reason = reason;
    return place;
  }

  void begin_all_workers() {
    caf::anon_send(collectives_, generation_now());
    auto message = begin_message();
    if (parts_ && !state_.restore_from.empty())
      parts_->lend(state_.restore_from);
    for (const auto& place : layout_.places()) {
      message.worker = place.worker;
      message.checkpoints.part_stream = part_stream_for(place.worker);
      message.place = place_of(place, restart_why_);
      anon_send(workers_[place.worker], message);
    }
    // A node that was about to leave while they were started is to be left now.
    for (std::uint32_t i = 0; i < roster_->size(); ++i)
      if (std::exchange(node(i).leaves_soon, false) && node(i).state == node_state::open)
        node(i).state = node_state::leaving;
    for (auto i : roster_->in_state(node_state::leaving))
      leave_node(i);
    result_.exact = result_.exact && coordinator_->exact_hosts();
    meter_.begin(result_.run, started_, state_.step.value);
    if (coordinator_->attempt() == 1)
      return publish(run_started{result_.run, result_.name, result_.path, result_.workers, result_.resumed_from_step});
    generation_record record;
    record.run = result_.run;
    record.generation = coordinator_->generation();
    record.attempt = coordinator_->attempt();
    record.workers = layout_.world_size();
    record.commit_point = state_.step;
    record.steps_redone = furthest_.value - std::min(furthest_, state_.step).value;
    record.interrupted_step = true;
    record.reason = restart_why_ + "; started again from step " + std::to_string(state_.step.value);
    add(std::move(record));
  }

  void begin_joiner_of(worker_id worker) {
    auto message = begin_message();
    message.worker = worker;
    message.checkpoints.part_stream = part_stream_for(worker);
    // Its state comes from the others.
    message.resume.checkpoint.clear();
    message.place.attempt = coordinator_->attempt();
    // Preliminary: it hears of its place when it gets one.
    message.place.rank = rank_id{layout_.world_size()};
    message.place.world_size = layout_.world_size() + 1;
    message.place.local_world_size = 1;
    for (const auto& plan : coordinator_->accepted())
      message.earlier_evaluations.push_back(plan.evaluations);
    auto& handle = workers_[worker];
    anon_send(handle, message);
    // It missed what was said before.
    for (const auto& command : commands_)
      anon_send(handle, command);
  }

  void add(generation_record record) {
    notify(false, "generation " + std::to_string(record.generation.value) + " of " + std::to_string(record.workers) +
                      (record.workers == 1 ? " worker: " : " workers: ") + record.reason);
    for (const auto& place : layout_.places())
      record.members.push_back(result_.workers[place.worker.value]);
    publish(record);
    record.members.clear();
    result_.generations.push_back(std::move(record));
  }

  generation_started generation_now() const { return {result_.run, coordinator_->generation(), layout_.world_size()}; }

  // -- when members come and go ---------------------------------------------------------------------------------------

  caf::result<next_generation> report(const regroup_report& message) {
    if (message.run != result_.run || !coordinator_ || concluding_)
      return to_caf({errc::aborted, "the run is ending"});
    auto promise = make_response_promise<next_generation>();
    reports_.insert_or_assign(message.worker, promise);
    act(coordinator_->on_report(message, clock::now()));
    return promise;
  }

  void answer_report(worker_id worker, const error& reason) {
    if (auto waiting = reports_.extract(worker); !waiting.empty())
      waiting.mapped().deliver(to_caf(reason));
  }

  void answer_report(worker_id worker, const next_generation& what) {
    if (auto waiting = reports_.extract(worker); !waiting.empty())
      waiting.mapped().deliver(what);
  }

  void abort_workers(const error& reason) {
    tell_workers(abort_training{result_.run, coordinator_->generation(), reason});
    answer_plans([&](plan_promise& promise) { promise.deliver(to_caf(reason)); });
  }

  /// Nobody is left waiting for an answer that does not come.
  void fail_pending(const error& reason) {
    answer_plans([&](plan_promise& x) { x.deliver(to_caf(reason)); });
    for (auto& [worker, promise] : std::exchange(reports_, {}))
      promise.deliver(to_caf(reason));
  }

  void form(const form_generation& next) {
    if (auto fit = lay_out(next.places); !fit)
      return conclude_run(run_status::failed, std::move(fit.error()));
    // Before any worker hears of it.
    caf::anon_send(collectives_, generation_now());
    caf::anon_send(store_, generation_now());
    member_place message;
    message.commit_point = next.decision.commit_point;
    message.commands_agreed = next.decision.commands_agreed;
    message.evaluations = next.decision.evaluations;
    for (const auto& place : layout_.places()) {
      if (place.worker == next.decision.evaluation_source)
        message.evaluation_source = place.rank;
      if (std::ranges::find(next.joiners, place.worker) != next.joiners.end())
        message.joiners.push_back(place.rank);
    }
    for (const auto& place : layout_.places()) {
      auto compares = std::ranges::find(next.compared, place.worker) != next.compared.end();
      message.comparison = compares                ? state_comparison::whole
                           : next.compared.empty() ? state_comparison::slice
                                                   : state_comparison::nothing;
      message.place = place_of(place, next.record.reason);
      result_.workers[place.worker.value].rank = place.rank;
      answer_report(place.worker, next_generation{message});
    }
    for (auto worker : next.released) {
      answer_report(worker, next_generation{released{}});
      release(worker);
    }
    standing_->clear();
    add(next.record);
  }

  /// Their answers are not yet places in a generation.
  void stage(const stage_joiners& group) {
    staging_place place;
    place.number = group.number;
    place.generation = coordinator_->generation();
    place.sources = group.sources;
    place.joiners = group.joiners;
    for (auto [rank, worker] : group.told) {
      auto index = node_of(worker);
      place.rank = rank;
      place.data_address = group.across_nodes && index ? node(*index).offer.address : "127.0.0.1";
      answer_report(worker, next_generation{place});
    }
  }

  void release(worker_id worker) {
    if (auto found = workers_.find(worker); found != workers_.end())
      anon_send(found->second, release_worker{result_.run});
  }

  // -- while it runs --------------------------------------------------------------------------------------------------

  caf::result<plan_accepted> agree(const run_plan& plan) {
    if (plan.run != result_.run || !coordinator_ || coordinator_->over())
      return to_caf({errc::stale_generation, "this run has ended"});
    auto is_joiner = plan.generation == generation_id{};
    if (!is_joiner && plan.generation != coordinator_->generation())
      return to_caf({errc::stale_generation, "this generation is over"});
    // Nobody would answer a plan that comes after a failure, and its worker would wait for the end of the grace period.
    if (!coordinator_->training() && !(is_joiner && coordinator_->goes_on()))
      return to_caf({errc::aborted, "the run is ending"});
    auto promise = make_response_promise<plan_accepted>();
    plans_.insert_or_assign(plan.worker, promise);
    act(coordinator_->on_plan(plan));
    return promise;
  }

  void accept(const run_plan& plan) {
    meter_.set_plan(plan, clock::now());
    facts_ = {result_.run,           config_.run.seed,          config_.scaling.shards,
              plan.batch_samples,    collectives::tree_version, services_.build_id,
              config_.config.dump(), plan.data_fingerprint,     numerics_};
    // A part takes another way than these: the store must know them before any worker goes on. If the group is lost
    // meanwhile, the plans are said again.
    auto answer = [this, generation = coordinator_->generation()](auto deliver) {
      if (generation == coordinator_->generation())
        answer_plans(deliver);
    };
    request(store_, node_timeout, facts_)
        .then(
            [answer, generation = coordinator_->generation()] {
              answer([=](plan_promise& x) { x.deliver(plan_accepted{generation}); });
            },
            [answer](const caf::error& reason) { answer([&](plan_promise& x) { x.deliver(reason); }); });
  }

  void answer_plan(worker_id worker, const std::function<void(plan_promise&)>& deliver) {
    if (auto waiting = plans_.extract(worker); !waiting.empty())
      deliver(waiting.mapped());
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
    for (auto& [worker, each] : std::exchange(plans_, {}))
      deliver(each);
  }

  void take_metrics(const metrics_batch& batch) {
    if (batch.run != result_.run || batch.worker.value >= result_.workers.size() || !directory_ || !coordinator_ ||
        !coordinator_->knows(batch.worker))
      return;
    auto now = clock::now();
    directory_->append(batch, result_.workers[batch.worker.value].pid);
    if (batch.dropped > 0)
      notify(true, "rank " + std::to_string(batch.rank.value) + " reported faster than could be taken in: " +
                       std::to_string(batch.dropped) + " reports are lost");
    coordinator_->on_applied(batch.worker, batch.applied);
    for (const auto& row : batch.pauses)
      note_pause(row.generation, std::chrono::duration<double>(std::chrono::microseconds{row.pause_us}).count());
    if (batch.applied.value > state_.step.value) {
      if (result_.seconds_to_first_step == 0)
        result_.seconds_to_first_step = std::chrono::duration<double>(now - started_).count();
      if (restart_began_)
        note_pause(coordinator_->generation(),
                   std::chrono::duration<double>(now - *std::exchange(restart_began_, std::nullopt)).count());
    }
    for (auto step : batch.skipped)
      skipped(step);
    if (batch.rank.value != 0)
      return;
    if (auto event = meter_.add(batch, now))
      publish(*event);
  }

  void note_pause(generation_id generation, double seconds) {
    for (auto& each : result_.generations)
      if (each.generation == generation)
        each.pause_seconds = std::max(each.pause_seconds, seconds);
  }

  void finished(const worker_finished& message) {
    // One that finished before the others lost a member has no later generation.
    if (message.run == result_.run && coordinator_ && message.generation <= coordinator_->generation())
      act(coordinator_->on_finished(message, clock::now()));
  }

  void ended(const worker_ended& message) {
    if (message.run != result_.run || !coordinator_)
      return;
    workers_.erase(message.worker);
    living_.erase(message.worker);
    standing_->remove(message.worker);
    const auto holders =
        std::ranges::count_if(layout_.places(), [this](const auto& x) { return living_.contains(x.worker); });
    anon_send(collectives_, worker_gone{result_.run, message.worker, static_cast<std::uint32_t>(holders)});
    answer_report(message.worker, {errc::worker_lost, "its process has ended"});
    act(coordinator_->on_ended(message, clock::now()));
    if (awaiting_room_ && !concluding_)
      place_again();
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
    if (outcome.reason.code != errc::none) {
      ++result_.checkpoints.failed;
      publish(checkpoint_failed{result_.run, outcome.step, outcome.reason});
      return notify(true, "the checkpoint of step " + std::to_string(outcome.step.value) +
                              " failed, training goes on and the older ones stand: " + outcome.reason.message);
    }
    ++result_.checkpoints.taken;
    result_.latest_checkpoint = outcome.path;
    publish(checkpoint_saved{result_.run, outcome.step, outcome.path});
  }

  void skipped(step_id step) {
    // Once is enough for people: a slow device is slow every time.
    if (result_.checkpoints.skipped++ == 0)
      notify(true, "the checkpoint of step " + std::to_string(step.value) +
                       " is skipped, because the one before is still being written; so are later ones that come too "
                       "soon (checkpoints: fewer, or a higher max_in_flight)");
    publish(checkpoint_skipped{result_.run, step});
  }

  void stop(const stop_request& request) {
    if (!answer_.pending() || concluding_)
      return;
    if (!coordinator_)
      return conclude_run(run_status::stopped, {errc::stopped, "stopped on request before the first step"});
    act(coordinator_->on_stop(request));
  }

  caf::result<void> resize(const resize_request& request) {
    if (request.workers == 0 || request.workers > config_.scaling.shards) {
      auto text = "a run cannot have " + std::to_string(request.workers) + " workers: from 1 to " +
                  std::to_string(config_.scaling.shards) + ", its number of shards";
      notify(true, text);
      return to_caf({errc::invalid_argument, std::move(text)});
    }
    // Later placements are for the new size.
    auto& range = config_.scaling.num_workers;
    range = range.is_elastic() ? worker_range{std::min(range.min, request.workers), request.workers}
                               : worker_range{request.workers};
    roster_->resize_run(range);
    auto granted = caf::result<void>{caf::unit};
    if (coordinator_ && !concluding_)
      granted = do_or_refuse(coordinator_->on_resize(request.workers));
    if (awaiting_room_ && !concluding_)
      place_again();
    return granted;
  }

  caf::result<void> grant(actors::run_actions (run_coordinator::*decide)()) {
    if (!coordinator_ || concluding_)
      return caf::unit;
    return do_or_refuse(((*coordinator_).*decide)());
  }

  /// What the coordinator only warns of is told to whoever has asked for it, too.
  caf::result<void> do_or_refuse(const actors::run_actions& actions) {
    act(actions);
    if (actions.size() == 1 && std::holds_alternative<warn>(actions.front().what))
      return to_caf({errc::invalid_argument, actions.front().why});
    return caf::unit;
  }

  void reached(deadline which, std::uint64_t occasion) {
    if (occasion != occasion_of(which))
      return;
    switch (which) {
    case deadline::tick:
      return tick();
    case deadline::dialled:
      return take_in_who_was_dialled();
    case deadline::start:
      if (coordinator_ && !concluding_)
        act(coordinator_->on_start_timeout(clock::now()));
      return;
    case deadline::grace:
      return act_on(&run_coordinator::on_grace_timeout);
    case deadline::drain:
      return act_on(&run_coordinator::on_drain_timeout);
    case deadline::hold:
      return act_on(&run_coordinator::on_hold_timeout);
    case deadline::reports:
      return complain_about_reports();
    case deadline::capacity:
      if (awaiting_room_)
        conclude_run(run_status::failed,
                     {errc::unsatisfiable, "there was no capacity for the run's workers for longer than "
                                           "scaling.wait_for_workers: start its caf-nodes and run it again, it goes on "
                                           "from its latest checkpoint"});
      return;
    }
  }

  /// Nobody is given up for it: user code may take its time before it comes to a call that tells it.
  void complain_about_reports() {
    if (!coordinator_ || concluding_)
      return;
    auto awaited = coordinator_->awaited_reports();
    if (awaited.empty())
      return;
    notify(true,
           "the others wait for " + awaited +
               ": slow, or stopped? (kill -USR1 makes a worker say what it does; killing it lets the others go on)");
    remind_me(deadline::reports, report_patience);
  }

  void act_on(actors::run_actions (run_coordinator::*decide)()) {
    if (coordinator_ && !concluding_)
      act(((*coordinator_).*decide)());
  }

  /// Does what the coordinator has decided.
  void act(const actors::run_actions& actions) {
    auto grace_before = grace_running_;
    for (const auto& action : actions)
      std::visit(
          overloaded{
              [&](const begin_all&) { begin_all_workers(); },
              [&](const begin_joiner& x) { begin_joiner_of(x.worker); },
              [&](const accept_plans& x) { accept(x.plan); },
              [&](const accept_plan_of& x) {
                answer_plan(x.worker, [this](plan_promise& promise) {
                  promise.deliver(plan_accepted{coordinator_->generation()});
                });
              },
              [&](const refuse_plans& x) {
                auto refuse = [&](plan_promise& promise) { promise.deliver(to_caf(x.reason)); };
                x.worker ? answer_plan(*x.worker, refuse) : answer_plans(refuse);
              },
              [&](const refuse_report& x) { answer_report(x.worker, x.reason); },
              [&](const send_command& x) {
                commands_.push_back(x.command);
                tell_workers(x.command);
              },
              [&](const stage_joiners& x) {
                notify(false, action.why + ": it gets the state while the others train on");
                stage(x);
              },
              [&](const skip_loop& x) { answer_report(x.worker, next_generation{loop_completed{x.evaluations}}); },
              [&](const end_staging& x) {
                anon_send(collectives_, exchange_ended{result_.run, coordinator_->generation(), x.number});
              },
              [&](const abort_generation& x) {
                notify(true, action.why + "; the others go on");
                abort_workers(x.reason);
                // Who waits for an address or a checkpoint is let go, too: all have to report.
                auto next = generation_started{result_.run, generation_id{coordinator_->generation().value + 1}, 0};
                anon_send(collectives_, next);
                anon_send(store_, next);
                remind_me(deadline::reports, report_patience);
              },
              [&](const hold& x) {
                notify(true, action.why);
                if (x.for_workers)
                  remind_me(deadline::hold, config_.scaling.wait_for_workers);
              },
              [&](const form_generation& x) { form(x); },
              [&](const start_more& x) { start_additional(x.count); },
              [&](const fence_worker& x) { fence(x.worker, x.reason); },
              [&](const restart_run&) { restart(action.why); },
              [&](const release_one& x) { release(x.worker); },
              [&](const abort_all& x) {
                notify(true, action.why);
                abort_workers(x.reason);
                fail_pending(x.reason);
                send_exit(collectives_, caf::exit_reason::user_shutdown);
                end_store_after_its_parts();
              },
              [&](const release_all&) {
                fail_pending({errc::aborted, "the run is over"});
                tell_workers(release_worker{result_.run});
              },
              [&](const warn&) { notify(true, action.why); },
              [&](const conclude& x) { conclude_run(x.status, x.reason); },
          },
          action.what);
    grace_running_ = grace_running_ || coordinator_->in_grace();
    if (grace_running_ && !grace_before)
      remind_me(deadline::grace, grace_period);
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
    fail_pending({errc::aborted, "the run is ending"});
    if (coordinator_) {
      result_.failures = coordinator_->failures();
      result_.exact = result_.exact && coordinator_->exact_hosts();
      result_.state_sha256 = status == run_status::failed ? std::string{} : coordinator_->state_sha256();
      if (status != run_status::failed && result_.reason.code == errc::none && result_.state_sha256.empty())
        result_.state_sha256 = state_of(result_.latest_checkpoint);
      result_.steps = std::max({result_.steps, meter_.latest().step, coordinator_->final_step().value});
    }
    result_.metrics = meter_.latest().metrics;
    // What was not reported again is as it was when the run was left.
    result_.metrics.insert(state_.metrics.begin(), state_.metrics.end());
    end_on_nodes();
  }

  void end_on_nodes() {
    // A node that is given up is not waited for.
    auto is_waited_for = [this](std::uint32_t i) { return node(i).state != node_state::away; };
    for (std::uint32_t i = 0; i < links_.size(); ++i)
      ending_nodes_ += links_[i].connection && is_waited_for(i) ? 1 : 0;
    if (ending_nodes_ == 0)
      return deliver();
    auto done = [this] {
      if (--ending_nodes_ == 0)
        deliver();
    };
    for (std::uint32_t i = 0; i < links_.size(); ++i) {
      const auto& connection = links_[i].connection;
      if (connection && is_waited_for(i))
        request(connection->handle(), grace_period, end_run{result_.run}).then(done, [done](const caf::error&) {
          done();
        });
      else if (connection)
        anon_send(connection->handle(), end_run{result_.run});
    }
  }

  /// A training function with a loop of its own leaves its state in checkpoints only.
  static std::string state_of(const std::string& checkpoint) {
    if (checkpoint.empty())
      return {};
    auto stored = serialization::checkpoint::open(checkpoint);
    if (!stored)
      return {};
    return serialization::state_sha256(*stored).value_or(std::string{});
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
  starting_state state_;
  std::optional<node_roster> roster_;
  /// Of each node of the roster.
  std::vector<node_link> links_;
  std::uint64_t connections_ = 0;
  std::shared_ptr<dial_result> dialled_ = std::make_shared<dial_result>();
  std::optional<heartbeat_monitor<std::uint32_t>> monitor_;
  std::optional<hang_watch> standing_;
  /// The processes of the first attempt have been started.
  bool begun_ = false;
  bool told_to_wait_ = false;
  bool awaiting_room_ = false;
  std::string secret_ = serialization::random_hex(32);
  group_layout layout_;
  transport_kind transport_ = transport_kind::self;
  std::optional<run_coordinator> coordinator_;
  collectives_actor collectives_;
  checkpoint_store store_;
  std::unique_ptr<part_receiver> parts_;
  checkpoint_metadata facts_;
  std::map<worker_id, worker_actor> workers_;
  /// The nodes of all processes that were ever started, and those that have not ended.
  std::map<worker_id, std::uint32_t> where_;
  std::set<worker_id> living_;
  /// What was commanded in this attempt.
  std::vector<control_command> commands_;
  std::string numerics_;
  std::map<worker_id, plan_promise> plans_;
  std::map<worker_id, report_promise> reports_;
  std::string restart_why_;
  std::optional<clock::time_point> restart_began_;
  step_id furthest_;
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
