#include "simulated_worker.hpp"

#include "tcp/address.hpp"

#include <troupe/actors/decisions/join_handshake.hpp>
#include <troupe/actors/driver_relay.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <caf/all.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <netinet/in.h>
#include <utility>

namespace troupe::bench {

namespace {

using namespace std::chrono_literals;

constexpr auto join_limit = 60s;

/// As often as a real worker.
constexpr auto beat_interval = 200ms;

/// The tracked tensors of a small transformer, for every worker's plan.
std::string describe_tensors() {
  auto result = std::string{};
  for (int layer = 0; layer < 12; ++layer)
    for (const auto* name : {"attention.weight f32 [768, 2304]", "projection.weight f32 [768, 768]",
                             "mlp.up.weight f32 [768, 3072]", "mlp.down.weight f32 [3072, 768]"})
      result += fmt::format("block.{}.{}\n", layer, name);
  return result;
}

/// A worker's contribution to the exchange of its generation: the address at which it would listen.
std::string address_of(const group_place& place, worker_id worker) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<std::uint16_t>(20'000 + worker.value));
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  collectives::tcp_options options;
  options.rank = place.rank;
  options.world_size = place.world_size;
  options.generation = place.generation;
  return collectives::tcp::encode(options, {reinterpret_cast<const sockaddr*>(&where), sizeof(where)});
}

class simulated_worker : public actors::worker_actor::base {
 public:
  simulated_worker(caf::actor_config& cfg, std::shared_ptr<const host_facts> facts, actors::launch_request request)
      : actors::worker_actor::base(cfg),
        facts_(std::move(facts)),
        request_(std::move(request)),
        relay_(actors::spawn_driver_relay(system())) {}

  behavior_type make_behavior() override {
    join();
    return {
        [this](const begin_training& message) { begin(message); },
        [this](const control_command& command) { commands_ = std::max(commands_, command.sequence); },
        [this](const abort_training& message) { abort(message); },
        [](const release_worker&) {},
        [](const activity_question&) { return activity_answer{"simulated"}; },
    };
  }

  void on_exit() override {
    send_exit(relay_, caf::exit_reason::user_shutdown);
    relay_ = nullptr;
    facts_.reset();
  }

  const char* name() const override { return "troupe.simulated_worker"; }

 private:
  /// Ends this worker. The benchmark then fails, because the run does not begin or a generation is not formed.
  auto give_up() {
    return [this](const caf::error& reason) {
      std::fprintf(stderr, "simulated worker %u: %s\n", request_.worker.value,
                   actors::from_caf(reason).message.c_str());
      quit();
    };
  }

  void join() {
    const auto hello = join_request{request_.run, request_.worker, serialization::random_hex(16)};
    request(facts_->node, join_limit, hello)
        .then(
            [this, hello](const join_challenge& challenge) {
              if (auto known = actors::verify_node(request_.secret, hello, challenge); !known)
                return give_up()(actors::to_caf(known.error()));
              prove(challenge);
            },
            give_up());
  }

  void prove(const join_challenge& challenge) {
    auto proof =
        actors::make_proof(request_.secret, actors::join_role::worker, request_.run, request_.worker, challenge.nonce);
    request(facts_->node, join_limit, join_proof{request_.run, request_.worker, std::move(proof)},
            caf::actor_cast<actors::driver_follower>(relay_))
        .then(
            [this](const actors::run_control& control, const actors::collectives_actor& collectives,
                   const actors::checkpoint_store& store) {
              send(relay_, control, collectives, store);
              introduce();
            },
            give_up());
  }

  void introduce() {
    worker_ready ready;
    ready.run = request_.run;
    ready.worker = request_.worker;
    ready.pid = 1'000'000 + request_.worker.value;
    ready.host = facts_->host;
    ready.build_id = facts_->build_id;
    ready.numerics = facts_->numerics;
    request(relay_, caf::infinite, ready, caf::actor_cast<actors::worker_actor>(this))
        .then([this] { beat(); }, give_up());
  }

  void beat() {
    send(facts_->node, worker_beat{request_.run, request_.worker, place_.generation, committed_, progress_,
                                   activity_kind::user_code});
    run_delayed(beat_interval, [this] {
      ++progress_;
      beat();
    });
  }

  void begin(const begin_training& message) {
    place_ = message.place;
    form();
  }

  void form() {
    exchange_request message;
    message.run = request_.run;
    message.generation = place_.generation;
    message.rank = place_.rank;
    message.blob = address_of(place_, request_.worker);
    request(relay_, caf::infinite, message)
        .then([this](const exchange_result& all) { on_formed(all); }, unless_aborted(place_.generation));
  }

  void on_formed(const exchange_result& all) {
    if (all.generation != place_.generation || all.blobs.size() != place_.world_size)
      return;
    facts_->events.write(event_kind::formed, place_.generation.value);
    if (!std::exchange(has_agreed_, true))
      return agree();
    committed_.value += 1;
  }

  void agree() {
    run_plan plan;
    plan.run = request_.run;
    plan.generation = place_.generation;
    plan.worker = request_.worker;
    plan.steps = 1'000'000;
    plan.batch_samples = 4096;
    plan.data_samples = 1'000'000;
    plan.data_fingerprint = std::string(64, 'f');
    plan.tensors = describe_tensors();
    plan.state_bytes = std::uint64_t{1} << 30;
    request(relay_, caf::infinite, plan)
        .then(
            [this](const plan_accepted& accepted) {
              committed_.value += 1;
              facts_->events.write(event_kind::agreed, accepted.generation.value);
            },
            unless_aborted(place_.generation));
  }

  /// Ignores a refusal because the generation is over: the message is repeated in the next.
  std::function<void(const caf::error&)> unless_aborted(generation_id generation) {
    return [this, generation](const caf::error& reason) {
      const auto code = actors::from_caf(reason).code;
      if (generation == place_.generation && code != errc::aborted && code != errc::stale_generation)
        give_up()(reason);
    };
  }

  void abort(const abort_training& message) {
    if (message.generation < place_.generation || std::exchange(is_reporting_, true))
      return;
    regroup_report report;
    report.run = request_.run;
    report.generation = place_.generation;
    report.worker = request_.worker;
    report.number = ++reports_;
    report.position = worker_position::in_step{{committed_, commands_, 0}, false};
    report.reason = message.reason;
    request(relay_, caf::infinite, report)
        .then([this](const next_generation& next) { on_next(next); },
              [this](const caf::error& reason) {
                if (actors::from_caf(reason).code != errc::aborted)
                  give_up()(reason);
              });
  }

  void on_next(const next_generation& next) {
    is_reporting_ = false;
    const auto* member = std::get_if<member_place>(&next.what);
    if (member == nullptr)
      return;
    place_ = member->place;
    committed_ = member->commit_point;
    form();
  }

  std::shared_ptr<const host_facts> facts_;
  actors::launch_request request_;
  actors::driver_relay relay_;
  group_place place_;
  step_id committed_;
  std::uint64_t commands_ = 0;
  std::uint64_t reports_ = 0;
  std::uint64_t progress_ = 1;
  bool has_agreed_ = false;
  bool is_reporting_ = false;
};

} // namespace

caf::actor spawn_simulated_worker(caf::actor_system& system, std::shared_ptr<const host_facts> facts,
                                  actors::launch_request request) {
  return caf::actor_cast<caf::actor>(system.spawn<simulated_worker>(std::move(facts), std::move(request)));
}

} // namespace troupe::bench
