#include "device/schedule.hpp"
#include "device_cases.hpp"
#include "tree/tree_reduction.hpp"

#include <deque>
#include <doctest/doctest.h>
#include <map>

// Executes the schedule between devices in host memory: what it moves and finishes must give the sum.

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

struct fake_rank {
  /// Whole buckets of sums, by position.
  std::vector<std::vector<std::byte>> partials;
  std::vector<std::byte> received;
  std::vector<std::byte> result;
  device_schedule schedule;
};

/// Every rank's result.
std::vector<std::vector<std::byte>> execute(const bucket_layout& layout, std::uint32_t shards,
                                            const std::vector<shard_range>& ownership,
                                            const std::vector<byte_range>& parts) {
  const auto plan = value_or_throw(plan_finish(shards, ownership));
  const auto sums = layout.sums();
  const auto n = static_cast<std::uint32_t>(ownership.size());
  std::vector<fake_rank> ranks(n);
  for (std::uint32_t r = 0; r < n; ++r) {
    ranks[r].result.resize(layout.size_bytes());
    for (const auto& node : maximal_nodes(shards, ownership[r]))
      ranks[r].partials.push_back(reference_sum(layout, shards, node));
  }
  for (auto part : parts) {
    // Messages by sender and receiver, in order, as NCCL matches them.
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<std::span<const std::byte>>> mail;
    for (std::uint32_t r = 0; r < n; ++r) {
      auto& rank = ranks[r];
      rank.schedule = plan_device_schedule(plan, layout, part, n, r);
      rank.received.assign(rank.schedule.received_bytes, std::byte{0xee});
      for (const auto& x : rank.schedule.sends)
        mail[{r, x.peer}].push_back(
            std::span<const std::byte>{rank.partials[x.index]}.subspan(x.offset_bytes, x.size_bytes));
    }
    for (std::uint32_t r = 0; r < n; ++r) {
      auto& rank = ranks[r];
      for (const auto& x : rank.schedule.receives) {
        auto& queue = mail[{x.peer, r}];
        REQUIRE(!queue.empty());
        REQUIRE(queue.front().size() == x.size_bytes);
        std::ranges::copy(queue.front(), rank.received.begin() + static_cast<std::ptrdiff_t>(x.offset_bytes));
        queue.pop_front();
      }
      std::vector<const std::byte*> operands;
      for (const auto& x : rank.schedule.operands)
        operands.push_back(x.is_mine ? rank.partials[x.position].data() + x.offset_bytes
                                     : rank.received.data() + x.offset_bytes);
      const auto slice = rank.schedule.slices[r];
      std::byte* out = rank.result.data() + slice.first;
      slice_reducer reducer;
      if (slice.size_bytes() != 0)
        reducer.run({plan, layout, sums}, operands, slice.first, slice, {&out, 1});
    }
    for (const auto& [between, queue] : mail)
      CHECK(queue.empty());
    for (std::uint32_t r = 0; r < n; ++r)
      for (std::uint32_t peer = 0; ranks[r].schedule.is_spread && peer < n; ++peer) {
        const auto slice = ranks[peer].schedule.slices[peer];
        CHECK(ranks[r].schedule.slices[peer] == slice);
        if (ranks[r].schedule.is_even)
          CHECK(slice.size_bytes() * n == part.size_bytes());
        std::copy_n(ranks[peer].result.begin() + static_cast<std::ptrdiff_t>(slice.first), slice.size_bytes(),
                    ranks[r].result.begin() + static_cast<std::ptrdiff_t>(slice.first));
      }
  }
  std::vector<std::vector<std::byte>> results;
  for (auto& rank : ranks)
    results.push_back(std::move(rank.result));
  return results;
}

} // namespace

TEST_CASE("the schedule moves and finishes the sum, for worlds of 1 to 8 and every ownership") {
  std::mt19937 random{17};
  std::vector<bucket_layout> layouts = {
      bucket_layout{{{dtype::f32, 10}}}, bucket_layout{{{dtype::f32, 8192}}},
      bucket_layout{{{dtype::f16, 9000}, {dtype::f32, 5000}, {dtype::i64, 7}, {dtype::bf16, 2001}}}};
  for (const auto& layout : layouts)
    for (std::uint32_t shards : {1u, 8u, 13u}) {
      const auto wanted = reference_root(layout, shards);
      for (std::uint32_t world_size = 1; world_size <= 8; ++world_size)
        for (int i = 0; i < 3; ++i) {
          const auto ownership =
              i == 0 ? even_ownership(shards, world_size) : random_ownership(shards, world_size, random);
          INFO("bytes ", layout.size_bytes(), ", shards ", shards, ", ranks ", world_size, ", ownership ", i);
          for (const auto& found : execute(layout, shards, ownership, cut_bucket(layout, i == 2 ? 20480 : UINT64_MAX)))
            CHECK(found == wanted);
        }
    }
}

TEST_CASE("a small part goes to every rank in one round, and a large one costs what a ring costs") {
  const bucket_layout small{{{dtype::f32, 1024}}};
  const auto plan = value_or_throw(plan_finish(8, even_ownership(8, 4)));
  const auto one_round = plan_device_schedule(plan, small, {0, small.size_bytes()}, 4, 2);
  CHECK(!one_round.is_spread);
  CHECK(one_round.sends.size() == 3);
  const bucket_layout large{{{dtype::f32, 1 << 20}}};
  const auto two_rounds = plan_device_schedule(plan, large, {0, large.size_bytes()}, 4, 2);
  CHECK(two_rounds.is_spread);
  CHECK(two_rounds.is_even);
  std::uint64_t sent = 0;
  for (const auto& x : two_rounds.sends)
    sent += x.size_bytes;
  CHECK(sent == large.size_bytes() / 4 * 3);
  CHECK(two_rounds.received_bytes == large.size_bytes() / 4 * 3);
}
