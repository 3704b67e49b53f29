#pragma once

#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/collectives/summation_tree.hpp>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

namespace troupe::collectives::testing {

/// A hash of its arguments; distinct per shard and element.
inline std::uint64_t mix(std::uint64_t shard, std::uint64_t element) {
  auto x = shard * 0x9e3779b97f4a7c15u + element + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// A contribution whose sum depends on the order, with every kind of special value at some places.
template <class T>
T contribution(std::uint64_t shard, std::uint64_t element) {
  const auto bits = mix(shard, element);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    using limits = std::numeric_limits<T>;
    switch (element % 16) {
    case 0:
      return bits % 2 == 0 ? limits::denorm_min() * static_cast<T>(bits % 100) : -limits::min() / 2;
    case 1:
      return -T{0};
    case 2:
      return shard % 5 == 3 ? -limits::quiet_NaN() : T{1};
    case 3:
      return shard % 2 == 0 ? limits::infinity() : T{1};
    case 4:
      return bits % 2 == 0 ? limits::infinity() : -limits::infinity();
    case 5:
      return limits::max() * (bits % 2 == 0 ? T{1} : T{-1});
    default:
      return static_cast<T>(static_cast<std::int64_t>(bits)) * (bits % 3 == 0 ? T{1e-9} : T{1});
    }
  }
}

template <class T>
void add_contribution(std::byte* at, std::uint64_t shard, std::uint64_t elements, std::uint64_t salt) {
  auto* x = reinterpret_cast<T*>(at);
  for (std::uint64_t i = 0; i < elements; ++i)
    x[i] = x[i] + contribution<T>(shard + salt * 1000, i);
}

/// Adds the contribution of one shard to a bucket, as a user's backward pass does.
inline void add_shard(const bucket_layout& layout, std::uint32_t shard, std::span<std::byte> bucket) {
  for (std::size_t i = 0; i < layout.segments().size(); ++i) {
    const auto [type, elements] = layout.segments()[i];
    auto* at = bucket.data() + layout.offset_bytes(i);
    if (type == dtype::f32)
      add_contribution<float>(at, shard, elements, i);
    else if (type == dtype::f64)
      add_contribution<double>(at, shard, elements, i);
    else
      add_contribution<std::int64_t>(at, shard, elements, i);
  }
}

template <class T>
T tree_sum(std::uint32_t shards, tree_node node, std::uint64_t salt, std::uint64_t element) {
  if (node.level == 0) {
    if constexpr (std::is_integral_v<T>)
      return contribution<T>(node.index + salt * 1000, element);
    else
      return T{0} + contribution<T>(node.index + salt * 1000, element);
  }
  const auto left = tree_sum<T>(shards, {node.level - 1, 2 * node.index}, salt, element);
  const tree_node right{node.level - 1, 2 * node.index + 1};
  if (covered_shards(shards, right).size() == 0)
    return left;
  const auto other = tree_sum<T>(shards, right, salt, element);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(left) + static_cast<std::uint64_t>(other));
  } else {
    const auto sum = left + other;
    return sum == sum ? sum : std::numeric_limits<T>::quiet_NaN();
  }
}

template <class T>
void write_tree_sum(std::byte* at, std::uint32_t shards, tree_node node, std::uint64_t elements, std::uint64_t salt) {
  for (std::uint64_t i = 0; i < elements; ++i) {
    const auto value = tree_sum<T>(shards, node, salt, i);
    std::memcpy(at + i * sizeof(T), &value, sizeof(T));
  }
}

/// The sum under a node by plain recursion, element by element: the definition, and nothing else.
inline std::vector<std::byte> reference_sum(const bucket_layout& layout, std::uint32_t shards, tree_node node) {
  std::vector<std::byte> result(layout.size_bytes());
  for (std::size_t i = 0; i < layout.segments().size(); ++i) {
    const auto [type, elements] = layout.segments()[i];
    auto* at = result.data() + layout.offset_bytes(i);
    if (type == dtype::f32)
      write_tree_sum<float>(at, shards, node, elements, i);
    else if (type == dtype::f64)
      write_tree_sum<double>(at, shards, node, elements, i);
    else
      write_tree_sum<std::int64_t>(at, shards, node, elements, i);
  }
  return result;
}

/// Layouts of one type, of several, and of nothing.
inline std::vector<bucket_layout> test_layouts() {
  return {bucket_layout{}, bucket_layout{{{dtype::f32, 1}}}, bucket_layout{{{dtype::f32, 3001}}},
          bucket_layout{{{dtype::f64, 1537}}},
          bucket_layout{{{dtype::f32, 700}, {dtype::f64, 333}, {dtype::i64, 91}, {dtype::f32, 0}, {dtype::f32, 1000}}}};
}

} // namespace troupe::collectives::testing
