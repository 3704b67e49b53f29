#include "tcp/transport.hpp"

#include <algorithm>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <utility>

namespace troupe::collectives::tcp {

namespace {

using namespace std::chrono_literals;

/// A call that takes this long asks the peers for their state; again after twice that time, and so on up to the longest
/// interval.
constexpr std::chrono::milliseconds first_word_after{200};
constexpr std::chrono::milliseconds longest_word_interval{4000};

/// How long a rank that waits looks at its sockets before it sleeps. It gives its core to others between two looks.
constexpr auto spin_time = 50us;

/// The bytes that one connection moves before the next gets its turn, so that all connections flow in both directions.
constexpr std::size_t turn_bytes = 512 << 10;

/// The bytes that `send` passes on without waiting for the receiver. More waits for an acknowledgement, even if socket
/// buffers could take it, so that a program that forgets a receive fails on every network.
constexpr std::uint64_t unacknowledged_limit_bytes = 256 << 10;

/// Messages that are reduced are sent in pieces of this size, which are added while they are in the cache.
constexpr std::uint64_t reduced_piece_bytes = 512 << 10;

/// The longest that leaving a group takes.
constexpr auto leaving_time = 2s;

std::vector<std::unique_ptr<channel>> words_of(std::vector<peer_channels>& peers) {
  std::vector<std::unique_ptr<channel>> result;
  for (auto& x : peers)
    result.push_back(std::move(x.words));
  return result;
}

std::vector<int> sockets_of(const std::vector<peer_channels>& peers) {
  std::vector<int> result;
  for (const auto& x : peers)
    if (x.messages)
      result.push_back(x.messages->fd());
  return result;
}

/// Half of the shortest round trip that the kernel has seen, to the peer for which it is the longest.
std::chrono::nanoseconds latency_of(const std::vector<int>& sockets) {
  auto longest = 0us;
  for (auto socket : sockets) {
    tcp_info info = {};
    socklen_t size = sizeof(info);
    if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && size >= sizeof(info))
      longest = std::max(longest, std::chrono::microseconds{info.tcpi_min_rtt});
  }
  return longest / 2;
}

/// Whether the peer's system has everything.
bool is_delivered(int socket) {
  auto unsent = 0;
  return ::ioctl(socket, SIOCOUTQ, &unsent) != 0 || unsent == 0;
}

} // namespace

tcp_transport::tcp_transport(const settings& how, std::vector<peer_channels> peers)
    : rank_(how.rank),
      generation_(how.generation),
      links_(peers.size()),
      words_(call_agreement{how.rank, static_cast<std::uint32_t>(peers.size()), how.generation}, words_of(peers),
             sockets_of(peers)),
      deadline_(how.deadline),
      answer_deadline_(how.answer_deadline),
      latency_(latency_of(sockets_of(peers))),
      open_with_(peers.size()),
      unacknowledged_bytes_(peers.size()) {
  for (std::uint32_t r = 0; r < peers.size(); ++r)
    if (peers[r].messages)
      links_[r] = std::make_unique<connection>(r, std::move(peers[r].messages), static_cast<connection_events&>(*this));
}

/// A socket that is closed with unread data resets its connection, which drops what the peer has not received yet. So
/// everything is delivered first.
tcp_transport::~tcp_transport() {
  if (!words_.stop())
    return;
  for (const auto& x : links_)
    if (x)
      ::shutdown(x->fd(), SHUT_WR);
  const auto ends_at = clock::now() + leaving_time;
  for (const auto& x : links_)
    while (x && !x->is_closed() && !is_delivered(x->fd()) && clock::now() < ends_at) {
      pollfd socket{x->fd(), POLLRDHUP, 0};
      if (::poll(&socket, 1, 1) > 0)
        break;
    }
}

std::uint64_t tcp_transport::piece_bytes() const noexcept {
  return reduced_piece_bytes;
}

flight_record tcp_transport::record() const {
  auto result = words_.record(open_with_);
  result.transport = "tcp";
  result.rank = rank_id{rank_};
  result.world_size = world_size();
  result.generation = generation_;
  return result;
}

