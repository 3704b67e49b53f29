#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/keys.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace troupe::runtime {

/// Who asks about members.
struct member_peer {
  /// Of the connection, which no other of this process has had.
  std::uint64_t id = 0;
  /// For people.
  std::string name;
  /// What its certificate allows; `both` where there are no roles: within a machine, and without TLS.
  certificate_role role = certificate_role::both;
  /// Whether its certificate is for this host; always true where there are no names.
  std::function<bool(const std::string& host)> is_named;
};

/// Answers questions about members (see member_messages.hpp). Called in the multiplexer's thread, so it waits for
/// nothing; outlives the connections.
class member_service {
 public:
  virtual ~member_service() = default;

  /// Always answers, if with an error.
  [[nodiscard]] virtual nlohmann::json answer(const member_peer& peer, const nlohmann::json& question) = 0;

  /// The connection with this id has ended.
  virtual void on_end(std::uint64_t peer) = 0;
};

/// Answers one kind of question of drivers and tools that is not about members: jobs, a mirror. The question has passed
/// the check of roles. Called as `member_service` is.
class node_service {
 public:
  virtual ~node_service() = default;

  /// Never waits. May throw: that is answered as `errc::invalid_argument`.
  [[nodiscard]] virtual nlohmann::json answer(const nlohmann::json& question) = 0;
};

/// One connection about members, without the connection: cuts what arrives into texts, and has them answered.
class member_session {
 public:
  member_session(std::shared_ptr<member_service> service, member_peer peer)
      : service_(std::move(service)), peer_(std::move(peer)) {}
  member_session(const member_session&) = delete;
  member_session& operator=(const member_session&) = delete;
  ~member_session() { service_->on_end(peer_.id); }

  /// How many bytes to read next.
  [[nodiscard]] std::size_t wanted_bytes() const noexcept { return wanted_; }

  /// Takes as many. Returns what to send, which may be nothing. After an error the connection must end; its message
  /// ends a sentence that begins with "it sent".
  [[nodiscard]] expected<std::string> take(std::string_view bytes);

 private:
  std::shared_ptr<member_service> service_;
  member_peer peer_;
  bool awaits_text_ = false;
  std::size_t wanted_ = 4;
};

} // namespace troupe::runtime
