#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace troupe {

/// The type of a tensor's elements. The numbers stand in checkpoints and on the wire: append only.
enum class dtype : std::uint8_t {
  f32 = 1,
  f64 = 2,
  f16 = 3,
  bf16 = 4,
  i32 = 5,
  i64 = 6,
  u8 = 7,
  i8 = 8,
  i16 = 9,
  boolean = 10,
  u16 = 11,
  u32 = 12,
  u64 = 13,
};

/// The size of one element in bytes.
[[nodiscard]] std::size_t size_of(dtype type) noexcept;

/// The name as it stands in error messages and manifests: "f32", "bf16", "bool".
[[nodiscard]] std::string_view to_string(dtype type) noexcept;

/// The inverse of `to_string`; nothing for a name that is none.
[[nodiscard]] std::optional<dtype> parse_dtype(std::string_view name) noexcept;

/// Whether `value` is the number of an enumerator (bytes from a file or a peer may hold any).
[[nodiscard]] bool is_dtype(std::uint8_t value) noexcept;

template <class T>
struct dtype_of_impl;
template <>
struct dtype_of_impl<float> {
  static constexpr dtype value = dtype::f32;
};
template <>
struct dtype_of_impl<double> {
  static constexpr dtype value = dtype::f64;
};
template <>
struct dtype_of_impl<std::int32_t> {
  static constexpr dtype value = dtype::i32;
};
template <>
struct dtype_of_impl<std::int64_t> {
  static constexpr dtype value = dtype::i64;
};
template <>
struct dtype_of_impl<std::uint8_t> {
  static constexpr dtype value = dtype::u8;
};
template <>
struct dtype_of_impl<std::int8_t> {
  static constexpr dtype value = dtype::i8;
};
template <>
struct dtype_of_impl<std::int16_t> {
  static constexpr dtype value = dtype::i16;
};
template <>
struct dtype_of_impl<std::uint16_t> {
  static constexpr dtype value = dtype::u16;
};
template <>
struct dtype_of_impl<std::uint32_t> {
  static constexpr dtype value = dtype::u32;
};
template <>
struct dtype_of_impl<std::uint64_t> {
  static constexpr dtype value = dtype::u64;
};
template <>
struct dtype_of_impl<bool> {
  static constexpr dtype value = dtype::boolean;
};

/// The dtype of a C++ element type.
template <class T>
inline constexpr dtype dtype_of = dtype_of_impl<T>::value;

} // namespace troupe
