#include "gloo/transport.hpp"

#include <algorithm>
#include <exception>
#include <gloo/transport/pair.h>
#include <type_traits>
#include <utility>

namespace troupe::collectives {

namespace {

/// The tags of messages are smaller.
constexpr std::uint64_t watch_tag = UINT64_MAX;

/// Longer than any run, and short enough to be counted in nanoseconds.
constexpr std::chrono::hours for_ever{24 * 365 * 10};

/// A call that has taken this long asks the peers where they are; again after twice that, and so on up to the longest.
constexpr std::chrono::milliseconds first_word_after{200};
constexpr std::chrono::milliseconds longest_word_interval{4000};

/// As many words may be under way to a peer; one that is frozen takes none.
constexpr std::size_t max_outgoing_words = 4;

/// How long a rank that fails of a mismatch stays for a peer that does not say that it has heard of it.
constexpr std::chrono::milliseconds mismatch_farewell{1000};

bool is_pairwise(const call_record& call) noexcept {
  return call.kind == call_kind::send || call.kind == call_kind::receive;
}

/// Whether `call` cannot end before `peer` makes the call that belongs to it, when that one has begun so many calls of
/// all and sends to and receives from the caller. In doubt it can.
bool needs(const call_record& call, std::uint32_t peer, std::uint64_t calls_of_all, std::uint64_t sends,
           std::uint64_t receives) noexcept {
  switch (call.kind) {
  case call_kind::none:
  // Of a broadcast, a rank needs its neighbours in the tree only.
  case call_kind::broadcast:
    return false;
  case call_kind::send:
    return call.peer == peer && call.size_bytes != 0 && call.sequence > receives;
  case call_kind::receive:
    return call.peer == peer && call.size_bytes != 0 && call.sequence > sends;
  case call_kind::barrier:
  case call_kind::all_gather_bytes:
    return call.sequence > calls_of_all;
  case call_kind::all_reduce:
  case call_kind::reduce_scatter:
  case call_kind::all_gather:
  case call_kind::all_to_all:
  case call_kind::reduce_leaves:
  case call_kind::all_reduce_fast:
    return call.size_bytes != 0 && call.sequence > calls_of_all;
  }
  return false;
}

/// A permutation of 64-bit words that leaves no bit where it was: the finalizer of SplitMix64.
std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

std::string to_text(const std::vector<std::uint32_t>& ranks) {
  std::string result = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    result += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return result;
}

std::string to_text(std::chrono::nanoseconds x) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(x).count();
  return ms < 10'000 ? std::to_string(ms) + " ms" : std::to_string(ms / 1000) + " s";
}

/// Gloo's messages start with the place in its sources.
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
  // Only now: a watcher may look at all links.
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
  // A short deadline shall not pass before the peers were asked.
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
    calls_of_all_ = call.sequence;
    history_[call.sequence % history_.size()] = call;
    const auto rest = std::uint64_t{call.peer} << 32 | std::uint64_t{static_cast<std::uint8_t>(call.kind)} << 16 |
                      std::uint64_t{call.type} << 8 | call.op;
    call_digest_ = mix(mix(call.size_bytes + mix(call.detail)) + rest);
  }
}

/// Equal where tag, size and, for calls of all, everything that has to be equal are.
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

/// A buffer object for each message: that is an allocation of some 300 bytes, beside which Gloo makes several of its
/// own, and nothing next to the system calls.
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
    // The look at a lost peer's messages may have found, and used up, what would be waited for.
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

/// False when a wait was interrupted; throws when the pair has failed, or at the time-out.
bool gloo_transport::wait_for(pending& message, std::chrono::milliseconds timeout) {
  return message.way == direction::send ? message.buffer->waitSend(timeout) : message.buffer->waitRecv(timeout);
}

/// Looks without waiting. Where the answer is no, the connection to that peer is closed: only for lost peers, and on
/// the way out.
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

/// What ends the call that is under way, if there is something.
error gloo_transport::find_trouble() {
  std::unique_lock lock{mutex_};
  if (failure_.code != errc::none)
    return failure_;
  if (is_concerned())
    return mismatch_error();
  const auto lost = lost_ranks();
  auto reason = mismatch_ && !lost.empty() ? mismatch_error() : error{};
  lock.unlock();
  // A peer that left after its last message is no loss for this call.
  if (lost.empty() || !is_needed(lost))
    return {};
  return reason.code != errc::none ? reason : lost_error();
}

/// Whether a mismatch keeps the call that is under way from ending. If not, and it needs a rank that fails of it, then
/// that one's connection closes.
bool gloo_transport::is_concerned() const {
  if (!mismatch_)
    return false;
  if (mismatch_->left == rank_ || mismatch_->right == rank_)
    return true;
  return !is_pairwise(call_) && !is_pairwise(mismatch_->of_left) && !is_pairwise(mismatch_->of_right) &&
         call_.sequence >= std::min(mismatch_->of_left.sequence, mismatch_->of_right.sequence);
}

/// Of lost ranks only.
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

