#include "shm/transport.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <new>
#include <utility>

namespace troupe::collectives {

namespace {

/// How much one rank may have sent to another by `communicator::send` before the other has taken it. More gains
/// nothing: the receiver copies while the sender does.
constexpr std::uint64_t most_sent_bytes = 16 << 20;

[[nodiscard]] bool is_from_send(std::uint64_t tag) noexcept {
  return tag >> tag_kind_shift == static_cast<std::uint64_t>(call_kind::send);
}

} // namespace

shm_transport::shm_transport(std::shared_ptr<shm_group> group) : group_(std::move(group)), links_(group_->size()) {}

shm_transport::~shm_transport() = default;

/// Frees the memory of messages that the peer has taken.
void shm_transport::release_taken(std::uint32_t peer) {
  auto& to = links_[peer];
  const auto taken = group_->members().control_of(peer).taken[rank()].load(std::memory_order_acquire);
  for (; to.released != taken && !to.sent.empty(); ++to.released) {
    group_->members().generation_pool().deallocate(to.sent.front().block, to.sent.front().size_bytes);
    to.sent_bytes -= to.sent.front().size_bytes;
    to.sent.pop_front();
  }
}

bool shm_transport::must_wait(const link& to, std::uint64_t tag, std::size_t size_bytes) noexcept {
  if (to.posted - to.released == shm::channel_messages)
    return true;
  return is_from_send(tag) && !to.sent.empty() && to.sent_bytes + size_bytes > most_sent_bytes;
}

transport::ticket shm_transport::send(std::uint32_t peer, std::uint64_t tag, const std::byte* data,
                                      std::size_t size_bytes) {
  auto& to = links_[peer];
  auto& channel = group_->members().own_control().channels[peer];
  const auto& taken = group_->members().control_of(peer).taken[rank()];
  release_taken(peer);
  for (std::uint32_t looks = 0; must_wait(to, tag, size_bytes); release_taken(peer)) {
    const auto seen = to.released;
    if (group_->has_failed() || (!group_->spin(peer, looks) && !group_->sleep_on(peer, taken, seen)))
      return is_sent;
  }
  void* block = nullptr;
  try {
    block = group_->members().generation_pool().allocate(size_bytes);
  } catch (const std::bad_alloc&) {
    group_->abort({errc::io_error, fmt::format("rank {} has no memory left for a message of {} bytes to rank {}",
                                               rank(), size_bytes, peer)});
    return is_sent;
  }
  std::memcpy(block, data, size_bytes);
  channel.messages[to.posted % shm::channel_messages] = {tag, size_bytes,
                                                         group_->members().generation_pool().offset_of(block)};
  to.sent.push_back({block, size_bytes});
  to.sent_bytes += size_bytes;
  channel.posted.store(++to.posted);
  group_->wake(peer, channel.posted);
  return is_sent;
}

transport::ticket shm_transport::receive(std::uint32_t peer, std::uint64_t tag, std::byte* data,
                                         std::size_t size_bytes) {
  pending_.push_back({peer, tag, data, size_bytes, false});
  return pending_.size() - 1;
}

void shm_transport::look_for_arrivals(std::uint32_t peer) {
  auto& from = links_[peer];
  const auto& channel = group_->members().control_of(peer).channels[rank()];
  for (const auto posted = channel.posted.load(std::memory_order_acquire); from.seen != posted; ++from.seen)
    from.arrived.push_back({channel.messages[from.seen % shm::channel_messages], false});
}

/// Copies a message that has arrived for this receive.
void shm_transport::take(pending& receive) {
  auto& from = links_[receive.peer];
  const auto found = std::ranges::find_if(from.arrived, [&](const arrival& x) {
    return !x.is_taken && x.message.tag == receive.tag && x.message.size_bytes == receive.size_bytes;
  });
  if (found == from.arrived.end())
    return;
  std::memcpy(receive.data, group_->members().generation_memory(receive.peer) + found->message.offset,
              receive.size_bytes);
  found->is_taken = true;
  receive.is_done = true;
  // Counted in posting order, as the sender frees memory.
  auto& taken = group_->members().own_control().taken[receive.peer];
  auto count = 0u;
  for (; !from.arrived.empty() && from.arrived.front().is_taken; ++count)
    from.arrived.pop_front();
  if (count != 0) {
    taken.fetch_add(count);
    group_->wake(receive.peer, taken);
  }
}

/// Whether the peer has sent this message with another size. The group itself compares collective calls.
expected<void> shm_transport::check_sizes(const pending& wanted) {
  if (!is_from_send(wanted.tag))
    return {};
  for (const auto& [message, is_taken] : links_[wanted.peer].arrived) {
    if (is_taken || message.size_bytes == wanted.size_bytes ||
        (message.tag | tag_size_mask) != (wanted.tag | tag_size_mask))
      continue;
    const auto mine = group_->record().call;
    auto theirs = mine;
    theirs.kind = call_kind::send;
    theirs.peer = rank();
    theirs.size_bytes = message.size_bytes;
    return group_->fail_with({errc::mismatch, describe_mismatch(rank_id{wanted.peer}, theirs, rank_id{rank()}, mine)});
  }
  return {};
}

expected<void> shm_transport::wait(ticket message) {
  if (group_->has_failed()) {
    drop_all();
    return group_->state();
  }
  if (message == is_sent || pending_[message].is_done)
    return {};
  auto& wanted = pending_[message];
  const auto& posted = group_->members().control_of(wanted.peer).channels[rank()].posted;
  for (std::uint32_t looks = 0;;) {
    look_for_arrivals(wanted.peer);
    take(wanted);
    if (wanted.is_done)
      return {};
    if (!group_->has_failed() && group_->spin(wanted.peer, looks))
      continue;
    auto slept = check_sizes(wanted);
    if (slept)
      slept = group_->sleep_on(wanted.peer, posted, links_[wanted.peer].seen);
    if (!slept) {
      drop_all();
      return slept;
    }
  }
}

expected<void> shm_transport::finish() {
  for (ticket i = 0; i < pending_.size(); ++i)
    TROUPE_TRY(wait(i));
  if (group_->has_failed()) {
    drop_all();
    return group_->state();
  }
  pending_.clear();
  group_->end();
  return {};
}

void shm_transport::drop_all() {
  pending_.clear();
  group_->end();
}

} // namespace troupe::collectives