// -- one call --------------------------------------------------------------------------------------------------------

expected<void> tcp_transport::begin(const call_record& call) {
  const auto now = clock::now();
  TROUPE_TRY(words_.begin(call, now));
  call_ = call;
  // With a short deadline, ask the peers before it expires.
  const auto interval = std::min(first_word_after, std::max(deadline_ / 4, 1ms));
  clock_ = {now + deadline_, now + interval, interval, now};
  return {};
}

transport::ticket tcp_transport::open(std::uint32_t peer) {
  is_done_.push_back(0);
  ++open_messages_;
  open_with_[peer].fetch_add(1, std::memory_order_relaxed);
  return is_done_.size() - 1;
}

frame_header tcp_transport::header_of(std::uint64_t tag, std::size_t size_bytes) const {
  frame_header result;
  result.tag = tag;
  result.size_bytes = size_bytes;
  result.call = call_;
  return result;
}

transport::ticket tcp_transport::send(std::uint32_t peer, std::uint64_t tag, const std::byte* data,
                                      std::size_t size_bytes) {
  auto& to = *links_[peer];
  auto header = header_of(tag, size_bytes);
  if (call_.kind == call_kind::send) {
    auto& unacknowledged = unacknowledged_bytes_[peer];
    unacknowledged += size_bytes;
    if (unacknowledged > unacknowledged_limit_bytes) {
      header.flags |= frame_header::wants_acknowledgement;
      unacknowledged = 0;
      to.receive_acknowledgement(open(peer), tag);
    }
  }
  const auto message = open(peer);
  const auto is_busy = to.wants_to_write();
  to.send(message, header, data);
  if (!is_busy)
    to.write(turn_bytes);
  return message;
}

transport::ticket tcp_transport::receive(std::uint32_t peer, std::uint64_t tag, std::byte* data,
                                         std::size_t size_bytes) {
  const auto message = open(peer);
  links_[peer]->receive(message, header_of(tag, size_bytes), data);
  return message;
}

void tcp_transport::completed(std::uint32_t peer, ticket message) {
  is_done_[message] = 1;
  --open_messages_;
  open_with_[peer].fetch_sub(1, std::memory_order_relaxed);
}

bool tcp_transport::fits(std::uint32_t peer, const frame_header& header) {
  return header.call == call_ || !words_.see(peer, header.call, clock::now());
}

expected<void> tcp_transport::wait(ticket message) {
  return wait_until([this, message] { return is_done_[message] != 0; });
}

expected<void> tcp_transport::finish() {
  TROUPE_TRY(wait_until([this] { return open_messages_ == 0 && !has_unsent(); }));
  is_done_.clear();
  words_.end(clock::now());
  return {};
}

bool tcp_transport::has_unsent() const noexcept {
  return std::ranges::any_of(links_, [](const auto& x) { return x && x->wants_to_write(); });
}

template <class Condition>
expected<void> tcp_transport::wait_until(const Condition& is_met) {
  // A failure that another thread has reported ends the call even where nothing is missing.
  if (words_.has_news())
    if (auto trouble = words_.trouble(); trouble.code != errc::none)
      return give_up(std::move(trouble));
  clock::time_point idle_since{};
  while (!is_met()) {
    const auto has_moved = move_bytes();
    if (is_met())
      return {};
    if (auto trouble = find_trouble(); trouble.code != errc::none)
      return give_up(std::move(trouble));
    const auto now = clock::now();
    if (now >= clock_.ends_at)
      return give_up(words_.lateness(missing_ranks(), now));
    if (now >= clock_.asks_at) {
      if (auto silence = find_silence(now); silence.code != errc::none)
        return give_up(std::move(silence));
      words_.ask_all(now);
      // Wake in time to detect a rank that does not answer.
      const auto longest =
          answer_deadline_ ? std::min(*answer_deadline_ / 4, longest_word_interval) : longest_word_interval;
      clock_.interval = std::min(2 * clock_.interval, longest);
      clock_.asks_at = now + clock_.interval;
    }
    if (has_moved || idle_since == clock::time_point{})
      idle_since = now;
    if (now - idle_since >= spin_time)
      sleep(now);
    else if (!has_moved)
      ::sched_yield();
  }
  return {};
}

