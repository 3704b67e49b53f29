#include "remote/replica_port.hpp"

#include <troupe/collectives/unproven_peers.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fmt/format.h>
#include <poll.h>
#include <stop_token>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

namespace troupe::serving {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;
using collectives::peer_source;
using collectives::unique_fd;
using collectives::unproven_peers;
namespace tcp = collectives::tcp;

constexpr int accepts_per_turn = 16;

/// Those who have connected, and have not proved yet that they have the key.
class strangers {
 public:
  strangers(const tcp::session_key& key, const replica_port::admit_function& admit) : key_(key), admit_(admit) {}

  void accept_some(int listening, clock::time_point now) {
    for (auto i = 0; i < accepts_per_turn; ++i) {
      auto socket = unique_fd{::accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
      if (!socket) {
        if (errno == EMFILE || errno == ENFILE)
          make_room();
        return;
      }
      const auto place = peers_.admit(peer_source::of(socket.get()), now);
      if (place.crowded_out)
        drop(*place.crowded_out);
      if (auto channel = tcp::make_tls_channel(std::move(socket), tcp::tls_side::server, key_, session_name))
        all_.push_back({place.added, std::move(*channel)});
      else
        peers_.remove(place.added);
    }
  }

  void append_to(std::vector<pollfd>& polled) const {
    for (const auto& each : all_)
      polled.push_back({each.channel->fd(), each.events, 0});
  }

  /// Those from `polled` on that are ready continue their handshake.
  void advance(const pollfd* polled) {
    std::erase_if(all_, [&](stranger& x) {
      if ((polled++)->revents == 0)
        return false;
      using state = tcp::tls_session::state;
      const auto now = x.channel->shake_hands();
      x.events = now == state::wants_write ? POLLOUT : POLLIN;
      if (now != state::done && now != state::failed)
        return false;
      peers_.remove(x.place);
      if (now == state::done) {
        auto binding = serialization::to_hex(x.channel->binding());
        admit_(runtime::secure_stream::over(std::move(x.channel), std::move(binding), {}));
      }
      return true;
    });
  }

  void drop_late(clock::time_point now) {
    for (const auto place : peers_.take_late(now))
      drop(place);
  }

  [[nodiscard]] bool empty() const noexcept { return all_.empty(); }

 private:
  struct stranger {
    unproven_peers::ticket place;
    std::unique_ptr<tcp::tls_channel> channel;
    short events = POLLIN;
  };

  void drop(unproven_peers::ticket place) {
    std::erase_if(all_, [&](const stranger& x) { return x.place == place; });
  }

  void make_room() {
    if (const auto place = peers_.take_oldest())
      drop(*place);
    else
      // The port stays ready: do not spin.
      std::this_thread::sleep_for(100ms);
  }

  const tcp::session_key& key_;
  const replica_port::admit_function& admit_;
  unproven_peers peers_{{}};
  std::vector<stranger> all_;
};

} // namespace

tcp::session_key key_of(const std::string& secret) {
  return serialization::hmac_sha256(serialization::bytes_of(secret), serialization::bytes_of(session_name));
}

expected<std::unique_ptr<replica_port>> replica_port::open(const std::string& host,
                                                           const std::optional<port_range>& ports,
                                                           const tcp::session_key& key, admit_function admit) {
  TROUPE_TRY(const auto own, tcp::resolve_own_host(host));
  TROUPE_TRY(auto listening, tcp::listen_at(own, ports));
  auto ended = unique_fd{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  if (!ended)
    return fail(errc::unreachable, fmt::format("cannot listen for replicas: {}", std::strerror(errno)));
  auto at = endpoint{host, listening.at.port()};
  try {
    return std::unique_ptr<replica_port>{
        new replica_port{std::move(at), std::move(listening), std::move(ended), key, std::move(admit)}};
  } catch (const std::system_error& x) {
    return fail(errc::unreachable, fmt::format("no thread to listen for replicas: {}", x.what()));
  }
}

replica_port::replica_port(endpoint at, tcp::listener listening, unique_fd ended, const tcp::session_key& key,
                           admit_function admit)
    : at_(std::move(at)),
      listening_(std::move(listening)),
      ended_(std::move(ended)),
      key_(key),
      admit_(std::move(admit)),
      thread_([this] { watch(listening_.socket.get()); }) {}

replica_port::~replica_port() {
  const std::uint64_t once = 1;
  std::ignore = ::write(ended_.get(), &once, sizeof(once));
  thread_.join();
}

void replica_port::watch(int listening) {
  auto unproven = strangers{key_, admit_};
  std::vector<pollfd> polled;
  for (;;) {
    polled.assign({{ended_.get(), POLLIN, 0}, {listening, POLLIN, 0}});
    unproven.append_to(polled);
    ::poll(polled.data(), polled.size(), unproven.empty() ? -1 : 1000);
    if (polled[0].revents != 0)
      return;
    unproven.advance(&polled[2]);
    unproven.drop_late(clock::now());
    if (polled[1].revents != 0)
      unproven.accept_some(listening, clock::now());
  }
}

} // namespace troupe::serving
