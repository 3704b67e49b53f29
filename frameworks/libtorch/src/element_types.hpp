#pragma once

#include <troupe/dtype.hpp>

#include <c10/core/ScalarType.h>

#include <array>
#include <optional>
#include <utility>

namespace troupe::libtorch {

/// The types that Troupe and LibTorch share.
inline constexpr std::array<std::pair<dtype, c10::ScalarType>, 10> element_types{{
    {dtype::f32, c10::ScalarType::Float},
    {dtype::f64, c10::ScalarType::Double},
    {dtype::f16, c10::ScalarType::Half},
    {dtype::bf16, c10::ScalarType::BFloat16},
    {dtype::i32, c10::ScalarType::Int},
    {dtype::i64, c10::ScalarType::Long},
    {dtype::u8, c10::ScalarType::Byte},
    {dtype::i8, c10::ScalarType::Char},
    {dtype::i16, c10::ScalarType::Short},
    {dtype::boolean, c10::ScalarType::Bool},
}};

[[nodiscard]] inline std::optional<dtype> dtype_from(c10::ScalarType type) {
  for (auto [ours, theirs] : element_types)
    if (theirs == type)
      return ours;
  return std::nullopt;
}

[[nodiscard]] inline std::optional<c10::ScalarType> scalar_type_from(dtype type) {
  for (auto [ours, theirs] : element_types)
    if (ours == type)
      return theirs;
  return std::nullopt;
}

} // namespace troupe::libtorch
