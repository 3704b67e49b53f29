#pragma once

#include "leaf_values.hpp"

#include <troupe/collectives/communicator.hpp>
#include <troupe/collectives/device_group.hpp>
#include <troupe/error.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

/// One step of a worker whose gradients are in device memory, for fake and real devices.
namespace troupe::collectives::testing {

struct device_case {
  bucket_layout layout;
  std::uint32_t shards = 1;
  std::vector<shard_range> ownership;
  std::uint64_t divisor = 1;
  /// By default a whole bucket at a time.
  std::uint64_t part_bytes = UINT64_MAX;
  int steps = 2;
};

inline std::vector<std::byte> download(const std::shared_ptr<device>& where, device_span<const std::byte> from) {
  auto stream = value_or_throw(device_stream::make(where));
  auto pinned = value_or_throw(pinned_memory::make(where, std::max<std::size_t>(from.size(), 1)));
  value_or_throw(stream.copy(pinned.data(), from.address(), from.size()));
  value_or_throw(stream.synchronize());
  return {pinned.data(), pinned.data() + from.size()};
}

/// Adds every shard's contribution along the tree and reduces it in parts, each as soon as it is finished. Throws on an
/// error.
inline std::vector<std::byte> reduce_on_device(device_group& group, const device_case& x) {
  const auto& where = group.where();
  const auto range = x.ownership[group.rank().value];
  auto stream = value_or_throw(device_stream::make(where));
  auto ready = value_or_throw(device_event::make(where));
  auto sums = value_or_throw(device_leaf_accumulator::make(
      where, x.layout, x.shards, [&](std::uint64_t size_bytes) { return group.allocate(size_bytes); }));
  auto result = value_or_throw(group.make_bucket(x.layout, cut_bucket(x.layout, x.part_bytes)));
  const auto size_bytes = x.layout.size_bytes();
  // Each shard has its own contribution, because the stream reads them later.
  auto host = value_or_throw(pinned_memory::make(where, std::max<std::uint64_t>(size_bytes * range.size(), 1)));
  // At least two steps: the later ones find the memory as the first left it.
  for (int step = 0; step < x.steps; ++step) {
    sums.begin(range);
    for (auto shard = range.first; shard < range.last; ++shard) {
      auto* contribution = host.data() + (shard - range.first) * size_bytes;
      std::fill_n(contribution, size_bytes, std::byte{0});
      add_shard(x.layout, shard, {contribution, size_bytes});
      auto bucket = value_or_throw(sums.next(shard_id{shard}, stream));
      value_or_throw(stream.copy(bucket.address(), contribution, size_bytes));
    }
    value_or_throw(sums.close(stream));
    for (std::size_t part = 0; part < result->parts().size(); ++part) {
      value_or_throw(sums.finish(result->parts()[part], stream));
      value_or_throw(ready.record(stream));
      value_or_throw(
          group.reduce_leaves(x.layout, x.shards, x.ownership, sums.partials(), *result, ready, x.divisor, part));
    }
    value_or_throw(group.finish());
  }
  return download(where, result->bytes());
}

/// Contributions whose sum is the same in every order of additions: small whole numbers.
inline void add_small_numbers(const bucket_layout& layout, std::uint64_t salt, std::span<std::byte> bucket) {
  for (std::size_t i = 0; i < layout.segments().size(); ++i) {
    const auto [type, elements] = layout.segments()[i];
    with_value(type, [&, elements = elements]<class T>(T) {
      auto* at = reinterpret_cast<T*>(bucket.data() + layout.offset_bytes(i));
      for (std::uint64_t e = 0; e < elements; ++e) {
        const auto value = static_cast<int>(mix(salt, e) % 16);
        if constexpr (is_half<T>)
          at[e] = T::nearest(value);
        else
          at[e] = static_cast<T>(value);
      }
    });
  }
}

/// One contribution per rank, summed in the group's own order, divided by 2.
inline std::vector<std::byte> reduce_fast_on_device(device_group& group, const bucket_layout& layout) {
  const auto& where = group.where();
  auto stream = value_or_throw(device_stream::make(where));
  auto ready = value_or_throw(device_event::make(where));
  auto result = value_or_throw(group.make_bucket(layout, cut_bucket(layout, 8192)));
  const auto size_bytes = layout.size_bytes();
  auto host = value_or_throw(pinned_memory::make(where, std::max<std::uint64_t>(size_bytes, 1)));
  auto contribution = value_or_throw(group.allocate(std::max<std::uint64_t>(size_bytes, 64)));
  std::fill_n(host.data(), size_bytes, std::byte{0});
  add_small_numbers(layout, group.rank().value, {host.data(), size_bytes});
  value_or_throw(stream.copy(contribution.address(), host.data(), size_bytes));
  value_or_throw(ready.record(stream));
  for (std::size_t part = 0; part < result->parts().size(); ++part)
    value_or_throw(group.all_reduce_fast(layout, contribution.bytes().first(size_bytes), *result, ready, 2, part));
  value_or_throw(group.finish());
  return download(where, result->bytes());
}

inline std::vector<std::byte> reference_fast(const bucket_layout& layout, std::uint32_t world_size) {
  std::vector<std::byte> result(layout.size_bytes());
  for (std::size_t i = 0; i < layout.segments().size(); ++i) {
    const auto [type, elements] = layout.segments()[i];
    with_value(type, [&, elements = elements]<class T>(T) {
      auto* at = reinterpret_cast<T*>(result.data() + layout.offset_bytes(i));
      for (std::uint64_t e = 0; e < elements; ++e) {
        std::uint64_t sum = 0;
        for (std::uint32_t rank = 0; rank < world_size; ++rank)
          sum += mix(rank, e) % 16;
        if constexpr (is_half<T>)
          at[e] = T::nearest(static_cast<double>(sum) / 2);
        else
          at[e] = static_cast<T>(static_cast<T>(sum) / 2);
      }
    });
  }
  return result;
}

inline std::vector<shard_range> random_ownership(std::uint32_t shards, std::uint32_t world_size, std::mt19937& random) {
  std::vector<std::uint32_t> cuts = {0, shards};
  for (std::uint32_t i = 1; i < world_size; ++i)
    cuts.push_back(std::uniform_int_distribution<std::uint32_t>{0, shards}(random));
  std::ranges::sort(cuts);
  std::vector<shard_range> result;
  for (std::uint32_t i = 0; i < world_size; ++i)
    result.push_back({cuts[i], cuts[i + 1]});
  std::ranges::shuffle(result, random);
  return result;
}

/// Buckets of several types. Some leave slices empty, others are cut into parts.
inline std::vector<bucket_layout> device_layouts() {
  auto result = test_layouts();
  result.push_back(bucket_layout{{{dtype::f16, 9000}, {dtype::f32, 9000}, {dtype::i64, 7}, {dtype::f64, 2}}});
  return result;
}

} // namespace troupe::collectives::testing
