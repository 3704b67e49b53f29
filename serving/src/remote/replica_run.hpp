#pragma once

#include "remote/replica_links.hpp"

#include <troupe/actors/handles.hpp>
#include <troupe/app.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/serving/remote_replicas.hpp>

#include <caf/fwd.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace troupe::serving {

/// How long a replica waits before it starts again, after so many tries that came to nothing. Pure.
[[nodiscard]] std::chrono::milliseconds pause_before(std::uint32_t tries);

/// What all replicas of a server share. Outlives them.
struct replica_place {
  caf::actor_system& system;
  const function& replica;
  const remote_config& config;
  /// Those that replicas may start on, at this moment; empty for this machine. Thread-safe, and blocks.
  std::function<expected<std::vector<std::string>>()> find_nodes;
  /// For the runs' own files; nobody else reads them.
  std::filesystem::path scratch;
  replica_links& links;
  /// Thread-safe.
  std::function<void(const std::string& line)> notice;
};

/// Keeps the process of one replica running: as the only worker of a run, and of another run when that has ended.
class replica_run {
 public:
  replica_run(replica_place& place, std::uint32_t replica);
  /// Ends the process.
  ~replica_run();
  replica_run(const replica_run&) = delete;
  replica_run& operator=(const replica_run&) = delete;

  /// Asks for the end; the destructor waits for it.
  void stop();

  /// Why the process could not be started the last time, or has ended; `errc::none` if it never did.
  [[nodiscard]] error trouble() const;

 private:
  void work() noexcept;
  /// `tries` counts those that came to nothing since the last success.
  [[nodiscard]] error run_once(std::uint32_t tries);
  [[nodiscard]] error fit(trainer_config config, const std::string& node);
  [[nodiscard]] bool pause(std::chrono::milliseconds time);

  replica_place& place_;
  const std::uint32_t replica_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopped_ = false;
  error trouble_;
  /// Of the run under way.
  std::optional<actors::trainer_actor> trainer_;
  std::thread thread_;
};

} // namespace troupe::serving
