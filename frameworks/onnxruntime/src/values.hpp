#pragma once

#include "library.hpp"

#include <troupe/dtype.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

/// Numbers in ONNX Runtime's types.
namespace troupe::onnxruntime {

/// The corresponding type; empty for texts, complex numbers, and floats of 16 bits or fewer.
[[nodiscard]] std::optional<dtype> dtype_from(element_type type) noexcept;

/// Appends numbers as elements of another type. A number that the type cannot have is undefined for floating-point
/// numbers out of an integer's range, as in C++. Fails with `errc::mismatch` for types that `dtype_from` does not give.
[[nodiscard]] expected<void> convert(std::span<const std::byte> from, dtype from_type, dtype to_type,
                                     std::byte* target);

} // namespace troupe::onnxruntime
