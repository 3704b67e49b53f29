#include "tcp/word_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

namespace troupe::collectives::tcp {

namespace {

/// How long a rank that fails with a mismatch waits for peers to confirm that they know of it.
constexpr std::chrono::milliseconds mismatch_drain{1000};

} // namespace

word_exchange::word_exchange(call_agreement agreement, std::vector<std::unique_ptr<channel>> streams,
                             std::vector<int> message_sockets)
    : agreement_(std::move(agreement)), links_(streams.size()), message_sockets_(std::move(message_sockets)) {
  for (std::size_t i = 0; i < streams.size(); ++i)
    links_[i].stream = std::move(streams[i]);
  if (!caller_woken_.is_valid() || !thread_woken_.is_valid())
    throw exception{errc::unreachable, "no descriptor is left for the group; raise the limit of open files"};
  if (std::ranges::any_of(links_, [](const auto& x) { return x.stream != nullptr; }))
    thread_ = std::thread{[this] { run(); }};
}

word_exchange::~word_exchange() {
  stop();
}

bool word_exchange::stop() {
  {
    const std::lock_guard lock{mutex_};
    is_stopping_ = true;
  }
  thread_woken_.set();
  if (thread_.joinable())
    thread_.join();
  return !has_failed();
}

// -- the caller's calls ----------------------------------------------------------------------------------------------

expected<void> word_exchange::begin(const call_record& call, clock::time_point now) {
  std::unique_lock lock{mutex_};
  if (has_failed())
    return fail(failure_);
  agreement_.begin(call, now);
  if (!agreement_.has_mismatch())
    return {};
  auto reason = agreement_.mismatch_error();
  lock.unlock();
  return fail(give_up(std::move(reason)));
}

void word_exchange::end(clock::time_point now) {
  const std::lock_guard lock{mutex_};
  agreement_.end(now);
}

void word_exchange::ask_all(clock::time_point now) {
  const std::lock_guard lock{mutex_};
  tell_all(call_word::wants_answer, now);
}

bool word_exchange::see(std::uint32_t peer, const call_record& theirs, clock::time_point now) {
  const std::lock_guard lock{mutex_};
  const auto was_known = agreement_.has_mismatch();
  const auto is_wrong = agreement_.see(peer, theirs);
  if (is_wrong && !was_known)
    announce_mismatch(now);
  return is_wrong;
}

error word_exchange::trouble() const {
  const std::lock_guard lock{mutex_};
  if (has_failed())
    return failure_;
  return agreement_.is_concerned() ? agreement_.mismatch_error() : error{};
}

error word_exchange::loss(std::vector<std::uint32_t> lost, const std::string& why) const {
  const std::lock_guard lock{mutex_};
  if (has_failed())
    return failure_;
  if (agreement_.has_mismatch())
    return agreement_.mismatch_error();
  // The cause, and not only what followed from it.
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer)
    if (links_[peer].lost_at && std::ranges::count(lost, peer) == 0)
      lost.push_back(peer);
  std::ranges::sort(lost);
  return {errc::aborted, fmt::format("{}: lost {} ({}): it ended or left the group; form a new communicator without it",
                                     agreement_.where(), to_text(lost), why)};
}

std::vector<std::uint32_t> word_exchange::unanswering(std::chrono::nanoseconds at_least, clock::time_point now) const {
  const std::lock_guard lock{mutex_};
  // With the first failure this rank stops to listen.
  const auto end = std::min(now, failed_at_.value_or(now));
  std::vector<std::uint32_t> result;
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer)
    if (const auto since = agreement_.unanswered_since(peer))
      if (std::min(end, links_[peer].lost_at.value_or(end)) - *since >= at_least)
        result.push_back(peer);
  return result;
}

void word_exchange::excuse_unanswering(clock::time_point now) {
  const std::lock_guard lock{mutex_};
  agreement_.excuse_unanswering(now);
}

error word_exchange::silence(const std::vector<std::uint32_t>& peers, std::chrono::nanoseconds limit) const {
  const std::lock_guard lock{mutex_};
  return {errc::aborted, fmt::format("{}: {} did not answer for {}: the network between the hosts does not carry data, "
                                     "or the process is frozen",
                                     agreement_.where(), to_text(peers), to_text(limit))};
}

error word_exchange::lateness(const std::vector<std::uint32_t>& missing, clock::time_point now) const {
  const std::lock_guard lock{mutex_};
  std::string positions;
  for (auto rank : missing)
    positions += "; " + agreement_.position_of(rank, now);
  return {errc::timed_out,
          fmt::format("{}: no message from or to {} within {}{}; check those ranks, or raise the deadline",
                      agreement_.where(), to_text(missing), to_text(agreement_.duration(now)), positions)};
}

error word_exchange::give_up(error reason) {
  std::unique_lock lock{mutex_};
  if (agreement_.has_mismatch())
    changed_.wait_for(lock, mismatch_drain, [this] { return has_failed() || do_all_know(); });
  fail_once(std::move(reason));
  agreement_.end(clock::now());
  return failure_;
}

void word_exchange::abort(error reason) noexcept {
  {
    const std::lock_guard lock{mutex_};
    if (reason.code == errc::none)
      reason.code = errc::aborted;
    fail_once(std::move(reason));
  }
  caller_woken_.set();
}

