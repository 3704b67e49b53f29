#include "remote/replica_run.hpp"

#include "remote/replica_messages.hpp"
#include "remote/replica_port.hpp"

#include <troupe/actor_system.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/actors/trainer.hpp>
#include <troupe/result.hpp>
#include <troupe/runtime/local_address.hpp>
#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/files/temporary_directory.hpp>

#include <caf/all.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace troupe::serving {

using namespace std::chrono_literals;

namespace {

constexpr std::size_t secret_bytes = 32;
constexpr auto first_pause = 500ms;
constexpr auto longest_pause = 30'000ms;
/// How long a process may take to end by itself.
constexpr auto stop_limit = 2s;
/// A process that has lived this long was started with success.
constexpr auto long_life = 30s;

/// Why the only worker of a run is gone.
error reason_of(const run_result& result) {
  return result.failures.empty() ? result.reason : result.failures.back().reason;
}

/// One worker, which lives until it is stopped, or lost.
trainer_config config_of(const remote_config& given, const std::string& node) {
  trainer_config result;
  result.scaling.num_workers = 1;
  result.scaling.shards = 1;
  result.scaling.resources_per_worker = given.resources_per_replica;
  result.scaling.node_labels = given.node_labels;
  result.scaling.wait_for_resources = given.wait_for_resources;
  result.scaling.wait_for_workers = 10s;
  result.cluster = given.cluster;
  result.cluster.discover = {};
  result.cluster.nodes.clear();
  if (!node.empty())
    result.cluster.nodes.push_back(node);
  result.failure.max_failures = 0;
  result.failure.replace_lost = false;
  result.failure.unreachable_after = 5s;
  result.failure.driver_grace = 5s;
  result.failure.hang = hang_mode::report;
  return result;
}

} // namespace

std::chrono::milliseconds pause_before(std::uint32_t tries) {
  return std::min<std::chrono::milliseconds>(longest_pause, first_pause * (1u << std::min<std::uint32_t>(tries, 16)));
}

replica_run::replica_run(replica_place& place, std::uint32_t replica)
    : place_(place), replica_(replica), thread_([this] { work(); }) {}

replica_run::~replica_run() {
  stop();
  {
    auto lock = std::unique_lock{mutex_};
    if (!changed_.wait_for(lock, stop_limit, [this] { return !trainer_; }))
      // A model that is being loaded, or predicts, cannot be interrupted.
      caf::anon_send(*trainer_, stop_request{.immediately = true});
  }
  thread_.join();
}

void replica_run::stop() {
  const auto lock = std::lock_guard{mutex_};
  is_stopped_ = true;
  changed_.notify_all();
  if (trainer_)
    caf::anon_send(*trainer_, stop_request{});
}

error replica_run::trouble() const {
  const auto lock = std::lock_guard{mutex_};
  return trouble_;
}

bool replica_run::pause(std::chrono::milliseconds time) {
  auto lock = std::unique_lock{mutex_};
  return !changed_.wait_for(lock, time, [this] { return is_stopped_; });
}

void replica_run::work() noexcept {
  std::uint32_t tries = 0;
  for (;;) {
    const auto begun = std::chrono::steady_clock::now();
    auto reason = error{};
    try {
      // One that fails at once is tried on the next node; one that has lived goes where it was.
      reason = run_once(tries);
    } catch (const exception& x) {
      reason = x.reason();
    } catch (const std::exception& x) {
      reason = {errc::internal, x.what()};
    }
    place_.links.drop(replica_);
    tries = std::chrono::steady_clock::now() - begun > long_life ? 0 : tries + 1;
    {
      const auto lock = std::lock_guard{mutex_};
      trouble_ = reason;
      if (is_stopped_)
        return;
    }
    const auto wait = pause_before(tries);
    place_.notice(fmt::format("warning: the process of replica {} has ended: {}; another starts in {:.1f} s", replica_,
                              reason.message, std::chrono::duration<double>{wait}.count()));
    if (!pause(wait))
      return;
  }
}

error replica_run::run_once(std::uint32_t tries) {
  const auto nodes = value_or_throw(place_.find_nodes());
  const auto node = nodes.empty() ? std::string{} : nodes[(replica_ + tries) % nodes.size()];
  auto config = config_of(place_.config, node);
  const auto secret = serialization::random_hex(secret_bytes);
  auto own = std::string{"127.0.0.1"};
  if (!node.empty()) {
    const auto where = value_or_throw(parse_endpoint(node));
    own = runtime::local_address_towards(where.host);
    if (own.empty())
      return {errc::unreachable, fmt::format("{} cannot be reached from this machine", where.host)};
  }
  const auto port = value_or_throw(
      replica_port::open(own, place_.config.cluster.ports, key_of(secret),
                         [this](runtime::secure_stream stream) { place_.links.add(replica_, std::move(stream)); }));
  config.options = to_json(replica_settings{port->at(), secret, place_.config.options});
  config.run.storage_path = place_.scratch;
  config.run.name = fmt::format("replica-{}", replica_);
  config.run.resume = resume_mode::never;
  const auto directory = serialization::temporary_directory{place_.scratch / config.run.name};
  return fit(std::move(config), node);
}

error replica_run::fit(trainer_config config, const std::string& node) {
  auto self = caf::scoped_actor{place_.system};
  const auto trainer =
      spawn_trainer(place_.system, place_.replica, std::move(config), [this](rank_id, const std::string& line) {
        place_.notice(fmt::format("[replica {}] {}", replica_, line));
      });
  {
    const auto lock = std::lock_guard{mutex_};
    if (is_stopped_)
      return {errc::stopped, "stopped"};
    trainer_ = trainer;
  }
  auto reason = error{};
  self->request(trainer, caf::infinite, fit_request{})
      .receive([&](const run_result& result) { reason = reason_of(result); },
               [&](const caf::error& x) { reason = actors::from_caf(x); });
  const auto lock = std::lock_guard{mutex_};
  trainer_.reset();
  changed_.notify_all();
  if (reason.code == errc::none)
    reason = {errc::stopped, "it was stopped"};
  if (!node.empty())
    reason.message += fmt::format(" (on {})", node);
  return reason;
}

} // namespace troupe::serving
