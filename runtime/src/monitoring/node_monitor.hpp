#pragma once

#include "monitoring/host_figures.hpp"
#include "monitoring/http_server.hpp"
#include "monitoring/node_metrics.hpp"

#include <troupe/actors/node.hpp>
#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>

#include <chrono>
#include <memory>
#include <mutex>

namespace troupe::runtime {

/// The HTTP endpoint of a node.
class node_monitor {
 public:
  node_monitor() = default;
  node_monitor(const node_monitor&) = delete;
  node_monitor& operator=(const node_monitor&) = delete;
  ~node_monitor() = default;

  /// Fails as `http_server::open` does.
  [[nodiscard]] expected<void> listen(const endpoint& where);
  /// With the actual port. Only while it listens.
  [[nodiscard]] const endpoint& address() const noexcept { return server_->address(); }

  /// Takes in how the node stands. From any thread.
  void publish(actors::node_figures figures);

 private:
  [[nodiscard]] http_answer metrics();
  [[nodiscard]] http_answer health() const;
  [[nodiscard]] http_answer readiness() const;

  mutable std::mutex mutex_;
  actors::node_figures latest_;
  std::chrono::steady_clock::time_point heard_ = std::chrono::steady_clock::now();
  /// Looks at processes, without the node's thread waiting for it.
  std::mutex looking_;
  node_metrics metrics_;
  host_figures host_;
  /// Ends first.
  std::unique_ptr<http_server> server_;
};

} // namespace troupe::runtime
