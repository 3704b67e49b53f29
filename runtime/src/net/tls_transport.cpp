#include "net/tls_transport.hpp"

#include "net/basp_stream.hpp"
#include "net/deadline_timer.hpp"

#include <troupe/actors/decisions/refusal_log.hpp>
#include <troupe/collectives/unproven_peers.hpp>

#include <caf/io/abstract_broker.hpp>
#include <caf/io/network/acceptor_impl.hpp>
#include <caf/io/network/native_socket.hpp>

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <sys/socket.h>
#include <utility>

namespace troupe::runtime {

namespace {

namespace net = caf::io::network;

using clock = std::chrono::steady_clock;
using collectives::peer_source;
using collectives::unproven_limits;
using collectives::unproven_peers;

/// All workers of a host may connect to its node at once, from one address.
constexpr auto limits = unproven_limits{.in_all = 256, .of_source = 192, .time = handshake_limit};

/// Accepts connections. If no descriptor is left, calls `full`, which may free one for the next attempt.
class accept_policy {
 public:
  explicit accept_policy(std::function<void()> full) : full_(std::move(full)) {}

  bool try_accept(int& result, int listener) {
    result = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (result < 0 && (errno == EMFILE || errno == ENFILE))
      full_();
    return result >= 0;
  }

 private:
  std::function<void()> full_;
};

class basp_doorman : public caf::io::doorman {
 public:
  basp_doorman(net::default_multiplexer& multiplexer, int fd, std::shared_ptr<key_source> keys)
      : caf::io::doorman(net::accept_hdl_from_socket(fd)),
        keys_(std::move(keys)),
        acceptor_(multiplexer, fd, [this] { drop_oldest(); }),
        timer_(multiplexer, [this] { drop_late(); }) {}

  void launch() override {
    acceptor_.start(this);
    timer_.start();
  }

  bool new_connection() override {
    auto fd = acceptor_.accepted_socket();
    auto channel = byte_channel{keys_ ? keys_->current() : nullptr, fd};
    auto scribe =
        caf::make_counted<basp_scribe>(acceptor_.backend(), fd, std::move(channel), basp_side::accepted, keys_);
    // The doorman may have been closed before the multiplexer reported this connection.
    if (detached())
      return false;
    auto place = strangers_.admit(peer_source::of(fd), clock::now());
    if (place.crowded_out)
      give_up(*place.crowded_out);
    waiting_.emplace(place.added, scribe);
    auto self = caf::intrusive_ptr<basp_doorman>{this};
    scribe->stream().accept([self, raw = scribe.get()] { self->hand_over(raw); },
                            [self, ticket = place.added] { self->remove_stranger(ticket); });
    if (waiting_.size() == 1)
      timer_.set(limits.time);
    return true;
  }

  void graceful_shutdown() override {
    while (!waiting_.empty()) {
      auto scribe = waiting_.begin()->second;
      scribe->stream().release();
    }
    timer_.stop();
    acceptor_.graceful_shutdown();
    // The multiplexer drops the timer only after it has handled all pending events. It also does not notify an acceptor
    // of its removal if it was added only just before, and would keep it for ever.
    acceptor_.backend().post(
        [kept = caf::intrusive_ptr<basp_doorman>{this}] { kept->acceptor_.removed_from_loop(net::operation::read); });
    detach(&acceptor_.backend(), false);
  }

  std::string addr() const override { return or_empty(net::local_addr_of_fd(acceptor_.fd())); }
  std::uint16_t port() const override { return or_empty(net::local_port_of_fd(acceptor_.fd())); }
  void add_to_loop() override { acceptor_.activate(this); }
  void remove_from_loop() override { acceptor_.passivate(); }

 private:
  /// The peer is verified. It has its place among the strangers until it says something.
  void hand_over(basp_scribe* scribe) {
    if (detached())
      return scribe->stream().give_up();
    parent()->add_scribe(scribe);
    caf::io::doorman::new_connection(&acceptor_.backend(), scribe->hdl());
  }

  void remove_stranger(unproven_peers::ticket place) {
    strangers_.remove(place);
    if (const auto gone = waiting_.extract(place))
      log_refusal(*gone.mapped());
  }

  /// Does nothing for a connection that was not refused.
  void log_refusal(const basp_scribe& refused) {
    const auto* session = refused.stream().session();
    if (session == nullptr || session->reason().code != errc::not_authenticated)
      return;
    const auto line =
        fmt::format("refused a connection from {}: the other end {}", refused.addr(), session->reason().message);
    if (const auto wanted = refusals_.add(line, clock::now()))
      keys_->log(*wanted);
  }

  void give_up(unproven_peers::ticket place) {
    // It is erased meanwhile.
    auto scribe = waiting_.at(place);
    scribe->stream().give_up();
  }

  void drop_oldest() {
    if (auto place = strangers_.take_oldest())
      give_up(*place);
  }

  void drop_late() {
    auto now = clock::now();
    for (auto place : strangers_.take_late(now))
      give_up(place);
    if (auto next = strangers_.next_deadline())
      timer_.set(*next - now);
  }

  std::shared_ptr<key_source> keys_;
  actors::refusal_log refusals_;
  net::acceptor_impl<accept_policy> acceptor_;
  deadline_timer timer_;
  unproven_peers strangers_{limits};
  std::map<unproven_peers::ticket, caf::intrusive_ptr<basp_scribe>> waiting_;
};

} // namespace

caf::io::scribe_ptr make_basp_scribe(net::default_multiplexer& multiplexer, int fd,
                                     std::unique_ptr<tls_session> session, std::shared_ptr<key_source> keys) {
  return caf::make_counted<basp_scribe>(multiplexer, fd, byte_channel{std::move(session), fd}, basp_side::dialled,
                                        std::move(keys));
}

caf::io::doorman_ptr make_basp_doorman(net::default_multiplexer& multiplexer, int fd,
                                       std::shared_ptr<key_source> keys) {
  return caf::make_counted<basp_doorman>(multiplexer, fd, std::move(keys));
}

} // namespace troupe::runtime
