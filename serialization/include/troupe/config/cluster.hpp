#pragma once

#include <troupe/port_range.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// Where a driver asks which nodes it may use: when it begins, and every few seconds after that. Nodes that come get
/// workers; nodes that do not answer are passed over, and tried again; a node that three answers in a row do not name
/// is left, its workers between two steps. An answer that cannot be had, or names no node, changes nothing.
struct node_source {
  enum class kind : std::uint8_t {
    none,
    /// A file, as `parse_hosts` reads it.
    hosts_file,
    /// A name: the nodes are the hosts and ports of its SRV records; with `:PORT` behind it, the addresses that it has,
    /// with this port.
    dns_name,
    /// A program, which prints the lines of a host file within 10 seconds.
    script,
  };
  kind what = kind::none;
  std::string where = {};

  [[nodiscard]] bool is_set() const noexcept { return what != kind::none; }
  bool operator==(const node_source&) const = default;
};

/// On which nodes to run.
struct cluster_config {
  /// `HOST:PORT` of each caf-node. The run needs them all. Empty: the nodes are those of `discover`, or the driver
  /// hosts a node itself and the workers run on this machine.
  std::vector<std::string> nodes;
  /// Where the driver asks which nodes there are, instead of `nodes`.
  node_source discover = {};
  /// Connects without TLS. Anyone who reaches a port can then run code as its owner.
  bool insecure = false;
  /// Directory of the keys; empty: `$TROUPE_KEYS`, else `~/.config/troupe/keys`.
  std::filesystem::path keys;
  /// The network between the hosts is private, or a tunnel: saves the time that encrypting gradients takes, and lets
  /// NCCL, which sends clear text, carry them. Workers authenticate each other in any case.
  bool trusted_network = false;
  /// Everything that listens during a run takes its port from these, on every host: a firewall needs to open no more.
  /// Two for each worker of a host, and one more on the driver's. None: the system chooses.
  std::optional<port_range> ports;
  /// Deadline for connecting to a node.
  std::chrono::milliseconds connect_timeout{3'000};

  /// Whether workers run on this machine alone, on a node that the driver hosts.
  [[nodiscard]] bool is_embedded() const noexcept { return nodes.empty() && !discover.is_set(); }
};

} // namespace troupe
