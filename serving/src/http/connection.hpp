#pragma once

#include "decisions/time_point.hpp"
#include "http/transport.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace troupe::serving {

/// What ends a client's time before it has sent the head of a request.
struct interruptions {
  /// A descriptor that is readable once the server stops.
  int stop;
  /// One that is readable while other connections wait for a place.
  int crowd;
  /// Asked when it is: whether this connection leaves its place. Thread-safe.
  std::function<bool()> leaves_place;
};

/// How a wait for a client ended.
enum class wait_outcome : std::uint8_t {
  ready,
  late,
  /// The client sends no more, or the connection is broken.
  ended,
  /// By the server.
  interrupted,
};

/// One connection: buffers what is received, and waits for the client. Used by one thread.
class connection {
 public:
  /// `events` outlives it.
  connection(std::unique_ptr<transport> below, std::string peer, std::chrono::milliseconds send_timeout,
             const interruptions& events);

  [[nodiscard]] const std::string& peer() const noexcept { return peer_; }

  /// TLS's handshake, where there is one.
  [[nodiscard]] wait_outcome begin(time_point deadline);

  /// What was received and not taken yet.
  [[nodiscard]] std::string_view received() const noexcept {
    return std::string_view{buffer_.data(), end_}.substr(next_);
  }
  /// Leaves these bytes, which are the last of `received`, for the next request.
  void keep(std::string_view rest) noexcept { next_ = end_ - rest.size(); }

  /// Receives more; only when nothing is left in `received`. Before the deadline only the client ends it.
  [[nodiscard]] wait_outcome receive(time_point deadline);

  /// The same, while no head of a request has come: ends when the server stops, and for a connection that waits for a
  /// place, if it does after `place_until`. What has come by then is received.
  [[nodiscard]] wait_outcome receive_head(time_point deadline, time_point place_until);

  /// Sends all; false if the connection is broken, or the client is too slow.
  [[nodiscard]] bool send(std::string_view bytes);

  /// Says that nothing more is sent.
  void end() { below_->end(); }

  /// The same, and reads on for a moment: a connection that is closed with unread bytes is reset, and the peer would
  /// not see the response.
  void linger();

 private:
  [[nodiscard]] wait_outcome await(io_state what, time_point deadline) const;
  [[nodiscard]] wait_outcome await_head(io_state what, time_point deadline, time_point place_until) const;
  template <class Wait>
  [[nodiscard]] wait_outcome fill(Wait wait);

  std::unique_ptr<transport> below_;
  std::string peer_;
  std::chrono::milliseconds send_timeout_;
  const interruptions& events_;
  bool is_broken_ = false;
  std::array<char, 16'384> buffer_;
  std::size_t next_ = 0;
  std::size_t end_ = 0;
};

} // namespace troupe::serving
