#pragma once

#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/collectives/summation_tree.hpp>

#include <cstdint>
#include <vector>

namespace troupe::collectives {

/// The messages of one rank to reduce a part of a bucket between devices: slices of partial sums go to their owners,
/// which finish the tree, and finished slices go to all. A pure function of data that all ranks have.
struct device_schedule {
  /// Up to this size every rank gets everything and finishes the whole part: one round instead of two.
  static constexpr std::uint64_t one_round_limit_bytes = 16 << 10;

  /// Bytes of sums. Messages between two ranks arrive in the order in which they are sent.
  struct message {
    std::uint32_t peer = 0;
    /// Sent: the index of this rank's partial sum. Received: the index of the plan's operand.
    std::uint32_t index = 0;
    /// Sent: the offset in the partial sum. Received: the offset in the receive buffer.
    std::uint64_t offset_bytes = 0;
    std::uint64_t size_bytes = 0;

    bool operator==(const message&) const = default;
  };

  /// Where an operand of the plan starts for this rank's slice.
  struct operand_place {
    bool is_mine = false;
    /// The index among this rank's partial sums, if the operand is one of them.
    std::uint32_t position = 0;
    /// The offset in that partial sum, or in the receive buffer.
    std::uint64_t offset_bytes = 0;

    bool operator==(const operand_place&) const = default;
  };

  /// The slice that each rank finishes, in the layout; by rank.
  std::vector<byte_range> slices;
  std::vector<message> sends;
  std::vector<message> receives;
  /// The size of the receive buffer.
  std::uint64_t received_bytes = 0;
  /// In the plan's order.
  std::vector<operand_place> operands;
  /// Whether finished slices have to be sent to the other ranks.
  bool is_spread = false;
  /// Whether all slices have the same size, so that one all-gather is enough.
  bool is_even = false;
};

[[nodiscard]] device_schedule plan_device_schedule(const finish_plan& plan, const bucket_layout& layout,
                                                   byte_range part, std::uint32_t world_size, std::uint32_t rank);

} // namespace troupe::collectives
