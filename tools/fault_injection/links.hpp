#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace troupe::chaos {

/// A private network for a run: a namespace for the driver and one for each node, connected by a bridge and invisible
/// from outside. The destructor removes it.
class private_network {
 public:
  /// Returns null and sets `reason` on failure, for example without permission to create namespaces.
  [[nodiscard]] static std::unique_ptr<private_network> make(std::size_t nodes, std::string& reason);
  private_network(const private_network&) = delete;
  private_network& operator=(const private_network&) = delete;
  ~private_network();

  /// The prefix of a command line that makes it run in the driver's or a node's namespace.
  [[nodiscard]] std::vector<std::string> at_driver() const;
  [[nodiscard]] std::vector<std::string> at_node(std::size_t node) const;
  /// The node's address, without a port.
  [[nodiscard]] static std::string address_of(std::size_t node);

  /// Take the node's link down, and up again.
  void cut(std::size_t node) const;
  void mend(std::size_t node) const;
  /// The same between the driver and the node: nodes reach each other.
  void cut_control(std::size_t node) const;
  void mend_control(std::size_t node) const;
  /// The same between the node and all other nodes: the driver reaches all.
  void cut_data(std::size_t node) const;
  void mend_data(std::size_t node) const;
  /// Resets what the driver's host has connected to the node.
  void reset(std::size_t node) const;

 private:
  explicit private_network(std::string prefix) : prefix_(std::move(prefix)) {}
  void route_around(const char* verb, std::size_t node) const;
  [[nodiscard]] std::string hub() const { return prefix_ + "hub"; }
  [[nodiscard]] std::string space_of(std::size_t node) const { return prefix_ + std::to_string(node); }
  [[nodiscard]] static std::string link_of(std::size_t node) { return "node" + std::to_string(node); }

  std::string prefix_;
  std::vector<std::string> spaces_;
};

} // namespace troupe::chaos
