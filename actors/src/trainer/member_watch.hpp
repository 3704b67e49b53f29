#pragma once

#include "trainer/interface.hpp"
#include <troupe/error.hpp>
#include <troupe/member.hpp>

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// Asks the entry nodes of a cluster for its members, over and over, each time in a thread of its own. Used in the
/// trainer's thread.
class member_watch {
 public:
  using clock = std::chrono::steady_clock;
  using list_function = std::function<expected<std::vector<listed_member>>()>;

  /// Sends `members_listed` to `self`.
  member_watch(trainer_base& self, list_function list) : self_(&self), list_(std::move(list)) {}

  /// Asks if it is time to. Several times a second.
  void on_tick(clock::time_point now);

  /// To be called with each answer. Returns what to tell users, which is not the same twice in a row.
  [[nodiscard]] std::vector<std::string> take(const members_listed& answer);

  /// Whether an entry node has answered.
  [[nodiscard]] bool knows_members() const noexcept { return knows_members_; }
  /// Why no entry node answers, or which members are of no use; empty if there is nothing to say.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

 private:
  trainer_base* self_;
  list_function list_;
  std::optional<clock::time_point> asked_;
  bool is_asking_ = false;
  bool knows_members_ = false;
  /// Of the last answer.
  bool is_unreachable_ = false;
  std::string problem_;
  /// Members with another version, which users know of.
  std::set<std::string> reported_;
};

} // namespace troupe::actors
