#pragma once

#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/collectives/summation_tree.hpp>

#include <cstdint>
#include <vector>

namespace troupe::collectives {

/// What one rank does to reduce a part of a bucket by messages between devices: slices of partial sums to their owners,
/// who finish the tree, and finished slices to all. A pure function of what all ranks know.
struct device_schedule {
  /// Up to this size everybody gets everything and finishes the whole part: one round instead of two.
  static constexpr std::uint64_t one_round_limit_bytes = 16 << 10;

  /// Bytes of sums. Between two ranks messages are received in the order in which they are sent.
  struct message {
    std::uint32_t peer = 0;
    /// Of what is sent: which of this rank's partial sums. Of what is received: which operand of the plan it is.
    std::uint32_t index = 0;
    /// In the partial sum; in the memory for what is received.
    std::uint64_t offset_bytes = 0;
    std::uint64_t size_bytes = 0;

    bool operator==(const message&) const = default;
  };

  /// Where an operand of the plan begins for this rank's slice.
  struct operand_place {
    bool is_mine = false;
    /// Of this rank's partial sums, if it is one of them.
    std::uint32_t position = 0;
    /// In that, or in the memory for what is received.
    std::uint64_t offset_bytes = 0;

    bool operator==(const operand_place&) const = default;
  };

  /// Of the layout, by rank: what each finishes.
  std::vector<byte_range> slices;
  std::vector<message> sends;
  std::vector<message> receives;
  /// The memory for what is received.
  std::uint64_t received_bytes = 0;
  /// In the plan's order.
  std::vector<operand_place> operands;
  /// Whether finished slices have to go to the others.
  bool is_spread = false;
  /// Whether they have equal sizes, so that one all-gather does it.
  bool is_even = false;
};

[[nodiscard]] device_schedule plan_device_schedule(const finish_plan& plan, const bucket_layout& layout,
                                                   byte_range part, std::uint32_t world_size, std::uint32_t rank);

} // namespace troupe::collectives
