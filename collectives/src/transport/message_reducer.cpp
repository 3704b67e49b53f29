#include "transport/message_reducer.hpp"

#include "transport/call_checks.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace troupe::collectives {

namespace {

/// Up to this size every rank sends everything to every other and finishes the whole tree: one round instead of two.
constexpr std::uint64_t one_round_limit_bytes = 4096;

/// Up to this size recursive doubling is faster than two phases, which send fewer bytes. The same for 2, 4 and 8 ranks;
/// measured, see tools/bench/README.md.
constexpr std::uint64_t doubling_limit_bytes = 64 << 10;

/// Between so many ranks and more, recursive halving and doubling is faster than two phases as long as the messages
/// that it saves are worth more than the order of bytes that they allow: this many bytes for each pair of them. See
/// README.md.
constexpr std::uint32_t halving_least_members = 16;
constexpr std::uint64_t halving_bytes_per_saving = 64 << 10;

/// Where ranks are known to be on one machine or nearly, also between so many, and from a smaller size on.
constexpr std::uint32_t near_halving_members = 8;
constexpr std::uint64_t near_doubling_limit_bytes = 32 << 10;

/// What another message and another byte cost a rank, roughly: several times the work of a processor, because ranks may
/// share one, and the time of a link of 1 Gbit/s.
constexpr std::chrono::nanoseconds message_cost{40'000};
constexpr std::chrono::nanoseconds byte_cost{8};

/// Over such distances 3 to 8 ranks use two phases rather than recursive doubling: there the bytes on the link take
/// longer than the messages. See README.md.
constexpr std::chrono::nanoseconds long_distance{40'000};
constexpr std::size_t few_members = 8;

[[nodiscard]] bool is_long(std::chrono::nanoseconds latency) noexcept {
  return latency >= long_distance;
}

/// Known to be short.
[[nodiscard]] bool is_short(std::chrono::nanoseconds latency) noexcept {
  return latency > std::chrono::nanoseconds{0} && !is_long(latency);
}

/// Pieces that are received while one is added.
constexpr std::size_t pieces_at_a_time = 2;

/// Cuts a slice on multiples of cache lines from its start.
class piece_list {
 public:
  piece_list(byte_range slice, std::uint64_t piece_bytes)
      : slice_(slice), step_(std::max(piece_bytes / alignment_bytes, std::uint64_t{1})) {}

  [[nodiscard]] std::size_t count() const noexcept {
    const auto lines = (slice_.size_bytes() + alignment_bytes - 1) / alignment_bytes;
    return static_cast<std::size_t>(lines / step_ + (lines % step_ != 0 ? 1 : 0));
  }
  [[nodiscard]] byte_range operator[](std::size_t i) const noexcept {
    const auto first = slice_.first + i * step_ * alignment_bytes;
    // Without a product that overflows.
    const auto is_last = i + 1 == count();
    return {first, is_last ? slice_.last : first + step_ * alignment_bytes};
  }

 private:
  byte_range slice_;
  std::uint64_t step_;
};

std::uint64_t aligned(std::uint64_t size_bytes) noexcept {
  return (size_bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

} // namespace

bool prefers_one_round(std::uint32_t members, std::uint64_t size_bytes, std::chrono::nanoseconds latency) {
  const auto rounds = root_level(members);
  if (size_bytes > one_round_limit_bytes || rounds < 2)
    return false;
  const auto each = message_cost + size_bytes * byte_cost;
  return (rounds - 1) * latency > (members - 1 - rounds) * each;
}

std::vector<byte_range> message_reducer::spread(const finish_plan& plan, byte_range part, std::size_t members,
                                                std::chrono::nanoseconds latency) {
  if (part.size_bytes() <= whole_limit(plan, members, latency))
    return std::vector<byte_range>(members, part);
  return cut_evenly(part, static_cast<std::uint32_t>(members), alignment_bytes);
}

/// Up to which size every rank finishes everything.
std::uint64_t message_reducer::whole_limit(const finish_plan& plan, std::size_t members,
                                           std::chrono::nanoseconds latency) {
  if (!is_doubling(plan, members) || (is_long(latency) && members > 2 && members <= few_members))
    return one_round_limit_bytes;
  return is_short(latency) && members == near_halving_members ? near_doubling_limit_bytes : doubling_limit_bytes;
}

/// Whether the plan is the tree over as many leaves as there are members, one for each.
bool message_reducer::is_doubling(const finish_plan& plan, std::size_t members) {
  if (members < 2 || plan.operands.size() != members)
    return false;
  const auto count = static_cast<std::uint32_t>(members);
  if (doubled_members_ != members) {
    doubled_additions_ = plan_finish(count, even_ownership(count, count))->additions;
    doubled_members_ = members;
  }
  const auto is_only_one = [](const tree_operand& x) { return x.position == 0; };
  return plan.additions == doubled_additions_ && std::ranges::all_of(plan.operands, is_only_one);
}

expected<void> message_reducer::reduce_own_slice(const message_reduction& what, std::span<const std::byte* const> mine,
                                                 std::byte* out) {
  return reduce_pieces(what, mine, out, finished::stays);
}

/// Sends every peer its slice of this rank's partial sums, receives theirs of this rank's slice into scratch memory,
/// and finishes the tree there; all of it piece by piece. Each rank starts with another peer, so that no rank receives
/// from all at once.
expected<void> message_reducer::reduce_pieces(const message_reduction& what, std::span<const std::byte* const> mine,
                                              std::byte* out, finished next) {
  const auto n = what.count();
  const auto origin = what.layout.offset_in_sums(what.origin);
  const auto slice = what.slices[what.me];
  const piece_list own{slice, what.piece_bytes};
  const auto at_a_time = std::min(pieces_at_a_time, own.count());
  const auto received = what.plan.operands.size() - mine.size();
  const auto room_bytes = own.count() == 0 ? 0 : aligned(what.in_sums(own[0]).size_bytes()) * received;
  scratch_.reserve(room_bytes * at_a_time);
  pieces_.resize(std::max(pieces_.size(), at_a_time));
  const auto post = [&](std::size_t i) {
    post_piece(what, mine, own[i], pieces_[i % at_a_time], scratch_.data() + room_bytes * (i % at_a_time));
  };
  for (std::size_t i = 0; i < at_a_time; ++i)
    post(i);
  std::size_t most_pieces = 0;
  for (auto x : what.slices)
    most_pieces = std::max(most_pieces, piece_list{x, what.piece_bytes}.count());
  for (std::size_t k = 0; k < most_pieces; ++k)
    for (std::uint32_t i = 1; i < n; ++i) {
      const auto peer = (what.me + i) % n;
      const piece_list theirs{what.slices[peer], what.piece_bytes};
      if (k >= theirs.count())
        continue;
      if (what.prepare && !what.is_whole())
        what.prepare(theirs[k]);
      const auto piece = what.in_sums(theirs[k]);
      for (const auto* partial : mine)
        messages_.send(what.members[peer], partial + (piece.first - origin), piece.size_bytes(), first_phase);
    }
  for (std::size_t k = 0; k < own.count(); ++k) {
    const auto piece = own[k];
    auto* place = out + (piece.first - slice.first);
    if (what.prepare && !what.is_whole())
      what.prepare(piece);
    TROUPE_TRY(finish_piece(what, piece, pieces_[k % at_a_time], place));
    for (std::uint32_t i = 1; next == finished::goes_to_all && i < n; ++i)
      messages_.send(what.members[(what.me + i) % n], place, piece.size_bytes(), second_phase);
    if (k + at_a_time < own.count())
      post(k + at_a_time);
  }
  return {};
}

/// Posts the receives of one piece of this rank's slice.
void message_reducer::post_piece(const message_reduction& what, std::span<const std::byte* const> mine,
                                 byte_range piece, piece_operands& operands, std::byte* room) {
  const auto range = what.in_sums(piece);
  const auto origin = what.layout.offset_in_sums(what.origin);
  operands.assign(what.plan.operands.size(), {});
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto& operand = what.plan.operands[i];
    auto& state = operands[i];
    if (operand.rank == what.me) {
      state.data = mine[operand.position] + (range.first - origin);
    } else {
      state.data = state.scratch = room;
      state.message = messages_.receive(what.members[operand.rank], room, range.size_bytes(), first_phase);
      state.pending = true;
      room += aligned(range.size_bytes());
    }
  }
}

/// The sum of a piece of this rank's slice, divided and rounded.
expected<void> message_reducer::finish_piece(const message_reduction& what, byte_range piece, piece_operands& operands,
                                             std::byte* out) {
  auto* sum = out;
  if (what.is_narrow()) {
    unrounded_.reserve(what.in_sums(piece).size_bytes());
    sum = unrounded_.data();
  }
  TROUPE_TRY(finish_tree(what, piece, operands, sum));
  divide(what.layout, piece, sum, what.divisor);
  if (what.is_narrow())
    narrow(what.layout, piece, out, sum);
  return {};
}

expected<void> message_reducer::finish_tree(const message_reduction& what, byte_range piece, piece_operands& operands,
                                            std::byte* out) {
  const auto range = what.in_sums(piece);
  const auto arrived = [this](operand_state& x) -> expected<void> {
    return std::exchange(x.pending, false) ? messages_.wait(x.message) : expected<void>{};
  };
  if (what.plan.additions.empty()) {
    auto result = arrived(operands[0]);
    if (result && operands[0].data != out)
      std::memcpy(out, operands[0].data, range.size_bytes());
    return result;
  }
  for (std::size_t i = 0; i < what.plan.additions.size(); ++i) {
    auto& left = operands[what.plan.additions[i].target];
    auto& right = operands[what.plan.additions[i].source];
    TROUPE_TRY(arrived(left));
    TROUPE_TRY(arrived(right));
    // At least one of the two came from a peer: a worker has already joined its own siblings.
    auto* target = i + 1 == what.plan.additions.size() ? out : left.scratch != nullptr ? left.scratch : right.scratch;
    combine(what.sums, range, what.op, target, left.data, right.data);
    left.data = left.scratch = target;
  }
  return {};
}

expected<void> message_reducer::reduce_and_spread(const message_reduction& what, std::span<const std::byte* const> mine,
                                                  std::byte* result) {
  const auto n = what.count();
  const auto slice = what.slices[what.me];
  auto* out = result + (slice.first - what.origin);
  if (what.is_whole()) {
    if (what.prepare)
      what.prepare(slice);
    if (is_doubling(what.plan, n) && !prefers_one_round(n, what.in_sums(slice).size_bytes(), what.latency))
      return double_recursively(what, mine[0], out);
    return reduce_pieces(what, mine, out, finished::stays);
  }
  if (is_halving(what))
    return halve_and_double(what, mine[0], result);
  // Posted first, so that the peers' finished slices need no further round trip. This is safe in place, because a peer
  // sends a piece of its finished slice only after it has this rank's contribution to it.
  for (std::uint32_t i = 1; i < n; ++i) {
    const auto peer = (what.me + n - i) % n;
    const piece_list theirs{what.slices[peer], what.piece_bytes};
    for (std::size_t k = 0; k < theirs.count(); ++k)
      messages_.receive(what.members[peer], result + (theirs[k].first - what.origin), theirs[k].size_bytes(),
                        second_phase);
  }
  return reduce_pieces(what, mine, out, finished::goes_to_all);
}

/// In round k this rank has the sum of the subtree of 2^k ranks around it, gets that of the neighbouring subtree from a
/// rank there, and adds the two in the tree's order. All ranks of a subtree compute the same bits. At the right edge of
/// the tree a subtree may have fewer ranks than its neighbour, and sends its sum more than once.
expected<void> message_reducer::double_recursively(const message_reduction& what, const std::byte* mine,
                                                   std::byte* out) {
  const auto n = what.count();
  const auto slice = what.slices[what.me];
  const auto range = what.in_sums(slice);
  const auto stride = aligned(range.size_bytes());
  const auto rounds = root_level(n);
  const auto& order = what.plan.operands;
  const auto place = static_cast<std::uint32_t>(
      std::ranges::find_if(order, [&](const tree_operand& x) { return x.rank == what.me; }) - order.begin());
  const auto member_at = [&](std::uint32_t i) { return what.members[order[i].rank]; };
  // A sum must not change while it is sent, so each round has its own.
  scratch_.reserve(stride * rounds * 2);
  const auto incoming = [&](std::uint32_t k) { return scratch_.data() + stride * 2 * k; };
  const auto sum_after = [&](std::uint32_t k) { return scratch_.data() + stride * (2 * k + 1); };
  struct subtree {
    std::uint32_t first, last;
  };
  const auto subtree_at = [&](std::uint32_t i, std::uint32_t k) {
    const auto first = i >> k << k;
    return subtree{std::min(first, n), std::min(first + (1u << k), n)};
  };
  std::vector<transport::ticket> received(rounds);
  for (std::uint32_t k = 0; k < rounds; ++k) {
    const auto own = subtree_at(place, k);
    const auto other = subtree_at(own.first ^ (1u << k), k);
    if (other.first != other.last)
      received[k] = messages_.receive(member_at(other.first + (place - own.first) % (other.last - other.first)),
                                      incoming(k), range.size_bytes(), k);
  }
  const auto* sum = mine + (range.first - what.layout.offset_in_sums(what.origin));
  auto* result = out;
  if (what.is_narrow()) {
    unrounded_.reserve(range.size_bytes());
    result = unrounded_.data();
  }
  for (std::uint32_t k = 0; k < rounds; ++k) {
    const auto own = subtree_at(place, k);
    const auto other = subtree_at(own.first ^ (1u << k), k);
    if (other.first == other.last)
      continue;
    for (auto i = other.first + (place - own.first); i < other.last; i += own.last - own.first)
      messages_.send(member_at(i), sum, range.size_bytes(), k);
    TROUPE_TRY(messages_.wait(received[k]));
    const auto is_left = own.first < other.first;
    auto* target = k + 1 == rounds ? result : sum_after(k);
    combine(what.sums, range, what.op, target, is_left ? sum : incoming(k), is_left ? incoming(k) : sum);
    sum = target;
  }
  divide(what.layout, slice, result, what.divisor);
  if (what.is_narrow())
    narrow(what.layout, slice, out, result);
  return {};
}

bool message_reducer::is_halving(const message_reduction& what) {
  const auto n = what.count();
  const auto least = is_short(what.latency) ? near_halving_members : halving_least_members;
  if (n < least || !std::has_single_bit(n) || !is_doubling(what.plan, n))
    return false;
  const auto saved = n - 1 - root_level(n);
  return what.slices.back().last - what.slices.front().first <= halving_bytes_per_saving * saved;
}

/// In round k two ranks whose places differ in bit k have the sums of two neighbouring subtrees of 2^k ranks over the
/// same range. Each gives the other one half of it, and adds the other half. After the last round each rank has the
/// whole tree's sum over its range; then the rounds go backwards, and the ranges of finished sums double.
expected<void> message_reducer::halve_and_double(const message_reduction& what, const std::byte* mine, std::byte* out) {
  const auto whole = byte_range{what.slices.front().first, what.slices.back().last};
  if (what.prepare)
    what.prepare(whole);
  const auto& order = what.plan.operands;
  const auto place = static_cast<std::uint32_t>(
      std::ranges::find_if(order, [&](const tree_operand& x) { return x.rank == what.me; }) - order.begin());
  const auto partner = [&](std::uint32_t k) { return what.members[order[place ^ 1u << k].rank]; };
  struct round {
    /// This rank adds the one and gives the other away; later it gets that one back.
    byte_range kept, given;
    /// The partner's sum over `kept`, and room for that of both.
    std::byte* theirs = nullptr;
    std::byte* sum = nullptr;
    transport::ticket added = 0;
    transport::ticket got_back = 0;
  };
  std::vector<round> rounds(root_level(what.count()));
  const auto count = static_cast<std::uint32_t>(rounds.size());
  std::uint64_t room = 0;
  for (std::uint32_t k = 0; k < count; ++k) {
    const auto both = cut_evenly(k == 0 ? whole : rounds[k - 1].kept, 2, alignment_bytes);
    const auto bit = place >> k & 1;
    rounds[k].kept = both[bit];
    rounds[k].given = both[1 - bit];
    room += 2 * aligned(what.in_sums(rounds[k].kept).size_bytes());
  }
  // A sum must not change while a part of it is sent, so each round has its own.
  scratch_.reserve(room);
  auto* free = scratch_.data();
  for (std::uint32_t k = 0; k < count; ++k) {
    const auto size_bytes = what.in_sums(rounds[k].kept).size_bytes();
    rounds[k].theirs = free;
    rounds[k].sum = free + aligned(size_bytes);
    rounds[k].added = messages_.receive(partner(k), rounds[k].theirs, size_bytes, k);
    free += 2 * aligned(size_bytes);
  }
  const auto place_in_result = [&](byte_range x) { return out + (x.first - what.origin); };
  auto& last = rounds.back();
  auto* const finished = place_in_result(last.kept);
  if (!what.is_narrow())
    last.sum = finished;
  // Safe in place: a peer sends a finished range only after it has this rank's contribution to it.
  for (auto k = count; k-- > 0;)
    rounds[k].got_back =
        messages_.receive(partner(k), place_in_result(rounds[k].given), rounds[k].given.size_bytes(), count + k);
  // `sum` begins at the first byte of `range`.
  auto range = what.in_sums(whole);
  const auto* sum = mine + (range.first - what.layout.offset_in_sums(what.origin));
  for (std::uint32_t k = 0; k < count; ++k) {
    auto& now = rounds[k];
    const auto kept = what.in_sums(now.kept);
    const auto given = what.in_sums(now.given);
    messages_.send(partner(k), sum + (given.first - range.first), given.size_bytes(), k);
    TROUPE_TRY(messages_.wait(now.added));
    const auto* own = sum + (kept.first - range.first);
    const auto is_left = (place >> k & 1) == 0;
    combine(what.sums, kept, what.op, now.sum, is_left ? own : now.theirs, is_left ? now.theirs : own);
    sum = now.sum;
    range = kept;
  }
  divide(what.layout, last.kept, last.sum, what.divisor);
  if (what.is_narrow())
    narrow(what.layout, last.kept, finished, last.sum);
  for (auto k = count; k-- > 0;) {
    const auto& now = rounds[k];
    messages_.send(partner(k), place_in_result(now.kept), now.kept.size_bytes(), count + k);
    // The next round sends it on.
    if (k > 0)
      TROUPE_TRY(messages_.wait(now.got_back));
  }
  return {};
}

} // namespace troupe::collectives
