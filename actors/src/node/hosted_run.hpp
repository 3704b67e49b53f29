#pragma once

#include "local_messages.hpp"
#include "node/start_order.hpp"
#include "outbox.hpp"

#include <troupe/actors/decisions/hosted_workers.hpp>
#include <troupe/actors/decisions/join_handshake.hpp>
#include <troupe/actors/decisions/worker_watch.hpp>
#include <troupe/actors/handles.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/types.hpp>

#include <caf/result.hpp>
#include <caf/typed_response_promise.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troupe::actors {

using node_interface = node_actor::extend<caf::result<void>(launch_outcome), caf::result<void>(process_ended),
                                          caf::result<void>(program_searched), caf::result<void>(output_waiting),
                                          caf::result<void>(driver_down), caf::result<void>(keeper_down)>;

/// A run whose program is being looked for.
struct opening_run {
  open_run what;
  driver_handles driver;
  /// Which of the node's searches looks for it; 0 before it has begun.
  std::uint64_t search = 0;
  /// Those who wait for it.
  std::vector<caf::typed_response_promise<run_opened>> waiting = {};
};

/// A run on one node.
struct hosted_run {
  open_run what;
  std::string program_path;
  join_handshake handshake;
  worker_watch watch;
  hosted_workers workers = {};
  /// What each worker takes.
  resources each = {};
  /// Whose processes its workers are; empty: their own.
  std::string group = {};
  /// Workers whose processes are being started.
  std::map<worker_id, std::shared_ptr<start_order>> starting = {};
  /// The living processes of its workers.
  std::map<worker_id, std::uint32_t> pids = {};
  /// The driver's last known handles.
  driver_handles driver = {};
  /// The number of the latest connection to its driver, which no other connection of this node has had.
  std::uint64_t connection = 0;
  /// Since when there is no connection.
  std::optional<std::chrono::steady_clock::time_point> alone_since = {};
  /// Messages for the driver, connected or not.
  outbox<node_interface::base, run_control> news = {};
  /// Whether output lines were sent that the driver has not acknowledged.
  bool sends_output = false;
  /// Workers that also need the driver's handles.
  std::map<worker_id, driver_follower> followers = {};
  /// When the last of its processes ended, until others are started.
  std::optional<std::chrono::steady_clock::time_point> ended_at = {};
  /// Set once the run must end here: the requests that are answered when no process of it is left.
  std::optional<std::vector<caf::typed_response_promise<void>>> ending = {};

  [[nodiscard]] bool has_ended() const { return ending && workers.all_ended_or_stuck(); }

  /// Its workers whose end the driver does not know, with their last heartbeats.
  [[nodiscard]] run_claimed claimed() const;
  [[nodiscard]] std::set<worker_id> workers_starting() const;
  /// One of its workers is not watched any more. Returns what the driver is told: with the reason, if it was killed.
  [[nodiscard]] worker_ended take_end(worker_ended event);
};

} // namespace troupe::actors
