#pragma once

#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>
#include <troupe/resources.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

/// The settings of a node.
struct node_options {
  endpoint listen{"127.0.0.1", 0};
  /// CPUs and GPUs to offer; detected where absent. CUDA_VISIBLE_DEVICES selects the GPUs.
  std::optional<std::uint32_t> cpus;
  std::optional<std::uint32_t> gpus;
  /// Memory to offer, in bytes; this host's where absent.
  std::optional<std::uint64_t> memory_bytes;
  /// Other resources to offer, by name.
  std::map<std::string, std::uint64_t> custom;
  /// By name, for runs that ask for nodes with certain ones.
  std::map<std::string, std::string> labels;
  /// Contains the programs that may be started, under their file names. Empty, on a node on loopback with keys: those
  /// at the paths that drivers give. Others need it.
  std::filesystem::path program_directory;
  bool insecure = false;
  std::filesystem::path keys;
  /// Where to serve the node's metrics over HTTP; port 0 for any. Nothing listens without it.
  std::optional<endpoint> metrics;
  /// Takes a line of the node's log, in any of its threads: while it waits, the node is silent.
  std::function<void(const std::string&)> log;
};

/// Owns a node, with an actor system of two threads, and the threads that watch worker processes. It dials nobody. The
/// destructor ends all workers.
class node_host {
 public:
  /// Opens the port. Fails if the address cannot be bound, and if others than this user on this host could connect: if
  /// there is no certificate then (unless `insecure`), or no programs that it may start.
  [[nodiscard]] static expected<node_host> start(const node_options& options);

  node_host(node_host&&) noexcept;
  node_host& operator=(node_host&&) noexcept;
  ~node_host();

  /// With the actual port.
  [[nodiscard]] const endpoint& address() const noexcept;

  [[nodiscard]] const resources& offered() const noexcept;

  /// Where its metrics are, with the actual port; nothing if nowhere.
  [[nodiscard]] std::optional<endpoint> metrics_address() const;

  /// Prepares for the loss of this host: asks the drivers of all runs to replace or release the workers here. `drained`
  /// is true once none is left or the grace period is over.
  void drain(std::chrono::milliseconds grace);
  [[nodiscard]] bool drained() const noexcept;

 private:
  class impl;
  explicit node_host(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

/// The CPUs and the memory that this process may use, and the GPUs that have device files and that CUDA_VISIBLE_DEVICES
/// selects.
[[nodiscard]] resources local_resources();

[[nodiscard]] std::string local_host_name();

} // namespace troupe::runtime
