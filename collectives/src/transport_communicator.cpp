#include "transport_communicator.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace troupe::collectives {

/// The numbers are part of the tags.
enum class transport_communicator::kind : std::uint8_t {
  all_reduce = 1,
  reduce_scatter,
  all_gather,
  all_gather_bytes,
  broadcast,
  all_to_all,
  barrier,
  send,
  receive,
  reduce_leaves,
  all_reduce_fast,
};

namespace {

/// Up to this size everybody sends everything to everybody and finishes the whole tree: one round instead of two.
constexpr std::uint64_t one_round_limit_bytes = 4096;

/// The phases of one operation that have tags of their own.
constexpr std::uint32_t first_phase = 0;
constexpr std::uint32_t second_phase = 1;

expected<void> check_blocks(std::size_t whole, std::size_t block, std::uint32_t world_size, const char* what) {
  if (whole == block * world_size)
    return {};
  return fail(errc::invalid_argument, std::string{what} + ": " + std::to_string(whole) + " bytes are not " +
                                          std::to_string(world_size) + " blocks of " + std::to_string(block) +
                                          " bytes; give one block for each rank");
}

expected<void> check_elements(dtype type, std::size_t size_bytes) {
  if (auto valid = check_reducible(type); !valid)
    return valid;
  if (size_bytes % size_of(type) == 0)
    return {};
  return fail(errc::invalid_argument, std::to_string(size_bytes) + " bytes are not whole elements of type " +
                                          std::string{to_string(type)} + "; pass whole elements");
}

expected<void> check_partials(const bucket_layout& layout, const finish_plan& plan, std::uint32_t rank,
                              std::span<const leaf_partial> partials, std::size_t result_bytes) {
  if (auto valid = check_reducible(layout); !valid)
    return valid;
  if (result_bytes != layout.size_bytes())
    return fail(errc::invalid_argument, "reduce_leaves: the result has " + std::to_string(result_bytes) +
                                            " bytes and the layout " + std::to_string(layout.size_bytes()) +
                                            "; they must be equal");
  std::size_t position = 0;
  for (const auto& operand : plan.operands) {
    if (operand.rank != rank)
      continue;
    if (position >= partials.size() || partials[position].node != operand.node)
      break;
    ++position;
  }
  if (position == partials.size() && position == plan.count_of(rank))
    return {};
  return fail(errc::invalid_argument, "reduce_leaves: rank " + std::to_string(rank) + " owns " +
                                          std::to_string(plan.count_of(rank)) + " subtrees and was given " +
                                          std::to_string(partials.size()) + " partial sums that differ at number " +
                                          std::to_string(position) + "; accumulate exactly the range in the ownership");
}

std::uint32_t rounds(std::uint32_t world_size) noexcept {
  return root_level(world_size);
}

} // namespace

transport_communicator::transport_communicator(std::unique_ptr<transport> backend, generation_id generation)
    : backend_(std::move(backend)),
      generation_(generation),
      sent_to_(backend_->world_size()),
      received_from_(backend_->world_size()) {}

// -- messages --------------------------------------------------------------------------------------------------------

expected<void> transport_communicator::begin(kind what, std::uint32_t peer) {
  static constexpr std::string_view names[] = {"",           "all_reduce", "reduce_scatter", "all_gather",
                                               "all_gather", "broadcast",  "all_to_all",     "barrier",
                                               "send",       "receive",    "reduce_leaves",  "all_reduce_fast"};
  kind_ = what;
  const auto is_pairwise = peer != operation::every_peer;
  // Both sides of a pair count their own messages: their collectives' numbers agree, their calls' need not.
  if (!is_pairwise)
    tag_number_ = ++sequence_;
  else
    tag_number_ = what == kind::send ? ++sent_to_[peer] : ++received_from_[peer];
  return backend_->begin({names[static_cast<std::size_t>(what)], tag_number_, peer});
}

/// Kind and size are in the tag, so that ranks that disagree about them wait for each other until the deadline, instead
/// of taking each other's bytes.
std::uint64_t transport_communicator::tag(std::uint64_t size_bytes, std::uint32_t phase) const noexcept {
  const auto what = kind_ == kind::receive ? kind::send : kind_;
  const auto size_hash = (size_bytes * 0x9e3779b97f4a7c15u) >> 50;
  return std::uint64_t{static_cast<std::uint8_t>(what)} << 56 | std::uint64_t{phase & 63} << 50 | size_hash << 36 |
         (tag_number_ & 0xfffffffffu);
}

