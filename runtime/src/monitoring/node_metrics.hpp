#pragma once

#include <troupe/actors/node.hpp>
#include <troupe/runtime/process_usage.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <sys/types.h>

namespace troupe::runtime {

/// A node's figures and what its workers use of the host. What the processes of a run have used is added up from one
/// look to the next, so that the sum does not fall when one of them ends. A plain class.
class node_metrics {
 public:
  using sampler = std::function<std::optional<process_usage>(pid_t)>;

  struct run_usage {
    std::uint64_t resident_bytes = 0;
    /// Up to the last look at each of its processes.
    std::chrono::nanoseconds cpu{};
    /// By process.
    std::map<std::uint32_t, std::chrono::nanoseconds> of_processes = {};
  };

  /// Looks at all processes of these figures.
  void look(actors::node_figures figures, const sampler& sample);

  [[nodiscard]] const actors::node_figures& figures() const noexcept { return figures_; }
  /// By the name of the run. A run that is not here any more is forgotten.
  [[nodiscard]] const std::map<std::string, run_usage>& runs() const noexcept { return runs_; }

 private:
  actors::node_figures figures_;
  std::map<std::string, run_usage> runs_;
};

/// The page of a Prometheus endpoint.
[[nodiscard]] std::string to_prometheus(const node_metrics& metrics);

} // namespace troupe::runtime
