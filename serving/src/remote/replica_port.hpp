#pragma once

#include <troupe/collectives/listener.hpp>
#include <troupe/collectives/tcp_channel.hpp>
#include <troupe/collectives/unique_fd.hpp>
#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>
#include <troupe/port_range.hpp>
#include <troupe/runtime/secure_stream.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace troupe::serving {

/// The name of a replica's sessions.
inline constexpr auto session_name = "troupe-replica";

/// The key of sessions between those that know a secret.
[[nodiscard]] collectives::tcp::session_key key_of(const std::string& secret);

/// Where the process of one replica connects to. Only who has the key gets in; of others little memory is taken, and
/// none for more than five seconds.
class replica_port {
 public:
  /// Called in the thread of the port with each connection.
  using admit_function = std::function<void(runtime::secure_stream)>;

  /// Listens at `host`, an address of this machine. Fails with `errc::unreachable`.
  [[nodiscard]] static expected<std::unique_ptr<replica_port>> open(const std::string& host,
                                                                    const std::optional<port_range>& ports,
                                                                    const collectives::tcp::session_key& key,
                                                                    admit_function admit);
  ~replica_port();
  replica_port(const replica_port&) = delete;
  replica_port& operator=(const replica_port&) = delete;

  [[nodiscard]] const endpoint& at() const noexcept { return at_; }

 private:
  replica_port(endpoint at, collectives::tcp::listener listening, collectives::unique_fd ended,
               const collectives::tcp::session_key& key, admit_function admit);
  void watch(int listening);

  endpoint at_;
  collectives::tcp::listener listening_;
  /// Readable once the thread should end.
  collectives::unique_fd ended_;
  collectives::tcp::session_key key_;
  admit_function admit_;
  std::thread thread_;
};

} // namespace troupe::serving
