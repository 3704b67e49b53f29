#pragma once

#include <troupe/data/loader.hpp>
#include <troupe/data_order.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace troupe::testing {

using namespace troupe::data;

inline constexpr std::uint32_t shards = 8;
inline constexpr std::uint64_t seed = 3;

/// Uses a loader as a worker does, on a data set whose samples are their own numbers.
struct worker {
  loader batches;
  data_order order;

  worker(data_set_ptr set, loader_options options)
      : batches(std::move(set), options, shards, seed),
        order(batches.epoch_samples(), options.batch_samples, shards, seed, options.order) {}

  std::vector<std::uint64_t> samples_of(std::uint64_t step, std::uint32_t shard) const {
    std::vector<std::uint64_t> result;
    order.samples_of(step_id{step}, shard_id{shard}, result);
    return result;
  }

  expected<const batch*> ask(std::uint64_t step, std::uint32_t shard) {
    return batches.fetch(step_id{step}, shard_id{shard}, samples_of(step, shard));
  }

  std::vector<std::uint64_t> get(std::uint64_t step, std::uint32_t shard) {
    auto values = value_or_throw(ask(step, shard))->values<std::int64_t>("number");
    return {values.begin(), values.end()};
  }
};

} // namespace troupe::testing
