#pragma once

#include "net/members/member_session.hpp"

#include <troupe/actors/decisions/member_table.hpp>
#include <troupe/actors/decisions/refusal_log.hpp>
#include <troupe/error.hpp>
#include <troupe/member.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

/// What a node's service has its node do.
struct member_command {
  enum class kind : std::uint8_t { drain, resume };
  kind what = kind::resume;
  /// Of a drain.
  std::chrono::milliseconds patience{0};
};

/// What one node knows of its cluster and says of itself. Shared by the threads that answer peers, that talk to entry
/// nodes, and the node's actor; never waits.
class membership : public member_service {
 public:
  using clock = std::chrono::steady_clock;

  using log_function = std::function<void(const std::string&)>;
  using obey_function = std::function<void(const member_command&)>;

  /// `self` without an address, which comes with `open`. `entries` are those that this node joins.
  membership(cluster_member self, std::vector<std::string> entries, log_function log);

  /// By what a question asks for: {"ask": NAME, ...}.
  using services = std::map<std::string, std::shared_ptr<node_service>, std::less<>>;

  /// The node listens at this address, and does what it is told by `obey`, in any thread. Before that, questions are
  /// refused.
  void open(const std::string& address, obey_function obey, services others);

  /// Questions to the services are refused from now on.
  void close_services();

  void set_certificate_expiry(std::optional<std::int64_t> seconds);
  /// What the node has and does. From its actor.
  void set_status(member_phase phase, resources free, std::vector<member_run> runs);
  /// From now on it says that it ends.
  void leave();

  [[nodiscard]] nlohmann::json answer(const member_peer& peer, const nlohmann::json& question) override;
  void on_end(std::uint64_t peer) override;

  /// The next beat for an entry node.
  [[nodiscard]] nlohmann::json next_beat();

  enum class entry_kind : std::uint8_t { another, this_node };
  /// Takes an entry node's answer to a beat.
  [[nodiscard]] expected<entry_kind> take_answer(const nlohmann::json& answer);

  /// Looks for members that have fallen silent. Once a second.
  void look();

  void log(const std::string& line) const {
    if (log_)
      log_(line);
  }

 private:
  [[nodiscard]] nlohmann::json answer_beat(const member_peer& peer, const nlohmann::json& beat);
  [[nodiscard]] nlohmann::json answer_members();
  [[nodiscard]] nlohmann::json obey(const member_peer& peer, const member_command& what);
  /// Takes in what somebody says of himself, and returns what to log.
  [[nodiscard]] std::string hear(const cluster_member& member, actors::member_table::source from);
  void hear_others(const nlohmann::json& members);
  [[nodiscard]] nlohmann::json refuse(const member_peer& peer, const error& why);
  /// The following need the lock.
  [[nodiscard]] const cluster_member& next_self();
  /// Whether others have joined this node lately.
  [[nodiscard]] bool is_entry(clock::time_point now) const;

  const log_function log_;
  const std::vector<std::string> entries_;
  mutable std::mutex mutex_;
  obey_function obey_;
  /// Who gave this node its last command.
  std::optional<std::pair<std::string, member_command::kind>> last_command_;
  services services_;
  cluster_member self_;
  actors::member_table table_;
  /// Who spoke over which connection.
  std::map<std::uint64_t, std::string> speakers_;
  std::optional<clock::time_point> joined_at_;
  actors::refusal_log refusals_;
};

} // namespace troupe::runtime
