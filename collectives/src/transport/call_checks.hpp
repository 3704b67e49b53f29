#pragma once

#include <troupe/collectives/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// What the backends share at the begin of a call: arguments are checked, and the record that all ranks compare is
/// made.
namespace troupe::collectives {

[[nodiscard]] expected<void> check_blocks(std::size_t whole, std::size_t block, std::uint32_t world_size,
                                          const char* what);
[[nodiscard]] expected<void> check_elements(dtype type, std::size_t size_bytes);
[[nodiscard]] expected<void> check_partials(const bucket_layout& layout, const finish_plan& plan, std::uint32_t rank,
                                            std::span<const leaf_partial> partials, std::uint64_t divisor);
[[nodiscard]] expected<void> check_contribution(const bucket_layout& layout, std::span<const std::byte> contribution,
                                                std::uint64_t divisor);

/// Also makes no parts one part that is all.
[[nodiscard]] expected<void> check_parts(const bucket_layout& layout, std::vector<byte_range>& parts);

/// A digest of what `reduce_leaves` and `all_reduce_fast` need to agree on beside sizes.
[[nodiscard]] std::uint64_t digest_of(const bucket_layout& layout, std::uint32_t shards,
                                      std::span<const shard_range> ownership, std::uint64_t divisor, byte_range part);

[[nodiscard]] call_record reduction_call(call_kind kind, dtype type, reduce_op op, std::size_t size_bytes);
[[nodiscard]] call_record moving_call(call_kind kind, std::size_t size_bytes,
                                      std::uint32_t peer = call_record::every_peer);

/// `whole` in `pieces`, on boundaries of `granule_bytes` counted from its begin; sizes as equal as that allows.
[[nodiscard]] std::vector<byte_range> cut_evenly(byte_range whole, std::uint32_t pieces, std::uint64_t granule_bytes);

/// Whether `result` is of the type that this backend makes, fits the layout and has that part.
template <class Bucket>
[[nodiscard]] expected<void> check_made_here(reduced_bucket& result, const bucket_layout& layout, std::size_t part) {
  if (dynamic_cast<Bucket*>(&result) == nullptr || result.bytes().size() != layout.size_bytes())
    return fail(errc::invalid_argument, "the result has " + std::to_string(result.bytes().size()) +
                                            " bytes and the layout " + std::to_string(layout.size_bytes()) +
                                            ", or another kind of communicator made it; make it with make_bucket");
  if (part >= result.parts().size())
    return fail(errc::invalid_argument, "there is no part " + std::to_string(part) + " of a bucket in " +
                                            std::to_string(result.parts().size()) + " parts");
  return {};
}

} // namespace troupe::collectives
