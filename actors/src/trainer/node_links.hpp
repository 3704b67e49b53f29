#pragma once

#include "trainer/interface.hpp"
#include <troupe/actors/trainer.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::actors {

/// The trainer's connections to its nodes, by index into the roster. Connects and disconnects in separate threads. Used
/// in the trainer's thread.
class node_links {
 public:
  using connect_function = std::function<expected<std::unique_ptr<connected_node>>(const std::string& address,
                                                                                   std::chrono::milliseconds limit)>;

  /// Sends `node_dialled` and `node_down` to `self`.
  node_links(trainer_base& self, connect_function connect) : self_(&self), connect_(std::move(connect)) {}

  /// Adds a node without a connection.
  void add() { links_.emplace_back(); }

  /// Connects to the node; `node_dialled` has the outcome. Nothing happens while it is being dialled.
  void dial(std::uint32_t index, const std::string& address, std::chrono::milliseconds limit);

  /// To be called with each outcome.
  void on_dialled(std::uint32_t index) { links_[index].is_dialled = false; }

  /// Takes a new connection in. From now on its end is reported by `node_down`.
  void accept(std::uint32_t index, std::shared_ptr<connected_node> connection);

  /// Whether the message is about the node's present connection.
  [[nodiscard]] bool is_current(const node_down& message) const;

  /// Tells the node's present connection from earlier ones; 0 without one.
  [[nodiscard]] std::uint64_t number_of(std::uint32_t index) const { return links_[index].number; }

  void disconnect(std::uint32_t index);

  /// Null without a connection.
  [[nodiscard]] const connected_node* operator[](std::uint32_t index) const { return links_[index].connection.get(); }

  /// The node whose actor this is.
  [[nodiscard]] std::optional<std::uint32_t> find(const caf::strong_actor_ptr& actor) const;

 private:
  struct link {
    std::shared_ptr<connected_node> connection;
    /// Counts the connections of the run.
    std::uint64_t number = 0;
    /// Whether a thread is connecting to it.
    bool is_dialled = false;
  };

  trainer_base* self_;
  connect_function connect_;
  std::vector<link> links_;
  std::uint64_t connections_ = 0;
};

} // namespace troupe::actors
