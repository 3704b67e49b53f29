#pragma once

#include "net/members/member_questions.hpp"

#include <troupe/error.hpp>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

namespace troupe::runtime {

/// Asks a node what takes its time (see ticket_desk.hpp). It connects with the first question, and again after a
/// failure. It blocks. Used from one thread at a time.
class ticket_client {
 public:
  ticket_client(std::string address, member_access how) : address_(std::move(address)), how_(std::move(how)) {}

  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  [[nodiscard]] const member_access& access() const noexcept { return how_; }

  /// Adds a ticket to the question, and returns the answer. Fails as `connect_to_node` and `member_client::ask` do,
  /// with `errc::unreachable` if the node has not carried it out after `patience`, and with `errc::aborted` if `stop`
  /// is requested.
  [[nodiscard]] expected<nlohmann::json> ask(nlohmann::json question, std::chrono::milliseconds patience,
                                             const std::stop_token& stop = {});

 private:
  [[nodiscard]] expected<nlohmann::json> ask_once(const nlohmann::json& question, const std::stop_token& stop);

  std::string address_;
  member_access how_;
  std::optional<member_client> node_;
};

/// With a limit of half a minute or more, for a node that writes files before it answers.
[[nodiscard]] member_access patient(member_access how);

} // namespace troupe::runtime