/// Whether the peer has said that it has begun this call too, or all messages from and to it are known to be done.
bool gloo_transport::has_arrived(const link& peer) const {
  if (peer.heard) {
    const auto& said = *peer.heard;
    const auto begun = call_.kind == call_kind::send      ? said.receives_from_you
                       : call_.kind == call_kind::receive ? said.sends_to_you
                                                          : said.calls_of_all;
    if (call_.sequence <= begun)
      return true;
  }
  return std::ranges::none_of(messages_, [&](const pending& x) {
    return x.peer == peer.peer && !std::atomic_ref{const_cast<bool&>(x.is_done)}.load(std::memory_order_relaxed);
  });
}

/// Asks the peers where they are when a call takes long.
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

// -- the peers' words ------------------------------------------------------------------------------------------------

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

/// Closes the connection, if that is what the watcher was woken for.
void gloo_transport::leave(link& peer) {
  std::unique_lock lock{mutex_};
  if (!is_leaving_ && failure_.code != errc::none) {
    lock.unlock();
    // At once, and what was not yet sent is dropped: the peers must not wait for us.
    peer.context->getPair(static_cast<int>(peer.peer))->close();
    return;
  }
  if (!is_leaving_)
    return;
  const auto outgoing = std::move(peer.outgoing);
  const auto watch = std::move(peer.watch);
  const auto context = std::move(peer.context);
  // The last owners go here, outside the lock and in every thread at once: closing takes a turn of the event loop.
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
  content.calls_of_all = calls_of_all_;
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

/// A peer that takes no words is not asked again: it answers what it has when it wakes up.
void gloo_transport::tell_all(std::uint32_t flags) {
  for (auto& x : links_)
    if (mismatch_ || x->outgoing.size() < max_outgoing_words)
      tell(*x, flags);
}

/// Compares what the peer last said with what this rank has done. What is found stays true, however old the word.
void gloo_transport::compare(const link& peer) {
  const auto& theirs = *peer.heard;
  const auto disagree = [&](const call_record& mine) { learn({peer.peer, rank_, theirs.call, mine}); };
  if (theirs.call.kind == call_kind::none)
    return;
  if (!is_pairwise(theirs.call)) {
    // One that is yet to be made, or too old to be known, is for the peer to compare.
    const auto& mine = history_[theirs.call.sequence % history_.size()];
    if (mine.sequence == theirs.call.sequence && !fit_together(mine, theirs.call))
      return disagree(mine);
  } else if (theirs.call.peer == rank_) {
    const auto& mine = theirs.call.kind == call_kind::send ? peer.receive : peer.send;
    if (mine.sequence == theirs.call.sequence && mine.size_bytes != theirs.call.size_bytes)
      return disagree(mine);
  }
  // That the peer is still there follows from what it needs and this rank has not begun.
  if (is_under_way_ && theirs.has(word::under_way) &&
      needs(theirs.call, rank_, calls_of_all_, peer.send.sequence, peer.receive.sequence) &&
      needs(call_, peer.peer, theirs.calls_of_all, theirs.sends_to_you, theirs.receives_from_you))
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

/// Keeps the first reason, lets go of all memory, and has the connections closed. Returns the kept reason.
expected<void> gloo_transport::give_up(error reason) {
  std::vector<pending> dropped;
  std::unique_lock lock{mutex_};
  if (mismatch_)
    changed_.wait_for(lock, mismatch_farewell, [this] {
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
  // Returns once Gloo's thread is not using the memory; it finds the buffers gone afterwards.
  dropped.clear();
  return result;
}

/// Interrupts the waiting thread and, where there is a failure or a drain, the watchers.
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
  return std::string{to_string(call_.kind)} + " #" + std::to_string(call_.sequence) + " on rank " +
         std::to_string(rank_) + " of " + std::to_string(world_size()) + ", generation " +
         std::to_string(generation_.value);
}

error gloo_transport::mismatch_error() const {
  return {errc::mismatch, where() + ": " +
                              describe_mismatch(rank_id{mismatch_->left}, mismatch_->of_left, rank_id{mismatch_->right},
                                                mismatch_->of_right)};
}

error gloo_transport::lost_error() {
  const std::lock_guard lock{mutex_};
  return {errc::aborted, where() + ": lost " + to_text(lost_ranks()) + " (" + first_loss_ +
                             "): ended, or left the group; form a new communicator without it"};
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
  return {errc::timed_out, where() + ": no message from or to " + to_text(missing) + " within " +
                               to_text(clock::now() - begun_at_) + positions + "; look there, or raise the deadline"};
}

std::string gloo_transport::position_of(const link& peer) const {
  const auto name = "rank " + std::to_string(peer.peer);
  if (!peer.heard)
    return name + " has not answered: frozen, or cut off";
  const auto& said = *peer.heard;
  const auto elapsed = to_text(std::chrono::nanoseconds{said.elapsed_ns} + (clock::now() - peer.heard_at));
  if (said.call.kind == call_kind::none)
    return name + " has made no call yet";
  if (!said.has(word::under_way))
    return name + " has made no call since " + to_string(said.call) + ", which it ended " + elapsed + " ago";
  if (!is_pairwise(said.call) && !is_pairwise(call_) && said.call.sequence == call_.sequence)
    return name + " waits in the same call since " + elapsed;
  return name + " stands in " + to_string(said.call) + " since " + elapsed;
}

} // namespace troupe::collectives