void transport_communicator::post_send(std::uint32_t peer, const std::byte* data, std::uint64_t size_bytes,
                                       std::uint32_t phase) {
  if (size_bytes == 0)
    return;
  backend_->send(peer, tag(size_bytes, phase), data, size_bytes);
  sent_.sent_bytes += size_bytes;
  ++sent_.sent_messages;
}

transport::ticket transport_communicator::post_receive(std::uint32_t peer, std::byte* data, std::uint64_t size_bytes,
                                                       std::uint32_t phase) {
  return backend_->receive(peer, tag(size_bytes, phase), data, size_bytes);
}

expected<void> transport_communicator::check_peer(rank_id peer) const {
  if (peer.value < world_size() && peer.value != rank().value)
    return {};
  return fail(errc::invalid_argument, "rank " + std::to_string(rank().value) + " cannot exchange messages with rank " +
                                          std::to_string(peer.value) + " of " + std::to_string(world_size()) +
                                          "; name another rank of the group");
}

// -- reductions ------------------------------------------------------------------------------------------------------

const finish_plan& transport_communicator::rank_plan() {
  if (!rank_plan_)
    rank_plan_ = std::make_unique<finish_plan>(*plan_finish(world_size(), even_ownership(world_size(), world_size())));
  return *rank_plan_;
}

expected<void> transport_communicator::refresh_leaves_plan(std::uint32_t shards,
                                                           std::span<const shard_range> ownership) {
  if (leaves_.shards == shards && std::ranges::equal(leaves_.ownership, ownership))
    return {};
  if (ownership.size() != world_size())
    return fail(errc::invalid_argument, "reduce_leaves: the ownership names " + std::to_string(ownership.size()) +
                                            " ranks and the group has " + std::to_string(world_size()) +
                                            "; give one range for each rank");
  auto plan = plan_finish(shards, ownership);
  if (!plan)
    return fail(std::move(plan.error()));
  leaves_ = {shards, {ownership.begin(), ownership.end()}, std::move(*plan)};
  return {};
}

std::vector<byte_range> transport_communicator::spread(const bucket_layout& layout, std::uint64_t size_bytes) const {
  if (size_bytes <= one_round_limit_bytes)
    return std::vector<byte_range>(world_size(), byte_range{0, size_bytes});
  std::vector<byte_range> result(world_size());
  for (std::uint32_t r = 0; r < world_size(); ++r) {
    const auto slice = layout.slice(r, world_size());
    result[r] = {std::min(slice.first, size_bytes), std::min(slice.last, size_bytes)};
  }
  return result;
}

/// Sends every peer its slice of my partial sums, takes theirs of mine straight into scratch memory, and finishes the
/// tree there.
expected<void> transport_communicator::reduce_own_slice(const reduction& what, std::span<const std::byte* const> mine,
                                                        std::byte* out) {
  const auto n = world_size();
  const auto me = rank().value;
  const auto slice = what.slices[me];
  const auto stride = (slice.size_bytes() + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  scratch_.reserve(stride * (what.plan.operands.size() - mine.size()));
  operands_.assign(what.plan.operands.size(), {});
  auto* room = scratch_.data();
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const auto& operand = what.plan.operands[i];
    auto& state = operands_[i];
    if (operand.rank == me) {
      state.data = mine[operand.position] + slice.first;
    } else if (slice.size_bytes() != 0) {
      state.data = state.scratch = room;
      state.message = post_receive(operand.rank, room, slice.size_bytes(), first_phase);
      state.pending = true;
      room += stride;
    }
  }
  // Everybody starts with another peer, so that no one is sent to by all at once.
  for (std::uint32_t i = 1; i < n; ++i) {
    const auto peer = (me + i) % n;
    for (const auto* partial : mine)
      post_send(peer, partial + what.slices[peer].first, what.slices[peer].size_bytes(), first_phase);
  }
  return slice.size_bytes() == 0 ? expected<void>{} : finish_tree(what, out);
}

