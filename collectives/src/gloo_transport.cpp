#include "gloo_transport.hpp"

#include <algorithm>
#include <exception>
#include <gloo/transport/pair.h>
#include <utility>

namespace troupe::collectives {

namespace {

/// No algorithm uses this tag: its kind is beyond all others.
constexpr std::uint64_t watch_tag = UINT64_MAX;

/// Longer than any run, and short enough to be counted in nanoseconds.
constexpr std::chrono::hours for_ever{24 * 365 * 10};

std::string to_text(const std::vector<std::uint32_t>& ranks) {
  std::string result = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    result += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return result;
}

/// Gloo's messages start with the place in its sources.
std::string without_place(std::string text) {
  const auto end = text.find("] ");
  return text.starts_with('[') && end != std::string::npos ? text.substr(end + 2) : text;
}

} // namespace

gloo_transport::gloo_transport(std::uint32_t rank, generation_id generation, std::chrono::milliseconds deadline,
                               device_ptr device, std::vector<context_ptr> contexts)
    : rank_(rank), generation_(generation), deadline_(deadline), device_(std::move(device)) {
  for (std::uint32_t r = 0; r < contexts.size(); ++r) {
    auto& added = *links_.emplace_back(std::make_unique<link>());
    added.peer = r;
    added.context = std::move(contexts[r]);
    if (added.context)
      added.watch = added.context->createUnboundBuffer(&added.watch_byte, sizeof(added.watch_byte));
  }
  // Only now: a watcher may look at all links.
  for (auto& x : links_)
    if (x->context)
      x->watcher = std::thread{[this, &peer = *x] { watch(peer); }};
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
}

// -- one operation ---------------------------------------------------------------------------------------------------

expected<void> gloo_transport::begin(const operation& op) {
  operation_ = op;
  ends_at_ = std::chrono::steady_clock::now() + deadline_;
  std::unique_lock lock{mutex_};
  if (failure_.code != errc::none)
    return fail(failure_);
  const auto is_broken = op.peer == operation::every_peer ? !lost_.empty() : std::ranges::count(lost_, op.peer) != 0;
  lock.unlock();
  return is_broken ? give_up(lost_error()) : expected<void>{};
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
      buffer->send(static_cast<int>(peer), tag);
    else
      buffer->recv(static_cast<int>(peer), tag);
  } catch (const std::exception& e) {
    lose(peer, e.what());
  }
  return messages_.size() - 1;
}

expected<void> gloo_transport::wait(ticket message) {
  auto& x = messages_[message];
  while (!x.is_done) {
    if (has_failed())
      return give_up({});
    // A peer that left after its last message is no loss for this operation.
    if (is_lost_peer_needed())
      return give_up(lost_error());
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(ends_at_ - std::chrono::steady_clock::now());
    try {
      x.is_done = wait_for(x, std::max(left, std::chrono::milliseconds{0}));
    } catch (const std::exception& e) {
      if (std::chrono::steady_clock::now() >= ends_at_)
        return give_up(timeout_error());
      lose(x.peer, e.what());
    }
  }
  return {};
}

expected<void> gloo_transport::finish() {
  if (has_failed())
    return give_up({});
  for (ticket i = 0; i < messages_.size(); ++i)
    if (auto done = wait(i); !done)
      return done;
  const std::lock_guard lock{mutex_};
  messages_.clear();
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
    while (!message.is_done)
      message.is_done = wait_for(message, std::chrono::milliseconds{0});
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool gloo_transport::is_lost_peer_needed() {
  std::unique_lock lock{mutex_};
  if (lost_.empty())
    return false;
  const auto lost = lost_;
  lock.unlock();
  return std::ranges::any_of(messages_,
                             [&](pending& x) { return std::ranges::count(lost, x.peer) != 0 && !is_complete(x); });
}

bool gloo_transport::has_failed() {
  const std::lock_guard lock{mutex_};
  return failure_.code != errc::none;
}

// -- failure ---------------------------------------------------------------------------------------------------------

void gloo_transport::watch(link& peer) {
  try {
    peer.watch->recv(static_cast<int>(peer.peer), watch_tag);
    peer.watch->waitRecv(nullptr, for_ever);
  } catch (const std::exception& e) {
    lose(peer.peer, e.what());
  }
  std::unique_lock lock{mutex_};
  if (!is_leaving_ && failure_.code != errc::none) {
    lock.unlock();
    // At once, and what was not yet sent is dropped: the peers must not wait for us.
    peer.context->getPair(static_cast<int>(peer.peer))->close();
    return;
  }
  if (!is_leaving_)
    return;
  const auto watch = std::move(peer.watch);
  const auto context = std::move(peer.context);
  // The last owners go here, outside the lock and in every thread at once: closing takes a turn of the event loop.
  lock.unlock();
}

void gloo_transport::lose(std::uint32_t peer, const char* why) {
  const std::lock_guard lock{mutex_};
  if (failure_.code != errc::none || is_leaving_ || std::ranges::count(lost_, peer) != 0)
    return;
  lost_.push_back(peer);
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
  if (failure_.code == errc::none)
    failure_ = std::move(reason);
  wake_all();
  dropped.swap(messages_);
  auto result = fail(failure_);
  lock.unlock();
  // Returns once Gloo's thread is not using the memory; it finds the buffers gone afterwards.
  dropped.clear();
  return result;
}

/// Interrupts the waiting thread and, where there is a failure or a farewell, the watchers. With the lock held.
void gloo_transport::wake_all() {
  for (auto& x : messages_) {
    x.buffer->abortWaitRecv();
    x.buffer->abortWaitSend();
  }
  if (failure_.code == errc::none && !is_leaving_)
    return;
  for (auto& x : links_)
    if (x->watch)
      x->watch->abortWaitRecv();
}

std::string gloo_transport::where() const {
  return std::string{operation_.name} + " #" + std::to_string(operation_.sequence) + " on rank " +
         std::to_string(rank_) + " of " + std::to_string(world_size()) + ", generation " +
         std::to_string(generation_.value);
}

error gloo_transport::lost_error() {
  const std::lock_guard lock{mutex_};
  return {errc::aborted, where() + ": lost " + to_text(lost_) + " (" + first_loss_ +
                             "): ended, or left the group; form a new communicator without it"};
}

error gloo_transport::timeout_error() {
  return {errc::timed_out, where() + ": no message from or to " + incomplete_ranks() + " within " +
                               std::to_string(deadline_.count()) +
                               " ms; frozen, slow, or in another call: look there, or raise the deadline"};
}

std::string gloo_transport::incomplete_ranks() {
  std::vector<std::uint32_t> result;
  for (auto& x : messages_)
    if (!is_complete(x))
      result.push_back(x.peer);
  std::ranges::sort(result);
  result.erase(std::ranges::unique(result).begin(), result.end());
  return to_text(result);
}

} // namespace troupe::collectives
