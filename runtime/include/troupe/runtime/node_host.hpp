#pragma once

#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/resources.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace troupe::runtime {

/// What caf-node is told.
struct node_options {
  endpoint listen{"127.0.0.1", 0};
  /// CPUs and GPUs to offer; found by itself where left out. CUDA_VISIBLE_DEVICES says which GPUs.
  std::optional<std::uint32_t> cpus;
  std::optional<std::uint32_t> gpus;
  /// Where the programs of runs lie, by file name; empty: at the driver's path.
  std::filesystem::path program_directory;
  bool insecure = false;
  std::filesystem::path keys;
  std::function<void(const std::string&)> log;
};

/// A node for as long as it lives: its destructor ends all its workers. An own actor system, two threads, and the
/// supervisor's.
class node_host {
 public:
  /// Opens the port. Fails when the address cannot be had, or off loopback without a certificate.
  [[nodiscard]] static expected<node_host> start(const node_options& options);

  node_host(node_host&&) noexcept;
  node_host& operator=(node_host&&) noexcept;
  ~node_host();

  /// With the port that was got.
  [[nodiscard]] const endpoint& address() const noexcept;

  [[nodiscard]] const resources& offered() const noexcept;

  /// The host goes away: has the drivers of all runs replace or let go the workers that are here. `drained` tells when
  /// none is left, or the grace period is over.
  void drain(std::chrono::milliseconds grace);
  [[nodiscard]] bool drained() const noexcept;

 private:
  class impl;
  explicit node_host(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

/// What this machine has: CPUs that this process may use, and GPUs by their device files, as far as
/// CUDA_VISIBLE_DEVICES leaves them.
[[nodiscard]] resources local_resources();

/// This machine's name.
[[nodiscard]] std::string local_host_name();

} // namespace troupe::runtime
