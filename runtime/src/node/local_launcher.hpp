#pragma once

#include <troupe/actors/process_launcher.hpp>
#include <troupe/config.hpp>
#include <troupe/runtime/keys.hpp>
#include <troupe/runtime/process.hpp>
#include <troupe/runtime/program.hpp>

#include <array>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <variant>
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

/// Starts the programs of this directory, by their file names, wherever the driver has its own.
struct program_directory {
  std::filesystem::path path;
};

/// Starts any program, at the driver's path. For a node that only its own user on its own host can command, who can
/// start programs anyway.
struct drivers_path {};

/// For a node inside the driver: starts this program. If it is the driver's own, the running one is used, even if its
/// file has been replaced.
struct one_program {
  std::string path;
};

/// The only programs that a node starts.
using program_source = std::variant<program_directory, drivers_path, one_program>;

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
};

[[nodiscard]] std::string to_text(const worker_bootstrap& bootstrap);
[[nodiscard]] expected<worker_bootstrap> parse_bootstrap(const std::string& text);

/// Starts worker processes on this machine. `entry` is shared with the code that opens the node's port.
[[nodiscard]] actors::launcher_factory make_local_launcher(program_source source,
                                                           std::shared_ptr<const worker_entry> entry);

} // namespace troupe::runtime
