#include "transport/call_checks.hpp"

#include <algorithm>
#include <bit>
#include <fmt/format.h>

namespace troupe::collectives {

namespace {

constexpr std::uint64_t part_granule_bytes = 4096;

expected<void> divided_by_nothing() {
  return fail(errc::invalid_argument, "a sum cannot be divided by 0; pass 1 to leave it unchanged");
}

} // namespace

expected<void> check_blocks(std::size_t whole, std::size_t block, std::uint32_t world_size, const char* what) {
  if (whole == block * world_size)
    return {};
  return fail(errc::invalid_argument,
              fmt::format("{}: {} bytes are not {} blocks of {} bytes; pass one block for each rank", what, whole,
                          world_size, block));
}

expected<void> check_elements(dtype type, std::size_t size_bytes) {
  TROUPE_TRY(check_reducible(type));
  if (size_bytes % size_of(type) == 0)
    return {};
  return fail(errc::invalid_argument, fmt::format("{} bytes are not whole elements of type {}; pass whole elements",
                                                  size_bytes, to_string(type)));
}

std::uint64_t digest_of(const bucket_layout& layout, std::uint32_t shards, std::span<const shard_range> ownership,
                        std::uint64_t divisor, byte_range part) {
  auto digest = std::uint64_t{0xcbf29ce484222325};
  const auto add = [&digest](std::uint64_t x) { digest = (std::rotl(digest, 5) ^ x) * 0x9e3779b97f4a7c15u; };
  for (const auto& segment : layout.segments()) {
    add(static_cast<std::uint64_t>(segment.type));
    add(segment.elements);
  }
  add(shards);
  for (auto range : ownership)
    add(std::uint64_t{range.first} << 32 | range.last);
  add(divisor);
  add(part.first);
  return digest;
}

call_record reduction_call(call_kind kind, dtype type, reduce_op op, std::size_t size_bytes) {
  call_record call;
  call.kind = kind;
  call.type = static_cast<std::uint8_t>(type);
  call.op = static_cast<std::uint8_t>(op);
  call.size_bytes = size_bytes;
  return call;
}

call_record moving_call(call_kind kind, std::size_t size_bytes, std::uint32_t peer) {
  call_record call;
  call.kind = kind;
  call.size_bytes = size_bytes;
  call.peer = peer;
  return call;
}

expected<void> check_partials(const bucket_layout& layout, const finish_plan& plan, std::uint32_t rank,
                              std::span<const leaf_partial> partials, std::uint64_t divisor) {
  TROUPE_TRY(check_reducible(layout));
  if (divisor == 0)
    return divided_by_nothing();
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
  return fail(errc::invalid_argument,
              fmt::format("reduce_leaves: rank {} owns {} subtrees but passed {} partial sums, which differ at number "
                          "{}; accumulate exactly the range in the ownership",
                          rank, plan.count_of(rank), partials.size(), position));
}

expected<void> check_contribution(const bucket_layout& layout, std::span<const std::byte> contribution,
                                  std::uint64_t divisor) {
  TROUPE_TRY(check_reducible(layout));
  if (divisor == 0)
    return divided_by_nothing();
  if (contribution.size() == layout.size_bytes())
    return {};
  return fail(errc::invalid_argument,
              fmt::format("all_reduce_fast: the contribution has {} bytes and the layout {}; they must be equal",
                          contribution.size(), layout.size_bytes()));
}

expected<void> leaves_plan::refresh(std::uint32_t new_shards, std::span<const shard_range> new_ownership,
                                    std::uint32_t world_size) {
  if (finish && shards == new_shards && std::ranges::equal(ownership, new_ownership))
    return {};
  if (new_ownership.size() != world_size)
    return fail(
        errc::invalid_argument,
        fmt::format(
            "reduce_leaves: the ownership has {} ranges and the group has {} ranks; pass one range for each rank",
            new_ownership.size(), world_size));
  TROUPE_TRY(auto plan, plan_finish(new_shards, new_ownership));
  *this = {
      new_shards, {new_ownership.begin(), new_ownership.end()}, std::make_shared<const finish_plan>(std::move(plan))};
  return {};
}

expected<void> check_parts(const bucket_layout& layout, std::vector<byte_range>& parts) {
  TROUPE_TRY(check_reducible(layout));
  if (parts.empty())
    parts.push_back({0, layout.size_bytes()});
  std::uint64_t next = 0;
  for (auto part : parts) {
    if (part.first != next || part.last < part.first || next % part_granule_bytes != 0)
      return fail(errc::invalid_argument,
                  fmt::format("the part of a bucket at byte {} does not follow the previous part, or does not start on "
                              "a multiple of {} bytes; use cut_bucket",
                              part.first, part_granule_bytes));
    next = part.last;
  }
  if (next == layout.size_bytes())
    return {};
  return fail(errc::invalid_argument,
              fmt::format("the parts of a bucket end at byte {} of {}; they must cover it", next, layout.size_bytes()));
}

std::vector<byte_range> cut_evenly(byte_range whole, std::uint32_t pieces, std::uint64_t granule_bytes) {
  const auto granules = (whole.size_bytes() + granule_bytes - 1) / granule_bytes;
  // Quotient and remainder separately, so that no product overflows.
  const auto bound = [&](std::uint64_t i) {
    const auto at = granules / pieces * i + granules % pieces * i / pieces;
    return std::min(whole.first + at * granule_bytes, whole.last);
  };
  std::vector<byte_range> result;
  for (std::uint32_t i = 0; i < pieces; ++i)
    result.push_back({bound(i), bound(std::uint64_t{i} + 1)});
  return result;
}

std::vector<byte_range> cut_bucket(const bucket_layout& layout, std::uint64_t part_bytes) {
  const auto pieces =
      std::max<std::uint64_t>(1, (layout.size_bytes() + part_bytes / 2) / std::max<std::uint64_t>(part_bytes, 1));
  const auto limit = std::max<std::uint64_t>(1, layout.size_bytes() / part_granule_bytes);
  return cut_evenly({0, layout.size_bytes()},
                    static_cast<std::uint32_t>(std::min({pieces, limit, std::uint64_t{4096}})), part_granule_bytes);
}

} // namespace troupe::collectives
