#pragma once

#include "net/byte_channel.hpp"
#include "net/dialling.hpp"

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <utility>

namespace troupe::runtime {

/// A connection to a node over which one asks about the cluster's members (see member_messages.hpp). It blocks, until
/// its limit or a stop request. Used from one thread at a time.
class member_client {
 public:
  /// Null keys mean unencrypted. Fails as `dial` does, and with `errc::not_authenticated` if either end rejects the
  /// other's certificate, name or role, and `errc::unsupported_version` for a node that keeps no list.
  [[nodiscard]] static expected<member_client> connect(const endpoint& where, const std::shared_ptr<key_source>& keys,
                                                       std::chrono::milliseconds limit, std::stop_token stop = {});

  /// Returns the answer. Fails with what the node answers instead, with `errc::unreachable` if it does not answer
  /// within the limit, and with `errc::aborted` after a stop request. After any other failure than the node's own, the
  /// connection is of no use.
  [[nodiscard]] expected<nlohmann::json> ask(const nlohmann::json& question, std::chrono::milliseconds limit);

  [[nodiscard]] const endpoint& where() const noexcept { return where_; }

  /// Replaces the stop token.
  void stop_with(std::stop_token stop) { stop_ = std::move(stop); }

 private:
  member_client(endpoint where, collectives::unique_fd socket, byte_channel channel, std::stop_token stop)
      : where_(std::move(where)), socket_(std::move(socket)), channel_(std::move(channel)), stop_(std::move(stop)) {}

  [[nodiscard]] expected<void> send(const std::string& bytes, dialling_clock::time_point deadline);
  [[nodiscard]] expected<std::string> receive(std::size_t size, dialling_clock::time_point deadline);
  [[nodiscard]] error reason_of(tls_status status) const;

  endpoint where_;
  collectives::unique_fd socket_;
  byte_channel channel_;
  std::stop_token stop_;
};

} // namespace troupe::runtime
