#include "net/basp_stream.hpp"

#include "net/tls_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string_view>
#include <sys/socket.h>
#include <utility>

namespace troupe::runtime {

namespace {

namespace net = caf::io::network;

/// How many records one connection reads or writes before the others have their turn.
constexpr int max_records = 50;

/// After a connection was closed on this side, how long the peer may accept none of the remaining data.
constexpr auto drain_limit = std::chrono::milliseconds{5'000};

/// Memory for a message is taken as its bytes arrive, whatever its header announces, and not kept beyond this.
constexpr std::size_t first_buffer_bytes = std::size_t{64} << 10;
constexpr std::size_t kept_buffer_bytes = std::size_t{1} << 20;

void report_objection(int fd, std::string_view what) {
  const auto text =
      fmt::format("closed the connection from {}: it sent {}\n", or_empty(net::remote_addr_of_fd(fd)), what);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

} // namespace

void basp_stream::accept(std::function<void()> accepted, std::function<void()> on_first_data_or_end) {
  on_first_data_or_end_ = std::move(on_first_data_or_end);
  accepted_ = std::move(accepted);
  watch_reads(true);
}

void basp_stream::start() {
  prepare_read();
  resume();
}

void basp_stream::resume() {
  watch_reads(true);
  // The socket does not become readable for data that OpenSSL has already taken from it.
  if (channel_.has_pending())
    backend().post([this, kept = self_] { handle_event(operation::read); });
}

void basp_stream::configure_read(caf::io::receive_policy::config config) {
  batch_.policy = config.first;
  batch_.wanted = config.second;
}

void basp_stream::flush() {
  if (!next_out_.empty() && !has_ended() && !accepted_ && !write_wants_read_)
    watch_writes(true);
}

void basp_stream::give_up() {
  if (!has_ended())
    fail(operation::read);
}

void basp_stream::release() {
  if (accepted_)
    drop();
  report_first_data_or_end();
}

void basp_stream::graceful_shutdown() {
  if (phase_ != phase::open)
    return;
  phase_ = phase::closing;
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

void basp_stream::handle_event(operation op) {
  // The multiplexer may still have events to report for a connection that an earlier event has ended.
  if (has_ended())
    return;
  if (op == operation::propagate_error)
    fail(op);
  else if (accepted_)
    go_on_accepting();
  else if (op == operation::read)
    on_readable();
  else
    on_writable();
}

void basp_stream::go_on_accepting() {
  auto status = channel_.handshake();
  if (status == tls_status::failed) {
    fail(operation::read);
    return;
  }
  watch_writes(status == tls_status::wants_write);
  if (status == tls_status::done)
    std::exchange(accepted_, nullptr)();
}

void basp_stream::on_readable() {
  // Reads are not watched while one waits to write: the multiplexer would report the unread data in a loop.
  read();
  if (std::exchange(write_wants_read_, false))
    write();
}

void basp_stream::on_writable() {
  if (std::exchange(read_wants_write_, false)) {
    watch_reads(true);
    read();
  }
  if (!write_wants_read_)
    write();
}

void basp_stream::read() {
  // Read a partially read record to its end, because the socket does not become readable for the rest.
  for (auto reads = 0; watches_reads_ && (reads < max_records || channel_.has_pending()); ++reads) {
    std::size_t count = 0;
    grow();
    switch (channel_.read(in_.data() + batch_.collected, in_.size() - batch_.collected, count)) {
    case tls_status::done:
      batch_.collected += count;
      if (batch_.collected >= batch_.least && !hand_on())
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
      fail(operation::read);
      return;
    }
  }
}

void basp_stream::grow() {
  if (batch_.collected == in_.size())
    in_.resize(std::min(room_bytes(), 2 * in_.size()));
}

/// Ends the connection instead if the guard objects.
bool basp_stream::hand_on() {
  const auto* bytes = reinterpret_cast<const std::byte*>(in_.data());
  if (auto objection = guard_.take({bytes, batch_.collected})) {
    report_objection(fd(), *objection);
    // So that a peer that speaks another protocol sees this one.
    write();
    give_up();
    return false;
  }
  report_first_data_or_end();
  auto goes_on = owner_.consume(&backend(), in_.data(), batch_.collected);
  if (has_ended())
    return false;
  prepare_read();
  if (!goes_on)
    watch_reads(false);
  return goes_on;
}

/// The size that the broker requested last, plus some reserve where it accepts more.
std::size_t basp_stream::room_bytes() const noexcept {
  using flag = caf::io::receive_policy_flag;
  return batch_.policy == flag::at_least ? batch_.wanted + std::max<std::size_t>(100, batch_.wanted / 10)
                                         : batch_.wanted;
}

void basp_stream::prepare_read() {
  using flag = caf::io::receive_policy_flag;
  batch_.collected = 0;
  batch_.least = batch_.policy == flag::at_most ? 1 : batch_.wanted;
  if (in_.capacity() > kept_buffer_bytes)
    in_ = {};
  in_.resize(std::min(room_bytes(), first_buffer_bytes));
}

void basp_stream::write() {
  for (auto writes = 0; writes < max_records && !has_ended(); ++writes) {
    if (out_.empty() && !take_next())
      return;
    std::size_t count = 0;
    switch (channel_.write(out_.data() + written_, out_.size() - written_, count)) {
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
      if (is_closing())
        fail(operation::write);
      return;
    case tls_status::failed:
      fail(operation::write);
      return;
    }
  }
}

/// False when there is nothing more to write.
bool basp_stream::take_next() {
  written_ = 0;
  out_.swap(next_out_);
  if (!out_.empty())
    return true;
  watch_writes(read_wants_write_);
  if (is_closing())
    finish();
  return false;
}

void basp_stream::acknowledge(std::size_t count) {
  if (ack_writes())
    owner_.data_transferred(&backend(), count, out_.size() - written_ + next_out_.size());
}

void basp_stream::finish() {
  channel_.close();
  ::shutdown(fd(), SHUT_WR);
  drop();
}

void basp_stream::fail(operation op) {
  phase_ = phase::ended;
  if (!accepted_)
    owner_.io_failure(&backend(), op);
  drop();
}

void basp_stream::drop() {
  phase_ = phase::ended;
  accepted_ = nullptr;
  watch_reads(false);
  watch_writes(false);
  // Either may release this stream.
  const auto then = std::exchange(on_end_, nullptr);
  report_first_data_or_end();
  if (then)
    then();
}

void basp_stream::report_first_data_or_end() {
  if (on_first_data_or_end_)
    std::exchange(on_first_data_or_end_, nullptr)();
}

/// Keeps this stream alive while it is watched, since the multiplexer holds plain pointers. It drops them only after it
/// has handled all pending events; posted work runs after that.
void basp_stream::watch(operation op, bool& watches, bool on) {
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

basp_scribe::basp_scribe(net::default_multiplexer& multiplexer, int fd, byte_channel channel, basp_side side,
                         std::shared_ptr<key_source> keys)
    : caf::io::scribe(net::conn_hdl_from_socket(fd)),
      stream_(multiplexer, fd, std::move(channel), side, *this),
      keys_(std::move(keys)) {}

void basp_scribe::configure_read(caf::io::receive_policy::config config) {
  stream_.configure_read(config);
  if (std::exchange(started_, true))
    return;
  if (has_names())
    watch_peer();
  stream_.start();
}

bool basp_scribe::has_names() const {
  return keys_ && keys_->files().scope == key_scope::cluster;
}

void basp_scribe::watch_peer() {
  watch_.emplace(stream_.backend(), [this] { look_at_peer(); });
  watch_->start();
  watch_->set(revocation_interval);
  // The timer keeps this connection, and the multiplexer, until the stream has ended; see `basp_stream::watch`.
  stream_.when_ended([self = caf::intrusive_ptr<basp_scribe>{this}] {
    self->watch_->stop();
    self->stream_.backend().post([self] {});
  });
}

void basp_scribe::look_at_peer() {
  const auto& peer = stream_.session()->peer();
  if (!keys_->current()->is_revoked(peer.serial))
    return watch_->set(revocation_interval);
  keys_->log(fmt::format("ended the connection with {}: its certificate, serial number {}, has been revoked", peer.name,
                         peer.serial));
  stream_.give_up();
}

std::string basp_scribe::addr() const {
  return or_empty(net::remote_addr_of_fd(stream_.fd()));
}

std::uint16_t basp_scribe::port() const {
  return or_empty(net::remote_port_of_fd(stream_.fd()));
}

void basp_scribe::graceful_shutdown() {
  stream_.graceful_shutdown();
  detach(&stream_.backend(), false);
}

} // namespace troupe::runtime
