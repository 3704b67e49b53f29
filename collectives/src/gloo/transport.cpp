#include "gloo/transport.hpp"

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <gloo/transport/pair.h>
#include <type_traits>
#include <utility>

namespace troupe::collectives {

namespace {

/// Larger than the tag of any message.
constexpr std::uint64_t watch_tag = UINT64_MAX;

/// Longer than any run, and short enough to be counted in nanoseconds.
constexpr std::chrono::hours for_ever{24 * 365 * 10};

/// A call that takes this long asks the peers for their state; again after twice that time, and so on up to the longest
/// interval.
constexpr std::chrono::milliseconds first_word_after{200};
constexpr std::chrono::milliseconds longest_word_interval{4000};

/// The limit of words in flight to one peer; a frozen peer accepts none.
constexpr std::size_t max_outgoing_words = 4;

/// How long a rank that fails with a mismatch waits for peers to confirm that they know of it.
constexpr std::chrono::milliseconds mismatch_drain{1000};

bool is_pairwise(const call_record& call) noexcept {
  return call.kind == call_kind::send || call.kind == call_kind::receive;
}

/// Whether `call` cannot end before `peer` makes the matching call, given the peer's numbers of collective calls and of
/// sends to and receives from this rank. False in doubt.
bool needs(const call_record& call, std::uint32_t peer, std::uint64_t collective_calls, std::uint64_t sends,
           std::uint64_t receives) noexcept {
  switch (call.kind) {
  case call_kind::none:
  // In a broadcast a rank needs only its neighbours in the tree.
  case call_kind::broadcast:
    return false;
  case call_kind::send:
    return call.peer == peer && call.size_bytes != 0 && call.sequence > receives;
  case call_kind::receive:
    return call.peer == peer && call.size_bytes != 0 && call.sequence > sends;
  case call_kind::barrier:
  case call_kind::all_gather_bytes:
    return call.sequence > collective_calls;
  case call_kind::all_reduce:
  case call_kind::reduce_scatter:
  case call_kind::all_gather:
  case call_kind::all_to_all:
  case call_kind::reduce_leaves:
  case call_kind::all_reduce_fast:
    return call.size_bytes != 0 && call.sequence > collective_calls;
  }
  return false;
}

/// A permutation of 64-bit words that mixes all bits: the finalizer of SplitMix64.
std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

std::string to_text(const std::vector<std::uint32_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string to_text(std::chrono::nanoseconds x) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(x).count();
  return ms < 10'000 ? fmt::format("{} ms", ms) : fmt::format("{} s", ms / 1000);
}

/// Gloo's messages start with a source location.
std::string without_place(std::string text) {
  const auto end = text.find("] ");
  return text.starts_with('[') && end != std::string::npos ? text.substr(end + 2) : text;
}

} // namespace

gloo_transport::gloo_transport(std::uint32_t rank, generation_id generation, std::chrono::milliseconds deadline,
                               device_ptr device, std::vector<context_ptr> contexts)
    : rank_(rank), generation_(generation), device_(std::move(device)), deadline_(deadline) {
  static_assert(std::is_trivially_copyable_v<word> && std::has_unique_object_representations_v<word>);
  for (std::uint32_t r = 0; r < contexts.size(); ++r) {
    auto& added = *links_.emplace_back(std::make_unique<link>());
    added.peer = r;
    added.context = std::move(contexts[r]);
    if (added.context)
      added.watch = added.context->createUnboundBuffer(added.incoming.data(), sizeof(added.incoming));
  }
  // Only after all links exist: a watcher may access any of them.
  for (auto& x : links_)
    if (x->context)
      x->watcher = std::thread{[this, &peer = *x] { watch(peer); }};
  if (links_.size() > 1)
    late_calls_ = std::thread{[this] { look_after_late_calls(); }};
}

gloo_transport::~gloo_transport() {
  {
    const std::lock_guard lock{mutex_};
    is_leaving_ = failure_.code == errc::none;
    wake_all();
  }
  for (auto& x : links_)
    if (x->watcher.joinable())
      x->watcher.join();
  if (late_calls_.joinable())
    late_calls_.join();
}

// -- one call --------------------------------------------------------------------------------------------------------

void gloo_transport::set_deadline(std::chrono::milliseconds deadline) noexcept {
  const std::lock_guard lock{mutex_};
  deadline_ = deadline;
}

expected<void> gloo_transport::begin(const call_record& call) {
  std::unique_lock lock{mutex_};
  if (failure_.code != errc::none)
    return fail(failure_);
  take_note(call);
  const auto is_needed = [&](const auto& x) { return !is_pairwise(call) || x->peer == call.peer; };
  const auto is_broken = std::ranges::any_of(links_, [&](const auto& x) { return x->is_lost && is_needed(x); });
  if (!mismatch_ && !is_broken)
    return {};
  auto reason = mismatch_ ? mismatch_error() : error{};
  lock.unlock();
  return give_up(reason.code != errc::none ? std::move(reason) : lost_error());
}

/// Starts the clocks, and keeps what peers may later compare.
void gloo_transport::take_note(const call_record& call) {
  call_ = call;
  is_under_way_ = true;
  begun_at_ = clock::now();
  ends_at_ = begun_at_ + deadline_;
  // With a short deadline, ask the peers before it expires.
  word_interval_ = std::min(first_word_after, std::max(deadline_ / 4, std::chrono::milliseconds{1}));
  next_word_at_ = begun_at_ + word_interval_;
  if (std::exchange(is_asleep_, false))
    late_calls_woken_.notify_one();
  call_digest_ = 0;
  if (call.kind == call_kind::send) {
    links_[call.peer]->send = call;
  } else if (call.kind == call_kind::receive) {
    links_[call.peer]->receive = call;
  } else {
    collective_calls_ = call.sequence;
    history_[call.sequence % history_.size()] = call;
    const auto rest = std::uint64_t{call.peer} << 32 | std::uint64_t{static_cast<std::uint8_t>(call.kind)} << 16 |
                      std::uint64_t{call.type} << 8 | call.op;
    call_digest_ = mix(mix(call.size_bytes + mix(call.detail)) + rest);
  }
}

/// Equal if tag and size are equal and, for collective calls, everything else that must be.
std::uint64_t gloo_transport::wire_tag(std::uint64_t tag, std::size_t size_bytes) const noexcept {
  return mix(mix(tag + call_digest_) + size_bytes) >> 1;
}

transport::ticket gloo_transport::send(std::uint32_t peer, std::uint64_t tag, const std::byte* data,
                                       std::size_t size_bytes) {
  return post(peer, direction::send, tag, const_cast<std::byte*>(data), size_bytes);
}

transport::ticket gloo_transport::receive(std::uint32_t peer, std::uint64_t tag, std::byte* data,
                                          std::size_t size_bytes) {
  return post(peer, direction::receive, tag, data, size_bytes);
}

/// Each message allocates a buffer object of about 300 bytes. Gloo allocates several more, and all are cheap beside the
/// system calls.
transport::ticket gloo_transport::post(std::uint32_t peer, direction way, std::uint64_t tag, void* data,
                                       std::size_t size_bytes) {
  auto owned = links_[peer]->context->createUnboundBuffer(data, size_bytes);
  auto* buffer = owned.get();
  {
    const std::lock_guard lock{mutex_};
    messages_.push_back({peer, way, std::move(owned)});
    if (failure_.code != errc::none)
      return messages_.size() - 1;
  }
  try {
    if (way == direction::send)
      buffer->send(static_cast<int>(peer), wire_tag(tag, size_bytes));
    else
      buffer->recv(static_cast<int>(peer), wire_tag(tag, size_bytes));
  } catch (const std::exception& e) {
    lose(peer, e.what());
  }
  return messages_.size() - 1;
}

expected<void> gloo_transport::wait(ticket message) {
  auto& x = messages_[message];
  while (!x.is_done) {
    if (auto trouble = find_trouble(); trouble.code != errc::none)
      return give_up(std::move(trouble));
    // Checking a lost peer's messages may already have consumed the completion.
    if (x.is_done)
      break;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(ends_at_ - clock::now());
    try {
      const auto is_done = wait_for(x, std::max(left, std::chrono::milliseconds{0}));
      std::atomic_ref{x.is_done}.store(is_done, std::memory_order_relaxed);
    } catch (const std::exception& e) {
      if (clock::now() >= ends_at_)
        return give_up(timeout_error());
      lose(x.peer, e.what());
    }
  }
  return {};
}

expected<void> gloo_transport::finish() {
  if (auto trouble = find_trouble(); trouble.code != errc::none)
    return give_up(std::move(trouble));
  for (ticket i = 0; i < messages_.size(); ++i)
    if (auto done = wait(i); !done)
      return done;
  const std::lock_guard lock{mutex_};
  messages_.clear();
  end_call();
  return {};
}

/// False if the wait was interrupted. Throws if the pair has failed, and at the timeout.
bool gloo_transport::wait_for(pending& message, std::chrono::milliseconds timeout) {
  return message.way == direction::send ? message.buffer->waitSend(timeout) : message.buffer->waitRecv(timeout);
}

/// Checks without waiting. If the message is incomplete, this closes the connection: use it for lost peers and when
/// leaving.
bool gloo_transport::is_complete(pending& message) noexcept {
  try {
    // An interruption is reported once, before a completion.
    while (!message.is_done) {
      const auto is_done = wait_for(message, std::chrono::milliseconds{0});
      std::atomic_ref{message.is_done}.store(is_done, std::memory_order_relaxed);
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void gloo_transport::end_call() {
  if (is_under_way_)
    ended_at_ = clock::now();
  is_under_way_ = false;
}

/// The error that ends the running call, if there is one.
error gloo_transport::find_trouble() {
  std::unique_lock lock{mutex_};
  if (failure_.code != errc::none)
    return failure_;
  if (is_concerned())
    return mismatch_error();
  const auto lost = lost_ranks();
  auto reason = mismatch_ && !lost.empty() ? mismatch_error() : error{};
  lock.unlock();
  // A peer that left after its last message does not fail this call.
  if (lost.empty() || !is_needed(lost))
    return {};
  return reason.code != errc::none ? reason : lost_error();
}

/// Whether a mismatch prevents the running call from ending. If it does not, but the call needs a rank that fails
/// because of it, the connection to that rank closes.
bool gloo_transport::is_concerned() const {
  if (!mismatch_)
    return false;
  if (mismatch_->left == rank_ || mismatch_->right == rank_)
    return true;
  return !is_pairwise(call_) && !is_pairwise(mismatch_->of_left) && !is_pairwise(mismatch_->of_right) &&
         call_.sequence >= std::min(mismatch_->of_left.sequence, mismatch_->of_right.sequence);
}

/// For lost ranks only.
bool gloo_transport::is_needed(const std::vector<std::uint32_t>& ranks) {
  return std::ranges::any_of(messages_,
                             [&](pending& x) { return std::ranges::count(ranks, x.peer) != 0 && !is_complete(x); });
}

flight_record gloo_transport::record() const {
  const std::lock_guard lock{mutex_};
  flight_record result;
  result.transport = "gloo";
  result.rank = rank_id{rank_};
  result.world_size = world_size();
  result.generation = generation_;
  result.call = call_;
  result.is_under_way = is_under_way_;
  result.duration = (is_under_way_ ? clock::now() : ended_at_) - begun_at_;
  for (const auto& x : links_)
    if (is_under_way_ && x->context)
      result.peers.push_back({rank_id{x->peer}, has_arrived(*x), x->heard ? x->heard->call : call_record{}});
  return result;
}

/// Whether the peer has reported that it is in this call too, or all messages to and from it are done.
bool gloo_transport::has_arrived(const link& peer) const {
  if (peer.heard) {
    const auto& said = *peer.heard;
    const auto begun = call_.kind == call_kind::send      ? said.receives_from_you
                       : call_.kind == call_kind::receive ? said.sends_to_you
                                                          : said.collective_calls;
    if (call_.sequence <= begun)
      return true;
  }
  return std::ranges::none_of(messages_, [&](const pending& x) {
    return x.peer == peer.peer && !std::atomic_ref{const_cast<bool&>(x.is_done)}.load(std::memory_order_relaxed);
  });
}

/// Asks the peers for their state when a call takes long.
void gloo_transport::look_after_late_calls() {
  std::unique_lock lock{mutex_};
  while (!is_over()) {
    if (const auto now = clock::now(); now < next_word_at_) {
      late_calls_woken_.wait_until(lock, next_word_at_);
    } else if (is_under_way_) {
      tell_all(word::wants_answer);
      word_interval_ = std::min(2 * word_interval_, longest_word_interval);
      next_word_at_ = now + word_interval_;
    } else {
      is_asleep_ = true;
      late_calls_woken_.wait(lock, [this] { return !is_asleep_ || is_over(); });
    }
  }
}

// -- words of the peers ----------------------------------------------------------------------------------------------

void gloo_transport::watch(link& peer) {
  try {
    const auto rank = static_cast<int>(peer.peer);
    for (std::size_t i = 0; i < peer.incoming.size(); ++i)
      peer.watch->recv(rank, watch_tag, i * sizeof(word), sizeof(word));
    while (peer.watch->waitRecv(nullptr, for_ever)) {
      const std::lock_guard lock{mutex_};
      hear(peer);
    }
  } catch (const std::exception& e) {
    lose(peer.peer, e.what());
  }
  leave(peer);
}

/// Closes the connection, if the watcher was woken for that.
void gloo_transport::leave(link& peer) {
  std::unique_lock lock{mutex_};
  if (!is_leaving_ && failure_.code != errc::none) {
    lock.unlock();
    // Immediately; unsent data is dropped, because peers must not wait for this rank.
    peer.context->getPair(static_cast<int>(peer.peer))->close();
    return;
  }
  if (!is_leaving_)
    return;
  const auto outgoing = std::move(peer.outgoing);
  const auto watch = std::move(peer.watch);
  const auto context = std::move(peer.context);
  // The last owners release here, outside the lock and in all threads in parallel: closing takes a turn of the event
  // loop.
  lock.unlock();
}

void gloo_transport::hear(link& peer) {
  const auto place = peer.words_heard++ % peer.incoming.size();
  peer.heard = peer.incoming[place];
  peer.heard_at = clock::now();
  while (!peer.outgoing.empty() && peer.outgoing.front()->number <= peer.heard->words_from_you)
    peer.outgoing.pop_front();
  answer(peer);
  changed_.notify_all();
  peer.watch->recv(static_cast<int>(peer.peer), watch_tag, place * sizeof(word), sizeof(word));
}

void gloo_transport::answer(link& peer) {
  if (peer.heard->has(word::knows_mismatch)) {
    peer.knows_mismatch = true;
    learn(peer.heard->found);
  }
  compare(peer);
  if (peer.heard->has(word::wants_answer))
    tell(peer, 0);
}

void gloo_transport::tell(link& peer, std::uint32_t flags) {
  if (!peer.context || peer.is_lost || is_over())
    return;
  auto& added = *peer.outgoing.emplace_back(std::make_unique<sent_word>());
  added.number = ++peer.words_told;
  auto& content = added.content;
  content.call = call_;
  content.elapsed_ns = std::chrono::nanoseconds{clock::now() - (is_under_way_ ? begun_at_ : ended_at_)}.count();
  content.collective_calls = collective_calls_;
  content.sends_to_you = peer.send.sequence;
  content.receives_from_you = peer.receive.sequence;
  content.words_from_you = peer.words_heard;
  content.flags = flags | (is_under_way_ ? word::under_way : 0u) | (mismatch_ ? word::knows_mismatch : 0u);
  content.found = mismatch_.value_or(mismatch{});
  added.buffer = peer.context->createUnboundBuffer(&content, sizeof(content));
  try {
    added.buffer->send(static_cast<int>(peer.peer), watch_tag);
  } catch (const std::exception& e) {
    mark_lost(peer, e.what());
  }
}

/// Does not ask a peer again that accepts no words: it answers the pending ones when it wakes up.
void gloo_transport::tell_all(std::uint32_t flags) {
  for (auto& x : links_)
    if (mismatch_ || x->outgoing.size() < max_outgoing_words)
      tell(*x, flags);
}

/// Compares the peer's last word with this rank's calls. A mismatch stays true, however old the word is.
void gloo_transport::compare(const link& peer) {
  const auto& theirs = *peer.heard;
  const auto disagree = [&](const call_record& mine) { learn({peer.peer, rank_, theirs.call, mine}); };
  if (theirs.call.kind == call_kind::none)
    return;
  if (!is_pairwise(theirs.call)) {
    // A call that this rank has yet to make, or no longer remembers, is for the peer to compare.
    const auto& mine = history_[theirs.call.sequence % history_.size()];
    if (mine.sequence == theirs.call.sequence && !fit_together(mine, theirs.call))
      return disagree(mine);
  } else if (theirs.call.peer == rank_) {
    const auto& mine = theirs.call.kind == call_kind::send ? peer.receive : peer.send;
    if (mine.sequence == theirs.call.sequence && mine.size_bytes != theirs.call.size_bytes)
      return disagree(mine);
  }
  // The peer is still in its call, because that call needs one that this rank has not begun.
  if (is_under_way_ && theirs.has(word::under_way) &&
      needs(theirs.call, rank_, collective_calls_, peer.send.sequence, peer.receive.sequence) &&
      needs(call_, peer.peer, theirs.collective_calls, theirs.sends_to_you, theirs.receives_from_you))
    disagree(call_);
}

void gloo_transport::learn(const mismatch& found) {
  if (mismatch_ || is_over())
    return;
  mismatch_ = found;
  tell_all(0);
  wake_all();
}

// -- failure ---------------------------------------------------------------------------------------------------------

void gloo_transport::lose(std::uint32_t peer, const char* why) {
  const std::lock_guard lock{mutex_};
  mark_lost(*links_[peer], why);
}

void gloo_transport::mark_lost(link& peer, const char* why) {
  if (is_over() || peer.is_lost)
    return;
  peer.is_lost = true;
  if (first_loss_.empty())
    first_loss_ = without_place(why);
  wake_all();
}

void gloo_transport::abort(error reason) noexcept {
  const std::lock_guard lock{mutex_};
  if (failure_.code != errc::none)
    return;
  failure_ = std::move(reason);
  if (failure_.code == errc::none)
    failure_.code = errc::aborted;
  wake_all();
}

/// Keeps the first reason, releases all memory and closes the connections. Returns the first reason.
expected<void> gloo_transport::give_up(error reason) {
  std::vector<pending> dropped;
  std::unique_lock lock{mutex_};
  if (mismatch_)
    changed_.wait_for(lock, mismatch_drain, [this] {
      return is_over() ||
             std::ranges::all_of(links_, [](const auto& x) { return !x->context || x->is_lost || x->knows_mismatch; });
    });
  if (failure_.code == errc::none)
    failure_ = std::move(reason);
  wake_all();
  end_call();
  dropped.swap(messages_);
  auto result = fail(failure_);
  lock.unlock();
  // Waits until Gloo's thread no longer uses the memory; after that it finds the buffers gone.
  dropped.clear();
  return result;
}

/// Interrupts the waiting thread and, after a failure or during a drain, the watchers.
void gloo_transport::wake_all() {
  changed_.notify_all();
  for (auto& x : messages_) {
    x.buffer->abortWaitRecv();
    x.buffer->abortWaitSend();
  }
  if (!is_over())
    return;
  late_calls_woken_.notify_one();
  for (auto& x : links_)
    if (x->watch)
      x->watch->abortWaitRecv();
}

std::vector<std::uint32_t> gloo_transport::lost_ranks() const {
  std::vector<std::uint32_t> result;
  for (const auto& x : links_)
    if (x->is_lost)
      result.push_back(x->peer);
  return result;
}

std::string gloo_transport::where() const {
  return fmt::format("{} #{} on rank {} of {}, generation {}", to_string(call_.kind), call_.sequence, rank_,
                     world_size(), generation_);
}

error gloo_transport::mismatch_error() const {
  return {errc::mismatch, fmt::format("{}: {}", where(),
                                      describe_mismatch(rank_id{mismatch_->left}, mismatch_->of_left,
                                                        rank_id{mismatch_->right}, mismatch_->of_right))};
}

error gloo_transport::lost_error() {
  const std::lock_guard lock{mutex_};
  return {errc::aborted, fmt::format("{}: lost {} ({}): it ended or left the group; form a new communicator without it",
                                     where(), to_text(lost_ranks()), first_loss_)};
}

error gloo_transport::timeout_error() {
  std::vector<std::uint32_t> missing;
  for (auto& x : messages_)
    if (std::ranges::count(missing, x.peer) == 0 && !is_complete(x))
      missing.push_back(x.peer);
  std::ranges::sort(missing);
  const std::lock_guard lock{mutex_};
  std::string positions;
  for (auto rank : missing)
    positions += "; " + position_of(*links_[rank]);
  return {errc::timed_out,
          fmt::format("{}: no message from or to {} within {}{}; check those ranks, or raise the deadline", where(),
                      to_text(missing), to_text(clock::now() - begun_at_), positions)};
}

std::string gloo_transport::position_of(const link& peer) const {
  const auto name = fmt::format("rank {}", peer.peer);
  if (!peer.heard)
    return fmt::format("{} has not answered: it is frozen or unreachable", name);
  const auto& said = *peer.heard;
  const auto elapsed = to_text(std::chrono::nanoseconds{said.elapsed_ns} + (clock::now() - peer.heard_at));
  if (said.call.kind == call_kind::none)
    return fmt::format("{} has made no call yet", name);
  if (!said.has(word::under_way))
    return fmt::format("{} has made no call since {}, which it ended {} ago", name, to_string(said.call), elapsed);
  if (!is_pairwise(said.call) && !is_pairwise(call_) && said.call.sequence == call_.sequence)
    return fmt::format("{} has been waiting in the same call for {}", name, elapsed);
  return fmt::format("{} has been in {} for {}", name, to_string(said.call), elapsed);
}

} // namespace troupe::collectives
