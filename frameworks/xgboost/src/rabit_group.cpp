#include "rabit_group.hpp"
#include "booster.hpp"

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
#include <xgboost/c_api.h>

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

/// Drops the line in which a worker logs its task id, because it contains the secret (no longer valid by then).
void print_log(const char* line) {
  if (std::strstr(line, "got new rank") == nullptr)
    std::fprintf(stderr, "%s\n", line);
}

void check_version() {
  int major = 0;
  int minor = 0;
  int patch = 0;
  XGBoostVersion(&major, &minor, &patch);
  // The tracker's protocol differs from 2.1 on, and only 1.7 is tested.
  if (major != 1 || minor != 7)
    throw exception{errc::unsatisfiable, fmt::format("XGBoost {}.{} can train with one worker only: several workers "
                                                     "need XGBoost 1.7, whose collective layer is supported",
                                                     major, minor)};
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

rabit_group::rabit_group(train_context& ctx, const settings& how) {
  if (ctx.world_size() == 1)
    return;
  check_version();
  const auto deadline = how.deadline;
  auto where = rendezvous_point{};
  if (ctx.rank() == 0) {
    auto secret = serialization::random_hex(where.secret.size() / 2);
    std::ranges::copy(secret, where.secret.begin());
    auto host = own_address().substr(0, where.host.size() - 1);
    tracker_ = value_or_throw(rabit_tracker::start(host, ctx.world_size(), secret, deadline));
    where.port = tracker_->port();
    std::ranges::copy(host, where.host.begin());
  }
  ctx.broadcast(std::span{reinterpret_cast<std::uint8_t*>(&where), sizeof where});
  value_or_throw(check_data_plane(where.host.data(), how.trusted_network));
  auto secret = std::string{where.secret.begin(), where.secret.end()};
  auto options = nlohmann::json{{"xgboost_communicator", "rabit"},
                                {"rabit_tracker_uri", where.host.data()},
                                {"rabit_tracker_port", where.port},
                                {"rabit_task_id", rabit_tracker::task_id(ctx.rank(), secret)},
                                // Does not retry a lost peer.
                                {"DMLC_WORKER_CONNECT_RETRY", 1},
                                {"rabit_timeout", 1},
                                {"rabit_timeout_sec", deadline.count()},
                                // The ring hangs if a peer is lost; the tree does not.
                                {"rabit_reduce_ring_mincount", 2'147'483'647}};
  check(XGBRegisterLogCallback(print_log));
  auto limit = watchdog{deadline + std::chrono::seconds{5}, "XGBoost's workers have not connected to each other"};
  try {
    check(XGCommunicatorInit(options.dump().c_str()));
  } catch (const library_error& x) {
    if (tracker_ && tracker_->reason().code != errc::none)
      throw exception{tracker_->reason()};
    throw;
  }
  member_ = true;
  // Ranks must be the run's, because each rank trains on its own range of rows.
  if (XGCommunicatorGetRank() != static_cast<int>(ctx.rank()) ||
      XGCommunicatorGetWorldSize() != static_cast<int>(ctx.world_size()))
    throw exception{errc::internal, "XGBoost's ranks are not the run's"};
}

void rabit_group::leave() noexcept {
  if (member_)
    (void)XGCommunicatorFinalize();
  member_ = false;
}

rabit_group::~rabit_group() {
  leave();
}

} // namespace troupe::xgboost