expected<void> transport_communicator::finish_tree(const reduction& what, std::byte* out) {
  const auto slice = what.slices[rank().value];
  const auto arrived = [this](operand_state& x) -> expected<void> {
    return std::exchange(x.pending, false) ? backend_->wait(x.message) : expected<void>{};
  };
  if (what.plan.additions.empty()) {
    auto result = arrived(operands_[0]);
    if (result && operands_[0].data != out)
      std::memcpy(out, operands_[0].data, slice.size_bytes());
    return result;
  }
  for (std::size_t i = 0; i < what.plan.additions.size(); ++i) {
    auto& left = operands_[what.plan.additions[i].target];
    auto& right = operands_[what.plan.additions[i].source];
    if (auto done = arrived(left); !done)
      return done;
    if (auto done = arrived(right); !done)
      return done;
    // One of the two came from a peer: a worker has joined its own siblings already.
    auto* target = i + 1 == what.plan.additions.size() ? out : left.scratch != nullptr ? left.scratch : right.scratch;
    combine(what.layout, slice, what.op, target, left.data, right.data);
    left.data = left.scratch = target;
  }
  return {};
}

expected<void> transport_communicator::reduce_and_spread(const reduction& what, std::span<const std::byte* const> mine,
                                                         std::span<std::byte> result) {
  const auto n = world_size();
  const auto me = rank().value;
  const auto slice = what.slices[me];
  const auto is_spread = slice.size_bytes() != result.size();
  // Posted first: the peers' finished slices need no further round trip. In place this is safe, because a peer sends
  // its finished slice only after it has my contribution to it.
  for (std::uint32_t i = 1; is_spread && i < n; ++i) {
    const auto peer = (me + n - i) % n;
    if (const auto theirs = what.slices[peer]; theirs.size_bytes() != 0)
      post_receive(peer, result.data() + theirs.first, theirs.size_bytes(), second_phase);
  }
  auto* out = result.data() + slice.first;
  if (auto reduced = reduce_own_slice(what, mine, out); !reduced)
    return reduced;
  if (what.op == reduce_op::mean)
    divide_slice(what.layout.segments().front().type, what.op, {out, slice.size_bytes()});
  for (std::uint32_t i = 1; is_spread && i < n; ++i)
    post_send((me + i) % n, out, slice.size_bytes(), second_phase);
  return backend_->finish();
}

void transport_communicator::divide_slice(dtype type, reduce_op op, std::span<std::byte> slice) const noexcept {
  if (op == reduce_op::mean)
    divide(type, slice.data(), slice.size() / size_of(type), world_size());
}

expected<void> transport_communicator::all_reduce_as(kind what, const bucket_layout& layout, reduce_op op,
                                                     std::span<std::byte> data) {
  if (auto begun = begin(what); !begun)
    return begun;
  if (data.empty())
    return backend_->finish();
  auto slices = spread(layout, data.size());
  const std::byte* mine = data.data();
  // What is sent as a whole must not change under the sends.
  if (slices[rank().value].size_bytes() == data.size() && world_size() > 1) {
    copy_.reserve(data.size());
    std::memcpy(copy_.data(), data.data(), data.size());
    mine = copy_.data();
  }
  return reduce_and_spread({rank_plan(), layout, op, std::move(slices)}, {&mine, 1}, data);
}

expected<void> transport_communicator::all_reduce(dtype type, reduce_op op, std::span<std::byte> data) {
  if (auto valid = check_elements(type, data.size()); !valid)
    return valid;
  return all_reduce_as(kind::all_reduce, bucket_layout{{{type, data.size() / size_of(type)}}}, op, data);
}

expected<void> transport_communicator::all_reduce_fast(const bucket_layout& layout, std::span<std::byte> bucket) {
  if (auto valid = check_reducible(layout); !valid)
    return valid;
  if (bucket.size() != layout.size_bytes())
    return fail(errc::invalid_argument, "all_reduce_fast: the bucket has " + std::to_string(bucket.size()) +
                                            " bytes and the layout " + std::to_string(layout.size_bytes()) +
                                            "; they must be equal");
  return all_reduce_as(kind::all_reduce_fast, layout, reduce_op::sum, bucket);
}

