#include "transport/message_reducer.hpp"

#include "transport/call_checks.hpp"

#include <cstring>
#include <utility>

namespace troupe::collectives {

namespace {

/// Up to this size every rank sends everything to every other and finishes the whole tree: one round instead of two.
constexpr std::uint64_t one_round_limit_bytes = 4096;

constexpr std::uint32_t first_phase = 0;
constexpr std::uint32_t second_phase = 1;

} // namespace

std::vector<byte_range> message_reducer::spread(byte_range part, std::size_t members) {
  if (part.size_bytes() <= one_round_limit_bytes)
    return std::vector<byte_range>(members, part);
  return cut_evenly(part, static_cast<std::uint32_t>(members), alignment_bytes);
}

/// Sends every peer its slice of this rank's partial sums, receives theirs of this rank's slice into scratch memory,
/// and finishes the tree there.
expected<void> message_reducer::reduce_own_slice(const message_reduction& what, std::span<const std::byte* const> mine,
                                                 std::byte* out) {
  const auto n = what.count();
  const auto origin = what.layout.offset_in_sums(what.origin);
  const auto slice = what.in_sums(what.slices[what.me]);
  const auto stride = (slice.size_bytes() + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  scratch_.reserve(stride * (what.plan.operands.size() - mine.size()));
  operands_.assign(what.plan.operands.size(), {});
  auto* room = scratch_.data();
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const auto& operand = what.plan.operands[i];
    auto& state = operands_[i];
    if (operand.rank == what.me) {
      state.data = mine[operand.position] + (slice.first - origin);
    } else if (slice.size_bytes() != 0) {
      state.data = state.scratch = room;
      state.message = messages_.receive(what.members[operand.rank], room, slice.size_bytes(), first_phase);
      state.pending = true;
      room += stride;
    }
  }
  // Each rank starts with another peer, so that no rank receives from all at once.
  for (std::uint32_t i = 1; i < n; ++i) {
    const auto peer = (what.me + i) % n;
    const auto theirs = what.in_sums(what.slices[peer]);
    for (const auto* partial : mine)
      messages_.send(what.members[peer], partial + (theirs.first - origin), theirs.size_bytes(), first_phase);
  }
  return slice.size_bytes() == 0 ? expected<void>{} : finish_slice(what, out);
}

/// The sum of this rank's slice, divided and rounded.
expected<void> message_reducer::finish_slice(const message_reduction& what, std::byte* out) {
  const auto slice = what.slices[what.me];
  auto* sum = out;
  if (what.is_narrow()) {
    unrounded_.reserve(what.in_sums(slice).size_bytes());
    sum = unrounded_.data();
  }
  TROUPE_TRY(finish_tree(what, sum));
  divide(what.layout, slice, sum, what.divisor);
  if (what.is_narrow())
    narrow(what.layout, slice, out, sum);
  return {};
}

expected<void> message_reducer::finish_tree(const message_reduction& what, std::byte* out) {
  const auto slice = what.in_sums(what.slices[what.me]);
  const auto arrived = [this](operand_state& x) -> expected<void> {
    return std::exchange(x.pending, false) ? messages_.wait(x.message) : expected<void>{};
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
    TROUPE_TRY(arrived(left));
    TROUPE_TRY(arrived(right));
    // At least one of the two came from a peer: a worker has already joined its own siblings.
    auto* target = i + 1 == what.plan.additions.size() ? out : left.scratch != nullptr ? left.scratch : right.scratch;
    combine(what.sums, slice, what.op, target, left.data, right.data);
    left.data = left.scratch = target;
  }
  return {};
}

expected<void> message_reducer::reduce_and_spread(const message_reduction& what, std::span<const std::byte* const> mine,
                                                  std::byte* result) {
  const auto n = what.count();
  const auto slice = what.slices[what.me];
  // In one round every rank finishes everything.
  const auto is_spread = n > 1 && what.slices.front() != what.slices.back();
  // Posted first, so that the peers' finished slices need no further round trip. This is safe in place, because a peer
  // sends its finished slice only after it has this rank's contribution to it.
  for (std::uint32_t i = 1; is_spread && i < n; ++i) {
    const auto peer = (what.me + n - i) % n;
    if (const auto theirs = what.slices[peer]; theirs.size_bytes() != 0)
      messages_.receive(what.members[peer], result + (theirs.first - what.origin), theirs.size_bytes(), second_phase);
  }
  auto* out = result + (slice.first - what.origin);
  TROUPE_TRY(reduce_own_slice(what, mine, out));
  for (std::uint32_t i = 1; is_spread && i < n; ++i)
    messages_.send(what.members[(what.me + i) % n], out, slice.size_bytes(), second_phase);
  return {};
}

} // namespace troupe::collectives
