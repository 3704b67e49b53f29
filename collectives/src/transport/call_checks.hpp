#pragma once

#include <troupe/collectives/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <fmt/format.h>
#include <memory>
#include <span>
#include <vector>

/// The common start of a call in all communicators: checking arguments and making the record that all ranks compare.
namespace troupe::collectives {

[[nodiscard]] expected<void> check_blocks(std::size_t whole, std::size_t block, std::uint32_t world_size,
                                          const char* what);
[[nodiscard]] expected<void> check_elements(dtype type, std::size_t size_bytes);
[[nodiscard]] expected<void> check_partials(const bucket_layout& layout, const finish_plan& plan, std::uint32_t rank,
                                            std::span<const leaf_partial> partials, std::uint64_t divisor);
[[nodiscard]] expected<void> check_contribution(const bucket_layout& layout, std::span<const std::byte> contribution,
                                                std::uint64_t divisor);

/// The plan of a `reduce_leaves`, kept between calls.
struct leaves_plan {
  std::uint32_t shards = 0;
  std::vector<shard_range> ownership;
  std::shared_ptr<const finish_plan> finish;

  /// Plans again if the arguments are not those of the last call.
  [[nodiscard]] expected<void> refresh(std::uint32_t shards, std::span<const shard_range> ownership,
                                       std::uint32_t world_size);
};

/// Replaces an empty list by one part that covers the bucket.
[[nodiscard]] expected<void> check_parts(const bucket_layout& layout, std::vector<byte_range>& parts);

/// A digest of what `reduce_leaves` and `all_reduce_fast` must agree on besides sizes.
[[nodiscard]] std::uint64_t digest_of(const bucket_layout& layout, std::uint32_t shards,
                                      std::span<const shard_range> ownership, std::uint64_t divisor, byte_range part);

[[nodiscard]] call_record reduction_call(call_kind kind, dtype type, reduce_op op, std::size_t size_bytes);
[[nodiscard]] call_record moving_call(call_kind kind, std::size_t size_bytes,
                                      std::uint32_t peer = call_record::every_peer);

/// Cuts `whole` into `pieces` of nearly equal size, on multiples of `granule_bytes` from its start.
[[nodiscard]] std::vector<byte_range> cut_evenly(byte_range whole, std::uint32_t pieces, std::uint64_t granule_bytes);

/// Checks that `result` has the type that this group makes, fits the layout and has this part.
template <class Own, class Bucket>
[[nodiscard]] expected<void> check_made_here(Bucket& result, const bucket_layout& layout, std::size_t part) {
  if (dynamic_cast<Own*>(&result) == nullptr || result.bytes().size() != layout.size_bytes())
    return fail(errc::invalid_argument, fmt::format("the result has {} bytes and the layout {}, or another kind of "
                                                    "group made the result; use this group's make_bucket",
                                                    result.bytes().size(), layout.size_bytes()));
  if (part >= result.parts().size())
    return fail(errc::invalid_argument,
                fmt::format("the bucket has no part {}; it has {} parts", part, result.parts().size()));
  return {};
}

} // namespace troupe::collectives
