#pragma once

#include "node/program_finder.hpp"

#include <troupe/actors/process_launcher.hpp>
#include <troupe/endpoint.hpp>
#include <troupe/runtime/keys.hpp>
#include <troupe/runtime/process.hpp>

#include <array>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

/// The address and keys with which a node's worker processes connect to it. A driver may ask for workers before the
/// node knows its own port; starting them waits until `open` is called.
class worker_entry {
 public:
  /// Without keys, connections are not encrypted.
  explicit worker_entry(std::optional<tls_files> keys = {}) : keys_(std::move(keys)) {}

  /// Sets the node's address. Call it once, when the port is open.
  void open(endpoint node) { promise_.set_value(std::move(node)); }

  /// Blocks until `open` has been called.
  [[nodiscard]] const endpoint& node() const { return node_.get(); }
  [[nodiscard]] const std::optional<tls_files>& keys() const noexcept { return keys_; }

 private:
  std::optional<tls_files> keys_;
  std::promise<endpoint> promise_;
  std::shared_future<endpoint> node_{promise_.get_future()};
};

/// The environment variable that marks a process as a worker.
inline constexpr const char* worker_variable = "TROUPE_WORKER";

/// Libraries choose their number of threads by the machine, and their results depend on it. These variables fix it.
inline constexpr std::array<const char*, 3> thread_variables{"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                                                             "MKL_NUM_THREADS"};

/// The content of a worker process's bootstrap.
struct worker_bootstrap {
  run_id run;
  worker_id worker;
  std::string secret;
  endpoint node;
  std::optional<tls_files> keys;
  /// The GPUs that this node has assigned to the worker.
  std::vector<std::string> devices;
  /// Whether the process waits for another bootstrap when it is released.
  bool is_reusable = false;
  /// Whether the process has been a worker of another run before.
  bool is_reused = false;
  /// Variables of the worker. A process that is started has them anyway.
  std::map<std::string, std::string> environment = {};
};

[[nodiscard]] std::string to_text(const worker_bootstrap& bootstrap);
[[nodiscard]] expected<worker_bootstrap> parse_bootstrap(const std::string& text);

/// Starts worker processes of the programs that `finder` finds. `entry` is shared with the code that opens the node's
/// port. The process of a worker that belongs to a group waits for another run when its worker is released: the next
/// worker of the group with the same program, arguments and GPUs has it. Its run sees no difference: for the node, the
/// worker before has ended.
[[nodiscard]] actors::launcher_factory make_local_launcher(std::shared_ptr<const program_finder> finder,
                                                           std::shared_ptr<const worker_entry> entry);

} // namespace troupe::runtime
