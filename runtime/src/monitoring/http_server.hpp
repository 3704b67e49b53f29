#pragma once

#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace troupe::runtime {

/// What a page answers.
struct http_answer {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

/// Serves a few pages over HTTP, for GET only: with four threads, no bodies, short timeouts and one request for each
/// connection, so that a peer can neither hold more than that nor fill memory. A peer that is slow on purpose can keep
/// others from being answered. The destructor waits for answers under way.
class http_server {
 public:
  /// By path. Called in the server's threads, several at once.
  using pages = std::map<std::string, std::function<http_answer()>>;

  /// Listens, and answers from now on. Fails with `errc::already_exists` for a port that is in use,
  /// `errc::invalid_argument` for an address that is not this host's.
  [[nodiscard]] static expected<std::unique_ptr<http_server>> open(const endpoint& where, pages what);

  http_server(const http_server&) = delete;
  http_server& operator=(const http_server&) = delete;
  ~http_server();

  /// With the actual port.
  [[nodiscard]] const endpoint& address() const noexcept;

 private:
  class impl;
  explicit http_server(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::runtime