/// The ranks that the running call waits for.
std::vector<std::uint32_t> tcp_transport::missing_ranks() const {
  std::vector<std::uint32_t> result;
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer)
    if (open_with_[peer].load(std::memory_order_relaxed) != 0)
      result.push_back(peer);
  return result;
}

/// True if anything was moved.
bool tcp_transport::move_bytes() {
  auto result = false;
  for (const auto& x : links_) {
    if (!x)
      continue;
    if (x->wants_to_write())
      result = x->write(turn_bytes) || result;
    if (x->wants_to_read())
      result = x->read(turn_bytes) || result;
  }
  return result;
}

/// The error that ends the running call, if there is one.
error tcp_transport::find_trouble() {
  if (words_.has_news())
    if (auto trouble = words_.trouble(); trouble.code != errc::none)
      return trouble;
  // A peer that left after its last message does not fail this call.
  std::vector<std::uint32_t> lost;
  std::string why;
  for (const auto& x : links_) {
    if (!x || !x->is_closed() || (open_with_[x->peer()].load(std::memory_order_relaxed) == 0 && !x->wants_to_write()))
      continue;
    lost.push_back(x->peer());
    if (why.empty())
      why = x->why().empty() ? "the peer closed the connection" : x->why();
  }
  return lost.empty() ? error{} : words_.loss(std::move(lost), why);
}

/// The error of a call that needs a peer which does not answer.
error tcp_transport::find_silence(clock::time_point now) {
  if (!answer_deadline_)
    return {};
  const auto has_slept = now - std::exchange(clock_.looked_at, now) > *answer_deadline_ / 2;
  if (has_slept) {
    words_.excuse_unanswering(now);
    return {};
  }
  auto silent = words_.unanswering(*answer_deadline_, now);
  std::erase_if(silent, [this](auto peer) { return open_with_[peer].load(std::memory_order_relaxed) == 0; });
  return silent.empty() ? error{} : words_.silence(silent, *answer_deadline_);
}

std::vector<rank_id> tcp_transport::unanswering() const {
  std::vector<rank_id> result;
  if (answer_deadline_)
    for (auto peer : words_.unanswering(*answer_deadline_ / 2, clock::now()))
      result.emplace_back(peer);
  return result;
}

/// Sleeps until a socket is ready, the word exchange wakes this thread, or a time limit is reached.
void tcp_transport::sleep(clock::time_point now) {
  polled_.assign(1, {words_.caller_event().fd(), POLLIN, 0});
  for (const auto& x : links_) {
    if (!x || x->is_closed() || (!x->wants_to_read() && !x->wants_to_write()))
      continue;
    // A message without a receive must not wake this thread repeatedly.
    auto events = x->wants_to_read() && !x->is_blocked() ? POLLIN | POLLRDHUP : POLLRDHUP;
    if (x->wants_to_write())
      events |= POLLOUT;
    polled_.push_back({x->fd(), static_cast<short>(events), 0});
  }
  const auto left = std::max(std::min(clock_.ends_at, clock_.asks_at) - now, clock::duration{0});
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  const timespec timeout{seconds.count(), (left - seconds).count()};
  ::ppoll(polled_.data(), polled_.size(), &timeout, nullptr);
  if (polled_[0].revents != 0)
    words_.caller_event().clear();
  std::size_t i = 1;
  for (const auto& x : links_) {
    if (!x || i == polled_.size() || x->fd() != polled_[i].fd)
      continue;
    if ((polled_[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
      x->note_hangup();
    ++i;
  }
}

/// Keeps the first reason, forgets the caller's memory and ends the connections. Returns the first reason.
expected<void> tcp_transport::give_up(error reason) {
  auto first = words_.give_up(std::move(reason));
  for (const auto& x : links_)
    if (x)
      x->drop_all();
  for (auto& x : open_with_)
    x.store(0, std::memory_order_relaxed);
  open_messages_ = 0;
  is_done_.clear();
  return fail(std::move(first));
}

} // namespace troupe::collectives::tcp
