#pragma once

#include "transport/call_messages.hpp"

#include <troupe/collectives/aligned_buffer.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace troupe::collectives {

/// One reduction: the plan, the slice that each rank finishes, the operation, and the division at the root.
struct message_reduction {
  const finish_plan& plan;
  const bucket_layout& layout;
  /// `layout.sums()`.
  const bucket_layout& sums;
  reduce_op op;
  std::uint64_t divisor;
  /// The slices of `layout`, by member.
  std::vector<byte_range> slices;
  /// The ranks that take part; the plan's operands refer to them by their index here.
  std::span<const std::uint32_t> members;
  /// This rank's index.
  std::uint32_t me = 0;
  /// The offset in the bucket at which the operands and the result start.
  std::uint64_t origin = 0;
  /// Larger slices are sent and added in pieces of about this size. The same on all ranks.
  std::uint64_t piece_bytes = UINT64_MAX;
  /// Of a short message, as all ranks have agreed; 0: not known.
  std::chrono::nanoseconds latency{0};
  /// If there is one: makes this rank's operands in a range, once for each range, before they are used. What is made is
  /// on its way while the next is made.
  std::function<void(byte_range)> prepare = {};

  [[nodiscard]] bool is_narrow() const noexcept { return sums.size_bytes() != layout.size_bytes(); }
  [[nodiscard]] byte_range in_sums(byte_range slice) const noexcept {
    return {layout.offset_in_sums(slice.first), layout.offset_in_sums(slice.last)};
  }
  /// Every rank finishes everything.
  [[nodiscard]] bool is_whole() const noexcept { return slices.size() == 1 || slices.front() == slices.back(); }
  [[nodiscard]] std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(members.size()); }
};

/// Whether `members` should exchange `size_bytes` in one round of all with all rather than in log2(members) rounds of
/// one message each, because the rounds take longer than the messages.
[[nodiscard]] bool prefers_one_round(std::uint32_t members, std::uint64_t size_bytes, std::chrono::nanoseconds latency);

/// Reductions over messages between two ranks. Long ones take two phases: partial sums go to the owners of slices, and
/// finished slices go to all, piece by piece, so that a piece is added and passed on while it is in the cache. In short
/// ones every rank finishes everything: in log2(n) rounds where each rank has one operand of the tree (recursive
/// doubling: in round k two neighbouring subtrees of 2^k ranks exchange their sums), in one round of all with all
/// otherwise, and over long distances. In between, where each of 2^L ranks has one operand, recursive halving and
/// doubling (Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH") sends
/// the bytes of the first in the messages of the second, twice. All follow the same tree. The calls do not end the call
/// of `messages`.
class message_reducer {
 public:
  explicit message_reducer(call_messages& messages) : messages_(messages) {}

  /// The slices of `part`: one for each member, or everything for every member if that is cheaper.
  /// `latency` as in `message_reduction`.
  [[nodiscard]] std::vector<byte_range> spread(const finish_plan& plan, byte_range part, std::size_t members,
                                               std::chrono::nanoseconds latency = {});

  /// Reduces this member's slice into `out`. `mine` points to the start of this member's operands.
  [[nodiscard]] expected<void> reduce_own_slice(const message_reduction& what, std::span<const std::byte* const> mine,
                                                std::byte* out);
  /// Reduces all slices into `result`.
  [[nodiscard]] expected<void> reduce_and_spread(const message_reduction& what, std::span<const std::byte* const> mine,
                                                 std::byte* result);

 private:
  /// An operand of the plan while the tree is finished: its location, and the message that brings it.
  struct operand_state {
    const std::byte* data = nullptr;
    /// Writable memory of the same size; null for the caller's own partial sums.
    std::byte* scratch = nullptr;
    transport::ticket message = 0;
    bool pending = false;
  };

  /// The receives of one piece.
  using piece_operands = std::vector<operand_state>;

  /// The use of a finished piece of this rank's slice.
  enum class finished : std::uint8_t { stays, goes_to_all };

  [[nodiscard]] std::uint64_t whole_limit(const finish_plan& plan, std::size_t members,
                                          std::chrono::nanoseconds latency);
  [[nodiscard]] bool is_doubling(const finish_plan& plan, std::size_t members);
  [[nodiscard]] expected<void> reduce_pieces(const message_reduction& what, std::span<const std::byte* const> mine,
                                             std::byte* out, finished next);
  [[nodiscard]] expected<void> double_recursively(const message_reduction& what, const std::byte* mine, std::byte* out);
  [[nodiscard]] bool is_halving(const message_reduction& what);
  [[nodiscard]] expected<void> halve_and_double(const message_reduction& what, const std::byte* mine, std::byte* out);
  void post_piece(const message_reduction& what, std::span<const std::byte* const> mine, byte_range piece,
                  piece_operands& operands, std::byte* room);
  [[nodiscard]] expected<void> finish_piece(const message_reduction& what, byte_range piece, piece_operands& operands,
                                            std::byte* out);
  [[nodiscard]] expected<void> finish_tree(const message_reduction& what, byte_range piece, piece_operands& operands,
                                           std::byte* out);

  call_messages& messages_;
  /// By piece, modulo the number of pieces that are received at a time.
  std::vector<piece_operands> pieces_;
  aligned_buffer scratch_;
  /// A finished piece before rounding.
  aligned_buffer unrounded_;
  /// The additions of a tree over as many ranks as the last reduction had.
  std::size_t doubled_members_ = 0;
  std::vector<tree_addition> doubled_additions_;
};

} // namespace troupe::collectives
