#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

// nvcc compiles this too, as C++17: the functions are device functions there and plain ones on the host.
#if defined(__CUDACC__)
#define TROUPE_HOST_DEVICE __host__ __device__
#else
#define TROUPE_HOST_DEVICE
#endif

/// The arithmetic of a sum on single elements, for kernels. It gives the bits of reduction.cpp and half.hpp, which are
/// written for the host's vector units; a test compares them. No result depends on fused operations or flushed
/// subnormals; both are switched off for kernels.
namespace troupe::collectives::arithmetic {

template <class To, class From>
TROUPE_HOST_DEVICE inline To bits_as(From x) noexcept {
  static_assert(sizeof(To) == sizeof(From), "bits of another size");
  To result;
  std::memcpy(&result, &x, sizeof(result));
  return result;
}

/// The type in which `T` is added and multiplied: signed overflow is undefined, unsigned wraps.
template <class T>
using wrapping = std::conditional_t<std::is_floating_point_v<T>, T, std::uint64_t>;

TROUPE_HOST_DEVICE inline float canonical(float x) noexcept {
  return x == x ? x : bits_as<float>(std::uint32_t{0x7fc00000});
}
TROUPE_HOST_DEVICE inline double canonical(double x) noexcept {
  return x == x ? x : bits_as<double>(std::uint64_t{0x7ff8000000000000});
}
template <class T>
TROUPE_HOST_DEVICE inline std::enable_if_t<std::is_integral_v<T>, T> canonical(T x) noexcept {
  return x;
}

struct add {
  template <class T>
  TROUPE_HOST_DEVICE T operator()(T x, T y) const noexcept {
    return static_cast<T>(static_cast<wrapping<T>>(x) + static_cast<wrapping<T>>(y));
  }
};

struct multiply {
  template <class T>
  TROUPE_HOST_DEVICE T operator()(T x, T y) const noexcept {
    return static_cast<T>(static_cast<wrapping<T>>(x) * static_cast<wrapping<T>>(y));
  }
};

/// A number with the order of `x`, where -0 is below +0.
TROUPE_HOST_DEVICE inline std::int32_t order_of(float x) noexcept {
  const auto bits = bits_as<std::int32_t>(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
TROUPE_HOST_DEVICE inline std::int64_t order_of(double x) noexcept {
  const auto bits = bits_as<std::int64_t>(x);
  return bits ^ ((bits >> 63) & 0x7fffffffffffffff);
}
template <class T>
TROUPE_HOST_DEVICE inline std::enable_if_t<std::is_integral_v<T>, T> order_of(T x) noexcept {
  return x;
}

struct lesser {
  template <class T>
  TROUPE_HOST_DEVICE T operator()(T x, T y) const noexcept {
    return x != x ? x : y != y ? y : order_of(x) < order_of(y) ? x : y;
  }
};

struct greater {
  template <class T>
  TROUPE_HOST_DEVICE T operator()(T x, T y) const noexcept {
    return x != x ? x : y != y ? y : order_of(x) > order_of(y) ? x : y;
  }
};

/// The balanced tree over `N` values, neighbours first.
template <int N>
struct tree {
  template <class T, class F>
  TROUPE_HOST_DEVICE static T of(const T* x, F f) noexcept {
    return f(tree<N / 2>::of(x, f), tree<N / 2>::of(x + N / 2, f));
  }
};
template <>
struct tree<1> {
  template <class T, class F>
  TROUPE_HOST_DEVICE static T of(const T* x, F) noexcept {
    return *x;
  }
};

/// The sum over `N` operands. A single operand keeps its bits, including those of a NaN.
template <int N, class T, class F>
TROUPE_HOST_DEVICE inline T combined(const T* x, F f) noexcept {
  if constexpr (N == 1)
    return *x;
  else
    return canonical(tree<N>::of(x, f));
}

/// Divides integers by magnitude: the divisor may exceed the type. Not for a divisor of 1, which must keep the bits.
template <class T>
TROUPE_HOST_DEVICE inline T quotient(T x, wrapping<T> divisor) noexcept {
  if constexpr (std::is_floating_point_v<T>) {
    return canonical(x / divisor);
  } else if constexpr (std::is_signed_v<T>) {
    const auto bits = static_cast<std::uint64_t>(x);
    return static_cast<T>(x < 0 ? 0 - (0 - bits) / divisor : bits / divisor);
  } else {
    return static_cast<T>(static_cast<std::uint64_t>(x) / divisor);
  }
}

/// 16-bit floats are stored as bits, each in its own type.
struct f16 {
  std::uint16_t bits;
};
struct bf16 {
  std::uint16_t bits;
};

TROUPE_HOST_DEVICE inline float widened(bf16 x) noexcept {
  return bits_as<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

TROUPE_HOST_DEVICE inline float widened(f16 x) noexcept {
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  const auto sign = (x.bits & 0x8000u) << 16;
  if (magnitude < 0x0400)
    return bits_as<float>(bits_as<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f) | sign);
  const auto bias = magnitude < 0x7c00 ? 112u << 23 : 224u << 23;
  return bits_as<float>(((magnitude << 13) + bias) | sign);
}

/// Rounds to nearest, ties to even; every NaN becomes the canonical one. A carry out of the mantissa gives the next
/// exponent, and after the last one infinity.
template <class To>
TROUPE_HOST_DEVICE To narrowed(float x) noexcept;

template <>
TROUPE_HOST_DEVICE inline bf16 narrowed<bf16>(float x) noexcept {
  const auto bits = bits_as<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return {0x7fc0};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

template <>
TROUPE_HOST_DEVICE inline f16 narrowed<f16>(float x) noexcept {
  const auto bits = bits_as<std::uint32_t>(x);
  const auto magnitude = bits & 0x7fffffffu;
  const auto sign = bits >> 16 & 0x8000u;
  if (magnitude > 0x7f800000u)
    return {0x7e00};
  // 2^16 and above get infinity's exponent when shifted. 0.5 has the step of subnormal halves in its last place, so the
  // sum is rounded there.
  const auto clipped = magnitude < 0x47800000u ? magnitude : 0x47800000u;
  const auto result = magnitude < 0x38800000u ? bits_as<std::uint32_t>(bits_as<float>(clipped) + 0.5f) - 0x3f000000u
                                              : (clipped - (112u << 23) + 0xfffu + (clipped >> 13 & 1u)) >> 13;
  return {static_cast<std::uint16_t>(result | sign)};
}

/// A finished sum as it is stored: divided unless the divisor is 1, then rounded.
template <class Out, class T>
TROUPE_HOST_DEVICE inline Out finished(T sum, bool divides, wrapping<T> divisor) noexcept {
  if (divides)
    sum = quotient(sum, divisor);
  if constexpr (std::is_same_v<Out, T>)
    return sum;
  else
    return narrowed<Out>(sum);
}

} // namespace troupe::collectives::arithmetic
