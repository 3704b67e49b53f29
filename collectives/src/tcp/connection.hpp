#pragma once

#include "tcp/channel.hpp"
#include "transport/transport.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace troupe::collectives::tcp {

/// Precedes each message. Sent as it is, because all hosts of a group have the same byte order.
struct frame_header {
  enum : std::uint32_t {
    /// The receiver answers with an `acknowledgement` once its receive is posted.
    wants_acknowledgement = 1,
    /// Answers the message with this tag; no bytes follow.
    acknowledgement = 2,
  };

  std::uint64_t tag = 0;
  std::uint64_t size_bytes = 0;
  /// The sender's call, so that the receiver finds a mismatch with the first message.
  call_record call;
  std::uint32_t flags = 0;
  std::uint32_t reserved = 0;
};

/// The events of a connection. Called by the thread that moves the bytes.
class connection_events {
 public:
  /// The memory of this message is filled or no longer needed.
  virtual void completed(std::uint32_t peer, transport::ticket message) = 0;

  /// A message has begun to arrive. False if it contradicts this rank's calls: it is then not taken.
  [[nodiscard]] virtual bool fits(std::uint32_t peer, const frame_header& header) = 0;

 protected:
  ~connection_events() = default;
};

/// The messages to and from one peer, over a channel. Never blocks: the owner calls `write` and `read` while it waits
/// for this peer, and sleeps in `poll` when neither makes progress.
///
/// Receives are posted first, so that payload goes straight from the socket to its place. A message that arrives before
/// its receive is kept, if it is small; a large one waits in the socket, and with it all that follows. Messages with
/// equal tags and sizes are taken in the order in which they were sent.
class connection {
 public:
  using ticket = transport::ticket;

  /// Larger messages wait in the socket for their receive.
  static constexpr std::uint64_t kept_message_bytes = 64 << 10;
  /// The most that all kept messages of a peer take; more wait in the socket.
  static constexpr std::uint64_t kept_bytes_limit = 1 << 20;

  /// `events` outlives the connection.
  connection(std::uint32_t peer, std::unique_ptr<channel> stream, connection_events& events);

  /// Queues a message. `data` stays valid until it is completed.
  void send(ticket message, const frame_header& header, const std::byte* data);

  /// Posts a receive. `data` stays valid until it is completed.
  void receive(ticket message, const frame_header& wanted, std::byte* data);

  /// Queues the answer to a message, or the wait for it. No bytes follow its header.
  void send_acknowledgement(std::uint64_t tag);
  void receive_acknowledgement(ticket message, std::uint64_t tag);

  /// Move what can be moved without waiting, up to about `budget_bytes`. True if anything was.
  bool write(std::size_t budget_bytes);
  bool read(std::size_t budget_bytes);

  /// Whether there is something to write or to wait for.
  [[nodiscard]] bool wants_to_write() const noexcept { return !outgoing_.empty() || stream_->has_unsent(); }
  [[nodiscard]] bool wants_to_read() const noexcept {
    return !wanted_.empty() || std::holds_alternative<filling>(now_);
  }

  /// Whether the head of the stream is a message without a receive that is too large to keep.
  [[nodiscard]] bool is_blocked() const noexcept { return std::holds_alternative<parked>(now_); }

  /// The peer was seen to have closed its side.
  void note_hangup() noexcept {
    if (stage_ == stage::open)
      stage_ = stage::hung_up;
  }
  /// Nothing can be received any more, or nothing sent.
  [[nodiscard]] bool is_closed() const noexcept {
    return stage_ == stage::closed || (stage_ == stage::hung_up && (wants_to_write() || is_blocked()));
  }
  [[nodiscard]] const std::string& why() const noexcept { return stream_->why(); }

  /// Forgets all messages, so that the caller's memory is no longer accessed.
  void drop_all() noexcept;

  [[nodiscard]] std::uint32_t peer() const noexcept { return peer_; }
  [[nodiscard]] int fd() const noexcept { return stream_->fd(); }

 private:
  struct outgoing_message {
    ticket message = 0;
    frame_header header;
    const std::byte* data = nullptr;
  };
  struct wanted_message {
    ticket message = 0;
    frame_header header;
    std::byte* data = nullptr;
  };
  /// A message that arrived before its receive.
  struct kept_message {
    frame_header header;
    std::unique_ptr<std::byte[]> data;

    /// The size that counts towards the limit.
    [[nodiscard]] std::uint64_t cost_bytes() const noexcept { return header.size_bytes + sizeof(header); }
  };

  // The states of the incoming stream.
  struct between_messages {};
  struct filling {
    std::byte* at = nullptr;
    std::uint64_t left_bytes = 0;
    ticket message = 0;
  };
  struct keeping {
    kept_message what;
    std::uint64_t got_bytes = 0;
  };
  /// A message that waits for its receive.
  struct parked {
    frame_header header;
  };

  enum class stage : std::uint8_t {
    open,
    /// The peer was seen to have closed its side.
    hung_up,
    closed,
  };

  static constexpr ticket no_ticket = SIZE_MAX;

  bool advance();
  void begin_message(const frame_header& header);
  bool claim(const frame_header& header, filling& place);
  std::size_t take_buffered(std::byte* to, std::uint64_t size_bytes);
  transferred read_more();
  void count_written(std::size_t bytes);
  void close() noexcept { stage_ = stage::closed; }

  const std::uint32_t peer_;
  const std::unique_ptr<channel> stream_;
  connection_events& events_;

  std::deque<outgoing_message> outgoing_;
  /// Bytes of the first message that the channel has taken, including its header.
  std::uint64_t written_bytes_ = 0;

  std::vector<wanted_message> wanted_;
  std::vector<kept_message> kept_;
  std::uint64_t kept_bytes_ = 0;
  std::variant<between_messages, filling, keeping, parked> now_;
  /// Bytes read ahead: headers, small messages, and the start of larger ones.
  std::array<std::byte, 8192> buffer_;
  std::size_t buffer_begin_ = 0;
  std::size_t buffer_end_ = 0;

  stage stage_ = stage::open;
};

} // namespace troupe::collectives::tcp
