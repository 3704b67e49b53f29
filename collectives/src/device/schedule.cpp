#include "device/schedule.hpp"

#include "transport/call_checks.hpp"

#include <algorithm>

namespace troupe::collectives {

device_schedule plan_device_schedule(const finish_plan& plan, const bucket_layout& layout, byte_range part,
                                     std::uint32_t world_size, std::uint32_t rank) {
  device_schedule result;
  result.slices = part.size_bytes() <= device_schedule::one_round_limit_bytes
                      ? std::vector<byte_range>(world_size, part)
                      : cut_evenly(part, world_size, alignment_bytes);
  result.is_spread = world_size > 1 && result.slices.front() != result.slices.back();
  result.is_even = std::ranges::all_of(
      result.slices, [&](byte_range x) { return x.size_bytes() == result.slices.front().size_bytes(); });
  const auto in_sums = [&](byte_range slice) {
    return byte_range{layout.offset_in_sums(slice.first), layout.offset_in_sums(slice.last)};
  };
  const auto mine = in_sums(result.slices[rank]);
  for (std::uint32_t i = 0; i < plan.operands.size(); ++i) {
    const auto& operand = plan.operands[i];
    if (operand.rank == rank) {
      result.operands.push_back({true, operand.position, mine.first});
      continue;
    }
    result.operands.push_back({false, 0, result.received_bytes});
    if (mine.size_bytes() == 0)
      continue;
    result.receives.push_back({operand.rank, i, result.received_bytes, mine.size_bytes()});
    // Already a multiple of a line.
    result.received_bytes += mine.size_bytes();
  }
  const auto own = plan.count_of(rank);
  // Each rank starts with another peer, so that no rank receives from all at once.
  for (std::uint32_t k = 1; k < world_size; ++k) {
    const auto peer = (rank + k) % world_size;
    const auto theirs = in_sums(result.slices[peer]);
    for (std::uint32_t position = 0; theirs.size_bytes() != 0 && position < own; ++position)
      result.sends.push_back({peer, position, theirs.first, theirs.size_bytes()});
  }
  return result;
}

} // namespace troupe::collectives
