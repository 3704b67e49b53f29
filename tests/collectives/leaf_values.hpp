#pragma once

#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/collectives/summation_tree.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

namespace troupe::collectives::testing {

/// A 16-bit float by its definition, slowly and in double: a sign, `ExponentBits`, and the mantissa.
template <int ExponentBits>
struct half {
  static constexpr int mantissa_bits = 15 - ExponentBits;
  static constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  static constexpr std::uint16_t infinity = ((1 << ExponentBits) - 1) << mantissa_bits;
  static constexpr std::uint16_t canonical_nan = infinity | 1 << (mantissa_bits - 1);
  static constexpr std::uint16_t largest = infinity - 1;

  std::uint16_t bits = 0;

  bool is_nan() const { return (bits & 0x7fff) > infinity; }

  double value() const {
    const auto sign = bits >> 15 != 0 ? -1.0 : 1.0;
    const auto exponent = (bits & 0x7fff) >> mantissa_bits;
    const auto mantissa = bits & ((1 << mantissa_bits) - 1);
    if (is_nan())
      return std::numeric_limits<double>::quiet_NaN();
    if ((bits & 0x7fff) == infinity)
      return sign * std::numeric_limits<double>::infinity();
    if (exponent == 0)
      return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }

  /// To nearest, ties to even.
  static half nearest(double x) {
    if (std::isnan(x))
      return {canonical_nan};
    const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const auto size = std::fabs(x);
    if (std::isinf(size))
      return {static_cast<std::uint16_t>(sign | infinity)};
    const auto exponent = size == 0 ? 1 - bias : std::max(std::ilogb(size), 1 - bias);
    // In steps of the type at this magnitude; a quotient by a power of two is exact.
    const auto steps = std::ldexp(size, mantissa_bits - exponent);
    auto whole = std::floor(steps);
    const auto rest = steps - whole;
    if (rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2) != 0))
      whole += 1;
    const auto rounded = std::ldexp(whole, exponent - mantissa_bits);
    if (rounded > half{largest}.value())
      return {static_cast<std::uint16_t>(sign | infinity)};
    // At the smallest magnitude the number of steps is the bits of a subnormal; each higher binade adds its number of
    // steps.
    const auto binade = rounded == 0 ? 1 - bias : std::max(std::ilogb(rounded), 1 - bias);
    const auto position = std::ldexp(rounded, mantissa_bits - binade);
    const auto binades_below = binade - (1 - bias);
    return {static_cast<std::uint16_t>(sign + static_cast<int>(position) + (binades_below << mantissa_bits))};
  }
};

using f16 = half<5>;
using bf16 = half<8>;

template <class T>
inline constexpr bool is_half = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

/// The type in which `T` is added.
template <class T>
using sum_of = std::conditional_t<is_half<T>, float, T>;

/// Calls `f` with a value of the element type.
template <class F>
void with_value(dtype type, F f) {
  if (type == dtype::f32)
    f(float{});
  else if (type == dtype::f64)
    f(double{});
  else if (type == dtype::f16)
    f(f16{});
  else if (type == dtype::bf16)
    f(bf16{});
  else
    f(std::int64_t{});
}

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

/// The same for 16-bit floats. Sums of elements 6 overflow f16 but not f32; those of elements 7 lose their small terms
/// if each step is rounded.
template <class T>
requires is_half<T> T contribution(std::uint64_t shard, std::uint64_t element) {
  const auto bits = mix(shard, element);
  const std::uint16_t sign = bits % 2 == 0 ? 0 : 0x8000;
  const auto or_sign = [sign](int x) { return T{static_cast<std::uint16_t>(x | sign)}; };
  switch (element % 16) {
  case 0:
    return or_sign(static_cast<int>(bits / 2 % (1 << T::mantissa_bits)));
  case 1:
    return T{0x8000};
  case 2:
    return shard % 5 == 3 ? T{0xffff} : T::nearest(1);
  case 3:
    return shard % 2 == 0 ? T{T::infinity} : T::nearest(1);
  case 4:
    return or_sign(T::infinity);
  case 5:
    return or_sign(T::largest);
  case 6:
    return T{T::largest};
  case 7:
    return T::nearest(shard % 8 == 0 ? 2 << T::mantissa_bits : 1);
  default:
    return or_sign(
        static_cast<int>((T::bias - 4 + bits / 2 % 8) << T::mantissa_bits | bits / 16 % (1 << T::mantissa_bits)));
  }
}

