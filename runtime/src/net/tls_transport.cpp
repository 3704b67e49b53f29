#include "net/tls_transport.hpp"

#include <troupe/actors/decisions/refusal_log.hpp>

#include <caf/byte_buffer.hpp>
#include <caf/io/abstract_broker.hpp>
#include <caf/io/network/acceptor_impl.hpp>
#include <caf/io/network/event_handler.hpp>
#include <caf/io/network/native_socket.hpp>
#include <caf/io/receive_policy.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

namespace troupe::runtime {

namespace {

namespace net = caf::io::network;

using clock = std::chrono::steady_clock;

/// How many unfinished handshakes one port keeps; a further one drops the oldest.
constexpr std::size_t max_waiting = 256;

/// How many records one connection reads or writes before the others have their turn.
constexpr int max_records = 50;

/// After a connection was closed on this side, how long the peer may accept none of the remaining data.
constexpr auto drain_limit = std::chrono::milliseconds{5'000};

template <class T>
T or_empty(caf::expected<T> x) {
  return x ? std::move(*x) : T{};
}

/// Reads and writes one connection in the multiplexer's thread. Watches the socket for writing only while there is
/// something to send: the multiplexer is level-triggered and would spin otherwise.
class tls_stream : public net::event_handler {
 public:
  tls_stream(net::default_multiplexer& multiplexer, int fd, std::unique_ptr<tls_session> session,
             net::stream_manager& owner)
      : net::event_handler(multiplexer, fd), session_(std::move(session)), owner_(owner) {}

  /// Performs the server's side of the handshake and calls `then` with the outcome, at most once.
  void accept(std::function<void(bool)> then) {
    accepted_ = std::move(then);
    watch_reads(true);
  }

  /// Starts to pass received data to the owner.
  void start() {
    prepare_read();
    resume();
  }

  void resume() {
    watch_reads(true);
    // The socket does not become readable for data that OpenSSL has already taken from it.
    if (session_->has_pending())
      backend().post([this, kept = self_] { handle_event(net::operation::read); });
  }

  void pause() { watch_reads(false); }

  [[nodiscard]] const tls_session& session() const noexcept { return *session_; }

  /// Called once, when nothing comes or goes any more.
  void when_ended(std::function<void()> then) { on_end_ = std::move(then); }

  /// The other end must not be talked to any more.
  void end() {
    if (!ended_)
      fail(net::operation::read);
  }

  void configure_read(caf::io::receive_policy::config config) {
    policy_ = config.first;
    wanted_bytes_ = config.second;
  }

  caf::byte_buffer& wr_buf() noexcept { return next_out_; }
  caf::byte_buffer& rd_buf() noexcept { return in_; }

  void flush() {
    if (!next_out_.empty() && !ended_ && !accepted_ && !write_wants_read_)
      watch_writes(true);
  }

  /// Ends at once, without notifying the other end.
  void drop() {
    ended_ = true;
    accepted_ = nullptr;
    watch_reads(false);
    watch_writes(false);
    if (const auto then = std::exchange(on_end_, nullptr))
      then();
  }

  void graceful_shutdown() override {
    if (closing_ || ended_)
      return;
    closing_ = true;
    if (accepted_) {
      drop();
    } else if (out_.empty() && next_out_.empty()) {
      finish();
    } else {
      auto limit = static_cast<unsigned>(drain_limit.count());
      ::setsockopt(fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof(limit));
      watch_writes(true);
    }
  }

  void handle_event(net::operation op) override {
    // The multiplexer may still have events to report for a connection that an earlier event has ended.
    if (ended_)
      return;
    if (op == net::operation::propagate_error)
      fail(op);
    else if (accepted_)
      go_on_accepting();
    else if (op == net::operation::read)
      on_readable();
    else
      on_writable();
  }

  void removed_from_loop(net::operation) override {
    // See `watch`.
  }

 private:
  void go_on_accepting() {
    auto status = session_->handshake();
    if (status == tls_status::failed) {
      fail(net::operation::read);
      return;
    }
    watch_writes(status == tls_status::wants_write);
    if (status == tls_status::done)
      std::exchange(accepted_, nullptr)(true);
  }

  void on_readable() {
    // Reads are not watched while one waits to write: the multiplexer would report the unread data in a loop.
    read();
    if (std::exchange(write_wants_read_, false))
      write();
  }

  void on_writable() {
    if (std::exchange(read_wants_write_, false)) {
      watch_reads(true);
      read();
    }
    if (!write_wants_read_)
      write();
  }

  void read() {
    // Read a partially read record to its end, because the socket does not become readable for the rest.
    for (auto reads = 0; watches_reads_ && (reads < max_records || session_->has_pending()); ++reads) {
      std::size_t count = 0;
      switch (session_->read(in_.data() + collected_, in_.size() - collected_, count)) {
      case tls_status::done:
        collected_ += count;
        if (collected_ >= threshold_ && !hand_on())
          return;
        break;
      case tls_status::wants_read:
        return;
      case tls_status::wants_write:
        read_wants_write_ = true;
        watch_reads(false);
        watch_writes(true);
        return;
      case tls_status::failed:
        fail(net::operation::read);
        return;
      }
    }
  }

  bool hand_on() {
    auto goes_on = owner_.consume(&backend(), in_.data(), collected_);
    if (ended_)
      return false;
    prepare_read();
    if (!goes_on)
      watch_reads(false);
    return goes_on;
  }

  /// Makes room for what the broker has asked for last.
  void prepare_read() {
    using flag = caf::io::receive_policy_flag;
    collected_ = 0;
    threshold_ = policy_ == flag::at_most ? 1 : wanted_bytes_;
    in_.resize(policy_ == flag::at_least ? wanted_bytes_ + std::max<std::size_t>(100, wanted_bytes_ / 10)
                                         : wanted_bytes_);
  }

  void write() {
    for (auto writes = 0; writes < max_records && !ended_; ++writes) {
      if (out_.empty() && !take_next())
        return;
      std::size_t count = 0;
      switch (session_->write(out_.data() + written_, out_.size() - written_, count)) {
      case tls_status::done:
        written_ += count;
        acknowledge(count);
        if (written_ == out_.size())
          out_.clear();
        break;
      case tls_status::wants_write:
        watch_writes(true);
        return;
      case tls_status::wants_read:
        write_wants_read_ = true;
        watch_writes(false);
        // A closing connection is no longer read, so this write could never continue.
        if (closing_)
          fail(net::operation::write);
        return;
      case tls_status::failed:
        fail(net::operation::write);
        return;
      }
    }
  }

  /// False when there is nothing more to write.
  bool take_next() {
    written_ = 0;
    out_.swap(next_out_);
    if (!out_.empty())
      return true;
    watch_writes(read_wants_write_);
    if (closing_)
      finish();
    return false;
  }

  void acknowledge(std::size_t count) {
    if (ack_writes())
      owner_.data_transferred(&backend(), count, out_.size() - written_ + next_out_.size());
  }

  void finish() {
    session_->close();
    ::shutdown(fd(), SHUT_WR);
    drop();
  }

  void fail(net::operation op) {
    ended_ = true;
    if (accepted_)
      std::exchange(accepted_, nullptr)(false);
    else
      owner_.io_failure(&backend(), op);
    drop();
  }

  void watch_reads(bool on) { watch(net::operation::read, watches_reads_, on && !ended_); }
  void watch_writes(bool on) { watch(net::operation::write, watches_writes_, on && !ended_); }

  /// Keeps this stream alive while it is watched, since the multiplexer holds plain pointers. It drops them only after
  /// it has handled all pending events; posted work runs after that.
  void watch(net::operation op, bool& watches, bool on) {
    if (watches == on)
      return;
    watches = on;
    if (on)
      backend().add(op, fd(), this);
    else
      backend().del(op, fd(), this);
    if (!watches_reads_ && !watches_writes_)
      backend().post([kept = std::move(self_)] {});
    else if (!self_)
      self_.reset(&owner_);
  }

  std::unique_ptr<tls_session> session_;
  /// Contains this stream.
  net::stream_manager& owner_;
  caf::intrusive_ptr<net::stream_manager> self_;
  /// Set while the handshake lasts.
  std::function<void(bool)> accepted_;
  std::function<void()> on_end_;

  bool watches_reads_ = false;
  bool watches_writes_ = false;
  bool read_wants_write_ = false;
  bool write_wants_read_ = false;
  bool closing_ = false;
  bool ended_ = false;

  caf::io::receive_policy_flag policy_ = caf::io::receive_policy_flag::at_most;
  std::size_t wanted_bytes_ = 1024;
  std::size_t threshold_ = 1;
  std::size_t collected_ = 0;
  caf::byte_buffer in_;

  std::size_t written_ = 0;
  caf::byte_buffer out_;
  /// Data written by the broker since `out_` was taken. It is separate because a repeated write needs the same bytes.
  caf::byte_buffer next_out_;
};

/// Calls `expired` in the multiplexer's thread.
class deadline_timer : public net::event_handler {
 public:
  deadline_timer(net::default_multiplexer& multiplexer, std::function<void()> expired)
      : net::event_handler(multiplexer, ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
        expired_(std::move(expired)) {}

  void start() { backend().add(net::operation::read, fd(), this); }
  void stop() { backend().del(net::operation::read, fd(), this); }

  void set(clock::duration from_now) {
    auto rest = std::chrono::ceil<std::chrono::milliseconds>(std::max(from_now, clock::duration{1})).count();
    auto time = itimerspec{{}, {rest / 1000, (rest % 1000) * 1'000'000}};
    ::timerfd_settime(fd(), 0, &time, nullptr);
  }

  void handle_event(net::operation op) override {
    std::uint64_t times = 0;
    if (op == net::operation::read && ::read(fd(), &times, sizeof(times)) == sizeof(times))
      expired_();
  }

  void removed_from_loop(net::operation) override {}
  void graceful_shutdown() override {}

 private:
  std::function<void()> expired_;
};

class tls_scribe : public caf::io::scribe {
 public:
  tls_scribe(net::default_multiplexer& multiplexer, int fd, std::unique_ptr<tls_session> session,
             std::shared_ptr<key_source> keys)
      : caf::io::scribe(net::conn_hdl_from_socket(fd)),
        stream_(multiplexer, fd, std::move(session), *this),
        keys_(std::move(keys)) {}

  tls_stream& stream() noexcept { return stream_; }
  [[nodiscard]] const tls_stream& stream() const noexcept { return stream_; }

  void configure_read(caf::io::receive_policy::config config) override {
    stream_.configure_read(config);
    if (std::exchange(started_, true))
      return;
    watch_revocations();
    stream_.start();
  }

  void ack_writes(bool enable) override { stream_.ack_writes(enable); }
  caf::byte_buffer& wr_buf() override { return stream_.wr_buf(); }
  caf::byte_buffer& rd_buf() override { return stream_.rd_buf(); }
  void flush() override { stream_.flush(); }
  std::string addr() const override { return or_empty(net::remote_addr_of_fd(stream_.fd())); }
  std::uint16_t port() const override { return or_empty(net::remote_port_of_fd(stream_.fd())); }

  void graceful_shutdown() override {
    stream_.graceful_shutdown();
    detach(&stream_.backend(), false);
  }

  void add_to_loop() override { stream_.resume(); }
  void remove_from_loop() override { stream_.pause(); }

 private:
  void watch_revocations() {
    if (keys_->files().scope != key_scope::cluster)
      return;
    revocations_.emplace(stream_.backend(), [this] { end_if_revoked(); });
    revocations_->start();
    revocations_->set(revocation_interval);
    // The timer keeps this connection, and the multiplexer, until the stream has ended; see `tls_stream::watch`.
    stream_.when_ended([self = caf::intrusive_ptr<tls_scribe>{this}] {
      self->revocations_->stop();
      self->stream_.backend().post([self] {});
    });
  }

  void end_if_revoked() {
    const auto& peer = stream_.session().peer();
    if (!keys_->current()->is_revoked(peer.serial))
      return revocations_->set(revocation_interval);
    keys_->log(fmt::format("ended the connection with {}: its certificate, serial number {}, has been revoked",
                           peer.name, peer.serial));
    stream_.end();
  }

  bool started_ = false;
  tls_stream stream_;
  std::shared_ptr<key_source> keys_;
  std::optional<deadline_timer> revocations_;
};

using tls_scribe_ptr = caf::intrusive_ptr<tls_scribe>;

struct accept_policy {
  bool try_accept(int& result, int listener) {
    result = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return result >= 0;
  }
};

class tls_doorman : public caf::io::doorman {
 public:
  tls_doorman(net::default_multiplexer& multiplexer, int fd, std::shared_ptr<key_source> keys)
      : caf::io::doorman(net::accept_hdl_from_socket(fd)),
        keys_(std::move(keys)),
        acceptor_(multiplexer, fd),
        timer_(multiplexer, [this] { drop_late(); }) {}

  void launch() override {
    acceptor_.start(this);
    timer_.start();
  }

  bool new_connection() override {
    auto fd = acceptor_.accepted_socket();
    auto session = std::make_unique<tls_session>(keys_->current(), tls_role::server, fd);
    auto scribe = caf::make_counted<tls_scribe>(acceptor_.backend(), fd, std::move(session), keys_);
    // The doorman may have been closed before the multiplexer reported this connection.
    if (detached())
      return false;
    if (waiting_.size() == max_waiting)
      drop_oldest();
    waiting_.push_back({scribe, clock::now() + handshake_limit});
    scribe->stream().accept([self = caf::intrusive_ptr<tls_doorman>{this}, raw = scribe.get()](bool verified) {
      self->on_handshake(raw, verified);
    });
    if (waiting_.size() == 1)
      timer_.set(handshake_limit);
    return true;
  }

  void graceful_shutdown() override {
    while (!waiting_.empty())
      drop_oldest();
    timer_.stop();
    acceptor_.graceful_shutdown();
    // The multiplexer drops the timer only after it has handled all pending events. It also does not notify an acceptor
    // of its removal if it was added only just before, and would keep it for ever.
    acceptor_.backend().post(
        [kept = caf::intrusive_ptr<tls_doorman>{this}] { kept->acceptor_.removed_from_loop(net::operation::read); });
    detach(&acceptor_.backend(), false);
  }

  std::string addr() const override { return or_empty(net::local_addr_of_fd(acceptor_.fd())); }
  std::uint16_t port() const override { return or_empty(net::local_port_of_fd(acceptor_.fd())); }
  void add_to_loop() override { acceptor_.activate(this); }
  void remove_from_loop() override { acceptor_.passivate(); }

 private:
  struct pending_handshake {
    tls_scribe_ptr scribe;
    clock::time_point deadline;
  };

  void on_handshake(tls_scribe* scribe, bool verified) {
    auto found = std::ranges::find(waiting_, scribe, [](const pending_handshake& each) { return each.scribe.get(); });
    auto kept = std::move(found->scribe);
    waiting_.erase(found);
    if (!verified)
      return log_refusal(*kept);
    if (detached()) {
      kept->stream().drop();
      return;
    }
    parent()->add_scribe(kept);
    caf::io::doorman::new_connection(&acceptor_.backend(), kept->hdl());
  }

  void log_refusal(const tls_scribe& refused) {
    const auto& why = refused.stream().session().reason();
    if (why.code != errc::not_authenticated)
      return;
    const auto line = fmt::format("refused a connection from {}: the other end {}", refused.addr(), why.message);
    if (const auto wanted = refusals_.add(line, clock::now()))
      keys_->log(*wanted);
  }

  void drop_oldest() {
    waiting_.front().scribe->stream().drop();
    waiting_.pop_front();
  }

  void drop_late() {
    auto now = clock::now();
    while (!waiting_.empty() && waiting_.front().deadline <= now)
      drop_oldest();
    if (!waiting_.empty())
      timer_.set(waiting_.front().deadline - now);
  }

  std::shared_ptr<key_source> keys_;
  actors::refusal_log refusals_;
  net::acceptor_impl<accept_policy> acceptor_;
  deadline_timer timer_;
  /// In order of arrival, which is also the order of their deadlines.
  std::deque<pending_handshake> waiting_;
};

} // namespace

caf::io::scribe_ptr make_tls_scribe(net::default_multiplexer& multiplexer, int fd, std::unique_ptr<tls_session> session,
                                    std::shared_ptr<key_source> keys) {
  return caf::make_counted<tls_scribe>(multiplexer, fd, std::move(session), std::move(keys));
}

caf::io::doorman_ptr make_tls_doorman(net::default_multiplexer& multiplexer, int fd, std::shared_ptr<key_source> keys) {
  return caf::make_counted<tls_doorman>(multiplexer, fd, std::move(keys));
}

} // namespace troupe::runtime
