#pragma once

#include "trainer/interface.hpp"
#include <troupe/actors/decisions/node_naming.hpp>
#include <troupe/error.hpp>
#include <troupe/node_names.hpp>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// Asks which nodes a run may use, over and over, each time in a thread of its own. Used in the trainer's thread.
class node_discovery {
 public:
  using clock = std::chrono::steady_clock;
  using find_function = std::function<expected<std::vector<named_node>>()>;

  /// Sends `nodes_found` to `self`.
  node_discovery(trainer_base& self, find_function find) : self_(&self), find_(std::move(find)) {}

  /// Asks if it is time to. Several times a second.
  void on_tick(clock::time_point now);

  /// To be called with each answer.
  [[nodiscard]] node_naming::change take(const nodes_found& answer);

  [[nodiscard]] node_naming& naming() noexcept { return naming_; }
  [[nodiscard]] const node_naming& naming() const noexcept { return naming_; }

 private:
  trainer_base* self_;
  find_function find_;
  std::optional<clock::time_point> asked_;
  bool is_asking_ = false;
  node_naming naming_;
};

} // namespace troupe::actors
