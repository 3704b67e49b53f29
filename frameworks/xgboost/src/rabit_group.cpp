#include "rabit_group.hpp"

#include <troupe/runtime/keys.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

namespace troupe::xgboost {

namespace {

/// Ends the process unless it is destroyed in time: for calls without a deadline of their own.
class watchdog {
 public:
  watchdog(std::chrono::seconds limit, const char* what)
      : thread_([this, limit, what](const std::stop_token& stop) {
          auto lock = std::unique_lock{mutex_};
          if (condition_.wait_for(lock, stop, limit, [&stop] { return stop.stop_requested(); }))
            return;
          if (stop.stop_requested())
            return;
          fmt::print(stderr, "{} within {} s: this worker exits, to be replaced\n", what, limit.count());
          std::_Exit(1);
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any condition_;
  std::jthread thread_;
};

/// Waits until the run has lost a worker, and then for XGBoost to notice it.
void watch_for_loss(const std::stop_token& stop, const train_context& ctx) {
  constexpr auto interval = std::chrono::milliseconds{100};
  constexpr auto patience = std::chrono::seconds{2};
  std::mutex mutex;
  std::condition_variable_any condition;
  auto lock = std::unique_lock{mutex};
  const auto stops_within = [&](std::chrono::milliseconds time) {
    return condition.wait_for(lock, stop, time, [&stop] { return stop.stop_requested(); });
  };
  while (!ctx.group_is_lost())
    if (stops_within(interval))
      return;
  if (stops_within(patience))
    return;
  fmt::print(stderr, "XGBoost still waits {} s after the run has lost a worker: this worker exits, to be replaced\n",
             patience.count());
  std::_Exit(1);
}

/// The tracker's address, and the secret that it requires.
struct rendezvous_point {
  std::array<char, 64> host{};
  std::array<char, 32> secret{};
  std::int32_t port = 0;
};

/// Rank 0's address, as reachable from the other workers' hosts.
std::string own_address() {
  const auto* found = std::getenv("MASTER_ADDR");
  return found == nullptr ? "127.0.0.1" : found;
}

/// Drops the lines in which a worker logs its task id: with 1.7 it contains the secret (no longer valid by then).
void print_log(const char* line) {
  if (std::strstr(line, "got new rank") == nullptr && std::strstr(line, "got rank") == nullptr)
    std::fprintf(stderr, "%s\n", line);
}

/// For the end of a group, in which a lost tracker or peer is no news.
void drop_log(const char*) {}

void check_version(const library_version& version) {
  // 2.0 has another tracker protocol than 1.7, and no tracker of its own.
  if (tracker_of(version) == tracker_kind::none)
    throw exception{errc::unsatisfiable, fmt::format("XGBoost {} can train with one worker only: several workers need "
                                                     "XGBoost 1.7, or 2.1 or later",
                                                     version.text())};
}

/// What a worker of the version's collective layer is configured with.
nlohmann::json worker_options(const library_version& version, const rendezvous_point& where, std::uint32_t rank,
                              std::chrono::seconds deadline) {
  if (tracker_of(version) == tracker_kind::librarys)
    return {{"dmlc_communicator", "rabit"},
            {"dmlc_tracker_uri", where.host.data()},
            {"dmlc_tracker_port", where.port},
            {"dmlc_task_id", library_tracker::task_id(rank)},
            // Does not retry a lost peer.
            {"dmlc_retry", 1},
            {"dmlc_timeout", deadline.count()}};
  auto secret = std::string{where.secret.begin(), where.secret.end()};
  return {{"xgboost_communicator", "rabit"},
          {"rabit_tracker_uri", where.host.data()},
          {"rabit_tracker_port", where.port},
          {"rabit_task_id", rabit_tracker::task_id(rank, secret)},
          // Does not retry a lost peer.
          {"DMLC_WORKER_CONNECT_RETRY", 1},
          {"rabit_timeout", 1},
          {"rabit_timeout_sec", deadline.count()},
          // The ring hangs if a peer is lost; the tree does not.
          {"rabit_reduce_ring_mincount", 2'147'483'647}};
}

} // namespace

expected<void> check_data_plane(const std::string& host, bool trusted_network) {
  if (trusted_network || runtime::is_loopback(host))
    return {};
  return fail(errc::invalid_argument,
              fmt::format("XGBoost's workers send each other clear text, and {} is not this machine: place all workers "
                          "on one node, or, if the network is private or a tunnel, say so with "
                          "cluster.trusted_network (--trusted-network)",
                          host));
}

rabit_group::rabit_group(train_context& ctx, library_ptr functions, const settings& how)
    : library_(std::move(functions)), deadline_(how.deadline) {
  if (ctx.world_size() == 1)
    return;
  check_version(library_->version());
  auto where = rendezvous_point{};
  if (ctx.rank() == 0) {
    auto secret = serialization::random_hex(where.secret.size() / 2);
    std::ranges::copy(secret, where.secret.begin());
    auto host = own_address().substr(0, where.host.size() - 1);
    where.port = start_tracker(host, ctx.world_size(), secret);
    std::ranges::copy(host, where.host.begin());
  }
  ctx.broadcast(std::span{reinterpret_cast<std::uint8_t*>(&where), sizeof where});
  value_or_throw(check_data_plane(where.host.data(), how.trusted_network));
  library_->check(library_->functions().XGBRegisterLogCallback(print_log));
  loss_watch_ = std::jthread{[&ctx](const std::stop_token& stop) { watch_for_loss(stop, ctx); }};
  connect(worker_options(library_->version(), where, ctx.rank(), deadline_).dump());
  // Ranks must be the run's, because each rank trains on its own range of rows.
  if (library_->functions().XGCommunicatorGetRank() != static_cast<int>(ctx.rank()) ||
      library_->functions().XGCommunicatorGetWorldSize() != static_cast<int>(ctx.world_size()))
    throw exception{errc::internal, "XGBoost's ranks are not the run's"};
  // The library's tracker serves anybody. Another process that took a place has left one of the ranks without.
  ctx.barrier();
}

std::uint16_t rabit_group::start_tracker(const std::string& host, std::uint32_t world_size, const std::string& secret) {
  if (tracker_of(library_->version()) == tracker_kind::librarys) {
    library_tracker_ = std::make_unique<library_tracker>(library_, host, world_size, deadline_);
    return library_tracker_->port();
  }
  tracker_ = value_or_throw(rabit_tracker::start(host, world_size, secret, deadline_));
  return tracker_->port();
}

void rabit_group::connect(const std::string& options) {
  auto limit = watchdog{deadline_ + std::chrono::seconds{5}, "XGBoost's workers have not connected to each other"};
  try {
    library_->check(library_->functions().XGCommunicatorInit(options.c_str()));
  } catch (const library_error& x) {
    if (tracker_ && tracker_->reason().code != errc::none)
      throw exception{tracker_->reason()};
    throw;
  }
  member_ = true;
}

void rabit_group::leave() noexcept {
  if (!std::exchange(member_, false))
    return;
  auto limit = watchdog{deadline_ + std::chrono::seconds{5}, "XGBoost has not left its workers' group"};
  (void)library_->functions().XGBRegisterLogCallback(drop_log);
  (void)library_->functions().XGCommunicatorFinalize();
  loss_watch_.request_stop();
}

rabit_group::~rabit_group() {
  leave();
}

} // namespace troupe::xgboost
