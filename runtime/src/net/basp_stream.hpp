#pragma once

#include "net/basp_guard.hpp"
#include "net/byte_channel.hpp"
#include "net/deadline_timer.hpp"
#include "net/keys/key_source.hpp"

#include <caf/expected.hpp>
#include <caf/intrusive_ptr.hpp>
#include <caf/io/network/default_multiplexer.hpp>
#include <caf/io/network/event_handler.hpp>
#include <caf/io/network/stream_manager.hpp>
#include <caf/io/receive_policy.hpp>
#include <caf/io/scribe.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace troupe::runtime {

/// What a connection says of itself, such as its address; the empty value if the system does not know it.
template <class T>
T or_empty(caf::expected<T> x) {
  return x ? std::move(*x) : T{};
}

/// Reads and writes one connection of CAF's broker in the multiplexer's thread, and ends it when `basp_guard` objects.
/// Watches the socket for writing only while there is something to send: the multiplexer is level-triggered and would
/// spin otherwise.
class basp_stream : public caf::io::network::event_handler {
 public:
  using operation = caf::io::network::operation;

  basp_stream(caf::io::network::default_multiplexer& multiplexer, int fd, byte_channel channel, basp_side side,
              caf::io::network::stream_manager& owner)
      : caf::io::network::event_handler(multiplexer, fd), channel_(std::move(channel)), guard_(side), owner_(owner) {}

  /// Performs the server's side of the handshake; without TLS, waits until the peer has sent something. Calls
  /// `accepted` after it has succeeded, and `on_first_data_or_end` when the first message after it has arrived or the
  /// connection has ended; each at most once.
  void accept(std::function<void()> accepted, std::function<void()> on_first_data_or_end);
  /// Starts to pass received data to the owner.
  void start();
  void resume();
  void pause() { watch_reads(false); }
  void configure_read(caf::io::receive_policy::config config);

  /// Called once, after the last transfer.
  void when_ended(std::function<void()> then) { on_end_ = std::move(then); }

  /// Null without TLS, or before the peer has sent data.
  [[nodiscard]] const tls_session* session() const noexcept { return channel_.session(); }

  caf::byte_buffer& wr_buf() noexcept { return next_out_; }
  caf::byte_buffer& rd_buf() noexcept { return in_; }
  void flush();

  /// Ends at once, without notifying the other end. Tells the owner if the handshake is done.
  void give_up();
  /// The acceptor is closing: ends this connection if its handshake is not done.
  void release();
  void graceful_shutdown() override;

  void handle_event(operation op) override;
  void removed_from_loop(operation) override {
    // See `watch`.
  }

 private:
  enum class phase : std::uint8_t {
    open,
    /// Writes what is pending, and reads nothing more.
    closing,
    ended,
  };

  [[nodiscard]] bool is_closing() const noexcept { return phase_ == phase::closing; }
  [[nodiscard]] bool has_ended() const noexcept { return phase_ == phase::ended; }
  void go_on_accepting();
  void on_readable();
  void on_writable();
  void read();
  void grow();
  bool hand_on();
  void prepare_read();
  [[nodiscard]] std::size_t room_bytes() const noexcept;
  void write();
  [[nodiscard]] bool take_next();
  void acknowledge(std::size_t count);
  void finish();
  void fail(operation op);
  void drop();
  void report_first_data_or_end();
  void watch_reads(bool on) { watch(operation::read, watches_reads_, on && !has_ended()); }
  void watch_writes(bool on) { watch(operation::write, watches_writes_, on && !has_ended()); }
  void watch(operation op, bool& watches, bool on);

  byte_channel channel_;
  basp_guard guard_;
  /// Contains this stream.
  caf::io::network::stream_manager& owner_;
  caf::intrusive_ptr<caf::io::network::stream_manager> self_;
  /// Set while the handshake lasts.
  std::function<void()> accepted_;
  /// Set until the peer's first message.
  std::function<void()> on_first_data_or_end_;
  std::function<void()> on_end_;

  bool watches_reads_ = false;
  bool watches_writes_ = false;
  bool read_wants_write_ = false;
  bool write_wants_read_ = false;
  phase phase_ = phase::open;

  /// How much the owner wants at a time, and how much of that is in `in_`.
  struct {
    caf::io::receive_policy_flag policy = caf::io::receive_policy_flag::at_most;
    std::size_t wanted = 1024;
    std::size_t least = 1;
    std::size_t collected = 0;
  } batch_;
  caf::byte_buffer in_;

  std::size_t written_ = 0;
  caf::byte_buffer out_;
  /// Data written by the broker since `out_` was taken. It is separate because a repeated write needs the same bytes.
  caf::byte_buffer next_out_;
};

/// The connection as CAF's broker has it.
class basp_scribe : public caf::io::scribe {
 public:
  /// With keys of a cluster, it ends when the peer's certificate is revoked. Null keys mean unencrypted.
  basp_scribe(caf::io::network::default_multiplexer& multiplexer, int fd, byte_channel channel, basp_side side,
              std::shared_ptr<key_source> keys);

  basp_stream& stream() noexcept { return stream_; }
  [[nodiscard]] const basp_stream& stream() const noexcept { return stream_; }

  void configure_read(caf::io::receive_policy::config config) override;
  void ack_writes(bool enable) override { stream_.ack_writes(enable); }
  caf::byte_buffer& wr_buf() override { return stream_.wr_buf(); }
  caf::byte_buffer& rd_buf() override { return stream_.rd_buf(); }
  void flush() override { stream_.flush(); }
  std::string addr() const override;
  std::uint16_t port() const override;
  void graceful_shutdown() override;
  void add_to_loop() override { stream_.resume(); }
  void remove_from_loop() override { stream_.pause(); }

 private:
  /// Whether the peer's certificate has a name and a role.
  [[nodiscard]] bool has_names() const;
  /// Looks at the peer now and then, until the connection ends.
  void watch_peer();
  void look_at_peer();

  bool started_ = false;
  basp_stream stream_;
  std::shared_ptr<key_source> keys_;
  std::optional<deadline_timer> watch_;
};

} // namespace troupe::runtime
