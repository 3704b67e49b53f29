#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::chaos {

/// A network of the run's own: a namespace for the driver, one for each node, all at one bridge; nothing of it can be
/// seen outside. Gone with this object.
class private_network {
 public:
  /// Fails with the reason, as it does without the right to make namespaces.
  [[nodiscard]] static std::unique_ptr<private_network> make(std::size_t nodes, std::string& reason);
  private_network(const private_network&) = delete;
  private_network& operator=(const private_network&) = delete;
  ~private_network();

  /// What goes before a command line that is to run in the driver's namespace, or the node's.
  [[nodiscard]] std::vector<std::string> at_driver() const;
  [[nodiscard]] std::vector<std::string> at_node(std::size_t node) const;
  /// The node's address, without a port.
  [[nodiscard]] static std::string address_of(std::size_t node);

  /// Takes the node's link down, or up again.
  void cut(std::size_t node) const;
  void mend(std::size_t node) const;

 private:
  explicit private_network(std::string prefix) : prefix_(std::move(prefix)) {}
  [[nodiscard]] std::string hub() const { return prefix_ + "hub"; }
  [[nodiscard]] std::string space_of(std::size_t node) const { return prefix_ + std::to_string(node); }
  [[nodiscard]] static std::string link_of(std::size_t node) { return "node" + std::to_string(node); }

  std::string prefix_;
  std::vector<std::string> spaces_;
};

} // namespace troupe::chaos