flight_record word_exchange::record(std::span<const std::atomic<std::uint32_t>> open_messages) const {
  const std::lock_guard lock{mutex_};
  flight_record result;
  result.call = agreement_.call();
  result.is_under_way = agreement_.is_under_way();
  result.duration = agreement_.duration(clock::now());
  for (std::uint32_t peer = 0; result.is_under_way && peer < links_.size(); ++peer)
    if (links_[peer].stream)
      result.peers.push_back({rank_id{peer},
                              agreement_.has_begun(peer) || open_messages[peer].load(std::memory_order_relaxed) == 0,
                              agreement_.last_call_of(peer)});
  return result;
}

// -- the thread ------------------------------------------------------------------------------------------------------

void word_exchange::run() {
  std::vector<pollfd> sockets;
  std::vector<std::uint32_t> ranks;
  for (;;) {
    sockets.assign(1, {thread_woken_.fd(), POLLIN, 0});
    ranks.clear();
    {
      const std::lock_guard lock{mutex_};
      if (is_stopping_ || has_failed())
        return;
      for (std::uint32_t peer = 0; peer < links_.size(); ++peer) {
        const auto& x = links_[peer];
        if (!x.stream || x.lost_at)
          continue;
        const auto has_unsent = !x.unsent.empty() || x.stream->has_unsent();
        sockets.push_back({x.stream->fd(), static_cast<short>(has_unsent ? POLLIN | POLLOUT : POLLIN), 0});
        ranks.push_back(peer);
      }
    }
    ::poll(sockets.data(), sockets.size(), -1);
    if (sockets[0].revents != 0)
      thread_woken_.clear();
    const std::lock_guard lock{mutex_};
    // Connections that end because of this rank's own failure are not lost.
    if (has_failed())
      return;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if ((sockets[i + 1].revents & POLLOUT) != 0)
        flush(ranks[i]);
      if ((sockets[i + 1].revents & ~POLLOUT) != 0)
        listen_to(ranks[i]);
    }
  }
}

void word_exchange::tell(std::uint32_t peer, std::uint32_t flags, clock::time_point now) {
  auto& to = links_[peer];
  if (!to.stream || to.lost_at || has_failed() || !agreement_.takes_words(peer))
    return;
  const auto word = agreement_.word_for(peer, flags, now);
  const auto* bytes = reinterpret_cast<const std::byte*>(&word);
  to.unsent.insert(to.unsent.end(), bytes, bytes + sizeof(word));
  flush(peer);
  if (!to.unsent.empty() || to.stream->has_unsent())
    thread_woken_.set();
}

void word_exchange::tell_all(std::uint32_t flags, clock::time_point now) {
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer)
    tell(peer, flags, now);
}

void word_exchange::flush(std::uint32_t peer) {
  auto& to = links_[peer];
  if (!to.unsent.empty()) {
    const std::array<iovec, 1> rest{{{to.unsent.data(), to.unsent.size()}}};
    const auto written = to.stream->write(rest);
    to.unsent.erase(to.unsent.begin(), to.unsent.begin() + static_cast<std::ptrdiff_t>(written.bytes));
    if (written.after == transferred::state::closed)
      return lose(peer);
  }
  if (to.stream->has_unsent() && to.stream->flush().after == transferred::state::closed)
    lose(peer);
}

void word_exchange::listen_to(std::uint32_t peer) {
  auto& from = links_[peer];
  while (!from.lost_at) {
    const std::array<iovec, 1> room{
        {{from.incoming.data() + from.incoming_bytes, from.incoming.size() - from.incoming_bytes}}};
    const auto got = from.stream->read(room);
    from.incoming_bytes += got.bytes;
    if (from.incoming_bytes == from.incoming.size()) {
      from.incoming_bytes = 0;
      call_word word;
      std::memcpy(&word, from.incoming.data(), sizeof(word));
      hear(peer, word);
    }
    if (got.after == transferred::state::closed)
      lose(peer);
    if (got.after != transferred::state::open)
      return;
  }
}

void word_exchange::hear(std::uint32_t peer, const call_word& word) {
  const auto now = clock::now();
  switch (agreement_.hear(peer, word, now)) {
  case call_agreement::reaction::none:
    break;
  case call_agreement::reaction::answer:
    tell(peer, 0, now);
    break;
  case call_agreement::reaction::tell_all:
    announce_mismatch(now);
    break;
  }
  changed_.notify_all();
}

void word_exchange::announce_mismatch(clock::time_point now) {
  tell_all(0, now);
  has_news_.store(true, std::memory_order_release);
  caller_woken_.set();
}

void word_exchange::lose(std::uint32_t peer) {
  links_[peer].lost_at = clock::now();
  changed_.notify_all();
}

/// Ends the connections, so that the peers notice, and drops what is unsent. The sockets stay open: another thread may
/// be about to use them.
void word_exchange::fail_once(error reason) noexcept {
  if (has_failed())
    return;
  failure_ = std::move(reason);
  failed_at_ = clock::now();
  has_news_.store(true, std::memory_order_release);
  for (auto socket : message_sockets_)
    ::shutdown(socket, SHUT_RDWR);
  for (auto& x : links_)
    if (x.stream)
      ::shutdown(x.stream->fd(), SHUT_RDWR);
  thread_woken_.set();
  changed_.notify_all();
}

bool word_exchange::do_all_know() const {
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer)
    if (links_[peer].stream && !links_[peer].lost_at && !agreement_.knows_mismatch(peer))
      return false;
  return true;
}

} // namespace troupe::collectives::tcp
