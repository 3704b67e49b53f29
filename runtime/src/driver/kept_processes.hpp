#pragma once

#include <troupe/actors/trainer.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>

#include <caf/fwd.hpp>

#include <functional>
#include <memory>
#include <mutex>

namespace troupe::runtime {

/// What a driver keeps from one run to the next: its own node, and the processes of workers on all nodes. They end with
/// this. May be used by several threads.
class kept_processes {
 public:
  /// `on_ended` hears of processes that have ended before, in another thread. The actor system must outlive this.
  kept_processes(caf::actor_system& system, std::function<void(const processes_ended&)> on_ended);
  kept_processes(const kept_processes&) = delete;
  kept_processes& operator=(const kept_processes&) = delete;
  ~kept_processes();

  [[nodiscard]] const actors::process_group& group() const noexcept { return group_; }

  /// The driver's own node, which the first call starts.
  [[nodiscard]] expected<std::unique_ptr<actors::connected_node>>
  own_node(const std::function<expected<std::unique_ptr<actors::connected_node>>()>& start);

 private:
  actors::process_group group_;
  std::mutex mutex_;
  std::shared_ptr<actors::connected_node> node_;
};

} // namespace troupe::runtime
