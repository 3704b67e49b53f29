#pragma once

#include <troupe/actors/process_launcher.hpp>
#include <troupe/config.hpp>
#include <troupe/runtime/keys.hpp>
#include <troupe/runtime/process.hpp>
#include <troupe/runtime/program.hpp>

#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

/// How the processes of a node find it again. A driver may be connected before whoever opens the node's port knows it:
/// its workers wait for that moment.
class worker_entry {
 public:
  /// No keys: insecure.
  explicit worker_entry(std::optional<tls_files> keys = {}) : keys_(std::move(keys)) {}

  /// The node's port is open. Called once.
  void open(endpoint node) { promise_.set_value(std::move(node)); }

  /// Waits until it is.
  [[nodiscard]] const endpoint& node() const { return node_.get(); }
  [[nodiscard]] const std::optional<tls_files>& keys() const noexcept { return keys_; }

 private:
  std::optional<tls_files> keys_;
  std::promise<endpoint> promise_;
  std::shared_future<endpoint> node_{promise_.get_future()};
};

/// Where a node looks for programs.
struct program_source {
  /// Programs lie here under their file names; empty: at the same path as on the driver's host.
  std::filesystem::path directory;
  /// The node runs inside the driver: where the driver's own program is asked for, it is that, whatever has become of
  /// the file.
  bool own_program = false;
};

/// The variable that tells a process that it is a worker.
inline constexpr const char* worker_variable = "TROUPE_WORKER";

/// What a worker process is told through its bootstrap.
struct worker_bootstrap {
  run_id run;
  worker_id worker;
  std::string secret;
  endpoint node;
  std::optional<tls_files> keys;
  /// The GPUs that this node has given to the worker.
  std::vector<std::string> devices;
};

[[nodiscard]] std::string to_text(const worker_bootstrap& bootstrap);
[[nodiscard]] expected<worker_bootstrap> parse_bootstrap(const std::string& text);

/// Starts worker processes on this machine. `entry` is shared with whoever opens the node's port.
[[nodiscard]] actors::launcher_factory make_local_launcher(program_source source,
                                                           std::shared_ptr<const worker_entry> entry);

} // namespace troupe::runtime
