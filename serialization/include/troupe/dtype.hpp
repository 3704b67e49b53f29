#pragma once

#include <troupe/inspect.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

namespace troupe {

/// The type of a tensor's elements. The numbers are part of the checkpoint and wire formats: append only.
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

TROUPE_INSPECT_ENUM(dtype, f32, u64)

/// The size of one element in bytes.
[[nodiscard]] std::size_t size_of(dtype type) noexcept;

/// The name used in error messages and manifests: "f32", "bf16", "bool".
[[nodiscard]] std::string_view to_string(dtype type) noexcept;

/// The inverse of `to_string`; `nullopt` for an unknown name.
[[nodiscard]] std::optional<dtype> parse_dtype(std::string_view name) noexcept;

/// Whether `value` is the number of an enumerator. Bytes from a file or a peer can hold any value.
[[nodiscard]] bool is_dtype(std::uint8_t value) noexcept;

template <class T>
constexpr dtype find_dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return dtype::f32;
  else if constexpr (std::is_same_v<T, double>)
    return dtype::f64;
  else if constexpr (std::is_same_v<T, std::int8_t>)
    return dtype::i8;
  else if constexpr (std::is_same_v<T, std::int16_t>)
    return dtype::i16;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return dtype::i32;
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return dtype::i64;
  else if constexpr (std::is_same_v<T, std::uint8_t>)
    return dtype::u8;
  else if constexpr (std::is_same_v<T, std::uint16_t>)
    return dtype::u16;
  else if constexpr (std::is_same_v<T, std::uint32_t>)
    return dtype::u32;
  else if constexpr (std::is_same_v<T, std::uint64_t>)
    return dtype::u64;
  else {
    static_assert(std::is_same_v<T, bool>, "no tensor has elements of this type");
    return dtype::boolean;
  }
}

/// The dtype of a C++ element type.
template <class T>
inline constexpr dtype dtype_of = find_dtype_of<T>();

} // namespace troupe