template <class T>
void add_contribution(std::byte* at, std::uint64_t shard, std::uint64_t elements, std::uint64_t salt) {
  auto* x = reinterpret_cast<T*>(at);
  for (std::uint64_t i = 0; i < elements; ++i)
    if constexpr (is_half<T>)
      x[i] = T::nearest(x[i].value() + contribution<T>(shard + salt * 1000, i).value());
    else
      x[i] = x[i] + contribution<T>(shard + salt * 1000, i);
}

/// Adds one shard's contribution to a bucket, as a user's backward pass does.
inline void add_shard(const bucket_layout& layout, std::uint32_t shard, std::span<std::byte> bucket) {
  for (std::size_t i = 0; i < layout.segments().size(); ++i) {
    const auto [type, elements] = layout.segments()[i];
    with_value(type, [&, elements = elements]<class T>(T) {
      add_contribution<T>(bucket.data() + layout.offset_bytes(i), shard, elements, i);
    });
  }
}

template <class T>
sum_of<T> tree_sum(std::uint32_t shards, tree_node node, std::uint64_t salt, std::uint64_t element) {
  if (node.level == 0) {
    const auto leaf = contribution<T>(node.index + salt * 1000, element);
    if constexpr (std::is_integral_v<T>)
      return leaf;
    else if constexpr (is_half<T>)
      return 0.0f + static_cast<float>(leaf.value());
    else
      return T{0} + leaf;
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
    return sum == sum ? sum : std::numeric_limits<sum_of<T>>::quiet_NaN();
  }
}

/// `finish` converts the tree's sum to what is stored.
template <class T, class F>
void write_tree_sum(std::byte* at, std::uint32_t shards, tree_node node, std::uint64_t elements, std::uint64_t salt,
                    F finish) {
  for (std::uint64_t i = 0; i < elements; ++i) {
    const auto value = finish(tree_sum<T>(shards, node, salt, i));
    std::memcpy(at + i * sizeof(value), &value, sizeof(value));
  }
}

/// The sum under a node by plain recursion, element by element: the definition, and nothing else. A bucket of
/// `layout.sums()`.
inline std::vector<std::byte> reference_sum(const bucket_layout& layout, std::uint32_t shards, tree_node node) {
  const auto sums = layout.sums();
  std::vector<std::byte> result(sums.size_bytes());
  for (std::size_t i = 0; i < layout.segments().size(); ++i) {
    const auto [type, elements] = layout.segments()[i];
    with_value(type, [&, elements = elements]<class T>(T) {
      write_tree_sum<T>(result.data() + sums.offset_bytes(i), shards, node, elements, i, [](auto sum) { return sum; });
    });
  }
  return result;
}

/// What `reduce_leaves` gives: the sum over all shards, divided once and rounded once. A bucket of `layout`.
inline std::vector<std::byte> reference_root(const bucket_layout& layout, std::uint32_t shards,
                                             std::uint64_t divisor = 1) {
  std::vector<std::byte> result(layout.size_bytes());
  for (std::size_t i = 0; i < layout.segments().size(); ++i) {
    const auto [type, elements] = layout.segments()[i];
    with_value(type, [&, elements = elements]<class T>(T) {
      const auto finish = [divisor](sum_of<T> sum) -> T {
        const auto by = static_cast<sum_of<T>>(divisor);
        const auto quotient = divisor == 1 ? sum : static_cast<sum_of<T>>(sum / by);
        if constexpr (is_half<T>)
          return T::nearest(quotient);
        else if (divisor != 1 && quotient != quotient)
          return std::numeric_limits<T>::quiet_NaN();
        else
          return quotient;
      };
      write_tree_sum<T>(result.data() + layout.offset_bytes(i), shards, {root_level(shards), 0}, elements, i, finish);
    });
  }
  return result;
}

/// Layouts of one type, of several, and of nothing.
inline std::vector<bucket_layout> test_layouts() {
  return {bucket_layout{},
          bucket_layout{{{dtype::f32, 1}}},
          bucket_layout{{{dtype::f32, 3001}}},
          bucket_layout{{{dtype::f64, 1537}}},
          bucket_layout{{{dtype::f16, 1}}},
          bucket_layout{{{dtype::f16, 1501}}},
          bucket_layout{{{dtype::bf16, 1502}}},
          bucket_layout{{{dtype::f32, 700}, {dtype::f64, 333}, {dtype::i64, 91}, {dtype::f32, 0}, {dtype::f32, 1000}}},
          bucket_layout{{{dtype::f32, 100}, {dtype::bf16, 345}, {dtype::f16, 0}, {dtype::i64, 9}, {dtype::f16, 700}}}};
}

} // namespace troupe::collectives::testing
