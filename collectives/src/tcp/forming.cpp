#include "tcp/forming.hpp"
#include "tcp/attempt.hpp"
#include "tcp/error_text.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <tuple>
#include <utility>
#include <variant>

namespace troupe::collectives::tcp {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

/// Limits of unauthenticated connections, beyond the expected ones. On a busy host a member may take seconds to answer.
unproven_limits limits_of(std::size_t expected_connections) {
  return {.in_all = 128 + expected_connections, .of_source = 64 + expected_connections, .time = 5s};
}

/// The time limit of a handshake on a connection that this rank dials: four round trips, and the wait for a busy peer.
constexpr auto dial_time = 15s;

/// Between two attempts to reach a member.
constexpr auto dial_interval = 50ms;

/// A member has listened since before its address was known. If its port is closed for this long, it has gone.
constexpr auto closed_port_time = 1s;

/// The most connections taken from the queue in one turn, so that members are served between two floods.
constexpr int accepts_per_turn = 64;

/// A pair of ranks has a connection for messages and one for words.
constexpr std::uint8_t lanes = 2;

/// Small messages leave at once, and a host that has gone without a word is noticed.
void set_options(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

class former {
 public:
  former(const tcp_options& options, listener own, const member_addresses& members)
      : options_(options),
        identity_(make_identity(options)),
        own_(std::move(own)),
        members_(members),
        ends_at_(clock::now() + options.connect_deadline),
        result_(members.size()),
        dials_(members.size() * lanes),
        strangers_(limits_of(members.size() * lanes)),
        heard_(members.size(), clock::now()) {}

  expected<std::vector<peer_channels>> run() {
    if (!cancelled_.is_valid())
      return fail(errc::unreachable,
                  fmt::format("{}: no descriptor is left; raise the limit of open files", describe(options_)));
    const std::stop_callback on_cancel{options_.cancelled, [this] { cancelled_.set(); }};
    auto done = connect_all();
    if (refusals_.total() != 0 && options_.report)
      options_.report(fmt::format("{}: {}", describe(options_), to_string(refusals_)));
    if (!done)
      return fail(std::move(done.error()));
    return std::move(result_);
  }

 private:
  /// The state of one connection that this rank dials.
  struct dial {
    clock::time_point next_at{};
    bool is_running = false;
    std::string last_failure = "no answer";
    std::optional<clock::time_point> closed_since;
  };

  expected<void> connect_all() {
    while (!is_complete()) {
      if (options_.cancelled.stop_requested()) {
        report_silent(clock::now());
        return fail(errc::aborted, fmt::format("{}: cancelled while connecting", describe(options_)));
      }
      const auto now = clock::now();
      note_connected(now);
      TROUPE_TRY(check_time(now));
      start_dials(now);
      wait(now);
    }
    return {};
  }

  // -- what is missing

  [[nodiscard]] std::unique_ptr<channel>& place_of(std::uint32_t peer, std::uint8_t lane) {
    return lane == 0 ? result_[peer].messages : result_[peer].words;
  }

  [[nodiscard]] bool is_missing(std::uint32_t peer) const {
    return members_[peer] && !(result_[peer].messages && result_[peer].words);
  }

  [[nodiscard]] bool is_complete() const {
    for (std::uint32_t peer = 0; peer < members_.size(); ++peer)
      if (is_missing(peer))
        return false;
    return true;
  }

  [[nodiscard]] bool dials(std::uint32_t peer) const { return peer < identity_.rank; }
  [[nodiscard]] dial& dial_of(const connection_name& x) { return dials_[x.acceptor * lanes + x.lane]; }

  /// Members whose systems have taken a connection, or made one, can be reached.
  void note_connected(clock::time_point now) {
    for (const auto& x : attempts_)
      if (x->is_connected())
        note_heard(x->peer(), now);
  }

  void note_heard(const address& host, clock::time_point now) {
    for (std::uint32_t peer = 0; peer < members_.size(); ++peer)
      if (members_[peer] && host.has_host_of(*members_[peer]))
        heard_[peer] = now;
  }

  /// Whether a member has been silent for its answer time, or a fraction of it: `part` 2 means half.
  [[nodiscard]] bool is_silent(std::uint32_t peer, clock::time_point now, int part = 1) const {
    return options_.answer_deadline && now - heard_[peer] >= *options_.answer_deadline / part;
  }

  /// A member that was faster has given up, perhaps because of the same cut.
  void report_silent(clock::time_point now) {
    std::vector<rank_id> silent;
    for (std::uint32_t peer = 0; peer < members_.size(); ++peer)
      if (is_missing(peer) && is_silent(peer, now, 2))
        silent.emplace_back(peer);
    if (options_.report_unreachable && !silent.empty())
      options_.report_unreachable(silent);
  }

  /// Fails at the deadline, and as soon as a member has certainly gone or cannot be reached.
  expected<void> check_time(clock::time_point now) {
    std::string missing;
    std::vector<rank_id> unreachable;
    // This process may have been frozen.
    if (options_.answer_deadline && now - std::exchange(looked_at_, now) > *options_.answer_deadline / 2)
      std::ranges::fill(heard_, now);
    for (std::uint32_t peer = 0; peer < members_.size(); ++peer) {
      if (!is_missing(peer))
        continue;
      const auto is_late = now >= ends_at_ || is_silent(peer, now);
      if (is_late)
        unreachable.emplace_back(peer);
      if (!dials(peer)) {
        if (is_late)
          missing += fmt::format("; rank {} at {}: did not connect", peer, to_string(*members_[peer]));
        continue;
      }
      for (std::uint8_t lane = 0; lane < lanes; ++lane) {
        const auto& x = dials_[peer * lanes + lane];
        const auto has_gone = !x.is_running && x.closed_since && now - *x.closed_since >= closed_port_time;
        if (place_of(peer, lane) || !(is_late || has_gone))
          continue;
        missing += fmt::format("; rank {} at {}: {}", peer, to_string(*members_[peer]), x.last_failure);
        break;
      }
    }
    if (missing.empty())
      return {};
    if (options_.report_unreachable)
      options_.report_unreachable(unreachable);
    const auto strangers = refusals_.total() == 0 ? std::string{} : fmt::format(" ({})", to_string(refusals_));
    return fail(
        errc::unreachable,
        fmt::format("{} did not connect to its peers within {} ms{}{}; they may have ended, or a firewall "
                    "blocks their ports",
                    describe(options_),
                    std::chrono::ceil<std::chrono::milliseconds>(now - (ends_at_ - options_.connect_deadline)).count(),
                    missing, strangers));
  }

  // -- dialling

  void start_dials(clock::time_point now) {
    for (std::uint32_t peer = 0; peer < members_.size(); ++peer)
      for (std::uint8_t lane = 0; members_[peer] && dials(peer) && lane < lanes; ++lane)
        if (auto& x = dials_[peer * lanes + lane]; !place_of(peer, lane) && !x.is_running && now >= x.next_at)
          start_dial(x, {identity_.rank, peer, lane}, now);
  }

  void start_dial(dial& state, const connection_name& name, clock::time_point now) {
    const auto& at = *members_[name.acceptor];
    state.next_at = now + dial_interval;
    unique_fd socket{::socket(at.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    if (!socket) {
      state.last_failure = text_of(errno);
      return;
    }
    set_options(socket.get());
    // From this host's own address, which is what peers and firewalls expect.
    auto from = own_.at;
    from.set_port(0);
    if (from.family() == at.family())
      std::ignore = ::bind(socket.get(), from.data(), from.size_bytes());
    if (::connect(socket.get(), at.data(), at.size_bytes()) != 0 && errno != EINPROGRESS && errno != EINTR)
      return note_dial_failure(state, at, errno, now);
    attempts_.push_back(std::make_unique<attempt>(group_, std::move(socket), at, name, now + dial_time));
    state.is_running = true;
  }

  void note_dial_failure(dial& state, const address& peer, int code, clock::time_point now) {
    state.next_at = now + dial_interval;
    state.last_failure = text_of(code);
    if (code != ECONNREFUSED) {
      state.closed_since.reset();
      return;
    }
    note_heard(peer, now);
    if (!state.closed_since)
      state.closed_since = now;
  }

  // -- accepting

  void accept_some(clock::time_point now) {
    for (int i = 0; i < accepts_per_turn; ++i) {
      sockaddr_storage from{};
      socklen_t size = sizeof(from);
      unique_fd socket{
          ::accept4(own_.socket.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC)};
      if (!socket) {
        // Without descriptors left, a stranger gives up its own.
        if (errno == EMFILE || errno == ENFILE)
          drop_stranger(strangers_.take_oldest());
        return;
      }
      const address peer{reinterpret_cast<const sockaddr*>(&from), size};
      set_options(socket.get());
      const auto place = strangers_.admit(peer_source{peer.data()}, now);
      drop_stranger(place.crowded_out);
      attempts_.push_back(
          std::make_unique<attempt>(group_, std::move(socket), peer, place.added, now + strangers_.limits().time));
    }
  }

  void drop_stranger(std::optional<unproven_peers::ticket> place) {
    if (!place)
      return;
    const auto found = std::ranges::find_if(attempts_, [&](const auto& x) { return x->place() == place; });
    refusals_.count(refusal::crowded_out, to_string((*found)->peer()));
    attempts_.erase(found);
  }

  // -- waiting

  void wait(clock::time_point now) {
    polled_.assign({{cancelled_.fd(), POLLIN, 0}, {own_.socket.get(), POLLIN, 0}});
    auto wakes_at = std::min(ends_at_, now + dial_interval);
    for (const auto& x : attempts_) {
      polled_.push_back({x->fd(), static_cast<short>(x->wants_to_write() ? POLLOUT : POLLIN), 0});
      wakes_at = std::min(wakes_at, x->ends_at());
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(wakes_at - now).count();
    ::poll(polled_.data(), polled_.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
    const auto then = clock::now();
    // The list changes below: the attempts of this turn are its first ones.
    auto current = std::exchange(attempts_, {});
    for (std::size_t i = 0; i < current.size(); ++i) {
      auto& x = *current[i];
      auto result = polled_[i + 2].revents != 0 ? x.advance() : attempt::outcome{};
      if (std::holds_alternative<std::monostate>(result) && then >= x.ends_at())
        result = attempt::failed{refusal::too_slow, std::string{to_string(refusal::too_slow)}};
      const auto goes_on = std::holds_alternative<std::monostate>(result);
      if (x.place() && (x.is_proven() || !goes_on))
        strangers_.remove(*x.place());
      if (goes_on)
        attempts_.push_back(std::move(current[i]));
      else
        complete(x, std::move(result), then);
    }
    if (polled_[1].revents != 0)
      accept_some(then);
  }

  void complete(const attempt& x, attempt::outcome result, clock::time_point now) {
    if (x.dialled())
      dial_of(*x.dialled()).is_running = false;
    if (auto* made = std::get_if<attempt::ready>(&result)) {
      const auto peer = x.dialled() ? made->name.acceptor : made->name.dialler;
      place_of(peer, made->name.lane) = std::move(made->stream);
      return;
    }
    const auto& failure = std::get<attempt::failed>(result);
    if (!x.dialled())
      return refusals_.count(failure.why, to_string(x.peer()));
    auto& state = dial_of(*x.dialled());
    if (failure.system_code != 0)
      return note_dial_failure(state, x.peer(), failure.system_code, now);
    state.last_failure = failure.text;
    state.closed_since.reset();
    state.next_at = now + dial_interval;
  }

  /// Why a peer that has proved that it belongs to the run is not taken all the same.
  [[nodiscard]] refusal objection_to(const connection_name& name) {
    if (name.lane >= lanes || !members_[name.dialler] || dials(name.dialler))
      return refusal::wrong_rank;
    auto& place = place_of(name.dialler, name.lane);
    if (!place)
      return refusal::none;
    // The first one wins, unless its peer has given it up.
    char next = 0;
    if (::recv(place->fd(), &next, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
      place.reset();
      return refusal::none;
    }
    return refusal::duplicate;
  }

  const tcp_options& options_;
  const group_identity identity_;
  const attempt::group group_{options_, identity_, [this](const connection_name& x) { return objection_to(x); }};
  const listener own_;
  const member_addresses& members_;
  const clock::time_point ends_at_;
  wake_event cancelled_;
  std::vector<peer_channels> result_;
  std::vector<dial> dials_;
  unproven_peers strangers_;
  /// By rank: when a sign of it last came over the network.
  std::vector<clock::time_point> heard_;
  clock::time_point looked_at_ = clock::now();
  /// The oldest first.
  std::vector<std::unique_ptr<attempt>> attempts_;
  std::vector<pollfd> polled_;
  refusals refusals_;
};

} // namespace

void refusals::count(refusal why, const std::string& from) noexcept {
  ++counts_[static_cast<std::size_t>(why)];
  last_from_ = from;
}

std::uint64_t refusals::total() const noexcept {
  std::uint64_t result = 0;
  for (auto x : counts_)
    result += x;
  return result;
}

std::string to_string(const refusals& x) {
  auto text = fmt::format("refused {} connections:", x.total());
  auto separator = "";
  for (std::size_t i = 0; i < refusal_count; ++i)
    if (const auto count = x.counts_[i]; count != 0) {
      text += fmt::format("{} {} ({})", separator, count, to_string(static_cast<refusal>(i)));
      separator = ",";
    }
  return text + "; the last one came from " + x.last_from_;
}

expected<std::vector<peer_channels>> form_group(const tcp_options& options, listener own,
                                                const member_addresses& members) {
  return former{options, std::move(own), members}.run();
}

} // namespace troupe::collectives::tcp