expected<void> transport_communicator::reduce_leaves(const bucket_layout& layout, std::uint32_t shards,
                                                     std::span<const shard_range> ownership,
                                                     std::span<const leaf_partial> partials,
                                                     std::span<std::byte> result) {
  if (auto planned = refresh_leaves_plan(shards, ownership); !planned)
    return planned;
  if (auto valid = check_partials(layout, leaves_.finish, rank().value, partials, result.size()); !valid)
    return valid;
  if (auto begun = begin(kind::reduce_leaves); !begun)
    return begun;
  if (result.empty())
    return backend_->finish();
  std::vector<const std::byte*> mine;
  for (const auto& partial : partials)
    mine.push_back(partial.data);
  return reduce_and_spread({leaves_.finish, layout, reduce_op::sum, spread(layout, result.size())}, mine, result);
}

expected<void> transport_communicator::reduce_scatter(dtype type, reduce_op op, std::span<const std::byte> input,
                                                      std::span<std::byte> output) {
  if (auto valid = check_elements(type, output.size()); !valid)
    return valid;
  if (auto valid = check_blocks(input.size(), output.size(), world_size(), "reduce_scatter input"); !valid)
    return valid;
  if (auto begun = begin(kind::reduce_scatter); !begun)
    return begun;
  if (output.empty())
    return backend_->finish();
  const bucket_layout layout{{{type, input.size() / size_of(type)}}};
  std::vector<byte_range> slices(world_size());
  for (std::uint32_t r = 0; r < world_size(); ++r)
    slices[r] = {r * output.size(), (r + std::uint64_t{1}) * output.size()};
  const auto* mine = input.data();
  if (auto reduced = reduce_own_slice({rank_plan(), layout, op, std::move(slices)}, {&mine, 1}, output.data());
      !reduced)
    return reduced;
  divide_slice(type, op, output);
  return backend_->finish();
}

// -- moving bytes ----------------------------------------------------------------------------------------------------

expected<void> transport_communicator::all_gather(std::span<const std::byte> input, std::span<std::byte> output) {
  if (auto valid = check_blocks(output.size(), input.size(), world_size(), "all_gather output"); !valid)
    return valid;
  if (auto begun = begin(kind::all_gather); !begun)
    return begun;
  const auto n = world_size();
  const auto me = rank().value;
  if (!input.empty()) {
    for (std::uint32_t i = 1; i < n; ++i)
      post_receive((me + n - i) % n, output.data() + (me + n - i) % n * input.size(), input.size());
    for (std::uint32_t i = 1; i < n; ++i)
      post_send((me + i) % n, input.data(), input.size());
    std::memmove(output.data() + me * input.size(), input.data(), input.size());
  }
  return backend_->finish();
}

expected<std::vector<std::vector<std::byte>>>
transport_communicator::all_gather_bytes(std::span<const std::byte> mine) {
  if (auto begun = begin(kind::all_gather_bytes); !begun)
    return fail(std::move(begun.error()));
  const auto n = world_size();
  const auto me = rank().value;
  std::vector<std::uint64_t> sizes(n, mine.size());
  const std::uint64_t my_size = mine.size();
  std::vector<transport::ticket> received(n);
  for (std::uint32_t r = 0; r < n; ++r)
    if (r != me)
      received[r] = post_receive(r, reinterpret_cast<std::byte*>(&sizes[r]), sizeof(std::uint64_t), first_phase);
  for (std::uint32_t i = 1; i < n; ++i)
    post_send((me + i) % n, reinterpret_cast<const std::byte*>(&my_size), sizeof(std::uint64_t), first_phase);
  std::vector<std::vector<std::byte>> result(n);
  result[me].assign(mine.begin(), mine.end());
  for (std::uint32_t i = 1; i < n; ++i)
    post_send((me + i) % n, mine.data(), mine.size(), second_phase);
  for (std::uint32_t r = 0; r < n; ++r) {
    if (r == me)
      continue;
    if (auto known = backend_->wait(received[r]); !known)
      return fail(std::move(known.error()));
    result[r].resize(sizes[r]);
    if (sizes[r] != 0)
      post_receive(r, result[r].data(), sizes[r], second_phase);
  }
  if (auto finished = backend_->finish(); !finished)
    return fail(std::move(finished.error()));
  return result;
}

