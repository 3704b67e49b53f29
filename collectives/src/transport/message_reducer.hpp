#pragma once

#include "transport/call_messages.hpp"

#include <troupe/collectives/aligned_buffer.hpp>

#include <cstdint>
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

  [[nodiscard]] bool is_narrow() const noexcept { return sums.size_bytes() != layout.size_bytes(); }
  [[nodiscard]] byte_range in_sums(byte_range slice) const noexcept {
    return {layout.offset_in_sums(slice.first), layout.offset_in_sums(slice.last)};
  }
  [[nodiscard]] std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(members.size()); }
};

/// Reductions over messages between two ranks. Two phases, so two tags: partial sums go to the owners of slices,
/// finished slices go to all. The calls do not end the call of `messages`.
class message_reducer {
 public:
  explicit message_reducer(call_messages& messages) : messages_(messages) {}

  /// The slices of `part`: one for each member, or everything for every member if one round is cheaper than two.
  [[nodiscard]] static std::vector<byte_range> spread(byte_range part, std::size_t members);

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

  [[nodiscard]] expected<void> finish_slice(const message_reduction& what, std::byte* out);
  [[nodiscard]] expected<void> finish_tree(const message_reduction& what, std::byte* out);

  call_messages& messages_;
  std::vector<operand_state> operands_;
  aligned_buffer scratch_;
  /// The finished slice before rounding.
  aligned_buffer unrounded_;
};

} // namespace troupe::collectives