/// A binomial tree: rank root + v has its data from v without its lowest bit.
expected<void> transport_communicator::broadcast(std::span<std::byte> data, rank_id root) {
  const auto n = world_size();
  if (root.value >= n)
    return fail(errc::invalid_argument, "broadcast: root " + std::to_string(root.value) + " is none of " +
                                            std::to_string(n) + " ranks; name a rank of the group");
  if (auto begun = begin(kind::broadcast); !begun)
    return begun;
  if (data.empty())
    return backend_->finish();
  const auto v = (rank().value + n - root.value) % n;
  const auto real = [&](std::uint32_t x) { return (x + root.value) % n; };
  std::uint32_t bit = 1;
  while (bit < n && (v & bit) == 0)
    bit <<= 1;
  if (v != 0)
    if (auto arrived = backend_->wait(post_receive(real(v - bit), data.data(), data.size())); !arrived)
      return arrived;
  for (bit >>= 1; bit != 0; bit >>= 1)
    if (v + bit < n)
      post_send(real(v + bit), data.data(), data.size());
  return backend_->finish();
}

expected<void> transport_communicator::all_to_all(std::span<const std::byte> input, std::span<std::byte> output) {
  const auto n = world_size();
  const auto me = rank().value;
  if (auto valid = check_blocks(input.size(), output.size() / n, n, "all_to_all input"); !valid)
    return valid;
  if (auto valid = check_blocks(output.size(), input.size() / n, n, "all_to_all output"); !valid)
    return valid;
  if (auto begun = begin(kind::all_to_all); !begun)
    return begun;
  const auto block = input.size() / n;
  if (block != 0) {
    for (std::uint32_t i = 1; i < n; ++i)
      post_receive((me + n - i) % n, output.data() + (me + n - i) % n * block, block);
    for (std::uint32_t i = 1; i < n; ++i)
      post_send((me + i) % n, input.data() + (me + i) % n * block, block);
    std::memmove(output.data() + me * block, input.data() + me * block, block);
  }
  return backend_->finish();
}

/// Dissemination: in round k a rank tells the one 2^k further what it has heard so far. That a word may be counted
/// twice is no harm to a maximum.
expected<void> transport_communicator::barrier(std::span<std::uint64_t> words) {
  if (auto begun = begin(kind::barrier); !begun)
    return begun;
  const auto n = world_size();
  const auto me = rank().value;
  // One word more, so that there is a message even without words.
  const auto width = words.size() + 1;
  const auto size_bytes = width * sizeof(std::uint64_t);
  words_.assign(2 * rounds(n) * width, 0);
  const auto outgoing = [&](std::uint32_t k) { return words_.data() + 2 * k * width; };
  const auto incoming = [&](std::uint32_t k) { return words_.data() + (2 * k + 1) * width; };
  std::vector<transport::ticket> received(rounds(n));
  for (std::uint32_t k = 0; k < rounds(n); ++k)
    received[k] = post_receive((me + n - (1u << k)) % n, reinterpret_cast<std::byte*>(incoming(k)), size_bytes, k);
  for (std::uint32_t k = 0; k < rounds(n); ++k) {
    std::ranges::copy(words, outgoing(k));
    post_send((me + (1u << k)) % n, reinterpret_cast<const std::byte*>(outgoing(k)), size_bytes, k);
    if (auto heard = backend_->wait(received[k]); !heard)
      return heard;
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = std::max(words[i], incoming(k)[i]);
  }
  return backend_->finish();
}

expected<void> transport_communicator::send(rank_id peer, std::span<const std::byte> data) {
  if (auto valid = check_peer(peer); !valid)
    return valid;
  if (auto begun = begin(kind::send, peer.value); !begun)
    return begun;
  post_send(peer.value, data.data(), data.size());
  return backend_->finish();
}

expected<void> transport_communicator::receive(rank_id peer, std::span<std::byte> data) {
  if (auto valid = check_peer(peer); !valid)
    return valid;
  if (auto begun = begin(kind::receive, peer.value); !begun)
    return begun;
  if (!data.empty())
    post_receive(peer.value, data.data(), data.size());
  return backend_->finish();
}

} // namespace troupe::collectives
